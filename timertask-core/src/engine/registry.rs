//! The installed plans, by id, with what they share interned. Pure bookkeeping under one lock; no user code, no store.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::installed::Common;
use super::{Installed, Policy, state};
use crate::key::{Fingerprint, PlanId};
use crate::schedule::Schedule;

/// A plan that a reconcile wants, checked and ready to be installed.
pub(crate) struct Wanted {
    pub(crate) id: PlanId,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) schedule: Schedule,
    pub(crate) policy: Policy,
    pub(crate) payload: Option<Box<[u8]>>,
    pub(crate) offset: u32,
}

#[derive(Default)]
pub(crate) struct Registry {
    table: HashTable<Arc<Installed>>,
    hasher: DefaultHashBuilder,
    schedules: HashSet<Arc<Schedule>>,
    policies: HashSet<Arc<Policy>>,
    commons: HashSet<Arc<Common>>,
    /// Plans that have gone since the last tidying.
    gone: usize,
    next_seq: u32,
    /// Disabled plans whose generation was asked to be closed, although they were not installed here.
    closed: HashSet<PlanId>,
    /// Plans that failed at the last reconcile, and why.
    failed: HashMap<PlanId, String>,
}

/// Which plans a reconcile has seen: one bit for each place of the table, which stays as it is while it is read.
pub(crate) struct Seen(Vec<u64>);

impl Seen {
    fn has(&self, index: usize) -> bool {
        self.0[index / 64] & (1 << (index % 64)) != 0
    }

    /// Whether it was there before.
    fn add(&mut self, index: usize) -> bool {
        let before = self.has(index);
        self.0[index / 64] |= 1 << (index % 64);
        before
    }
}

impl Registry {
    fn hash(&self, id: &str) -> u64 {
        self.hasher.hash_one(id)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn find(&self, id: &str) -> Option<&Arc<Installed>> {
        self.table.find(self.hash(id), |plan| plan.id.as_str() == id)
    }

    pub(crate) fn get(&self, id: &PlanId) -> Option<Arc<Installed>> {
        self.find(id.as_str()).cloned()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Installed>> {
        self.table.iter()
    }

    /// All ids, in install order: that of the table is another one in each process.
    pub(crate) fn ids(&self) -> Vec<PlanId> {
        let mut plans: Vec<_> = self.table.iter().collect();
        plans.sort_by_key(|plan| plan.seq);
        plans.into_iter().map(|plan| plan.id.clone()).collect()
    }

    /// What a reconcile has seen before it has seen any.
    pub(crate) fn nothing_seen(&self) -> Seen {
        Seen(vec![0; self.table.num_buckets().div_ceil(64)])
    }

    /// Finds a plan for a reconcile; with it, whether that one has seen it before.
    pub(crate) fn see(&self, id: &str, seen: &mut Seen) -> Option<(&Arc<Installed>, bool)> {
        let index = self.table.find_bucket_index(self.hash(id), |plan| plan.id.as_str() == id)?;
        let before = seen.add(index);
        Some((self.table.get_bucket(index)?, before))
    }

    /// The plans that a reconcile has not seen.
    pub(crate) fn unseen(&self, seen: &Seen) -> impl Iterator<Item = &Arc<Installed>> {
        let buckets = (0..self.table.num_buckets()).filter(|index| !seen.has(*index));
        buckets.filter_map(|index| self.table.get_bucket(index))
    }

    pub(crate) fn reserve(&mut self, n: usize) {
        let hasher = &self.hasher;
        self.table.reserve(n, |plan| hasher.hash_one(plan.id.as_str()));
    }

    /// Puts in a plan, in the place of what has its id; what that was.
    pub(crate) fn install(&mut self, wanted: Wanted) -> (Arc<Installed>, Option<Arc<Installed>>) {
        let Wanted { id, fingerprint, schedule, policy, payload, offset } = wanted;
        let schedule = intern(&mut self.schedules, schedule);
        let policy = intern(&mut self.policies, policy);
        let common = intern(&mut self.commons, Common { schedule, policy, offset });
        self.closed.remove(&id);
        self.failed.remove(&id);
        let seq = self.next_seq;
        self.next_seq = self.next_seq.wrapping_add(1);
        let plan = Arc::new(Installed::new(id, fingerprint, common, payload, seq));
        let hash = self.hash(plan.id.as_str());
        let before = match self.table.find_mut(hash, |there| there.id == plan.id) {
            Some(there) => {
                let before = std::mem::replace(there, Arc::clone(&plan));
                before.set_state(state::GONE);
                plan.count_on(&before);
                Some(before)
            }
            None => {
                let hasher = &self.hasher;
                self.table.insert_unique(hash, Arc::clone(&plan), |plan| hasher.hash_one(plan.id.as_str()));
                None
            }
        };
        (plan, before)
    }

    /// Takes out a plan.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Arc<Installed>> {
        let hash = self.hash(id);
        let entry = self.table.find_entry(hash, |plan| plan.id.as_str() == id).ok()?;
        let (plan, _) = entry.remove();
        plan.set_state(state::GONE);
        Some(plan)
    }

    /// Forgets what nobody shares any more, once as many plans have gone as there are shared things to look at, so that
    /// taking out one plan costs the same however many there are.
    pub(crate) fn tidy(&mut self, gone: usize) {
        self.gone += gone;
        if self.gone <= self.commons.len() {
            return;
        }
        self.gone = 0;
        self.commons.retain(|common| Arc::strong_count(common) > 1);
        self.schedules.retain(|schedule| Arc::strong_count(schedule) > 1);
        self.policies.retain(|policy| Arc::strong_count(policy) > 1);
    }

    /// Of the disabled plans of a set that aren't installed those whose generation must still be closed; each is told
    /// once, as long as sets name it.
    pub(crate) fn close_once(&mut self, disabled: Vec<PlanId>) -> Vec<PlanId> {
        let new = disabled.iter().filter(|id| !self.closed.contains(*id)).cloned().collect();
        self.closed = disabled.into_iter().collect();
        new
    }

    pub(crate) fn set_failed(&mut self, failed: HashMap<PlanId, String>) {
        self.failed = failed;
    }

    pub(crate) fn failed(&self, id: &str) -> Option<&str> {
        self.failed.get(id).map(String::as_str)
    }
}

/// The one of its kind that is in `all`, where `value` is put if there was none.
fn intern<T: Eq + Hash>(all: &mut HashSet<Arc<T>>, value: T) -> Arc<T> {
    if let Some(there) = all.get(&value) {
        return Arc::clone(there);
    }
    let new = Arc::new(value);
    all.insert(Arc::clone(&new));
    new
}
