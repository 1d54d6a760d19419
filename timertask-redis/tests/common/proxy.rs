//! A proxy between client and server that breaks what it carries, as networks do.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::wait;

/// What becomes of what comes from one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// The first so many bytes pass, then the connection is cut.
    Cut(usize),
    /// Nothing passes, and nothing is cut.
    Swallow,
    /// Each comes twice.
    Twice,
    /// Each comes so much later.
    Late(Duration),
    /// Most passes; each of the others befalls one in twenty.
    AnyOf,
}

#[derive(Clone)]
struct Rules {
    requests: Fate,
    answers: Fate,
    /// Only connections that have carried this are touched.
    only: Option<Vec<u8>>,
    seed: u64,
}

/// Listens until the process ends; connections end with either side.
pub struct Proxy {
    port: u16,
    rules: Arc<std::sync::Mutex<Rules>>,
}

impl Proxy {
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let rules = Rules { requests: Fate::Pass, answers: Fate::Pass, only: None, seed: 0 };
        let rules = Arc::new(std::sync::Mutex::new(rules));
        let shared = Arc::clone(&rules);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let (to_server, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
                let asked = Direction { rules: Arc::clone(&shared), seen: Arc::clone(&seen), answers: false };
                let answered = Direction { rules: Arc::clone(&shared), seen, answers: true };
                thread::spawn(move || asked.carry(client, to_server));
                thread::spawn(move || answered.carry(server, to_client));
            }
        });
        Self { port, rules }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// What becomes of the server's answers from now on.
    pub fn answers(&self, fate: Fate) {
        self.rules.lock().unwrap().answers = fate;
    }

    /// What becomes of what clients ask from now on.
    pub fn requests(&self, fate: Fate) {
        self.rules.lock().unwrap().requests = fate;
    }

    /// Touches only connections that have carried `needle` to the server since they were opened.
    pub fn only(&self, needle: &str) {
        self.rules.lock().unwrap().only = Some(needle.into());
    }

    /// What chance draws from.
    pub fn seed(&self, seed: u64) {
        self.rules.lock().unwrap().seed = seed;
    }

    /// All passes again.
    pub fn heal(&self) {
        self.answers(Fate::Pass);
        self.requests(Fate::Pass);
    }
}

/// One direction of one connection.
struct Direction {
    rules: Arc<std::sync::Mutex<Rules>>,
    /// What the client has said, which both directions look at.
    seen: Arc<std::sync::Mutex<Vec<u8>>>,
    answers: bool,
}

impl Direction {
    fn carry(self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 65_536];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            let whole = &buffer[..n];
            if !self.answers {
                self.seen.lock().unwrap().extend_from_slice(whole);
            }
            let done = match self.fate() {
                Fate::Pass | Fate::AnyOf => to.write_all(whole),
                Fate::Swallow => continue,
                Fate::Twice => to.write_all(whole).and_then(|()| to.write_all(whole)),
                Fate::Late(by) => {
                    wait(by);
                    to.write_all(whole)
                }
                Fate::Cut(bytes) => {
                    let _ = to.write_all(&whole[..n.min(bytes)]);
                    break;
                }
            };
            if done.is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    /// What becomes of the piece that has come.
    fn fate(&self) -> Fate {
        let mut rules = self.rules.lock().unwrap();
        if let Some(needle) = &rules.only {
            let seen = self.seen.lock().unwrap();
            if !seen.windows(needle.len()).any(|window| window == needle) {
                return Fate::Pass;
            }
        }
        match if self.answers { rules.answers } else { rules.requests } {
            Fate::AnyOf => {
                // A step of a linear congruence (Knuth's constants); its high bits are the good ones.
                rules.seed = rules.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let drawn = rules.seed >> 33;
                match drawn % 20 {
                    0 => Fate::Cut(usize::try_from(drawn / 20 % 40).unwrap()),
                    1 => Fate::Swallow,
                    2 => Fate::Twice,
                    3 => Fate::Late(Duration::from_millis(drawn / 20 % 500)),
                    _ => Fate::Pass,
                }
            }
            fate => fate,
        }
    }
}
