//! Starts the instances, edits their plans, freezes one, kills another, or the server, and waits until every slot is
//! accounted for.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use timertask::clock::{Clock, Signal as Wakeup, SystemClock, Until};
use timertask::{Timestamp, Trigger};
use timertask_examples::RedisServer;
use timertask_examples::guard::Guard;

use crate::Result;
use crate::app::App;
use crate::args::{Args, OnRedis};
use crate::audit::Audit;
use crate::score::{Act, OUTAGE, OUTAGE_PLANS, PLANS, PlanRow, SCORE};
use crate::screen::{Screen, Verdict};
use crate::store::{Store, tidy};
use crate::watch::Watch;

/// How long it may take until the killed process's lease has lapsed and was swept: a lease, three sweeps, and some.
const SETTLE: Duration = Duration::from_secs(75);

struct Conductor {
    args: Args,
    clock: SystemClock,
    interrupted: Arc<AtomicBool>,
    /// The Redis server that was started for this.
    server: Option<RedisServer>,
    /// When it was killed, and when it was back.
    outage: (Option<Timestamp>, Option<Timestamp>),
    store: Store,
    app: App,
    watch: Watch,
    screen: Screen,
    children: Vec<Option<Child>>,
    /// Sentences about what went wrong with the processes.
    wrong: Vec<String>,
    /// Dropped last: it has heard of all that the others leave behind.
    guard: Guard,
}

/// Carries the demonstration out.
pub(crate) fn run(mut args: Args) -> Result<Verdict> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let mut guard = Guard::start()?;
    let server = args.own_server.then(RedisServer::start).transpose()?;
    if let Some(server) = &server {
        guard.remove(server.folder())?;
        server.process().map_or(Ok(()), |process| guard.watch(process))?;
        args.redis = Some(OnRedis { url: server.url(), namespace: "cluster".to_owned() });
    }
    for suffix in if args.temporary { &["", "-wal", "-shm"][..] } else { &[] } {
        let mut path = args.path.clone().into_os_string();
        path.push(suffix);
        guard.remove(Path::new(&path))?;
    }
    let app = App::open(&args.path)?;
    app.create()?;
    let store = Store::open(&args)?;
    let mut conductor = Conductor {
        args,
        clock: SystemClock,
        interrupted,
        server,
        outage: (None, None),
        store,
        app,
        watch: Watch::default(),
        screen: Screen::new(),
        children: Vec::new(),
        wrong: Vec::new(),
        guard,
    };
    let verdict = conductor.play()?;
    if conductor.server.is_none() {
        tidy(&conductor.args)?;
    }
    Ok(verdict)
}

impl Conductor {
    fn play(&mut self) -> Result<Verdict> {
        let (plans, score) = if self.args.outage { (OUTAGE_PLANS, OUTAGE) } else { (PLANS, SCORE) };
        plans.iter().try_for_each(|plan| self.put(plan))?;
        self.screen.event(format!(
            "{} processes share {}; {} plans; {} s",
            self.args.instances,
            self.store.what,
            plans.len(),
            self.args.seconds
        ));
        for number in 0..self.args.instances {
            self.children.push(None);
            self.spawn(number)?;
        }
        let begin = self.clock.now();
        let end = begin.saturating_add(Duration::from_secs(self.args.seconds));
        let mut score = score.iter().peekable();
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
        let interrupted = self.is_interrupted().then(|| seconds_to(begin, self.clock.now()));
        let mut end = end.trigger();
        if interrupted.is_some() {
            end = end.min(settled(self.clock.now()));
        }
        let patience = self.clock.now().saturating_add(SETTLE);
        for number in 0..self.children.len() {
            self.signal(number, Signal::CONT)?;
        }
        // Somebody may have lost patience while the server was away; the instances have ends to record.
        if self.server.as_ref().is_some_and(|server| server.process().is_none()) {
            self.act(Act::RestartServer)?;
        }
        while !self.is_interrupted() && self.clock.now() < patience && !self.audit(end)?.is_settled() {
            self.tick(end, "waiting until what is left behind was swept up, and what was missed is made up")?;
        }
        self.stop()?;
        let mut audit = self.audit(end)?;
        if let (Some(from), Some(to), None) = (self.outage.0, self.outage.1, interrupted) {
            let told = audit.judge_outage(&self.watch, from.trigger(), to.trigger())?;
            self.screen.event(told);
        }
        let interrupted =
            self.is_interrupted().then(|| interrupted.unwrap_or_else(|| seconds_to(begin, self.clock.now())));
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
                child.take().map_or(Ok(()), |child| self.guard.forget(child.id()))?;
                // Ctrl-C on a terminal reaches all processes at once: they stop by themselves, as they should.
                if status.success() && self.interrupted.load(Ordering::Relaxed) {
                    continue;
                }
                self.wrong.push(format!("node-{} ended by itself: {status}", number + 1));
                self.screen.event(format!("node-{} ended by itself: {status}", number + 1));
            }
        }
        match self.look(end, what) {
            // That is what it is about.
            Err(_) if self.outage.0.is_some() => Ok(()),
            looked => looked,
        }
    }

    /// Asks the ledger how things stand, and shows it when it is time.
    fn look(&mut self, end: Trigger, what: &str) -> Result<()> {
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
            Act::Put(plan) => {
                self.put(&plan)?;
                self.screen.event(format!("plan {:?} is now {:?}", plan.id, plan.spec));
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
                    self.guard.forget(child.id())?;
                    self.screen.event(format!("node-{} is killed (SIGKILL)", number + 1));
                }
            }
            Act::Restart(number) => {
                self.spawn(number)?;
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
            Act::KillServer => {
                if let Some(server) = &mut self.server {
                    let process = server.process();
                    server.kill()?;
                    process.map_or(Ok(()), |process| self.guard.forget(process))?;
                    self.outage.0 = Some(self.clock.now());
                    self.screen.event("the Redis server is killed (SIGKILL)".to_owned());
                }
            }
            Act::RestartServer => {
                if let Some(server) = &mut self.server {
                    server.start_again()?;
                    server.process().map_or(Ok(()), |process| self.guard.watch(process))?;
                    self.outage.1 = Some(self.clock.now());
                    self.screen.event("the Redis server is started again".to_owned());
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, plan: &PlanRow) -> Result<()> {
        self.app.put(plan)?;
        self.watch.wrote(plan.id, self.clock.now(), Some((plan.spec, plan.zone)));
        self.watch.make_up.insert(plan.id.to_owned(), plan.make_up);
        Ok(())
    }

    fn spawn(&mut self, number: usize) -> Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--instance").arg((number + 1).to_string()).arg("--store");
        match &self.args.redis {
            None => command.arg(format!("sqlite:{}", self.args.path.display())),
            Some(redis) => {
                command.arg(&redis.url).arg("--namespace").arg(&redis.namespace).arg("--file").arg(&self.args.path)
            }
        };
        let child = command.stdin(Stdio::null()).spawn()?;
        self.guard.watch(child.id())?;
        self.children[number] = Some(child);
        Ok(())
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
                self.guard.forget(child.id())?;
                if !status.success() {
                    self.wrong.push(format!("node-{} did not stop cleanly: {status}", number + 1));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Conductor {
    /// No process stays behind, also after an error or a panic.
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = self.guard.forget(child.id());
        }
        if let Some(server) = &mut self.server {
            let process = server.process();
            let _ = server.kill();
            let _ = process.map_or(Ok(()), |process| self.guard.forget(process));
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
