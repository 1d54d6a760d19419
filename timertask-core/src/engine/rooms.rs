//! Starting the rooms, as threads of their own or under the clock's driver, and waiting for their end.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use super::{Claimer, Scribe, Shared, Timer, Worker};
use crate::clock::{Room, Signal, Turn};
use crate::observer::Event;
use crate::time::Timestamp;

/// The threads of the engine; empty where the clock drives the rooms.
#[derive(Default)]
pub(crate) struct Rooms {
    threads: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

impl Rooms {
    /// Starts all rooms of `shared`.
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let mut rooms: Vec<Box<dyn Room>> = vec![
            Box::new(Timer::new(Arc::clone(shared))),
            Box::new(Claimer::new(Arc::clone(shared))),
            Box::new(Scribe::new(Arc::clone(shared))),
        ];
        for n in 0..shared.config.concurrency {
            rooms.push(Box::new(Worker::new(Arc::clone(shared), n)));
        }
        // All but the scribe may still hand something to the scribe.
        shared.senders_left.store(rooms.len() - 1, Ordering::Release);
        shared.rooms_left.store(rooms.len(), Ordering::Release);
        let started = Self::default();
        for room in rooms {
            let feeds_scribe = room.name() != SCRIBE;
            let works = room.name().starts_with(WORKER);
            let room = Counted { room, shared: Arc::clone(shared), feeds_scribe, works };
            if let Err(error) = started.launch(shared, room) {
                shared.go_to(super::Phase::Leaving);
                return Err(error);
            }
        }
        Ok(started)
    }

    /// Starts one more room, which feeds nobody.
    pub(crate) fn add(&self, shared: &Arc<Shared>, room: Box<dyn Room>) -> std::io::Result<()> {
        shared.rooms_left.fetch_add(1, Ordering::AcqRel);
        self.launch(shared, Counted { room, shared: Arc::clone(shared), feeds_scribe: false, works: false })
    }

    fn launch(&self, shared: &Arc<Shared>, mut room: Counted) -> std::io::Result<()> {
        if let Some(driver) = shared.clock.driver() {
            driver.adopt(Box::new(room));
            return Ok(());
        }
        let clock = Arc::clone(&shared.clock);
        let thread = std::thread::Builder::new().name(room.name().to_owned()).spawn(move || {
            while let Turn::Wait(until) = room.turn(clock.now()) {
                let _ = clock.wait(room.signal(), until);
            }
        })?;
        self.lock().push(thread);
        Ok(())
    }

    /// Joins the threads that have ended; one that is stuck in a job or a store is left to itself.
    pub(crate) fn join_ended(&self) {
        let mut threads = self.lock();
        let (ended, stuck): (Vec<_>, Vec<_>) = threads.drain(..).partition(JoinHandle::is_finished);
        *threads = stuck;
        drop(threads);
        for thread in ended {
            let _ = thread.join();
        }
    }

    /// Joins all threads; for the case that all rooms have said that they are done.
    pub(crate) fn join_all(&self) {
        let threads: Vec<_> = self.lock().drain(..).collect();
        for thread in threads {
            // A scheduler closed from a thread of its own must not wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of the scribe's room.
pub(crate) const SCRIBE: &str = "timertask-scribe";
/// What the names of the workers' rooms begin with.
pub(crate) const WORKER: &str = "timertask-worker-";

thread_local! {
    /// The scheduler whose room has its turn on this thread, by address.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
    /// Whether that room is a worker.
    static IN_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a job of `shared`, or inside other code of the user's that a room called.
pub(crate) fn is_inside(shared: &Arc<Shared>) -> bool {
    INSIDE.get() == Arc::as_ptr(shared).addr()
}

/// Whether the calling thread is inside a job of `shared`, which may wait; no other room's callback may.
pub(crate) fn is_inside_job(shared: &Arc<Shared>) -> bool {
    is_inside(shared) && IN_WORKER.get()
}

/// A room that says when it has ended, however it ends, and whose panic becomes a state.
struct Counted {
    room: Box<dyn Room>,
    shared: Arc<Shared>,
    feeds_scribe: bool,
    works: bool,
}

impl Room for Counted {
    fn name(&self) -> &str {
        self.room.name()
    }

    fn signal(&self) -> &Signal {
        self.room.signal()
    }

    fn turn(&mut self, now: Timestamp) -> Turn {
        let before = INSIDE.replace(Arc::as_ptr(&self.shared).addr());
        let worked = IN_WORKER.replace(self.works);
        let turn = catch_unwind(AssertUnwindSafe(|| self.room.turn(now)));
        INSIDE.set(before);
        IN_WORKER.set(worked);
        match turn {
            Ok(turn) => turn,
            Err(panic) => {
                let name = self.room.name();
                let said = super::worker::panic_text(panic);
                log::error!(target: "timertask::engine", "{}: thread {name} panicked: {said}", self.shared.config.instance);
                let mut panicked = self.shared.pulse.panicked.lock().unwrap_or_else(PoisonError::into_inner);
                panicked.push(format!("{name}: {said}"));
                drop(panicked);
                self.shared.reports.event(&Event::RoomPanicked { room: name });
                Turn::Done
            }
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.feeds_scribe && self.shared.senders_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.scribe.signal().notify();
        }
        self.shared.rooms_left.fetch_sub(1, Ordering::AcqRel);
        self.shared.progress.notify();
    }
}
