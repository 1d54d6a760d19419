//! Servers that belong together: the nodes of a cluster, a master with replicas and sentinels.

use std::time::Duration;

use timertask_redis::{Options, Redis};

use super::{PATIENT, Server, until};

/// A cluster of masters, each with so many replicas.
pub struct Nodes {
    /// The masters come first.
    pub servers: Vec<Server>,
    pub masters: usize,
}

/// How long a node may be silent before the others count it as lost.
const NODE_TIMEOUT: &str = "1000";

impl Nodes {
    /// Three masters.
    pub fn start() -> Self {
        Self::with_replicas(0, &[])
    }

    /// Three masters with replicas of their own, all started with further `arguments`.
    pub fn with_replicas(replicas: usize, arguments: &[&str]) -> Self {
        let masters = 3;
        let mut all = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT];
        all.extend(arguments);
        let servers: Vec<_> = (0..masters * (1 + replicas)).map(|_| Server::start_node(&all)).collect();
        let nodes = Self { servers, masters };
        for (n, server) in nodes.servers.iter().enumerate() {
            let epoch = (n + 1).to_string();
            let () = server.tell(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        for (n, (first, last)) in [("0", "5460"), ("5461", "10922"), ("10923", "16383")].iter().enumerate() {
            let () = nodes.servers[n].tell(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
        }
        let first = nodes.servers[0].port().to_string();
        for server in &nodes.servers[1..] {
            let () = server.tell(&["CLUSTER", "MEET", "127.0.0.1", &first]);
        }
        nodes.until_known();
        for n in masters..nodes.servers.len() {
            let id = nodes.id(n % masters);
            let () = nodes.servers[n].tell(&["CLUSTER", "REPLICATE", &id]);
        }
        until(|| nodes.servers.iter().all(is_well).then_some(()));
        for n in masters..nodes.servers.len() {
            until(|| info(&nodes.servers[n], "master_link_status").filter(|status| status == "up"));
        }
        nodes
    }

    /// Each node knows all of the others.
    fn until_known(&self) {
        let all = self.servers.len();
        let knows_all = |server: &Server| {
            let nodes: String = server.tell(&["CLUSTER", "NODES"]);
            nodes.lines().filter(|line| line.contains("connected") && !line.contains("handshake")).count() == all
        };
        until(|| self.servers.iter().all(knows_all).then_some(()));
    }

    pub fn id(&self, n: usize) -> String {
        self.servers[n].tell(&["CLUSTER", "MYID"])
    }

    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    pub fn connect(&self) -> Redis {
        self.connect_with(patient())
    }

    pub fn connect_with(&self, options: Options) -> Redis {
        options.connect(&self.url()).unwrap()
    }

    /// The master that has the slot of `key`, and the slot.
    pub fn owner(&self, key: &str) -> (usize, u16) {
        let slot: u16 = self.servers[0].tell(&["CLUSTER", "KEYSLOT", key]);
        let n = usize::from(slot > 5460) + usize::from(slot > 10922);
        (n, slot)
    }
}

pub fn patient() -> Options {
    Redis::options().connect_timeout(PATIENT).response_timeout(PATIENT).pool_wait(PATIENT)
}

fn is_well(server: &Server) -> bool {
    let info: String = server.tell(&["CLUSTER", "INFO"]);
    info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
}

/// A field of a server's `INFO`; `None` also where it hangs up on all, as one does that becomes a replica.
pub fn info(server: &Server, field: &str) -> Option<String> {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().ok()?;
    let info: String = redis::cmd("INFO").query(&mut connection).ok()?;
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(|value| value.trim().to_owned()))
}

/// A master with a replica, and three sentinels that watch them.
pub struct Watched {
    pub master: Server,
    pub replica: Server,
    pub sentinels: Vec<Server>,
}

impl Watched {
    pub fn start() -> Self {
        let master = Server::start(&[]);
        let port = master.port().to_string();
        let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
        until(|| info(&replica, "master_link_status").filter(|status| status == "up"));
        let config = format!(
            "sentinel monitor main 127.0.0.1 {port} 2\nsentinel down-after-milliseconds main 1000\n\
             sentinel failover-timeout main 5000\n"
        );
        let sentinels: Vec<_> = (0..3).map(|_| Server::start_sentinel(&config)).collect();
        Self { master, replica, sentinels }
    }

    /// Waits until each sentinel knows the replica and the other sentinels.
    pub fn until_known(&self) {
        for sentinel in &self.sentinels {
            until(|| info(sentinel, "master0").filter(|said| said.contains("slaves=1,sentinels=3")));
        }
    }

    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redis+sentinel://{}/main", hosts.join(","))
    }
}

/// The port of the master that a sentinel names.
pub fn named_by(sentinel: &Server) -> u16 {
    let (_, port): (String, u16) = sentinel.tell(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
    port
}

/// Time-outs that a test with servers that are lost may wait for a few times.
pub fn prompt() -> Options {
    let short = Duration::from_secs(1);
    Redis::options().connect_timeout(short).response_timeout(short).pool_wait(short)
}
