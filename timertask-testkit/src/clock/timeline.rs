//! The state behind a fake clock: who waits for what, and who is next.
//!
//! All of it lies under one lock, which is never held over a turn, a drop or anything else of the user's. Instants are
//! microseconds of the timeline's own monotonic time; wall time is that plus an offset, each view's plus its skew.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use timertask_core::clock::{Room, Signal, Until, Wake};
use timertask_core::time::Timestamp;

use super::drive::{DriverThread, Role};
use super::trace::{Log, Step};
use crate::random::{Random, STEP, mix};

/// An instant that never comes.
pub(super) const NEVER: i64 = i64::MAX;

/// Everything that the handles of one fake clock share.
pub(super) struct Timeline {
    /// Monotonic time. Written under the lock, read by anybody.
    pub(super) mono: AtomicI64,
    /// What wall time is ahead of monotonic time.
    pub(super) offset: AtomicI64,
    entropy: AtomicU64,
    state: std::sync::Mutex<State>,
    /// A participant has parked or ended, a view was thawed: whoever waits for that looks again.
    pub(super) changed: Condvar,
    /// The driving role was given back, or a run has ended.
    pub(super) rested: Condvar,
    pub(super) seed: u64,
    pub(super) threaded: bool,
    /// All views are dead, those to come too.
    pub(super) stopped: AtomicBool,
}

/// What one view adds to the timeline; read without a lock.
pub(super) struct ViewShared {
    pub(super) index: usize,
    pub(super) label: Arc<str>,
    pub(super) skew: AtomicI64,
    /// What its monotonic time has stood still for.
    pub(super) lag: AtomicI64,
    pub(super) dead: AtomicBool,
}

/// The same for the driving loop, which reads them under the lock anyhow and wants them close together.
#[derive(Clone, Copy, Default)]
pub(super) struct ViewState {
    pub(super) frozen: bool,
    pub(super) dead: bool,
    pub(super) skew: i64,
    pub(super) lag: i64,
    pub(super) suspended_at: Option<i64>,
    /// When it was last thawed.
    pub(super) thawed_at: Option<i64>,
}

/// A room, or a wait within a room's turn.
pub(super) struct Entry {
    /// Counts adoptions, and so is the same in a repeated run.
    pub(super) id: u64,
    pub(super) view: usize,
    pub(super) name: Arc<str>,
    /// What makes it runnable: the room's signal, or that of the wait within its turn.
    pub(super) watch: Signal,
    pub(super) due: Due,
    pub(super) what: What,
}

pub(super) enum What {
    /// Between two turns.
    Room(Box<dyn Room>),
    /// In its turn, on the thread that has the driving role.
    Busy,
    /// In its turn, waiting; its stack is on the driver thread of this number.
    Stack(usize),
}

/// Until when an entry waits, in the terms of its view, so that steps of the wall clock move it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    Never,
    Wall(i64),
    Mono(i64),
}

/// A thread that is not the clock's and has waited on it at least once.
pub(super) struct Participant {
    pub(super) thread: ThreadId,
    pub(super) name: String,
    pub(super) view: usize,
    /// What it is parked on; `None` while it runs.
    pub(super) parked: Option<(Signal, Due)>,
}

/// What the driving loop is to reach.
pub(super) struct Goal {
    /// No farther than this.
    pub(super) target: i64,
    /// At rest with this signal set, it is reached.
    pub(super) stop_on: Option<Signal>,
    /// Only lets the waits of killed views unwind.
    pub(super) only_dying: bool,
}

pub(super) struct Failure {
    pub(super) payload: Box<dyn Any + Send>,
}

/// Who is next.
pub(super) enum Pick {
    /// The entry at this index.
    Entry(usize),
    /// Nobody of ours, but a participant is at work.
    Participants,
    /// Nobody, up to the goal.
    Rest,
}

pub(super) struct State {
    pub(super) entries: Vec<Entry>,
    next_id: u64,
    /// Behind the last pick; a fixed order goes round from there.
    from: usize,
    choice: Option<Random>,
    pub(super) views: Vec<ViewState>,
    /// How many waits within turns belong to killed views and have not been unwound.
    pub(super) dying: usize,
    pub(super) participants: Vec<Participant>,
    pub(super) threads: Vec<DriverThread>,
    pub(super) idle: Vec<usize>,
    pub(super) role: Role,
    pub(super) goal: Option<Goal>,
    /// How many instants have come to rest.
    pub(super) rests: u64,
    /// Turns since the last rest, and who had the last one.
    pub(super) turns: u64,
    pub(super) in_turn: Option<Arc<str>>,
    pub(super) failure: Option<Failure>,
    pub(super) owner: ThreadId,
    pub(super) patience: Duration,
    pub(super) log: Log,
}

impl Timeline {
    pub(super) fn new(seed: Option<u64>, threaded: bool, start: Timestamp) -> Arc<Self> {
        let number = seed.unwrap_or(0);
        Arc::new(Self {
            mono: AtomicI64::new(0),
            offset: AtomicI64::new(start.as_micros()),
            entropy: AtomicU64::new(mix(number ^ 0x656e_7472_6f70_7921)),
            state: std::sync::Mutex::new(State {
                entries: Vec::new(),
                next_id: 0,
                from: 0,
                choice: seed.map(Random::new),
                views: vec![ViewState::default()],
                dying: 0,
                participants: Vec::new(),
                threads: Vec::new(),
                idle: Vec::new(),
                role: Role::Free,
                goal: None,
                rests: 0,
                turns: 0,
                in_turn: None,
                failure: None,
                owner: std::thread::current().id(),
                patience: super::PATIENCE,
                log: Log::default(),
            }),
            changed: Condvar::new(),
            rested: Condvar::new(),
            seed: number,
            threaded,
            stopped: AtomicBool::new(false),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Identifies the timeline to its own threads.
    pub(super) fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(super) fn mono(&self) -> i64 {
        self.mono.load(Ordering::Acquire)
    }

    /// Wall time without any view's skew.
    pub(super) fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.mono().saturating_add(self.offset.load(Ordering::Acquire)))
    }

    pub(super) fn entropy(&self) -> u64 {
        mix(self.entropy.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
    }
}

impl State {
    /// Takes over a room; its first turn is due at once. Gives it back where its view is dead.
    pub(super) fn adopt(&mut self, room: Box<dyn Room>, view: &ViewShared) -> Option<Box<dyn Room>> {
        if self.views[view.index].dead {
            return Some(room);
        }
        let id = self.next_id;
        self.next_id += 1;
        let name = match &*view.label {
            "" => Arc::from(room.name()),
            label => Arc::from(format!("{label}/{}", room.name())),
        };
        let watch = room.signal().clone();
        let due = Due::Mono(i64::MIN);
        self.entries.push(Entry { id, view: view.index, name, watch, due, what: What::Room(room) });
        None
    }

    /// Where the entry `id` is now; others may have gone before it.
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        self.entries.iter().position(|e| e.id == id)
    }

    pub(super) fn remove(&mut self, index: usize) -> Entry {
        // The order of the others is part of the fixed order and stays.
        if index < self.from {
            self.from -= 1;
        }
        self.entries.remove(index)
    }

    /// Marks views as dead: their rooms go, and are the caller's to drop without the lock; their waits will unwind.
    pub(super) fn kill(&mut self, which: impl Fn(usize) -> bool) -> Vec<Box<dyn Room>> {
        for (_, view) in self.views.iter_mut().enumerate().filter(|(index, _)| which(*index)) {
            (view.dead, view.frozen) = (true, false);
        }
        let mut rooms = Vec::new();
        let gone = |e: &Entry| matches!(e.what, What::Room(_)) && which(e.view);
        while let Some(index) = self.entries.iter().position(gone) {
            if let What::Room(room) = self.remove(index).what {
                rooms.push(room);
            }
        }
        self.dying = self.entries.iter().filter(|e| self.is_dying(e)).count();
        self.poke_parked();
        rooms
    }

    /// Makes parked participants look again: clocks were stepped, or a view is gone.
    pub(super) fn poke_parked(&self) {
        self.participants.iter().filter_map(|p| p.parked.as_ref()).for_each(|(signal, _)| signal.poke());
    }

    /// Wall time was set back, for all or for one view: who waits for an instant of it looks again, as
    /// [`Clock::wait`](timertask_core::Clock::wait) says.
    pub(super) fn set_back(&mut self, view: Option<usize>) {
        let dues = self.entries.iter_mut().map(|e| (e.view, &mut e.due));
        let parked = self.participants.iter_mut().filter_map(|p| p.parked.as_mut().map(|(_, due)| (p.view, due)));
        for (of, due) in dues.chain(parked) {
            if matches!(due, Due::Wall(_)) && view.is_none_or(|view| view == of) {
                *due = Due::Mono(i64::MIN);
            }
        }
    }

    /// Who is next, moving time on where nobody is runnable.
    pub(super) fn pick(&mut self, line: &Timeline) -> Pick {
        self.in_turn = None;
        if self.failure.is_some() {
            return Pick::Rest;
        }
        let Some((target, only_dying)) = self.goal.as_ref().map(|g| (g.target, g.only_dying)) else {
            return Pick::Rest;
        };
        if self.dying > 0
            && let Some(index) = self.entries.iter().position(|e| self.is_dying(e))
        {
            return Pick::Entry(index);
        }
        loop {
            let now = line.mono();
            let offset = line.offset.load(Ordering::Relaxed);
            let mut next = NEVER;
            if !only_dying && let Some(index) = self.runnable(now, offset, &mut next) {
                return Pick::Entry(index);
            }
            if self.participants_busy(now, offset, &mut next, only_dying) {
                return Pick::Participants;
            }
            self.rests += 1;
            self.turns = 0;
            if only_dying || self.goal.as_ref().and_then(|g| g.stop_on.as_ref()).is_some_and(Signal::is_set) {
                return Pick::Rest;
            }
            line.mono.store(next.min(target).max(now), Ordering::Release);
            if next > target {
                return Pick::Rest;
            }
        }
    }

    fn is_dying(&self, entry: &Entry) -> bool {
        matches!(entry.what, What::Stack(_)) && self.views[entry.view].dead
    }

    /// The runnable entry whose turn it is; `next` becomes the earliest instant at which another will be.
    fn runnable(&mut self, now: i64, offset: i64, next: &mut i64) -> Option<usize> {
        let (mut chosen, mut count) = (None, 0);
        let (before, after) = self.entries.split_at(self.from.min(self.entries.len()));
        let skipped = before.len();
        let round = after.iter().enumerate().map(|(i, e)| (skipped + i, e)).chain(before.iter().enumerate());
        for (index, entry) in round {
            let view = &self.views[entry.view];
            if view.frozen || matches!(entry.what, What::Busy) {
                continue;
            }
            let at = entry.due.at(view, offset);
            if at > now && !entry.watch.is_set() {
                *next = (*next).min(at);
                continue;
            }
            match &mut self.choice {
                None => {
                    chosen = Some(index);
                    break;
                }
                Some(random) => {
                    // Each of n with 1/n, in one pass.
                    count += 1;
                    if random.below(count) == 0 {
                        chosen = Some(index);
                    }
                }
            }
        }
        if let Some(index) = chosen {
            self.from = index + 1;
        }
        chosen
    }

    fn participants_busy(&self, now: i64, offset: i64, next: &mut i64, only_dead: bool) -> bool {
        let mut busy = false;
        for p in &self.participants {
            let view = &self.views[p.view];
            if only_dead && !view.dead {
                continue;
            }
            match &p.parked {
                None => busy = true,
                Some((signal, _)) if view.dead => {
                    signal.poke();
                    busy = true;
                }
                Some(_) if view.frozen => {}
                Some((signal, due)) => {
                    let at = due.at(view, offset);
                    if at <= now {
                        signal.poke();
                        busy = true;
                    } else if signal.is_set() {
                        busy = true;
                    } else {
                        *next = (*next).min(at);
                    }
                }
            }
        }
        busy
    }

    /// Makes the entry's wait within its turn go on: how it ended, `None` where its view was killed.
    pub(super) fn resume(&mut self, line: &Timeline, index: usize) -> Option<Wake> {
        let entry = &mut self.entries[index];
        entry.what = What::Busy;
        let wake = if self.views[entry.view].dead {
            self.dying = self.dying.saturating_sub(1);
            None
        } else if entry.watch.take() {
            Some(Wake::Signal)
        } else {
            Some(Wake::Time)
        };
        let step = if wake.is_some() { Step::Resumed } else { Step::Killed };
        self.began(line, index, step);
        wake
    }

    /// Notes that the entry has the driving thread from here.
    pub(super) fn began(&mut self, line: &Timeline, index: usize, step: Step) {
        let entry = &self.entries[index];
        self.turns += 1;
        self.in_turn = Some(Arc::clone(&entry.name));
        self.log.step(line.wall(), entry.id, &entry.name, step);
    }
}

impl Due {
    pub(super) fn new(until: Option<Until>) -> Self {
        match until {
            None => Self::Never,
            Some(Until::Wall(t)) => Self::Wall(t.as_micros()),
            // Up to whole microseconds, so that a wait never ends before its time.
            Some(Until::Monotonic(d)) => Self::Mono(i64::try_from(d.as_nanos().div_ceil(1000)).unwrap_or(NEVER)),
        }
    }

    /// The instant of the timeline at which it is reached, as clocks stand now.
    pub(super) fn at(self, view: &ViewState, offset: i64) -> i64 {
        match self {
            Self::Never => NEVER,
            Self::Wall(t) => t.saturating_sub(offset).saturating_sub(view.skew),
            Self::Mono(t) => t.saturating_add(view.lag),
        }
    }
}

/// Whole microseconds of `d`, upwards.
pub(super) fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_nanos().div_ceil(1000)).unwrap_or(NEVER)
}
