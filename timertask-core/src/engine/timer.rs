//! The first room: one heap of due instants, one owner. It never touches a store, never calls a calendar and never
//! blocks.
//!
//! Plans with equal schedules and equal spread offsets form a group, and a group is one heap entry, so that a minute in
//! which 100,000 plans fall due costs one search per distinct schedule.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::batch::{Batch, Line};
use super::claimer::ClaimerMail;
use super::shared::ScribeMail;
use super::stats::Counters;
use super::{Installed, Shared, state};
use crate::clock::{Room, Signal, Turn, Until};
use crate::schedule::Schedule;
use crate::time::{Timestamp, Trigger};

/// A backward step of the wall clock below this is taken for jitter of time synchronisation.
const STEP: Duration = Duration::from_secs(1);
/// How many of the newest trigger points a late tick hands on at most; only plans with `Overlap::Allow` use more than one.
const NEWEST: usize = 64;

/// What reaches the timer.
pub(crate) enum TimerMail {
    /// Plans that the ledger has opened, in install order.
    Add(Vec<Arc<Installed>>),
    /// Plans that are gone.
    Removed(Vec<Arc<Installed>>),
    /// The answer to [`ScribeMail::Survey`].
    Surveyed(GroupKey, Survey),
    /// The calendar panicked: plans of the group start nothing until they are revived.
    SurveyFailed(GroupKey),
    /// Groups with a calendar, to be searched again where they have no next trigger point.
    Revive(Vec<GroupKey>),
}

/// A group: the schedule (by its interned address, which the group keeps alive) and the spread offset.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct GroupKey {
    schedule: BySchedule,
    pub(crate) offset: u32,
}

impl GroupKey {
    /// The group of this plan.
    pub(crate) fn of(plan: &Installed) -> Self {
        Self { schedule: BySchedule(Arc::clone(&plan.schedule)), offset: plan.offset }
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule.0
    }
}

/// Equal where it is the same interned schedule.
#[derive(Clone)]
struct BySchedule(Arc<Schedule>);

impl PartialEq for BySchedule {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for BySchedule {}
impl std::hash::Hash for BySchedule {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// What lies around an instant on a schedule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// The newest trigger points up to the instant, new to old, and one more before them.
    pub(crate) newest: Vec<Trigger>,
    /// The first after it.
    pub(crate) next: Option<Trigger>,
}

impl Survey {
    /// Looks at most `depth` trigger points back from `upto`, not at or before `after`.
    pub(crate) fn of(schedule: &Schedule, upto: Trigger, after: Trigger, depth: usize) -> Self {
        let mut newest = Vec::new();
        let mut before = Trigger::from_secs(upto.as_secs().saturating_add(1));
        while newest.len() <= depth {
            let Some(at) = schedule.prev_trigger(before) else { break };
            newest.push(at);
            before = at;
            if at <= after {
                break;
            }
        }
        Self { newest, next: schedule.next_trigger(upto) }
    }
}

struct Group {
    key: GroupKey,
    members: Arc<Vec<Arc<Installed>>>,
    /// Members of a group with a calendar since its last survey.
    fresh: Vec<Arc<Installed>>,
    /// Members that are gone but still listed.
    dead: usize,
    /// The newest trigger point handed on.
    newest: Option<Trigger>,
    line: Arc<Line>,
    next: Option<Trigger>,
    /// Which heap entry of it counts; no two of any groups have the same number.
    entry: u64,
}

pub(crate) struct Timer {
    shared: Arc<Shared>,
    groups: Vec<Option<Group>>,
    vacant: Vec<usize>,
    by_key: HashMap<GroupKey, usize>,
    /// (due in seconds, group, entry).
    heap: BinaryHeap<Reverse<(i64, usize, u64)>>,
    entries: u64,
    last: Timestamp,
}

impl Timer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let last = shared.clock.now();
        Self {
            shared,
            groups: Vec::new(),
            vacant: Vec::new(),
            by_key: HashMap::new(),
            heap: BinaryHeap::new(),
            entries: 0,
            last,
        }
    }

    fn add(&mut self, plans: Vec<Arc<Installed>>, now: Timestamp) {
        // Runs of plans of one group arrive together or not; both are cheap.
        let mut fresh: HashMap<usize, Vec<Arc<Installed>>> = HashMap::new();
        // One that is gone by now was told of as removed before it came.
        for plan in plans.into_iter().filter(|plan| !plan.is_gone()) {
            let key = GroupKey::of(&plan);
            let index = match self.by_key.get(&key) {
                Some(index) => *index,
                None => self.found(key),
            };
            fresh.entry(index).or_default().push(plan);
        }
        let mut fresh: Vec<_> = fresh.into_iter().collect();
        fresh.sort_unstable_by_key(|(index, _)| *index);
        for (index, plans) in fresh {
            let Some(group) = self.groups[index].as_mut() else { continue };
            group.line.widen(plans.iter().map(|plan| plan.policy.at_once()).fold(1, usize::max).min(NEWEST));
            let members = Arc::make_mut(&mut group.members);
            if members.len() + plans.len() > members.capacity() {
                // An eighth in reserve; doubling would keep as much again of a million.
                members.reserve_exact(plans.len() + members.len() / 8);
            }
            members.extend(plans.iter().cloned());
            if group.key.schedule().has_calendar() {
                let upto = upto(now, group.key.offset);
                group.fresh.extend(plans);
                self.shared.scribe.send(ScribeMail::Survey(group.key.clone(), upto));
                continue;
            }
            let survey = Survey::of(group.key.schedule(), upto(now, group.key.offset), Trigger::from_secs(i64::MIN), 1);
            if group.next.is_none() {
                self.arm(index, survey.next);
            }
            // A slot whose start window is open is live, also at install.
            self.hand_on_new(index, &survey, plans);
        }
    }

    /// Hands trigger points on to members that are new, where those count for them.
    fn hand_on_new(&mut self, index: usize, survey: &Survey, mut plans: Vec<Arc<Installed>>) {
        let Some(newest) = survey.newest.first() else { return };
        plans.retain(|plan| *newest > plan.start());
        if !plans.is_empty() {
            self.hand_on(index, survey, Arc::new(plans));
        }
    }

    fn found(&mut self, key: GroupKey) -> usize {
        let group = Group {
            key: key.clone(),
            members: Arc::default(),
            fresh: Vec::new(),
            dead: 0,
            newest: None,
            line: Arc::default(),
            next: None,
            entry: 0,
        };
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        self.groups[index] = Some(group);
        self.by_key.insert(key, index);
        index
    }

    fn removed(&mut self, plans: &[Arc<Installed>]) {
        for plan in plans {
            let key = GroupKey::of(plan);
            let Some(&index) = self.by_key.get(&key) else { continue };
            let Some(group) = self.groups[index].as_mut() else { continue };
            group.dead += 1;
            if group.dead * 2 > group.members.len() {
                Arc::make_mut(&mut group.members).retain(|plan| !plan.is_gone());
                group.fresh.retain(|plan| !plan.is_gone());
                group.dead = 0;
                if group.members.is_empty() {
                    self.by_key.remove(&key);
                    self.groups[index] = None;
                    self.vacant.push(index);
                }
            }
        }
    }

    /// Sets when the group falls due next; an earlier heap entry of it no longer counts.
    fn arm(&mut self, index: usize, next: Option<Trigger>) {
        let Some(group) = self.groups[index].as_mut() else { return };
        if group.next == next {
            return;
        }
        group.next = next;
        self.entries += 1;
        group.entry = self.entries;
        if let Some(at) = next {
            self.heap.push(Reverse((at.as_secs().saturating_add(i64::from(group.key.offset)), index, group.entry)));
        }
    }

    /// Hands the newest trigger points on to the claimer, for these members.
    fn hand_on(&mut self, index: usize, survey: &Survey, members: Arc<Vec<Arc<Installed>>>) {
        let Some(group) = self.groups[index].as_mut() else { return };
        let news = survey.newest.iter().take_while(|at| group.newest.is_none_or(|newest| **at > newest)).count();
        group.newest = group.newest.max(survey.newest.first().copied());
        let last = group.line.hand_on(news);
        for (rank, at) in survey.newest.iter().enumerate().take(group.line.widest()) {
            let prev = survey.newest.get(rank + 1).copied();
            // The last one only tells what lies before the one above it, unless the schedule begins there.
            if rank > 0 && prev.is_none() && survey.newest.len() > 1 {
                break;
            }
            let due = at.timestamp().saturating_add(Duration::from_secs(u64::from(group.key.offset)));
            Counters::add(&self.shared.counters.due, members.len());
            let number = last.saturating_sub(rank as u64);
            let batch = Batch { at: *at, prev, due, number, members: Arc::clone(&members), pos: 0 };
            if group.line.put(batch) {
                self.shared.claimer.send(ClaimerMail::Due(Arc::clone(&group.line)));
            }
        }
    }

    fn fire(&mut self, index: usize, now: Timestamp) {
        let Some(group) = self.groups[index].as_mut() else { return };
        let Some(at) = group.next else { return };
        let upto = upto(now, group.key.offset);
        if group.key.schedule().has_calendar() {
            // What lies around now is the scribe's to find out; until then the group sleeps.
            group.next = None;
            let key = group.key.clone();
            self.shared.scribe.send(ScribeMail::Survey(key, upto));
            return;
        }
        let next = group.key.schedule().next_trigger(at);
        let (survey, members) = if next.is_none_or(|next| next > upto) {
            // The usual case: one search forward, and backward only where the last one is not known.
            let schedule = group.key.schedule();
            let last = group.newest.filter(|last| *last < at && schedule.next_trigger(*last) == Some(at));
            let prev = last.or_else(|| schedule.prev_trigger(at));
            (Survey { newest: [Some(at), prev].into_iter().flatten().collect(), next }, Arc::clone(&group.members))
        } else {
            let last = group.newest.unwrap_or(Trigger::from_secs(i64::MIN));
            (Survey::of(group.key.schedule(), upto, last, group.line.widest()), Arc::clone(&group.members))
        };
        self.arm(index, survey.next);
        self.hand_on(index, &survey, members);
    }

    fn surveyed(&mut self, key: &GroupKey, survey: &Survey) {
        let Some(&index) = self.by_key.get(key) else { return };
        let Some(group) = self.groups[index].as_mut() else { return };
        let fresh = std::mem::take(&mut group.fresh);
        let news = survey.newest.first() > group.newest.as_ref();
        let members = Arc::clone(&group.members);
        self.arm(index, survey.next);
        if news {
            self.hand_on(index, survey, members);
        } else {
            self.hand_on_new(index, survey, fresh);
        }
    }

    fn survey_failed(&mut self, key: &GroupKey) {
        let Some(group) = self.by_key.get(key).and_then(|index| self.groups[*index].as_mut()) else { return };
        group.fresh.clear();
        group.members.iter().for_each(|plan| plan.deactivate(state::FAILED));
    }

    fn revive(&self, keys: Vec<GroupKey>, now: Timestamp) {
        for key in keys {
            let group = self.by_key.get(&key).and_then(|index| self.groups[*index].as_ref());
            if group.is_some_and(|group| group.next.is_none()) {
                let upto = upto(now, key.offset);
                self.shared.scribe.send(ScribeMail::Survey(key, upto));
            }
        }
    }

    /// The wall clock went back: every group is armed anew from here.
    fn stepped_back(&mut self, now: Timestamp) {
        log::warn!(target: "timertask::engine", "{}: the wall clock went back to {now}", self.shared.config.instance);
        for index in 0..self.groups.len() {
            let Some(group) = self.groups[index].as_mut() else { continue };
            let upto = upto(now, group.key.offset);
            let ahead = group.newest.is_some_and(|newest| newest > upto);
            if group.key.schedule().has_calendar() {
                group.newest = if ahead { Some(upto) } else { group.newest };
                group.next = None;
                let key = group.key.clone();
                self.shared.scribe.send(ScribeMail::Survey(key, upto));
            } else {
                let schedule = group.key.schedule();
                let next = schedule.next_trigger(upto);
                if ahead {
                    group.newest = schedule.prev_trigger(Trigger::from_secs(upto.as_secs().saturating_add(1)));
                }
                self.arm(index, next);
            }
        }
        self.shared.scribe.send(ScribeMail::SteppedBack);
    }
}

/// The latest trigger point that is due at `now` with this offset.
fn upto(now: Timestamp, offset: u32) -> Trigger {
    Trigger::from_secs(now.trigger().as_secs().saturating_sub(i64::from(offset)))
}

impl Room for Timer {
    fn name(&self) -> &str {
        "timertask-timer"
    }

    fn signal(&self) -> &Signal {
        self.shared.timer.signal()
    }

    fn turn(&mut self, now: Timestamp) -> Turn {
        if self.shared.is_closing() {
            self.shared.pulse.next_due.store(i64::MAX, Ordering::Relaxed);
            return Turn::Done;
        }
        self.shared.pulse.last_tick.store(now.as_micros(), Ordering::Relaxed);
        if now.saturating_add(STEP) < self.last {
            self.stepped_back(now);
        }
        self.last = now;
        // Before plans that come now are added: what has fallen due by now is handed on to those apart.
        let second = now.trigger().as_secs();
        while let Some(&Reverse((due, index, entry))) = self.heap.peek() {
            let current = self.groups[index].as_ref().is_some_and(|g| g.entry == entry && g.next.is_some());
            if current && due > second {
                break;
            }
            self.heap.pop();
            if current {
                self.fire(index, now);
            }
        }
        while let Some(mail) = self.shared.timer.try_recv() {
            match mail {
                TimerMail::Add(plans) => self.add(plans, now),
                TimerMail::Removed(plans) => self.removed(&plans),
                TimerMail::Surveyed(key, survey) => self.surveyed(&key, &survey),
                TimerMail::SurveyFailed(key) => self.survey_failed(&key),
                TimerMail::Revive(keys) => self.revive(keys, now),
            }
        }
        let due = self.heap.peek().map(|Reverse((due, ..))| Trigger::from_secs(*due).timestamp());
        self.shared.pulse.next_due.store(due.map_or(i64::MAX, Timestamp::as_micros), Ordering::Relaxed);
        Turn::Wait(due.map(Until::Wall))
    }
}
