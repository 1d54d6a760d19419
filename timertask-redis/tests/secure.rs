//! Servers that speak TLS, and users who may do just what is needed.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use common::nodes::{Nodes, patient, prompt};
use common::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use timertask_core::key::{Namespace, Nonce, PlanKey};
use timertask_core::seam::{
    Applied, Board, Claim, Cover, Durability, EndRequest, Gate, Ledger, Mutex, NotStarted, Overlap, PlanOp, Posting,
    PostingKind, Query, Refusal, Retention, StoreError, StoreErrorKind, Term,
};
use timertask_core::time::{Timestamp, Trigger};
use timertask_redis::{Options, Redis};

/// A certificate authority, and what it has signed for a server and for a client; on the disk, as a server reads it.
struct Certificates {
    dir: std::path::PathBuf,
    root: String,
    client: (String, String),
}

impl Certificates {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("timertask-redis-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let signed = |names: &[&str]| {
            let key = KeyPair::generate().unwrap();
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names.clone()).unwrap();
            params.distinguished_name.push(DnType::CommonName, &names[0]);
            let certificate = params.signed_by(&key, &root).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let (certificate, key) = signed(&["localhost", "127.0.0.1"]);
        let root = root.pem();
        for (file, text) in [("root.pem", &root), ("server.pem", &certificate), ("server.key", &key)] {
            std::fs::write(dir.join(file), text).unwrap();
        }
        Self { client: signed(&["client"]), dir, root }
    }

    /// The arguments of a server that listens for TLS alone.
    fn arguments(&self, clients: &'static str) -> Vec<String> {
        let file = |name: &str| self.dir.join(name).to_str().unwrap().to_owned();
        [
            ("--tls-cert-file", file("server.pem")),
            ("--tls-key-file", file("server.key")),
            ("--tls-ca-cert-file", file("root.pem")),
            ("--tls-auth-clients", clients.to_owned()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }

    fn trusted_by(&self, options: Options) -> Options {
        options.root_certificates(self.root.as_str())
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn everything_said(error: &StoreError) -> String {
    let mut said = format!("{error} / {error:?}");
    let mut cause: Option<&dyn Error> = error.source();
    while let Some(error) = cause {
        said += &format!(" / {error} / {error:?}");
        cause = error.source();
    }
    said
}

#[track_caller]
fn told<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: StoreErrorKind) -> String {
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.outcome_unknown()), (kind, false), "{}", everything_said(&error));
    everything_said(&error)
}

#[test]
fn a_server_is_spoken_to_by_tls_where_its_certificate_is_trusted() {
    let certificates = Certificates::new("server");
    let server = Server::start_encrypted(&certificates.arguments("no"));
    let url = format!("rediss://127.0.0.1:{}/", server.port());
    let store = certificates.trusted_by(patient()).connect(&url).unwrap();
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    grant(&store, &request(&plan, at, 1));
    let by_name = certificates.trusted_by(patient()).connect(&url.replace("127.0.0.1", "localhost")).unwrap();
    assert_eq!(claim(&by_name, &request(&plan, at, 2)), Claim::Held);
    // Not among what the system trusts; signed by another; not made out to this name.
    let said = told(patient().connect(&url), StoreErrorKind::Misconfigured);
    assert!(said.contains("certificate"), "it says why: {said}");
    let other = Certificates::new("other");
    told(other.trusted_by(patient()).connect(&url), StoreErrorKind::Misconfigured);
    let renamed = url.replace("127.0.0.1", "127.0.0.2");
    let elsewhere = Server::start_encrypted_on(&certificates.arguments("no"), "127.0.0.2");
    let renamed = renamed.replace(&server.port().to_string(), &elsewhere.port().to_string());
    told(certificates.trusted_by(patient()).connect(&renamed), StoreErrorKind::Misconfigured);
    // What cannot be read is told, and not quoted.
    for options in [patient().root_certificates("sesame"), patient().client_certificate("sesame", "sesame")] {
        let said = told(options.clone().connect(&url), StoreErrorKind::Misconfigured) + &format!("{options:?}");
        assert!(!said.contains("sesame"), "{said}");
    }
    told(patient().connect(&format!("{url}#insecure")), StoreErrorKind::Misconfigured);
    // A server that speaks no TLS, and one that speaks nothing else.
    let plain = Server::start(&[]);
    let wrong = certificates.trusted_by(prompt()).connect(&format!("rediss://127.0.0.1:{}/", plain.port()));
    assert_ne!(wrong.unwrap_err().kind(), StoreErrorKind::Internal);
    let wrong = prompt().connect(&url.replace("rediss", "redis")).unwrap_err();
    assert_ne!(wrong.kind(), StoreErrorKind::Internal);
}

#[test]
fn a_server_that_asks_for_it_is_shown_the_clients_certificate() {
    let certificates = Certificates::new("client");
    let server = Server::start_encrypted(&certificates.arguments("yes"));
    let url = format!("rediss://127.0.0.1:{}/", server.port());
    let (chain, key) = certificates.client.clone();
    let options = certificates.trusted_by(patient()).client_certificate(chain, key);
    assert_eq!(options.connect(&url).unwrap().describe().unwrap(), Durability::UntilRestart);
    let refused = certificates.trusted_by(patient()).connect(&url).unwrap_err();
    let said = everything_said(&refused);
    assert_eq!((refused.kind(), refused.outcome_unknown()), (StoreErrorKind::Auth, false), "{said}");
}

/// Time-outs hold during the handshake too.
#[test]
fn a_server_that_hangs_in_the_handshake_is_a_time_out() {
    let certificates = Certificates::new("hangs");
    // It listens, takes nothing, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let options = || certificates.trusted_by(Redis::options().connect_timeout(SHORT).response_timeout(SHORT));
    for user in ["", ":password@"] {
        let url = format!("rediss://{user}127.0.0.1:{port}/");
        told(options().connect(&url), StoreErrorKind::TimedOut);
        told(options().connect(&url.replace("rediss", "rediss+cluster")), StoreErrorKind::TimedOut);
        told(options().connect(&(url.replace("rediss", "rediss+sentinel") + "main")), StoreErrorKind::TimedOut);
    }
    let server = Server::start_encrypted(&certificates.arguments("no"));
    let store = options().connect(&format!("rediss://127.0.0.1:{}/", server.port())).unwrap();
    let at = open(&store, &plan_key("p")) + 1;
    let frozen = server.freeze();
    // One lane reuses its connection, another begins a handshake.
    let asked = store.plan(&[(plan_key("p"), PlanOp::Read)]).unwrap_err();
    assert_eq!(asked.kind(), StoreErrorKind::TimedOut);
    let claimed = store.claim(&[request(&plan_key("p"), at, 1)]).unwrap_err();
    assert_eq!(claimed.kind(), StoreErrorKind::TimedOut);
    drop(frozen);
    assert!(matches!(until(|| store.claim(&[request(&plan_key("p"), at, 1)]).ok()).value[0], Claim::Granted(_)));
}

#[test]
fn sentinels_and_clusters_are_spoken_to_by_tls_too() {
    let certificates = Certificates::new("several");
    let mut arguments = certificates.arguments("no");
    let server = Server::start_encrypted(&arguments);
    let lines: Vec<_> =
        arguments.chunks(2).map(|pair| format!("{} {}", pair[0].trim_start_matches("--"), pair[1])).collect();
    let config =
        format!("{}\ntls-replication yes\nsentinel monitor main 127.0.0.1 {} 1\n", lines.join("\n"), server.port());
    let sentinel = Server::start_encrypted_sentinel(&config);
    let url = format!("rediss+sentinel://127.0.0.1:{}/main", sentinel.port());
    let store = certificates.trusted_by(patient()).connect(&url).unwrap();
    let at = open(&store, &plan_key("p")) + 1;
    grant(&store, &request(&plan_key("p"), at, 1));
    drop((store, sentinel, server));

    arguments.extend(["--cluster-enabled", "yes", "--tls-cluster", "yes"].map(str::to_owned));
    let node = Server::start_encrypted(&arguments);
    let mut raw = raw(&certificates, node.port());
    let () = redis::cmd("CLUSTER").arg(&["ADDSLOTSRANGE", "0", "16383"]).query(&mut raw).unwrap();
    let url = format!("rediss+cluster://127.0.0.1:{}", node.port());
    let store = until(|| certificates.trusted_by(patient()).connect(&url).ok());
    let at = until(|| {
        let op = PlanOp::Open { fingerprint: fingerprint(1), replaces: None };
        store.plan(&[(plan_key("p"), op)]).ok()?.value.remove(0).row
    });
    let at = at.generation.effective_from.as_secs() + 1;
    grant(&store, &request(&plan_key("p"), at, 1));
}

fn raw(certificates: &Certificates, port: u16) -> redis::Connection {
    let roots = redis::TlsCertificates { client_tls: None, root_cert: Some(certificates.root.clone().into_bytes()) };
    redis::Client::build_with_tls(format!("rediss://127.0.0.1:{port}/"), roots).unwrap().get_connection().unwrap()
}

/// The rule that the guide shows, word for word.
fn rule(of: &str) -> Vec<String> {
    let guide = include_str!("../docs/access.md");
    let line = guide.lines().find_map(|line| line.strip_prefix(of)).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

/// A call of each kind.
fn use_all(store: &Redis, plan: &PlanKey) {
    let at = open(store, plan) + 1;
    let (first, second) = (request(plan, at, 1), request(plan, at + 1, 1));
    let mut queued = request(plan, at + 2, 1);
    queued.gate = Gate::Policy(Overlap::QueueOne);
    let granted = grant(store, &first);
    let other = grant(store, &second);
    assert_eq!(claim(store, &queued), Claim::Refused(Refusal::Full));
    let term = Term { key: first.key.clone(), nonce: first.nonce, fence: granted.fence };
    let _ = store.renew(&[term], Duration::from_secs(90)).unwrap();
    let _ = store.end(&[success(&first, &granted)]).unwrap();
    let op = timertask_core::seam::EndOp::GiveBack { nonce: second.nonce };
    let _ = store.end(&[EndRequest { key: second.key.clone(), fence: other.fence, op }]).unwrap();
    let whole = PlanKey::whole(Namespace::default());
    for plan in [plan, &whole] {
        let pause = PlanOp::Pause { by: "b".into(), why: "w".into(), until: None };
        let paused = store.plan(&[(plan.clone(), pause)]).unwrap().value.remove(0).row.unwrap();
        let resume = PlanOp::Resume { since: paused.pause.as_ref().unwrap().since, lapsed_only: false };
        let _ = store.plan(&[(plan.clone(), resume)]).unwrap();
    }
    let _ = store.plan(&[(plan.clone(), PlanOp::SetBack { max_skew: Duration::ZERO })]).unwrap();
    until_time(store, at + 3);
    let (from, to) = (store.plan(&[(plan.clone(), PlanOp::Read)]).unwrap(), Trigger::from_secs(at + 3));
    let from = from.value[0].row.as_ref().unwrap().cursor;
    let cover = Cover::Slots(vec![to], NotStarted::TooLate);
    let op = PlanOp::Account { fingerprint: fingerprint(1), from, to, cover };
    assert_eq!(store.plan(&[(plan.clone(), op)]).unwrap().value[0].applied, Applied::Done);
    let namespace = Namespace::default();
    let upto = Trigger::from_secs(i64::MAX);
    for query in [
        Query::Slots(vec![first.key.clone()]),
        Query::Unfinished { plan: plan.clone(), limit: 9 },
        Query::History { plan: plan.clone(), after: Trigger::default(), upto, page: None, limit: 9 },
        Query::Lapsed { namespace: namespace.clone(), max_skew: Duration::ZERO, after: None, limit: 1 },
        Query::Plans { namespace: namespace.clone(), after: None, limit: 9 },
    ] {
        let _ = store.read(&query).unwrap();
    }
    // A sweep that goes on behind the first of its two rows.
    let mut lapsed = request(plan, at + 9, 1);
    lapsed.ttl = Duration::ZERO;
    grant(store, &lapsed);
    let sweep = |after| {
        let query = Query::Lapsed { namespace: namespace.clone(), max_skew: Duration::ZERO, after, limit: 1 };
        store.read(&query).unwrap().value
    };
    let page = sweep(None);
    assert_eq!(sweep(page.more).slots.len(), 1);
    let _ = store.purge(plan, Retention { age: Some(Duration::ZERO), count: None, keep_last: 0 }, 9).unwrap();
    let lease = store.try_lock(&first.key, Nonce::from_bits(1), Duration::from_secs(9)).unwrap().unwrap();
    let _ = store.extend(&lease, Duration::from_secs(9)).unwrap();
    let _ = store.unlock(&lease).unwrap();
    for until in [Timestamp::EPOCH, Timestamp::MAX] {
        let kind = PostingKind::View;
        let (key, body) = ("k".into(), "b".into());
        let _ = store.post(&Posting { namespace: namespace.clone(), kind, key, body, until }).unwrap();
    }
    let _ = store.list(&namespace, PostingKind::View).unwrap();
    let _ = store.take(&namespace, PostingKind::View, "k").unwrap();
    let _ = store.describe().unwrap();
}

fn set_user(server: &Server, rule: &[String]) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("timertask").arg("reset").arg(rule);
    let () = command.query(&mut server.raw()).unwrap();
}

#[test]
fn a_user_with_the_documented_rights_can_do_all_and_each_right_is_needed() {
    let server = Server::start(APPENDS);
    let rule = rule("ACL SETUSER timertask ");
    set_user(&server, &rule);
    let url = format!("redis://timertask:secret@127.0.0.1:{}/", server.port());
    use_all(&patient().connect(&url).unwrap(), &plan_key("p"));
    // Each command of the rule is one that is used: without it some call is refused.
    let used: std::collections::BTreeSet<_> = {
        let stats: String = server.tell(&["INFO", "commandstats"]);
        let name = |line: &str| Some(line.strip_prefix("cmdstat_")?.split(':').next()?.to_owned());
        stats.lines().filter_map(name).collect()
    };
    for command in rule.iter().filter_map(|right| right.strip_prefix('+')) {
        assert!(used.contains(command), "{command} is not needed: {used:?}");
    }
    // Other keys are out of reach, and so is what the rule leaves out.
    let without: Vec<_> = rule.iter().filter(|right| *right != "+hset").cloned().collect();
    set_user(&server, &without);
    let store = patient().connect(&url).unwrap();
    let open = PlanOp::Open { fingerprint: fingerprint(9), replaces: None };
    let refused = store.plan(&[(plan_key("p"), open)]).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Auth, "{}", everything_said(&refused));
    let elsewhere: Vec<_> = rule.iter().map(|right| right.replace("~timertask:*", "~other:*")).collect();
    set_user(&server, &elsewhere);
    let refused = store.plan(&[(plan_key("p"), PlanOp::Read)]).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Auth, "{}", everything_said(&refused));
}

#[test]
fn on_sentinels_clusters_and_with_replicas_a_few_more_rights_are_needed() {
    let of_one = rule("ACL SETUSER timertask ");
    let nodes = Nodes::start();
    for server in &nodes.servers {
        set_user(server, &[of_one.clone(), rule("Redis Cluster: ")].concat());
    }
    let url = nodes.url().replace("redis+cluster://", "redis+cluster://timertask:secret@");
    use_all(&patient().connect(&url).unwrap(), &plan_key("p"));

    let master = Server::start(APPENDS);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
    let sentinel = Server::start_sentinel(&format!("sentinel monitor main 127.0.0.1 {} 1\n", master.port()));
    set_user(&master, &[of_one, rule("sentinels: "), rule("`min_replicas`: ")].concat());
    let url = format!("redis+sentinel://timertask:secret@127.0.0.1:{}/main", sentinel.port());
    let store = until(|| patient().min_replicas(1, PATIENT).connect(&url).ok());
    use_all(&store, &plan_key("p"));
    drop(replica);
}
