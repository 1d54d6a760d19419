//! The driving role: one thread at a time gives the turns.
//!
//! Rooms run inline on a thread of the clock's own, one after the other, without a hand-over. Only where a room waits
//! within its turn is that thread's stack stuck; then the role moves to whoever is next: to a stack that may go on, or
//! to an idle thread for a fresh turn. Who hands the role over picks the next one first, so a wait that is itself next
//! goes on without any hand-over.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use timertask_core::clock::{Room, Signal, Turn, Wake};
use timertask_core::time::Timestamp;

use super::timeline::{Due, Failure, Goal, Pick, State, Timeline, What};
use super::trace::Step;

/// How often a driver looks whether a participant at work has notified a room.
const GLANCE: Duration = Duration::from_millis(1);

/// What unwinds the stack of a killed instance. Private, and raised without the panic hook, so nothing is printed.
pub(super) struct Killed;

/// Who gives the turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Nobody: whoever runs the goal may take it.
    Free,
    /// A thread of the clock's own.
    Thread,
}

/// A thread of the clock's own: idle, driving, or stuck in a wait within a turn.
pub(super) struct DriverThread {
    order: Option<Order>,
    wake: Arc<Condvar>,
    pub(super) handle: Option<JoinHandle<()>>,
}

enum Order {
    /// Take the role, and begin with this room's turn.
    Turn(u64),
    /// Take the role, and look who is next.
    Look,
    /// Take the role back in the midst of a turn.
    Resume(Option<Wake>),
    /// End.
    Stop,
}

/// What the current thread is doing, where it is a clock's own thread within a turn.
#[derive(Clone, Copy)]
pub(super) struct Driving {
    pub(super) line: usize,
    pub(super) entry: u64,
    pub(super) view: usize,
    thread: usize,
}

thread_local! {
    static DRIVING: Cell<Option<Driving>> = const { Cell::new(None) };
}

/// The turn that the current thread is in, if it is one of `line`.
pub(super) fn driving(line: &Timeline) -> Option<Driving> {
    DRIVING.get().filter(|d| d.line == line.id())
}

#[expect(clippy::disallowed_methods, reason = "the guard against a room that never comes to rest counts real time")]
fn real_now() -> Instant {
    Instant::now()
}

impl Timeline {
    /// Drives until `goal` is reached. Surfaces the panic of a room.
    pub(super) fn run(self: &Arc<Self>, goal: Goal) {
        assert!(driving(self).is_none(), "a fake clock was told to advance from inside a turn of one of its own rooms");
        let mut state = self.lock();
        while state.goal.is_some() {
            state = self.rested.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let me = std::thread::current().id();
        state.owner = me;
        state.participants.retain(|p| p.thread != me);
        state.goal = Some(goal);
        let mut guard: Option<(u64, Instant)> = None;
        loop {
            if state.role == Role::Free {
                match state.pick(self) {
                    Pick::Rest => break,
                    Pick::Participants => {
                        state = self.changed.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
                    }
                    Pick::Entry(index) => state.hand_over(self, Some(index)),
                }
            } else {
                let patience = state.patience;
                state = self.rested.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
            }
            let rests = state.rests;
            match guard {
                Some((at, since)) if at == rests => {
                    if since.elapsed() >= state.patience {
                        state.goal = None;
                        self.rested.notify_all();
                        let message = state.complaint(self.wall());
                        drop(state);
                        panic!("{message}");
                    }
                }
                _ => guard = Some((rests, real_now())),
            }
        }
        state.goal = None;
        let failure = state.failure.take();
        drop(state);
        self.rested.notify_all();
        match failure {
            Some(failure) if !std::thread::panicking() => resume_unwind(failure.payload),
            _ => {}
        }
    }

    /// A wait by the room that the current thread gives a turn. `held`: also where it could go on at once, since its
    /// view has just been frozen. `None`: its view was killed.
    pub(super) fn wait_within(self: &Arc<Self>, me: Driving, signal: &Signal, due: Due, held: bool) -> Option<Wake> {
        let mut state = self.lock();
        let view = state.views[me.view];
        if view.dead {
            return None;
        }
        if !held && !view.frozen {
            if signal.take() {
                return Some(Wake::Signal);
            }
            if due.at(&view, self.offset.load(Ordering::Relaxed)) <= self.mono() {
                return Some(Wake::Time);
            }
        }
        // A dead view was answered above, so the entry of this very turn is there.
        let index = state.find(me.entry)?;
        let entry = &mut state.entries[index];
        let of_room = std::mem::replace(&mut entry.watch, signal.clone());
        entry.due = due;
        entry.what = What::Stack(me.thread);
        let wake = match state.pick(self) {
            Pick::Entry(index) if state.entries[index].id == me.entry => state.resume(self, index),
            pick => {
                match pick {
                    Pick::Entry(index) => state.hand_over(self, Some(index)),
                    Pick::Participants => state.hand_over(self, None),
                    Pick::Rest => state.give_back(self),
                }
                let (order, held) = self.next_order(state, me.thread);
                state = held;
                match order {
                    Order::Resume(wake) => wake,
                    // Only an idle thread is told to stop or to take a turn.
                    Order::Stop | Order::Look | Order::Turn(_) => None,
                }
            }
        };
        if let Some(index) = state.find(me.entry) {
            state.entries[index].watch = of_room;
        }
        wake
    }

    /// Sleeps until the thread `me` is told what to do.
    fn next_order<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize) -> (Order, MutexGuard<'a, State>) {
        let wake = Arc::clone(&state.threads[me].wake);
        loop {
            if let Some(order) = state.threads[me].order.take() {
                return (order, state);
            }
            state = wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn driver_thread(self: &Arc<Self>, me: usize) {
        let mut state = self.lock();
        loop {
            let (order, held) = self.next_order(state, me);
            state = match order {
                Order::Turn(id) => self.drive(held, me, Some(id)),
                Order::Look => self.drive(held, me, None),
                Order::Resume(_) | Order::Stop => return,
            };
            state.idle.push(me);
        }
    }

    /// Gives turns until the role goes elsewhere.
    fn drive<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        me: usize,
        first: Option<u64>,
    ) -> MutexGuard<'a, State> {
        let mut next = first.and_then(|id| state.find(id));
        loop {
            if let Some(index) = next.take() {
                state = self.turn(state, me, index);
            }
            match state.pick(self) {
                Pick::Entry(index) if matches!(state.entries[index].what, What::Room(_)) => next = Some(index),
                Pick::Entry(index) => {
                    state.hand_over(self, Some(index));
                    return state;
                }
                Pick::Participants => {
                    state = self.changed.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
                }
                Pick::Rest => {
                    state.give_back(self);
                    return state;
                }
            }
        }
    }

    /// One turn of the room at `index`, with the lock released.
    fn turn<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        me: usize,
        index: usize,
    ) -> MutexGuard<'a, State> {
        let entry = &mut state.entries[index];
        let What::Room(mut room) = std::mem::replace(&mut entry.what, What::Busy) else { return state };
        let (id, view) = (entry.id, entry.view);
        let step = if entry.watch.take() { Step::Notified } else { Step::Timed };
        state.began(self, index, step);
        let now = Timestamp::from_micros(self.wall().as_micros().saturating_add(state.views[view].skew));
        drop(state);

        DRIVING.set(Some(Driving { line: self.id(), entry: id, view, thread: me }));
        let result = catch_unwind(AssertUnwindSafe(|| room.turn(now)));
        // The room goes where it ended, panicked or was killed in its turn: outside the lock, and still as part of it.
        let mut state = self.lock();
        let alive = !state.views[view].dead;
        let mut kept = Some(room);
        let failure = match result {
            Ok(Turn::Wait(until)) if alive => {
                if let Some(index) = state.find(id) {
                    state.entries[index].due = Due::new(until);
                    state.entries[index].what = kept.take().map_or(What::Busy, What::Room);
                }
                None
            }
            Ok(_) => None,
            Err(payload) => (alive || !payload.is::<Killed>()).then_some(payload),
        };
        if let Some(room) = kept {
            drop(state);
            let dropped = drop_quietly(room);
            state = self.lock();
            if let Some(index) = state.find(id) {
                drop(state.remove(index));
            }
            if let Some(payload) = failure.or(dropped) {
                state.failure.get_or_insert(Failure { payload });
            }
        }
        DRIVING.set(None);
        state
    }
}

impl State {
    /// Gives the role to the entry at `index`, or to an idle thread that is to look who is next.
    fn hand_over(&mut self, line: &Arc<Timeline>, index: Option<usize>) {
        self.role = Role::Thread;
        let (thread, order) = match index {
            None => (self.idle_thread(line), Order::Look),
            Some(index) => match self.entries[index].what {
                What::Stack(thread) => (thread, Order::Resume(self.resume(line, index))),
                What::Room(_) | What::Busy => (self.idle_thread(line), Order::Turn(self.entries[index].id)),
            },
        };
        self.threads[thread].order = Some(order);
        self.threads[thread].wake.notify_one();
    }

    /// Nobody is next: the role goes back to whoever runs the goal.
    fn give_back(&mut self, line: &Timeline) {
        self.role = Role::Free;
        line.rested.notify_all();
    }

    fn idle_thread(&mut self, line: &Arc<Timeline>) -> usize {
        if let Some(thread) = self.idle.pop() {
            return thread;
        }
        let me = self.threads.len();
        let shared = Arc::clone(line);
        let thread = std::thread::Builder::new().name(format!("fake-clock-{me}"));
        match thread.spawn(move || shared.driver_thread(me)) {
            Ok(handle) => {
                self.threads.push(DriverThread { order: None, wake: Arc::default(), handle: Some(handle) });
                me
            }
            Err(e) => panic!("the fake clock needs one more thread, for a wait within a turn, and got none: {e}"),
        }
    }

    /// Tells the idle threads to end, and gives their handles.
    pub(super) fn stop_idle(&mut self) -> Vec<JoinHandle<()>> {
        let mut handles = Vec::new();
        for thread in std::mem::take(&mut self.idle) {
            self.threads[thread].order = Some(Order::Stop);
            self.threads[thread].wake.notify_one();
            handles.extend(self.threads[thread].handle.take());
        }
        handles
    }

    /// Why there is no rest, in words.
    fn complaint(&self, now: Timestamp) -> String {
        let mut busy = BTreeSet::new();
        if let Some(name) = &self.in_turn {
            busy.insert(format!("room `{name}` is inside its turn (turn {} at this instant)", self.turns));
        }
        for p in self.participants.iter().filter(|p| p.parked.is_none()) {
            busy.insert(format!("thread `{}` has not come back to wait on the clock", p.name));
        }
        if busy.is_empty() {
            busy.insert(format!("rooms keep asking for turns ({} at this instant)", self.turns));
        }
        let busy: Vec<String> = busy.into_iter().collect();
        format!("no rest within {:?} of real time, at {now} of the fake clock: {}", self.patience, busy.join("; "))
    }
}

/// Drops what may call user code; its panic, if it is one of theirs.
pub(super) fn drop_quietly(room: Box<dyn Room>) -> Option<Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(|| drop(room))).err().filter(|payload| !payload.is::<Killed>())
}
