//! The three ways to wait on a fake clock: within a turn, as the test's own thread, and as any other thread.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::{self, ThreadId};

use timertask_core::clock::{Signal, Until, Wake};

use super::drive::{Killed, driving};
use super::timeline::{Due, Goal, NEVER, Participant, State, Timeline, ViewShared};

/// Takes a thread off the lists of the clocks it has waited on when it ends, so that no rest waits for it.
struct OffTheList(RefCell<Vec<Weak<Timeline>>>);

thread_local! {
    static LISTED: OffTheList = const { OffTheList(RefCell::new(Vec::new())) };
}

impl Drop for OffTheList {
    fn drop(&mut self) {
        let me = thread::current().id();
        for line in self.0.take().iter().filter_map(Weak::upgrade) {
            line.lock().participants.retain(|p| p.thread != me);
            line.changed.notify_all();
        }
    }
}

impl Timeline {
    pub(super) fn wait(self: &Arc<Self>, view: &ViewShared, signal: &Signal, until: Option<Until>) -> Wake {
        if let Some(me) = driving(self) {
            let mut due = Due::new(until);
            if me.view != view.index {
                // Said in terms of another view's clocks than that of the room that waits.
                let state = self.lock();
                let (_, at) = state.instant(self, view.index, due);
                due = if at == NEVER { Due::Never } else { Due::Mono(at.saturating_sub(state.views[me.view].lag)) };
            }
            return match self.wait_within(me, signal, due, false) {
                Some(wake) => wake,
                None => die(),
            };
        }
        let me = thread::current().id();
        let owner = self.lock().owner == me;
        if owner { self.wait_as_owner(view, signal, until) } else { self.wait_as_participant(view, signal, until, me) }
    }

    /// The test's own thread waits: nobody else would move time on, so it does.
    fn wait_as_owner(self: &Arc<Self>, view: &ViewShared, signal: &Signal, until: Option<Until>) -> Wake {
        let due = Due::new(until);
        loop {
            if signal.take() {
                return Wake::Signal;
            }
            let (now, at) = self.lock().instant(self, view.index, due);
            if at <= now {
                return Wake::Time;
            }
            let dead = self.lock().views[view.index].dead;
            if dead && !thread::panicking() {
                panic!("waiting on the clock of `{}`, which was killed", view.label);
            }
            let target = if until.is_some() { at.min(super::END) } else { now };
            self.run(Goal { target, stop_on: Some(signal.clone()), only_dying: false });
            if signal.take() {
                return Wake::Signal;
            }
            if until.is_none() || target == super::END {
                if thread::panicking() {
                    return Wake::Time;
                }
                panic!("would wait for ever: all rooms are at rest, the signal is not set, and the wait has no end");
            }
        }
    }

    fn wait_as_participant(
        self: &Arc<Self>,
        view: &ViewShared,
        signal: &Signal,
        until: Option<Until>,
        me: ThreadId,
    ) -> Wake {
        let due = Due::new(until);
        let mut state = self.lock();
        state.participant(self, view.index, me).parked = Some((signal.clone(), due));
        self.changed.notify_all();
        loop {
            let seen = signal.pokes();
            let wake = if state.views[view.index].dead {
                None
            } else if state.views[view.index].frozen {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            } else if signal.take() {
                Some(Wake::Signal)
            } else {
                // A wall clock that was set back has changed what it waits for.
                let due = state.participant(self, view.index, me).parked.as_ref().map_or(due, |(_, due)| *due);
                let (now, at) = state.instant(self, view.index, due);
                if at > now {
                    drop(state);
                    signal.park(seen, None);
                    state = self.lock();
                    continue;
                }
                Some(Wake::Time)
            };
            // At work from here, until it waits again or ends.
            state.participant(self, view.index, me).parked = None;
            drop(state);
            return wake.unwrap_or_else(die);
        }
    }
}

impl State {
    /// The timeline's instant, and that of `due` in a view.
    fn instant(&self, line: &Timeline, view: usize, due: Due) -> (i64, i64) {
        let offset = line.offset.load(std::sync::atomic::Ordering::Relaxed);
        (line.mono(), due.at(&self.views[view], offset))
    }

    fn participant(&mut self, line: &Arc<Timeline>, view: usize, me: ThreadId) -> &mut Participant {
        let index = self.participants.iter().position(|p| p.thread == me).unwrap_or_else(|| {
            LISTED.with(|listed| listed.0.borrow_mut().push(Arc::downgrade(line)));
            let name = thread::current().name().unwrap_or("unnamed").to_owned();
            self.participants.push(Participant { thread: me, name, view, parked: None });
            self.participants.len() - 1
        });
        self.participants[index].view = view;
        &mut self.participants[index]
    }
}

/// Ends the current stack as the process of a killed instance would: silently. Where the stack is unwinding already,
/// the wait is over at once instead.
pub(super) fn die() -> Wake {
    if thread::panicking() {
        return Wake::Time;
    }
    resume_unwind(Box::new(Killed))
}
