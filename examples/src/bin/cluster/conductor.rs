//! Starts the instances, edits their plans, freezes one, kills another, and waits until every slot is accounted for.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use timertask::clock::{Clock, Signal as Wakeup, SystemClock, Until};
use timertask::{Timestamp, Trigger};

use crate::Result;
use crate::app::App;
use crate::args::Args;
use crate::audit::Audit;
use crate::screen::Screen;
use crate::store::{Store, tidy};
use crate::watch::Watch;

/// How long it may take until the killed process's lease has lapsed and was swept: a lease, three sweeps, and some.
const SETTLE: Duration = Duration::from_secs(75);

/// What is done to the instances, and when: parts of the time, in thousandths.
const SCORE: &[(u64, Act)] = &[
    (120, Act::Kill(1)),
    (250, Act::Put("late-comer", "*/2 * * * * *", None, "insert", 1)),
    (350, Act::Put("every-2s", "@every 3s", None, "insert", 1)),
    (420, Act::Restart(1)),
    (500, Act::Freeze(0)),
    (600, Act::Disable("short-lived")),
    (700, Act::Put("berlin", "*/4 * * * * *", Some("Europe/Berlin"), "insert", 1)),
    (850, Act::Thaw(0)),
];

/// The plans from the start: id, expression, zone, job, how many may run at once.
const PLANS: &[(&str, &str, Option<&str>, &str, u32)] = &[
    ("every-1s", "@every 1s", None, "insert", 1),
    ("every-2s", "@every 2s", None, "insert", 1),
    ("each-second", "* * * * * *", None, "insert", 1),
    ("berlin", "*/5 * * * * *", Some("Europe/Berlin"), "insert", 1),
    ("flaky", "@every 2s", None, "flaky", 1),
    ("panicky", "@every 1s", None, "panicky", 1),
    ("short-lived", "@every 1s", None, "insert", 1),
    ("slow", "@every 1s", None, "slow", 1),
    ("slow-in-parallel", "@every 1s", None, "slow", 3),
];

#[derive(Clone, Copy)]
enum Act {
    Put(&'static str, &'static str, Option<&'static str>, &'static str, u32),
    Disable(&'static str),
    Kill(usize),
    Restart(usize),
    Freeze(usize),
    Thaw(usize),
}

struct Conductor<'a> {
    args: &'a Args,
    clock: SystemClock,
    interrupted: Arc<AtomicBool>,
    store: Store,
    app: App,
    watch: Watch,
    screen: Screen,
    children: Vec<Option<Child>>,
    /// Sentences about what went wrong with the processes.
    wrong: Vec<String>,
}

/// Carries the demonstration out; whether it passes.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let _cleanup = args.temporary.then(|| Cleanup(args.path.clone()));
    let app = App::open(&args.path)?;
    app.create()?;
    let store = Store::open(args)?;
    let mut conductor = Conductor {
        args,
        clock: SystemClock,
        interrupted,
        store,
        app,
        watch: Watch::default(),
        screen: Screen::new(),
        children: Vec::new(),
        wrong: Vec::new(),
    };
    let passed = conductor.play();
    drop(conductor);
    tidy(args)?;
    passed
}

impl Conductor<'_> {
    fn play(&mut self) -> Result<bool> {
        for (id, spec, zone, job, at_once) in PLANS {
            self.put(id, spec, *zone, job, *at_once)?;
        }
        self.screen.event(format!(
            "{} processes share {}; {} plans; {} s",
            self.args.instances,
            self.store.what,
            PLANS.len(),
            self.args.seconds
        ));
        for number in 0..self.args.instances {
            self.children.push(Some(self.spawn(number)?));
        }
        let begin = self.clock.now();
        let end = begin.saturating_add(Duration::from_secs(self.args.seconds));
        let mut score = SCORE.iter().peekable();
        while self.clock.now() < end && !self.is_interrupted() {
            // In the middle of a second, so that no trigger point comes between an edit and its being noticed.
            let at = |part: u64| {
                let secs = self.args.seconds * part / 1000;
                begin.trigger().timestamp().saturating_add(Duration::from_millis(secs * 1000 + 500))
            };
            if let Some((_, act)) = score.next_if(|(part, _)| at(*part) <= self.clock.now()) {
                self.act(*act)?;
            }
            self.tick(end.trigger(), "running")?;
        }
        let mut end = end.trigger();
        if self.is_interrupted() {
            end = end.min(settled(self.clock.now()));
        }
        let patience = self.clock.now().saturating_add(SETTLE);
        for number in 0..self.children.len() {
            self.signal(number, Signal::CONT)?;
        }
        while !self.is_interrupted() && self.clock.now() < patience && !self.audit(end)?.is_settled() {
            self.tick(end, "waiting until the killed process's lease has lapsed and was swept")?;
        }
        self.stop()?;
        let audit = self.audit(end)?;
        let interrupted = self.is_interrupted();
        Ok(self.screen.verdict(&audit, &self.wrong, interrupted))
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn audit(&mut self, end: Trigger) -> Result<Audit> {
        self.watch.look(&self.store)?;
        Audit::read(&self.store, &self.app, &self.watch, end)
    }

    /// A fifth of a second of watching.
    fn tick(&mut self, end: Trigger, what: &str) -> Result<()> {
        let until = self.clock.monotonic().saturating_add(Duration::from_millis(200));
        let _ = self.clock.wait(&Wakeup::new(), Some(Until::Monotonic(until)));
        for (number, child) in self.children.iter_mut().enumerate() {
            if let Some(status) = child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                *child = None;
                // Ctrl-C on a terminal reaches all processes at once: they stop by themselves, as they should.
                if status.success() && self.interrupted.load(Ordering::Relaxed) {
                    continue;
                }
                self.wrong.push(format!("node-{} ended by itself: {status}", number + 1));
                self.screen.event(format!("node-{} ended by itself: {status}", number + 1));
            }
        }
        let now = self.clock.now();
        if self.screen.wants(now) {
            let audit = self.audit(end.min(settled(now)))?;
            self.screen.show(&audit, what, now, end.timestamp());
        } else {
            self.watch.look(&self.store)?;
        }
        Ok(())
    }

    fn act(&mut self, act: Act) -> Result<()> {
        match act {
            Act::Put(id, spec, zone, job, at_once) => {
                self.put(id, spec, zone, job, at_once)?;
                self.screen.event(format!("plan {id:?} is now {spec:?}"));
            }
            Act::Disable(id) => {
                self.app.disable(id)?;
                self.watch.wrote(id, self.clock.now(), None);
                self.screen.event(format!("plan {id:?} is disabled"));
            }
            Act::Kill(number) => {
                if let Some(mut child) = self.children[number].take() {
                    child.kill()?;
                    child.wait()?;
                    self.screen.event(format!("node-{} is killed (SIGKILL)", number + 1));
                }
            }
            Act::Restart(number) => {
                self.children[number] = Some(self.spawn(number)?);
                self.screen.event(format!("node-{} is started again", number + 1));
            }
            Act::Freeze(number) => {
                self.signal(number, Signal::STOP)?;
                self.screen.event(format!("node-{} is frozen (SIGSTOP)", number + 1));
            }
            Act::Thaw(number) => {
                self.signal(number, Signal::CONT)?;
                self.screen.event(format!("node-{} goes on (SIGCONT)", number + 1));
            }
        }
        Ok(())
    }

    fn put(&mut self, id: &str, spec: &str, zone: Option<&str>, job: &str, at_once: u32) -> Result<()> {
        self.app.put(id, spec, zone, job, at_once)?;
        self.watch.wrote(id, self.clock.now(), Some((spec, zone)));
        Ok(())
    }

    fn spawn(&self, number: usize) -> Result<Child> {
        let mut child = Command::new(std::env::current_exe()?);
        child.arg("--instance").arg((number + 1).to_string()).arg("--store");
        match &self.args.redis {
            None => child.arg(format!("sqlite:{}", self.args.path.display())),
            Some(redis) => {
                child.arg(&redis.url).arg("--namespace").arg(&redis.namespace).arg("--file").arg(&self.args.path)
            }
        };
        Ok(child.stdin(Stdio::null()).spawn()?)
    }

    fn signal(&self, number: usize, signal: Signal) -> Result<()> {
        if let Some(child) = &self.children[number] {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("a process without an id")?;
            kill_process(pid, signal)?;
        }
        Ok(())
    }

    /// Asks all instances to stop, and waits for them.
    fn stop(&mut self) -> Result<()> {
        self.screen.event("all are asked to stop (SIGTERM)".to_owned());
        for number in 0..self.children.len() {
            self.signal(number, Signal::TERM)?;
        }
        for (number, child) in self.children.iter_mut().enumerate() {
            if let Some(mut child) = child.take() {
                let status = child.wait()?;
                if !status.success() {
                    self.wrong.push(format!("node-{} did not stop cleanly: {status}", number + 1));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Conductor<'_> {
    /// No process stays behind, also after an error or a panic.
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Removes the file that was made up.
struct Cleanup(PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm"] {
            let mut path = self.0.clone().into_os_string();
            path.push(suffix);
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Up to which slots can be judged: one of this very second may be on its way.
fn settled(now: Timestamp) -> Trigger {
    Trigger::from_secs(now.trigger().as_secs() - 1)
}

/// The seconds from `now` to `then`, rounded up.
pub(crate) fn seconds_to(now: Timestamp, then: Timestamp) -> u64 {
    then.since(now).as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}
