//! A run that an operator waits for: the one state by which who asks, the claimer and the worker agree on what becomes
//! of it.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Signal;
use crate::run::{RunCell, phase};
use crate::seam::{Ending, Refusal, StoreError};
use crate::time::Trigger;

/// What becomes of an order.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The job was entered; this is the slot's instant.
    Started(Trigger),
    /// Another decision runs it.
    Held,
    /// It has ended so.
    Ended(Ending),
    /// The ledger refuses it.
    Refused(Refusal),
    /// It was claimed and given back before it was entered.
    NotEntered,
    /// No worker got free in time; it was not claimed.
    Busy,
    /// The instance's clock is off; it was not claimed.
    Skewed,
    /// The plan is not installed any more; it was not claimed.
    NotInstalled,
    /// The scheduler closes.
    Stopped,
    /// The store could not be asked.
    Fault(StoreError),
}

enum State {
    /// With the claimer.
    Waiting,
    /// The store is asked.
    Asked,
    /// Granted, and handed to the workers.
    Handed(Arc<RunCell>),
    Replied(Reply),
    /// Nobody waits any more, or the reply was read.
    Over,
}

/// How a wait came to its end without a reply.
pub(crate) enum Withdrawn {
    /// It was not asked for.
    Unasked,
    /// The store has not answered; what it may still grant is not entered.
    Unanswered,
    /// It was granted; this is its run, which will not be entered and is to be given back.
    Granted(Arc<RunCell>),
    /// It is being entered: the reply is on its way.
    TooLate,
}

pub(crate) struct Order {
    /// Whether it passes a full gate.
    pub(crate) force: bool,
    /// Until when it waits for a worker, monotonic.
    pub(crate) until: Duration,
    /// Notified when there is a reply.
    pub(crate) wake: Signal,
    state: std::sync::Mutex<State>,
}

impl Order {
    pub(crate) fn new(force: bool, until: Duration, wake: Signal) -> Arc<Self> {
        Arc::new(Self { force, until, wake, state: std::sync::Mutex::new(State::Waiting) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claimer takes it up; whether it is still wanted.
    pub(crate) fn take_up(&self) -> bool {
        let mut state = self.state();
        match *state {
            State::Waiting | State::Asked => {
                *state = State::Asked;
                true
            }
            State::Handed(_) | State::Replied(_) | State::Over => false,
        }
    }

    /// It was granted; whether it is still wanted.
    pub(crate) fn hand(&self, cell: &Arc<RunCell>) -> bool {
        let mut state = self.state();
        let wanted = matches!(*state, State::Waiting | State::Asked);
        if wanted {
            *state = State::Handed(Arc::clone(cell));
        }
        wanted
    }

    /// Tells what became of it; the first word counts.
    pub(crate) fn reply(&self, reply: Reply) {
        let mut state = self.state();
        if !matches!(*state, State::Replied(_) | State::Over) {
            *state = State::Replied(reply);
            drop(state);
            self.wake.notify();
        }
    }

    /// The reply, once.
    pub(crate) fn take_reply(&self) -> Option<Reply> {
        let mut state = self.state();
        if !matches!(*state, State::Replied(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Over) {
            State::Replied(reply) => Some(reply),
            _ => None,
        }
    }

    /// Nobody waits any more. Entry and withdrawal exclude each other by the run's phase.
    pub(crate) fn withdraw(&self) -> Withdrawn {
        let mut state = self.state();
        match &*state {
            State::Waiting => {
                *state = State::Over;
                Withdrawn::Unasked
            }
            State::Asked => {
                *state = State::Over;
                Withdrawn::Unanswered
            }
            State::Handed(cell) if cell.step(phase::CLAIMED, phase::GIVEN_BACK) => {
                let cell = Arc::clone(cell);
                *state = State::Over;
                Withdrawn::Granted(cell)
            }
            State::Handed(_) | State::Replied(_) | State::Over => Withdrawn::TooLate,
        }
    }
}
