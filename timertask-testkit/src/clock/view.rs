//! One instance's clock on a shared timeline: its own skew, and the faults that befall a whole process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use chrono::TimeDelta;
use timertask_core::clock::{Clock, Driver, Room, Signal, Until, Wake};
use timertask_core::time::Timestamp;

use super::drive::{driving, drop_quietly};
use super::timeline::{Due, Goal, Timeline, ViewShared, ViewState};
use super::wait::die;

/// The clock of one instance, on the timeline of a [`FakeClock`](super::FakeClock). Clones are the same clock.
///
/// Give it to `Builder::clock`; what then happens to it happens to the instance: its wall clock is
/// [skewed](Self::set_skew), its process [frozen](Self::freeze) as by SIGSTOP or [killed](Self::kill) as by SIGKILL.
#[derive(Clone)]
pub struct ClockView {
    pub(super) line: Arc<Timeline>,
    shared: Arc<ViewShared>,
    /// Ends the clock's threads with the last handle.
    life: Arc<Life>,
}

/// Held by every handle, but by no thread of the clock.
struct Life(Arc<Timeline>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.kill_all();
        // No join: the last handle may go on a thread of the clock's own.
        drop(self.0.lock().stop_idle());
    }
}

impl ClockView {
    /// The view that every timeline begins with.
    pub(super) fn first(line: Arc<Timeline>) -> Self {
        let life = Arc::new(Life(Arc::clone(&line)));
        Self { line, shared: Arc::new(ViewShared::new(0, "")), life }
    }

    /// A new instance's clock on the same timeline, with `label` before the names of its rooms in traces and panics.
    #[must_use]
    pub fn view(&self, label: &str) -> Self {
        let mut state = self.line.lock();
        let index = state.views.len();
        state.views.push(ViewState { dead: self.line.stopped.load(Ordering::Acquire), ..ViewState::default() });
        let shared = Arc::new(ViewShared::new(index, label));
        Self { line: Arc::clone(&self.line), shared, life: Arc::clone(&self.life) }
    }

    /// What it was called.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.shared.label
    }

    /// Sets how far its wall clock is ahead of the timeline's (behind, where negative). Monotonic time stays.
    pub fn set_skew(&self, skew: TimeDelta) {
        let skew = skew.num_microseconds().unwrap_or(0);
        let mut state = self.line.lock();
        let back = skew < state.views[self.shared.index].skew;
        state.views[self.shared.index].skew = skew;
        if back {
            state.set_back(Some(self.shared.index));
        }
        self.shared.skew.store(skew, Ordering::Release);
        state.poke_parked();
    }

    /// How far its wall clock is ahead of the timeline's.
    #[must_use]
    pub fn skew(&self) -> TimeDelta {
        TimeDelta::microseconds(self.shared.skew.load(Ordering::Acquire))
    }

    /// Stops the process, as SIGSTOP does: its rooms get no turns and its waits do not end until [`thaw`](Self::thaw),
    /// while both its clocks go on.
    ///
    /// # Blocking
    /// From inside a turn of one of its own rooms (or jobs) it returns when the instance is thawed: it is stopped right
    /// here.
    pub fn freeze(&self) {
        self.stop_process(false);
    }

    /// Puts the host to sleep: as [`freeze`](Self::freeze), and its monotonic clock stands still as well.
    ///
    /// # Blocking
    /// As [`freeze`](Self::freeze).
    pub fn suspend(&self) {
        self.stop_process(true);
    }

    fn stop_process(&self, host: bool) {
        let mut state = self.line.lock();
        let now = self.line.mono();
        let view = &mut state.views[self.shared.index];
        view.frozen = true;
        if host {
            view.suspended_at.get_or_insert(now);
        }
        drop(state);
        if let Some(me) = driving(&self.line).filter(|d| d.view == self.shared.index) {
            let at_once = Due::Mono(i64::MIN);
            if self.line.wait_within(me, &Signal::new(), at_once, true).is_none() {
                let _ = die();
            }
        }
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        let mut state = self.line.lock();
        let now = self.line.mono();
        let view = &mut state.views[self.shared.index];
        if view.frozen {
            view.thawed_at = Some(now);
        }
        view.frozen = false;
        if let Some(at) = view.suspended_at.take() {
            view.lag = view.lag.saturating_add(now.saturating_sub(at));
            self.shared.lag.store(view.lag, Ordering::Release);
        }
        drop(state);
        self.line.changed.notify_all();
    }

    /// Whether it is frozen or suspended.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.line.lock().views[self.shared.index].frozen
    }

    /// How long ago it was thawed last; `None` where it never was frozen.
    pub(crate) fn thawed_ago(&self) -> Option<Duration> {
        let thawed_at = self.line.lock().views[self.shared.index].thawed_at?;
        let ago = self.line.mono().saturating_sub(thawed_at);
        Some(Duration::from_micros(u64::try_from(ago).unwrap_or(0)))
    }

    /// Kills the process, as SIGKILL does. Its rooms are dropped without another turn. Where one of them (or its job)
    /// waits, that stack is unwound out of its wait, silently; whatever its destructors and `catch_unwind`s go on to do
    /// must not reach a shared store, which is for the store's wrapper to see to ([`is_alive`](Self::is_alive);
    /// `Cluster` does). Rooms that are adopted later are dropped.
    ///
    /// # Blocking
    /// Until all its stacks are unwound. From inside a turn of another instance's room it returns at once, and they are
    /// unwound before anything else gets a turn; from inside one of its own it does not return but unwinds.
    pub fn kill(&self) {
        let index = self.shared.index;
        let mut state = self.line.lock();
        self.shared.dead.store(true, Ordering::Release);
        let rooms = state.kill(|view| view == index);
        let to_unwind = state.dying > 0 || state.participants.iter().any(|p| p.view == index && p.parked.is_some());
        drop(state);
        self.line.changed.notify_all();
        // What their destructors panic about is of no interest any more.
        rooms.into_iter().for_each(|room| drop(drop_quietly(room)));
        match driving(&self.line) {
            Some(me) if me.view == index => drop(die()),
            Some(_) => {}
            None if to_unwind => self.line.run(Goal { target: 0, stop_on: None, only_dying: true }),
            None => {}
        }
    }

    /// Whether it was not killed.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.shared.dead.load(Ordering::Acquire) && !self.line.stopped.load(Ordering::Acquire)
    }

    /// For wrappers of what instances share: goes no further where this instance was killed. Its stack unwinds,
    /// silently; where it is unwinding already, `false` is the answer and the caller has to refuse.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        if !self.is_alive() {
            let _ = die();
        }
        self.is_alive()
    }
}

impl Timeline {
    pub(super) fn kill_all(&self) {
        let mut state = self.lock();
        self.stopped.store(true, Ordering::Release);
        let rooms = state.kill(|_| true);
        drop(state);
        self.changed.notify_all();
        rooms.into_iter().for_each(|room| drop(drop_quietly(room)));
    }
}

impl ViewShared {
    fn new(index: usize, label: &str) -> Self {
        Self {
            index,
            label: label.into(),
            skew: AtomicI64::new(0),
            lag: AtomicI64::new(0),
            dead: AtomicBool::new(false),
        }
    }
}

impl Clock for ClockView {
    fn now(&self) -> Timestamp {
        let skew = self.shared.skew.load(Ordering::Acquire);
        Timestamp::from_micros(self.line.wall().as_micros().saturating_add(skew))
    }

    fn monotonic(&self) -> Duration {
        let mono = self.line.mono().saturating_sub(self.shared.lag.load(Ordering::Acquire));
        Duration::from_micros(u64::try_from(mono).unwrap_or(0))
    }

    fn wait(&self, signal: &Signal, until: Option<Until>) -> Wake {
        self.line.wait(&self.shared, signal, until)
    }

    fn entropy(&self) -> u64 {
        self.line.entropy()
    }

    fn driver(&self) -> Option<Arc<dyn Driver>> {
        if self.line.threaded { None } else { Some(Arc::new(Adopter(self.clone()))) }
    }
}

/// Private, so that `adopt` is not among the methods that a user of the clock sees.
struct Adopter(ClockView);

impl Driver for Adopter {
    fn adopt(&self, room: Box<dyn Room>) {
        let refused = self.0.line.lock().adopt(room, &self.0.shared);
        drop(refused);
        self.0.line.changed.notify_all();
    }
}

impl fmt::Debug for ClockView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClockView")
            .field("label", &self.label())
            .field("now", &self.now())
            .field("monotonic", &self.monotonic())
            .finish_non_exhaustive()
    }
}
