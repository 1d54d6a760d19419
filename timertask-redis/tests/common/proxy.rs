//! A proxy between client and server that breaks what it carries, as networks do.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// What becomes of the server's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    Pass,
    /// The first so many bytes pass, then the connection is cut.
    Cut(usize),
    /// Nothing passes, and nothing is cut.
    Swallow,
    /// Each comes twice.
    Twice,
}

const PASS: usize = usize::MAX;
const SWALLOW: usize = usize::MAX - 1;
const TWICE: usize = usize::MAX - 2;

/// Listens until the process ends; connections end with either side.
pub struct Proxy {
    port: u16,
    answers: Arc<AtomicUsize>,
}

impl Proxy {
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = Arc::new(AtomicUsize::new(PASS));
        let mode = Arc::clone(&answers);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let (to_server, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || pass(client, to_server));
                let mode = Arc::clone(&mode);
                thread::spawn(move || answer(server, to_client, &mode));
            }
        });
        Self { port, answers }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on.
    pub fn set(&self, answers: Answers) {
        let code = match answers {
            Answers::Pass => PASS,
            Answers::Cut(bytes) => bytes,
            Answers::Swallow => SWALLOW,
            Answers::Twice => TWICE,
        };
        self.answers.store(code, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn answer(mut from: TcpStream, mut to: TcpStream, mode: &AtomicUsize) {
    let mut buffer = [0; 65_536];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let whole = &buffer[..n];
        let done = match mode.load(Ordering::SeqCst) {
            PASS => to.write_all(whole),
            SWALLOW => continue,
            TWICE => to.write_all(whole).and_then(|()| to.write_all(whole)),
            bytes => {
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
