//! Starts the processes, lets things happen to them, and in the end asks for the verdict.

use std::io::PipeWriter;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use timertask::clock::{Clock, SystemClock};
use timertask::key::{Fence, Namespace, PlanId, PlanKey};
use timertask::seam::{Answer, Applied, PlanOp, PlanRow, PlanState};
use timertask::{Ledger, Timestamp};
use timertask_examples::Scratch;
use timertask_examples::process::Process;

use crate::Result;
use crate::args::Conduct;
use crate::clock::{OffsetClock, Offsets};
use crate::counts::Injected;
use crate::faults::{Deck, Fault};
use crate::journal::{Journal, What};
use crate::plans::{self, Table, Versions, WINDOW};
use crate::random::Random;
use crate::store::{self, Outage, Store, nap};
use crate::timeline::{RECOVERY, Timeline};
use crate::verdict::{self, BOUND, Evidence};
use crate::witness::Witness;

/// A run of less than this is a short one, which does not wait for the bound of the fourth promise. Seconds.
const SHORT: u64 = 120;

/// What is undone at its time.
#[derive(Clone, Copy, Debug)]
enum Undo {
    Start(usize),
    Thaw(usize),
    Skew(usize),
    Restore(Outage),
    Room,
    Return(i64),
    Resume(Timestamp, Fence),
}

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
    /// The store is in trouble already.
    troubled: bool,
    /// What went wrong with the processes themselves.
    wrong: Vec<String>,
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
    let passed = played.and_then(|()| conductor.judge(&versions, seed));
    if !matches!(passed, Ok(true)) {
        conductor.tell();
        drop(conductor);
        println!("kept, with the processes' logs, the journal and the store: {}", folder.path().display());
        folder.keep();
    }
    passed
}

impl<'a> Conductor<'a> {
    fn start(args: &'a Conduct, folder: &'a Scratch, seed: u64) -> Result<Self> {
        let store = Store::start(args.on_redis, folder.path())?;
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
            troubled: false,
            wrong: Vec::new(),
        })
    }

    fn is_short(&self) -> bool {
        self.args.seconds < SHORT
    }

    fn play(&mut self) -> Result<()> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        for node in 0..self.nodes.len() {
            self.spawn(node)?;
        }
        let end = now() + i64::try_from(self.args.seconds)? * 1_000_000;
        let mut next = now() + 3_000_000;
        while now() < end && !interrupted.load(Ordering::Relaxed) {
            self.tick()?;
            if now() >= next {
                let fault = self.deck.draw(&mut self.random);
                self.inject(fault, end)?;
                next = now() + self.for_a_while(2_000, 6_000);
            }
        }
        self.undo_upto(i64::MAX)?;
        self.note("no more faults".to_owned());
        self.settle(&interrupted)?;
        self.stop()?;
        if interrupted.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        Ok(())
    }

    /// Waits until every slot has to be accounted for, or is.
    fn settle(&mut self, interrupted: &AtomicBool) -> Result<()> {
        // The time in which an instance becomes fit, a window, and some slots that have to start in it.
        let quiet = RECOVERY + WINDOW.as_micros() as i64 + 6_000_000;
        let patience = now() + if self.is_short() { quiet } else { BOUND + quiet };
        while now() < patience && !interrupted.load(Ordering::Relaxed) {
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
        command.stdin(Stdio::piped()).stdout(pipe).stderr(log);
        self.nodes[node].process = Some(Process::start(&mut command)?);
        self.note(format!("node-{node} is started"));
        Ok(())
    }

    fn kill(&mut self, node: usize) -> Result<()> {
        self.timeline.up(node, false, now());
        if let Some(process) = self.nodes[node].process.take() {
            process.kill()?;
            self.injected.killed += 1;
            self.note(format!("node-{node} is killed"));
        }
        Ok(())
    }

    /// One that nothing is the matter with, if another such is left.
    fn victim(&mut self) -> Option<usize> {
        let free: Vec<usize> = (0..self.nodes.len()).filter(|n| self.nodes[*n].is_free()).collect();
        if free.len() < 2 { None } else { self.random.pick(&free) }
    }

    /// A time in microseconds, between these bounds in milliseconds; a third of that in a short run.
    fn for_a_while(&mut self, from: u64, to: u64) -> i64 {
        let millis = self.random.between(from, to) / if self.is_short() { 3 } else { 1 };
        i64::try_from(millis * 1_000).unwrap_or(i64::MAX)
    }

    fn later(&mut self, micros: i64, undo: Undo) {
        self.undo.push((now() + micros, undo));
    }

    fn inject(&mut self, fault: Fault, end: i64) -> Result<()> {
        match fault {
            Fault::Kill => {
                let Some(node) = self.victim() else { return Ok(()) };
                self.kill(node)?;
                let pause = self.for_a_while(500, 8_000);
                self.later(pause, Undo::Start(node));
            }
            Fault::KillAll => {
                let pause = self.for_a_while(500, 10_000);
                for node in 0..self.nodes.len() {
                    if self.nodes[node].process.is_some() && !self.nodes[node].frozen {
                        self.kill(node)?;
                        self.later(pause, Undo::Start(node));
                    }
                }
            }
            Fault::Freeze => {
                let pause = self.for_a_while(300, 6_000);
                if self.freeze(pause)? {
                    self.injected.frozen += 1;
                }
            }
            Fault::FreezeLong => {
                let pause = self.random.between(65_000_000, 80_000_000);
                let pause = i64::try_from(pause)?;
                if now() + pause < end && self.freeze(pause)? {
                    self.injected.frozen_long += 1;
                }
            }
            Fault::Outage if !self.troubled => self.outage()?,
            Fault::Full if !self.troubled => self.full()?,
            Fault::StepSmall => self.step(500_000, 3_000_000)?,
            Fault::StepLarge => self.step(7_000_000, 40_000_000)?,
            Fault::Excursion => self.excursion()?,
            Fault::Edit => {
                self.table = self.table.edited();
                self.publish()?;
            }
            Fault::Switch => {
                self.table.switched = !self.table.switched;
                self.publish()?;
            }
            Fault::Pause if !self.troubled => self.pause()?,
            // A store has one trouble at a time.
            Fault::Outage | Fault::Full | Fault::Pause => {}
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        self.table.write(&self.folder.file("plans"))?;
        self.injected.edits += 1;
        self.note(format!("{:?}", self.table));
        Ok(())
    }

    fn freeze(&mut self, pause: i64) -> Result<bool> {
        let Some(node) = self.victim() else { return Ok(false) };
        self.timeline.frozen(node, true, now());
        if let Some(process) = &self.nodes[node].process {
            process.freeze()?;
        }
        self.nodes[node].frozen = true;
        self.later(pause, Undo::Thaw(node));
        self.note(format!("node-{node} is frozen for {} ms", pause / 1000));
        Ok(true)
    }

    fn outage(&mut self) -> Result<()> {
        let how = self.random.pick(&Outage::ALL).unwrap_or(Outage::Hard);
        self.trouble();
        self.store.fail(how)?;
        if self.args.on_redis && matches!(how, Outage::Hard | Outage::Soft) {
            self.injected.restarts += 1;
        } else {
            self.injected.outages += 1;
        }
        self.out(format!("the store goes away: {how:?}"));
        let pause = self.for_a_while(1_000, 12_000);
        self.later(pause, Undo::Restore(how));
        Ok(())
    }

    /// No file may grow any more; or nothing can be written at all.
    fn full(&mut self) -> Result<()> {
        self.trouble();
        let size = self.store.size();
        let limit = self.random.pick(&[0, size]).unwrap_or(0);
        match &mut self.store {
            Store::Sqlite { .. } => {
                for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
                    process.limit_files(Some(limit))?;
                }
            }
            Store::Redis(server) => server.process()?.limit_files(Some(limit))?,
        }
        self.injected.full += 1;
        let text = format!("no file may have more than {limit} bytes");
        // Room that a file has already, SQLite uses again.
        if limit == 0 || self.args.on_redis {
            self.out(text)
        } else {
            self.note(text)
        }
        let pause = self.for_a_while(1_000, 10_000);
        self.later(pause, Undo::Room);
        Ok(())
    }

    fn trouble(&mut self) {
        self.troubled = true;
        self.timeline.store(true, false, now());
    }

    /// Nothing can be granted from here on.
    fn out(&mut self, text: String) {
        nap(Duration::from_millis(100));
        self.timeline.store(true, true, now());
        self.note(text);
    }

    /// On SQLite the clock is the host's, and all see it step; on Redis each host has one of its own, and so has the server.
    fn step(&mut self, from: u64, to: u64) -> Result<()> {
        let micros = i64::try_from(self.random.between(from, to))?;
        let micros = self.random.pick(&[micros, -micros]).unwrap_or(micros);
        if self.args.on_redis {
            let Some(node) = self.victim() else { return Ok(()) };
            // The clock that is set and the store's are compared within a call.
            self.timeline.skewed(node, true, micros.abs() > 6_000_000, now());
            self.offsets.set(node, micros)?;
            self.nodes[node].skewed = true;
            let pause = self.for_a_while(2_000, 20_000);
            self.later(pause, Undo::Skew(node));
            self.injected.steps += 1;
            self.note(format!("node-{node}'s clock is off by {} ms", micros / 1000));
            Ok(())
        } else {
            self.set_host(self.timeline.offset() + micros)
        }
    }

    fn excursion(&mut self) -> Result<()> {
        let hours = i64::try_from(self.args.seconds)? * 1_000_000 + 7_200_000_000;
        let pause = self.for_a_while(4_000, 20_000);
        self.later(pause, Undo::Return(hours));
        self.set_host(self.timeline.offset() + hours)
    }

    fn set_host(&mut self, micros: i64) -> Result<()> {
        self.timeline.step(micros, now());
        for place in 0..=self.nodes.len() {
            self.offsets.set(place, micros)?;
        }
        self.injected.steps += 1;
        self.note(format!("the host's clock is off by {} ms", micros / 1000));
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        let op = PlanOp::Pause { by: "chaos".to_owned(), why: "to see it wait".to_owned(), until: None };
        let Some(row) = self.tell_plan(op)? else { return Ok(()) };
        let Some(pause) = &row.pause else { return Ok(()) };
        let undo = Undo::Resume(pause.since, row.fence);
        self.injected.pauses += 1;
        self.note("the plan \"paused\" is paused".to_owned());
        let pause = self.for_a_while(2_000, 15_000);
        self.later(pause, undo);
        Ok(())
    }

    /// Asks the ledger for something about the plan `paused`; its row, unless the ledger saw it otherwise.
    fn tell_plan(&self, op: PlanOp) -> Result<Option<PlanRow>> {
        let key = PlanKey::new(Namespace::new(store::NAMESPACE)?, PlanId::new("paused")?);
        let state = self.ask(&[(key, op)])?.value.pop();
        Ok(state.filter(|state| state.applied != Applied::Conflict).and_then(|state| state.row))
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

    fn undo_upto(&mut self, upto: i64) -> Result<()> {
        while let Some(place) = self.undo.iter().position(|(at, _)| *at <= upto) {
            let (_, undo) = self.undo.remove(place);
            self.undo_one(undo)?;
        }
        Ok(())
    }

    fn undo_one(&mut self, undo: Undo) -> Result<()> {
        match undo {
            Undo::Start(node) => {
                if self.nodes[node].process.is_none() {
                    self.spawn(node)?;
                }
            }
            Undo::Thaw(node) => {
                if let Some(process) = &self.nodes[node].process {
                    process.thaw()?;
                }
                self.nodes[node].frozen = false;
                self.timeline.frozen(node, false, now());
                self.note(format!("node-{node} goes on"));
            }
            Undo::Skew(node) => {
                self.offsets.set(node, 0)?;
                self.nodes[node].skewed = false;
                self.timeline.skewed(node, false, false, now());
                self.note(format!("node-{node}'s clock goes right"));
            }
            Undo::Restore(how) => {
                self.timeline.store(true, false, now());
                self.store.restore(how)?;
                self.calm("the store is back".to_owned());
            }
            Undo::Room => {
                self.timeline.store(true, false, now());
                match &mut self.store {
                    Store::Sqlite { .. } => {
                        for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
                            process.limit_files(None)?;
                        }
                    }
                    Store::Redis(server) => {
                        if server.recover()? {
                            self.injected.restarts += 1;
                        } else {
                            server.process()?.limit_files(None)?;
                        }
                    }
                }
                self.calm("there is room again".to_owned());
            }
            Undo::Return(micros) => self.set_host(self.timeline.offset() - micros)?,
            Undo::Resume(since, fence) if self.troubled => self.later(2_000_000, Undo::Resume(since, fence)),
            Undo::Resume(since, fence) => {
                let row = self.tell_plan(PlanOp::Resume { since, lapsed_only: false })?;
                if let Some(row) = row.filter(|row| row.fence != fence) {
                    self.in_pause
                        .push(format!("paused under fence {fence}, and {} was granted before it resumed", row.fence));
                }
                self.note("the plan \"paused\" is resumed".to_owned());
            }
        }
        Ok(())
    }

    fn calm(&mut self, text: String) {
        self.troubled = false;
        self.timeline.store(false, false, now());
        self.note(text);
    }

    /// Asks all processes to stop, and waits for them.
    fn stop(&mut self) -> Result<()> {
        self.fit_since = self.timeline.finish(now());
        self.stopped_at = self.ask(&[])?.now;
        self.pipe = None;
        for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            process.terminate()?;
        }
        for node in 0..self.nodes.len() {
            let Some(process) = self.nodes[node].process.take() else { continue };
            let status = process.wait()?;
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
