//! Writing: one transaction at a time per handle, in which whatever waits is carried out together.
//!
//! There is no thread for it. The caller that finds nobody writing *leads*: it takes the file's write lock, then carries
//! out all requests that wait by then, its own among them, in one transaction (group commit), answers them, and hands
//! the lead to one that came meanwhile. So a lone caller pays no hand-over between threads, many callers share one
//! commit, and under a simulated clock everything happens on the caller's thread.
//!
//! What goes first is decided after the write lock was taken: a claim that waits for the lock never delays a renewal,
//! the renewal rides in its transaction.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::seam::StoreErrorKind;
use timertask_core::time::Timestamp;

use crate::connection::Connected;
use crate::error::Fault;
use crate::patience::Deadline;
use crate::tables::Tables;

/// How many requests of a call, and of all calls in one transaction, are carried out before the write lock is given
/// back, so that other processes get their turn.
pub(crate) const GROUP: usize = 256;

/// How many calls may wait. More callers than that at once means that something else is wrong.
const WAITING: usize = 4096;

/// What goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Renewals and ends: a term must not lapse because others want to start.
    First,
    /// Claims and what concerns plans.
    Normal,
    /// What can wait: purges, the board.
    Last,
}

type Work = Box<dyn FnMut(&Tables<'_>) -> Result<(), Fault> + Send>;

/// A call that waits, or is being carried out.
struct Job {
    work: Work,
    /// How many requests it holds.
    weight: usize,
    ticket: Arc<Ticket>,
}

impl Drop for Job {
    /// A job that nobody answered (a panic on the way) is answered here, so that its caller doesn't wait in vain.
    fn drop(&mut self) {
        self.ticket.answer(Err(Fault::new(StoreErrorKind::Internal, "the write was given up").unknown_outcome()));
    }
}

/// What a caller waits on.
#[derive(Default)]
struct Ticket {
    state: std::sync::Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
enum State {
    /// In the queue.
    #[default]
    Waiting,
    /// In the queue, and its caller is to lead.
    Lead,
    /// Being carried out by a leader.
    Taken,
    Answered(Result<(), Fault>),
    /// The caller has its answer, or has gone.
    Gone,
}

impl Ticket {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.lock() = state;
        self.wake.notify_one();
    }

    /// The first answer counts.
    fn answer(&self, result: Result<(), Fault>) {
        let mut state = self.lock();
        if !matches!(*state, State::Answered(_) | State::Gone) {
            *state = State::Answered(result);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// The answer, if there is one already.
    fn take(&self) -> Option<Result<(), Fault>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Answered(result) => Some(result),
            other => {
                *state = other;
                None
            }
        }
    }
}

#[derive(Default)]
struct Queue {
    /// Whether somebody leads. The lead passes from one to the next without a gap while anybody waits.
    led: bool,
    waiting: [VecDeque<Job>; 3],
}

impl Queue {
    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Takes the call off the queue, if it is still there.
    fn remove(&mut self, ticket: &Arc<Ticket>) -> Option<Job> {
        self.waiting.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|job| Arc::ptr_eq(&job.ticket, ticket))?;
            queue.remove(at)
        })
    }

    /// Takes what goes into one transaction: the most urgent first, at least one.
    fn group(&mut self) -> Vec<Job> {
        let mut group = Vec::new();
        let mut weight = 0;
        for queue in &mut self.waiting {
            while queue.front().is_some_and(|job| weight == 0 || weight + job.weight <= GROUP) {
                let Some(job) = queue.pop_front() else { break };
                weight += job.weight.max(1);
                job.ticket.set(State::Taken);
                group.push(job);
            }
        }
        group
    }

    /// Gives the lead to the most urgent, or to nobody.
    fn pass_on(&mut self) {
        match self.waiting.iter().find_map(VecDeque::front) {
            Some(next) => next.ticket.set(State::Lead),
            None => self.led = false,
        }
    }
}

/// The writing side of a handle.
pub(crate) struct Writer {
    queue: std::sync::Mutex<Queue>,
    /// Locked by whoever leads, and by nobody else while the handle is in use.
    connected: std::sync::Mutex<Connected>,
    clock: Arc<dyn Clock>,
    patience: Duration,
}

impl Writer {
    pub(crate) fn new(connected: Connected, clock: Arc<dyn Clock>, patience: Duration) -> Self {
        Self { queue: std::sync::Mutex::default(), connected: std::sync::Mutex::new(connected), clock, patience }
    }

    /// Carries out `work` in a write transaction, alone or with others, and answers with the store's now in it.
    ///
    /// `work` may be called again, after what it did was rolled back.
    ///
    /// # Blocking
    /// Until the deadline of this handle, and no longer for the write lock; the commit itself takes what the disk takes.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        urgency: Urgency,
        weight: usize,
        mut work: impl FnMut(&Tables<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<(Timestamp, T), Fault> {
        let deadline = Deadline::after(self.patience);
        let result = Arc::new(std::sync::Mutex::new(None));
        let place = Arc::clone(&result);
        let work: Work = Box::new(move |tables| {
            let done = work(tables)?;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some((tables.now(), done));
            Ok(())
        });
        let ticket = Arc::new(Ticket::default());
        let lead = self.enqueue(urgency, Job { work, weight, ticket: Arc::clone(&ticket) })?;
        if lead || !self.wait(&ticket, deadline)? {
            self.lead(&ticket, deadline);
        }
        match ticket.take() {
            Some(Ok(())) => {}
            Some(Err(fault)) => return Err(fault),
            None => return Err(Fault::new(StoreErrorKind::Internal, "no answer was given").unknown_outcome()),
        }
        let done = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        done.ok_or_else(|| Fault::new(StoreErrorKind::Internal, "no result was given").unknown_outcome())
    }

    /// Puts a call into the queue; whether its caller leads.
    fn enqueue(&self, urgency: Urgency, job: Job) -> Result<bool, Fault> {
        let mut queue = self.lock();
        if queue.len() >= WAITING {
            return Err(Fault::new(StoreErrorKind::Busy, format!("{WAITING} calls wait already")));
        }
        queue.waiting[urgency as usize].push_back(job);
        Ok(!std::mem::replace(&mut queue.led, true))
    }

    /// Waits for an answer (`true`) or the lead (`false`).
    fn wait(&self, ticket: &Arc<Ticket>, deadline: Deadline) -> Result<bool, Fault> {
        let mut state = ticket.lock();
        loop {
            match *state {
                State::Answered(_) | State::Gone => return Ok(true),
                State::Lead => return Ok(false),
                State::Waiting | State::Taken => {}
            }
            let left = deadline.left();
            if left.is_zero() {
                break;
            }
            state = ticket.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        // Under the queue's lock nobody takes it or makes it lead.
        let mut queue = self.lock();
        let state = ticket.lock();
        match *state {
            State::Answered(_) | State::Gone => Ok(true),
            State::Lead => Ok(false),
            State::Waiting => {
                drop(state);
                let job = queue.remove(ticket);
                drop((queue, job));
                Err(Fault::new(StoreErrorKind::Busy, "no turn within the deadline"))
            }
            State::Taken => Err(Fault::new(StoreErrorKind::Busy, "no answer within the deadline").unknown_outcome()),
        }
    }

    /// Carries out groups until the own call is answered, then passes the lead on.
    fn lead(&self, own: &Arc<Ticket>, deadline: Deadline) {
        let _lead = Lead(self);
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        while !matches!(*own.lock(), State::Answered(_)) {
            if let Err(fault) = connected.begin(deadline) {
                // Those who wait have deadlines of their own; each tries for itself.
                let job = self.lock().remove(own);
                own.answer(Err(fault));
                drop(job);
                return;
            }
            let mut group = self.lock().group();
            self.carry_out(&mut connected, &mut group, deadline);
        }
    }

    /// Carries out a group in the transaction that has begun. Where one of it fails nothing of it counts, and each is
    /// carried out again alone: one fault changes nothing for the others.
    fn carry_out(&self, connected: &mut Connected, group: &mut [Job], deadline: Deadline) {
        let failed = group.iter_mut().find_map(|job| self.call(connected, job).err());
        match failed {
            None => {
                let done = connected.commit();
                for job in group {
                    job.ticket.answer(done.clone());
                }
            }
            Some(fault) => {
                connected.roll_back();
                if let [job] = group {
                    job.ticket.answer(Err(fault));
                    return;
                }
                for job in group {
                    let done = connected.begin(deadline).and_then(|()| {
                        self.call(connected, job).inspect_err(|_| connected.roll_back())?;
                        connected.commit()
                    });
                    job.ticket.answer(done);
                }
            }
        }
    }

    fn call(&self, connected: &Connected, job: &mut Job) -> Result<(), Fault> {
        let tables = Tables::new(connected.connection(), self.clock.now());
        catch_unwind(AssertUnwindSafe(|| (job.work)(&tables)))
            .unwrap_or_else(|_| Err(Fault::new(StoreErrorKind::Internal, "a panic while deciding")))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Having the lead; dropping it passes it on, also on a panic.
struct Lead<'w>(&'w Writer);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.lock().pass_on();
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
