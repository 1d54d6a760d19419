//! The workers as the other rooms see them: permits, the queue to them, and runs that come back for another try.
//!
//! Where the ledger is shared, a permit is taken before a slot is asked for, so that nothing queues between claim and
//! entry. A run between two tries holds none. Once its back-off is over it takes the next permit that gets free: slots are
//! asked for only with what it leaves over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::Duration;

use super::mailbox::Mailbox;
use super::retries::Retries;
use crate::clock::{Clock, Signal};
use crate::run::RunCell;

/// With a ledger of this process alone claims run ahead, in whole calls, while no more than so many runs are queued: a
/// call for each run that a worker takes would cost more than the run.
const RUN_AHEAD: usize = 896;
/// No worker.
const NOBODY: usize = usize::MAX;

pub(crate) struct Pool {
    /// The ledger is this scheduler's own: claims run ahead, and permits bound nothing.
    exclusive: bool,
    /// Runs claimed and not yet taken by a worker.
    work: Mailbox<Arc<RunCell>>,
    /// Those of them that operators wait for: before the others.
    urgent: Mailbox<Arc<RunCell>>,
    /// How many operators wait for a worker.
    orders: AtomicUsize,
    queued: AtomicUsize,
    /// Permits taken: by runs that a worker has or is about to get, and by slots that are being asked for.
    busy: AtomicUsize,
    /// Of each worker, its signal,
    signals: Vec<Signal>,
    /// and whether it waits for work.
    idle: Vec<AtomicBool>,
    retries: Retries,
    /// The idle worker that wakes when the first retry's back-off is over.
    watcher: AtomicUsize,
    claimer: Signal,
}

/// What a worker does next.
pub(crate) enum Next {
    /// Enters this run for the first time.
    Start(Arc<RunCell>),
    /// Tries this one again.
    Retry(Arc<RunCell>),
    /// Waits for its signal, or until this monotonic time.
    Wait(Option<Duration>),
}

impl Pool {
    pub(crate) fn new(workers: usize, exclusive: bool, claimer: Signal) -> Self {
        Self {
            exclusive,
            work: Mailbox::new(),
            urgent: Mailbox::new(),
            orders: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            signals: (0..workers).map(|_| Signal::new()).collect(),
            idle: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            retries: Retries::default(),
            watcher: AtomicUsize::new(NOBODY),
            claimer,
        }
    }

    pub(crate) fn signal(&self, number: usize) -> &Signal {
        &self.signals[number]
    }

    pub(crate) fn wake_all(&self) {
        self.signals.iter().for_each(Signal::notify);
    }

    /// Permits taken.
    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Ordering::Acquire)
    }

    /// Runs claimed and not yet taken by a worker.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// Runs between two tries.
    pub(crate) fn waiting(&self) -> usize {
        self.retries.len()
    }

    /// How many slots may be asked for.
    pub(crate) fn room(&self, mono: Duration) -> usize {
        if self.exclusive {
            return if self.queued() <= RUN_AHEAD { usize::MAX } else { 0 };
        }
        let taken = self.busy() + self.retries.ready(mono);
        self.signals.len().saturating_sub(taken)
    }

    /// How many runs that operators wait for may be asked for. Where runs queue in this process anyway, they go to the front
    /// of the queue, if they may wait there.
    pub(crate) fn room_for_orders(&self, mono: Duration, may_wait: bool) -> usize {
        let workers = self.signals.len();
        if self.exclusive && may_wait && self.queued() > 0 {
            return workers;
        }
        workers.saturating_sub(self.busy() + self.retries.ready(mono))
    }

    /// So many operators wait for a worker.
    pub(crate) fn orders_wait(&self, n: usize) {
        self.orders.store(n, Ordering::Release);
    }

    /// Takes up to `n` permits for slots that are about to be asked for; how many.
    pub(crate) fn reserve(&self, n: usize, mono: Duration) -> usize {
        if self.exclusive {
            self.busy.fetch_add(n, Ordering::AcqRel);
            return n;
        }
        let ready = self.retries.ready(mono);
        let more = |busy: usize| busy + n.min(self.signals.len().saturating_sub(busy + ready));
        let before = self.busy.fetch_update(Ordering::AcqRel, Ordering::Acquire, |busy| Some(more(busy)));
        before.map_or(0, |busy| more(busy) - busy)
    }

    /// Gives back the permits of slots that were not granted.
    pub(crate) fn give_back(&self, n: usize, clock: &dyn Clock) {
        if n > 0 {
            self.busy.fetch_sub(n, Ordering::AcqRel);
            // Pairs with the fence in `next`. The clock is read once the permits are there: a worker that found none for a
            // retry has read it before.
            fence(Ordering::SeqCst);
            self.wake(n.min(self.retries.ready(clock.monotonic())));
        }
    }

    /// A worker is done with a run, or for now.
    pub(crate) fn release(&self) {
        self.busy.fetch_sub(1, Ordering::AcqRel);
        if !self.exclusive || self.orders.load(Ordering::Acquire) > 0 {
            self.claimer.notify();
        }
    }

    /// Hands granted runs to the workers; their permits are taken already.
    pub(crate) fn hand_over(&self, cells: Vec<Arc<RunCell>>) {
        let n = cells.len();
        self.queued.fetch_add(n, Ordering::AcqRel);
        for cell in cells {
            if cell.order.is_some() { self.urgent.send(cell) } else { self.work.send(cell) }
        }
        self.wake(n);
    }

    /// Takes back a run that no worker has taken, with its permit.
    pub(crate) fn take_back(&self) -> Option<Arc<RunCell>> {
        let cell = self.first()?;
        self.queued.fetch_sub(1, Ordering::AcqRel);
        self.busy.fetch_sub(1, Ordering::AcqRel);
        Some(cell)
    }

    /// Puts a run aside until `at`, unless it has been told to stop; whether it waits now.
    pub(crate) fn put_aside(&self, at: Duration, cell: &Arc<RunCell>) -> bool {
        let waits = self.retries.put(at, cell);
        // Pairs with the fences in `next`: either the watcher sees this run, or it is seen here and looks once more.
        fence(Ordering::SeqCst);
        if waits {
            self.tell_watcher();
        }
        waits
    }

    /// Which retry is the first one has changed.
    fn tell_watcher(&self) {
        if let Some(watcher) = self.signals.get(self.watcher.load(Ordering::Acquire)) {
            watcher.notify();
        }
    }

    /// Takes out those that wait for another try and that `stop` says; they are over.
    pub(crate) fn stop_waiting(&self, stop: impl Fn(&RunCell) -> bool) -> Vec<Arc<RunCell>> {
        let over = self.retries.take(stop);
        if !over.is_empty() {
            // The claimer may have left a permit to one of them.
            self.claimer.notify();
        }
        over
    }

    /// Wakes up to `n` workers that wait for work, which is there already. Those that are at work look for more by
    /// themselves.
    fn wake(&self, n: usize) {
        // Pairs with the fence in `next`: either the worker sees the work, or it is seen to be idle here.
        fence(Ordering::SeqCst);
        let idle = self.signals.iter().zip(&self.idle).filter(|(_, idle)| idle.swap(false, Ordering::AcqRel));
        idle.take(n).for_each(|(signal, _)| signal.notify());
    }

    /// What worker `number` does next; without work it counts as idle until it is woken.
    pub(crate) fn next(&self, number: usize, clock: &dyn Clock) -> Next {
        if self.idle[number].load(Ordering::Relaxed) {
            // It woke by itself.
            self.idle[number].store(false, Ordering::Release);
        }
        self.leave_watch(number);
        if let Some(next) = self.take(clock) {
            self.pass_watch();
            return next;
        }
        self.idle[number].store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        let watches = self.watcher.compare_exchange(NOBODY, number, Ordering::AcqRel, Ordering::Acquire).is_ok();
        fence(Ordering::SeqCst);
        if let Some(next) = self.take(clock) {
            // Woken meanwhile for another run than the one it found: the call is passed on.
            if !self.idle[number].swap(false, Ordering::AcqRel) {
                self.wake(1);
            }
            self.leave_watch(number);
            self.pass_watch();
            return next;
        }
        // One whose back-off is over and that finds no permit waits for that, not for a time. The clock is read first: then
        // whoever gives the permit back reads it later, and finds the retry.
        let until = self.retries.soonest().filter(|at| watches && (*at > clock.monotonic() || self.has_permit()));
        Next::Wait(until)
    }

    /// Whether a run that comes back finds a permit.
    fn has_permit(&self) -> bool {
        self.exclusive || self.busy() < self.signals.len()
    }

    fn leave_watch(&self, number: usize) {
        if self.watcher.load(Ordering::Relaxed) == number {
            self.watcher.store(NOBODY, Ordering::Release);
        }
    }

    /// Another idle worker watches over the retries, if there is one.
    fn pass_watch(&self) {
        if self.retries.soonest().is_some() && self.watcher.load(Ordering::Acquire) == NOBODY {
            self.wake(1);
        }
    }

    fn take(&self, clock: &dyn Clock) -> Option<Next> {
        if let Some(cell) = self.take_retry(clock) {
            // A worker that was woken for a queued run passes the call on.
            if self.queued() > 0 {
                self.wake(1);
            }
            self.tell_watcher();
            return Some(Next::Retry(cell));
        }
        let cell = self.first()?;
        let queued = self.queued.fetch_sub(1, Ordering::AcqRel) - 1;
        if self.exclusive && queued == RUN_AHEAD {
            // The claimer, which waited for this, may run ahead once more.
            self.claimer.notify();
        }
        Some(Next::Start(cell))
    }

    fn first(&self) -> Option<Arc<RunCell>> {
        self.urgent.try_recv().or_else(|| self.work.try_recv())
    }

    /// A run whose back-off is over, with a permit.
    fn take_retry(&self, clock: &dyn Clock) -> Option<Arc<RunCell>> {
        let soonest = self.retries.soonest()?;
        let mono = clock.monotonic();
        if soonest > mono {
            return None;
        }
        let room = |busy: usize| (self.exclusive || busy < self.signals.len()).then_some(busy + 1);
        self.busy.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).ok()?;
        let cell = self.retries.pop(mono);
        if cell.is_none() {
            self.release();
        }
        cell
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
