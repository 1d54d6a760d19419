//! Starts the processes, lets things happen to them (`befall.rs`), and in the end asks for the verdict.

mod befall;

use std::io::PipeWriter;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use timertask::clock::{Clock, SystemClock};
use timertask::key::{Namespace, PlanId, PlanKey};
use timertask::seam::{Answer, Applied, PlanOp, PlanRow, PlanState};
use timertask::{Ledger, Timestamp};
use timertask_examples::Scratch;
use timertask_examples::guard::Guard;
use timertask_examples::process::{Process, Signal, limit_files, signal};

use crate::Result;
use crate::args::Conduct;
use crate::clock::{OffsetClock, Offsets};
use crate::counts::Injected;
use crate::faults::Deck;
use crate::journal::{Journal, What};
use crate::plans::{self, Table, Versions, WINDOW};
use crate::random::Random;
use crate::store::{self, Store, nap};
use crate::timeline::{RECOVERY, Timeline};
use crate::verdict::{self, BOUND, Evidence};
use crate::witness::Witness;
use befall::Undo;

/// A run of less than this is a short one, which does not wait for the bound of the fourth promise. Seconds.
const SHORT: u64 = 120;

/// A process that shares the store.
#[derive(Default)]
struct Node {
    process: Option<Process>,
    lives: u32,
    frozen: bool,
    skewed: bool,
}

impl Node {
    fn is_free(&self) -> bool {
        self.process.is_some() && !self.frozen && !self.skewed
    }
}

struct Conductor<'a> {
    args: &'a Conduct,
    folder: &'a Scratch,
    random: Random,
    deck: Deck,
    // Before the store: processes end before it does.
    nodes: Vec<Node>,
    pipe: Option<PipeWriter>,
    store: Store,
    ledger: Arc<dyn Ledger>,
    offsets: Offsets,
    table: Table,
    journal: Journal,
    read: usize,
    timeline: Timeline,
    witness: Witness,
    injected: Injected,
    undo: Vec<(i64, Undo)>,
    /// By the store's clock, when the processes were asked to stop; and since when one of them had been fit by then.
    stopped_at: Timestamp,
    fit_since: Option<Timestamp>,
    /// What was granted while its plan was paused.
    in_pause: Vec<String>,
    /// How many bytes a file of the processes may have.
    limit: Option<u64>,
    paused: bool,
    /// The process that stands still in the midst of a write.
    held_by: Option<usize>,
    /// The store is in trouble already.
    troubled: bool,
    /// What went wrong with the processes themselves.
    wrong: Vec<String>,
    interrupted: Arc<AtomicBool>,
    /// Dropped last: it has heard of all processes that the others leave behind.
    guard: Guard,
}

/// Lets it all happen; whether nothing was broken.
pub(crate) fn run(args: &Conduct) -> Result<bool> {
    let seed = args.seed.unwrap_or_else(|| SystemClock.entropy() % 1_000_000);
    let folder = Scratch::new()?;
    let what = if args.on_redis { "a Redis server" } else { "a SQLite file" };
    println!(
        "{} processes share {what} for {} s; --seed {seed}; {}",
        args.instances,
        args.seconds,
        folder.path().display()
    );
    let versions = plans::versions()?;
    let mut conductor = Conductor::start(args, &folder, seed)?;
    let played = conductor.play();
    if conductor.is_interrupted() {
        return Err("interrupted, and nothing was judged".into());
    }
    let passed = played.and_then(|()| conductor.judge(&versions, seed));
    if !matches!(passed, Ok(true)) {
        conductor.tell();
        let Conductor { store, nodes, guard, .. } = conductor;
        drop(nodes);
        println!("kept, with the processes' logs and the journal: {}", folder.path().display());
        if let Some(server) = store.keep() {
            println!("and what the server wrote: {}", server.display());
        }
        drop(guard);
        folder.keep();
    }
    passed
}

impl<'a> Conductor<'a> {
    fn start(args: &'a Conduct, folder: &'a Scratch, seed: u64) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        let mut guard = Guard::start()?;
        let store = Store::start(args.on_redis, folder.path())?;
        store.process().map_or(Ok(()), |process| guard.watch(process))?;
        let offsets = Offsets::create(&folder.file("clocks"), args.instances + 1)?;
        Table::FIRST.write(&folder.file("plans"))?;
        let clock = Arc::new(OffsetClock::open(&folder.file("clocks"), args.instances)?);
        let ledger = store::open(store.url().as_deref(), folder.path(), clock)?;
        let (pipe, writer) = std::io::pipe()?;
        Ok(Self {
            args,
            folder,
            random: Random::new(seed),
            deck: Deck::new(args.on_redis),
            nodes: (0..args.instances).map(|_| Node::default()).collect(),
            pipe: Some(writer),
            store,
            ledger,
            offsets,
            table: Table::FIRST,
            journal: Journal::read(pipe, &folder.file("journal"))?,
            read: 0,
            timeline: Timeline::new(args.instances, now()),
            witness: Witness::default(),
            injected: Injected::default(),
            undo: Vec::new(),
            stopped_at: Timestamp::EPOCH,
            fit_since: None,
            in_pause: Vec::new(),
            limit: None,
            paused: false,
            held_by: None,
            troubled: false,
            wrong: Vec::new(),
            interrupted,
            guard,
        })
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn is_short(&self) -> bool {
        self.args.seconds < SHORT
    }

    fn play(&mut self) -> Result<()> {
        for node in 0..self.nodes.len() {
            self.spawn(node)?;
        }
        let end = now() + i64::try_from(self.args.seconds)? * 1_000_000;
        let mut next = now() + 3_000_000;
        while now() < end && !self.is_interrupted() {
            self.tick()?;
            if now() >= next {
                let fault = self.deck.draw(&mut self.random);
                self.inject(fault, end)?;
                next = now() + self.for_a_while(2_000, 6_000);
            }
        }
        self.undo_upto(i64::MAX)?;
        self.note("no more faults".to_owned());
        self.settle()?;
        self.stop()
    }

    /// Waits until every slot has to be accounted for, or is.
    fn settle(&mut self) -> Result<()> {
        // The time in which an instance becomes fit, a window, and some slots that have to start in it.
        let quiet = RECOVERY + WINDOW.as_micros() as i64 + 6_000_000;
        let patience = now() + if self.is_short() { quiet } else { BOUND + quiet };
        while now() < patience && !self.is_interrupted() {
            self.tick()?;
        }
        Ok(())
    }

    /// A tenth of a second of watching.
    fn tick(&mut self) -> Result<()> {
        nap(Duration::from_millis(100));
        self.undo_upto(now())?;
        for line in self.journal.since(self.read) {
            self.read += 1;
            if line.what == What::Up
                && line.life == self.nodes[line.node].lives
                && self.nodes[line.node].process.is_some()
            {
                self.timeline.up(line.node, true, line.real);
            }
        }
        for node in 0..self.nodes.len() {
            let Some(process) = &mut self.nodes[node].process else { continue };
            if let Some(status) = process.ended()? {
                self.guard.forget(process.id())?;
                self.nodes[node].process = None;
                self.timeline.up(node, false, now());
                self.wrong.push(format!("node-{node} ended by itself: {status}"));
                self.spawn(node)?;
            }
        }
        if !self.troubled {
            // Where the store has only just come back, the next look will do.
            let looked = if now() % 2_000_000 < 100_000 {
                self.witness.look(&*self.ledger).map(drop)
            } else {
                self.witness.glance(&*self.ledger)
            };
            if let Err(error) = looked {
                self.note(format!("the witness sees nothing: {error}"));
            }
        }
        Ok(())
    }

    fn note(&mut self, text: String) {
        self.timeline.note(now(), text);
    }

    fn spawn(&mut self, node: usize) -> Result<()> {
        self.nodes[node].lives += 1;
        let log =
            std::fs::File::options().append(true).create(true).open(self.folder.file(format!("node-{node}.log")))?;
        let pipe = self.pipe.as_ref().ok_or("the journal is closed")?.try_clone()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--node", &node.to_string(), "--life", &self.nodes[node].lives.to_string(), "--folder"]);
        command.arg(self.folder.path());
        if let Some(url) = self.store.url() {
            command.args(["--server", &url]);
        }
        if self.args.careless {
            command.arg("--careless");
        }
        command.stdin(Stdio::piped()).stdout(pipe).stderr(log);
        let process = Process::start(&mut command)?;
        limit_files(process.id(), self.limit)?;
        self.guard.watch(process.id())?;
        self.nodes[node].process = Some(process);
        self.note(format!("node-{node} is started"));
        Ok(())
    }

    /// Asks the ledger for something about the plan `paused`: whether that took effect, and its row.
    fn tell_plan(&self, op: PlanOp) -> Result<(Applied, PlanRow)> {
        let key = PlanKey::new(Namespace::new(store::NAMESPACE)?, PlanId::new("paused")?);
        let state = self.ask(&[(key, op)])?.value.pop().ok_or("no answer to a request")?;
        Ok((state.applied, state.row.ok_or("the ledger does not know the plan \"paused\"")?))
    }

    /// Asks the ledger while the store is well. A connection from before an outage fails once.
    fn ask(&self, requests: &[(PlanKey, PlanOp)]) -> Result<Answer<Vec<PlanState>>> {
        let mut last = self.ledger.plan(requests);
        for _ in 0..50 {
            if last.is_ok() {
                break;
            }
            nap(Duration::from_millis(100));
            last = self.ledger.plan(requests);
        }
        Ok(last?)
    }

    /// Asks all processes to stop, and waits for them.
    fn stop(&mut self) -> Result<()> {
        self.fit_since = self.timeline.finish(now());
        self.stopped_at = self.ask(&[])?.now;
        self.pipe = None;
        for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            signal(process.id(), Signal::TERM)?;
        }
        for node in 0..self.nodes.len() {
            let Some(process) = self.nodes[node].process.take() else { continue };
            let id = process.id();
            let status = process.wait()?;
            self.guard.forget(id)?;
            if !status.success() {
                self.wrong.push(format!("node-{node} did not stop cleanly: {status}"));
            }
        }
        Ok(())
    }

    fn judge(&mut self, versions: &Versions, seed: u64) -> Result<bool> {
        let journal = self.journal.finish()?;
        let rows = self.witness.look(&*self.ledger)?;
        let evidence = Evidence {
            journal: &journal,
            timeline: &self.timeline,
            rows: &rows,
            now: self.stopped_at,
            fit_since: self.fit_since,
            versions,
            generations: &self.witness.generations,
            changed: &self.witness.changed,
            in_pause: &self.in_pause,
        };
        let (seen, violations) = verdict::judge(&evidence);
        let mut idle = if self.is_short() { Vec::new() } else { self.injected.missing(self.args.on_redis) };
        if seen.entries == 0 || seen.had_to_start == 0 || seen.recorded == 0 {
            idle.push("too little was started to say anything");
        }
        print!("\n{}\n{seen}", self.injected);
        for violation in &violations {
            println!("VIOLATION of {violation}");
        }
        for wrong in self.wrong.iter().map(String::as_str).chain(idle.iter().copied()) {
            println!("WRONG: {wrong}");
        }
        let passed = violations.is_empty() && self.wrong.is_empty() && idle.is_empty();
        println!(
            "\n{} {} faults, {} slots, {} starts, {} violations; --seed {seed}",
            if passed { "PASS" } else { "FAIL" },
            self.injected.total(),
            seen.expected,
            seen.entries,
            violations.len()
        );
        Ok(passed)
    }

    /// What happened when.
    fn tell(&self) {
        println!("\nwhat happened (host's time, without any offset):");
        for (at, text) in &self.timeline.events {
            println!("{} {text}", Timestamp::from_micros(*at));
        }
    }
}

/// The host's own time, in microseconds.
fn now() -> i64 {
    SystemClock.now().as_micros()
}
