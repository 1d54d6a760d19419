//! The table of plan rows: compact, since a service may have a million plans and few of them have any records.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::chunked::{Chunked, index};
use crate::key::{Fence, Fingerprint, Namespace, PlanId, PlanKey};
use crate::seam::{Generation, PlanRow};
use crate::time::Trigger;

/// No index.
pub(super) const NONE: u32 = u32::MAX;
/// No trigger point; no slot lies there.
const NEVER: i64 = i64::MIN;
const CLOSED: u32 = 1 << 31;

/// A plan's row in 80 bytes: what is rare stands elsewhere, slots, range records and a pause under [`records`].
///
/// [`records`]: Plan::records
#[derive(Clone, Debug)]
struct Plan {
    id: Option<PlanId>,
    fingerprint: Fingerprint,
    effective_from: i64,
    cursor: i64,
    low_water: i64,
    fence: u64,
    last_success: i64,
    /// Where its records stand; [`NONE`] where it has none.
    records: u32,
    /// The number of its namespace, and [`CLOSED`].
    namespace: u32,
}

/// All plan rows, found by key. A plan's number never changes and is never given to another.
#[derive(Clone, Debug)]
pub(super) struct Plans {
    rows: Chunked<Plan>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Where the first window begins, of plans that were opened again: few, or short of an edit of all.
    windows: HashMap<u32, Trigger>,
    namespaces: Vec<Namespace>,
    numbers: HashMap<Namespace, u32>,
    /// The plans by key, as far as they were sorted for a reader.
    sorted: Vec<u32>,
}

impl Plans {
    pub(super) fn new() -> Self {
        Self {
            rows: Chunked::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            windows: HashMap::new(),
            namespaces: Vec::new(),
            numbers: HashMap::new(),
            sorted: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn find(&self, key: &PlanKey) -> Option<u32> {
        self.index.find(hash(&self.hasher, key.namespace.as_str(), key.plan_str()), |n| self.is(*n, key)).copied()
    }

    fn is(&self, plan: u32, key: &PlanKey) -> bool {
        let row = self.plan(plan);
        let same_id = match (&row.id, &key.plan) {
            // Most askers share the text of the id, and then it need not be read.
            (Some(a), Some(b)) => std::ptr::eq(a.as_str(), b.as_str()) || a == b,
            (None, None) => true,
            _ => false,
        };
        same_id && *self.namespace(plan) == key.namespace
    }

    /// Adds a plan that is not there yet; its number.
    pub(super) fn insert(&mut self, key: &PlanKey, row: &PlanRow) -> u32 {
        let namespace = *self.numbers.entry(key.namespace.clone()).or_insert_with(|| {
            self.namespaces.push(key.namespace.clone());
            index(self.namespaces.len() - 1)
        });
        let plan = index(self.rows.push(Plan {
            id: key.plan.clone(),
            fingerprint: Fingerprint::EMPTY,
            effective_from: 0,
            cursor: 0,
            low_water: 0,
            fence: 0,
            last_success: NEVER,
            records: NONE,
            namespace,
        }));
        self.set(plan, row);
        let Self { rows, index, hasher, namespaces, .. } = self;
        let hash_of = |n: &u32| {
            let row = rows.get(*n as usize);
            let namespace = &namespaces[(row.namespace & !CLOSED) as usize];
            hash(hasher, namespace.as_str(), row.id.as_ref().map_or("", PlanId::as_str))
        };
        index.insert_unique(hash(hasher, key.namespace.as_str(), key.plan_str()), plan, hash_of);
        plan
    }

    fn plan(&self, plan: u32) -> &Plan {
        self.rows.get(plan as usize)
    }

    /// The plan's row, but for its pause.
    pub(super) fn row(&self, plan: u32) -> PlanRow {
        let window_from = if self.windows.is_empty() { None } else { self.windows.get(&plan).copied() };
        let row = self.plan(plan);
        PlanRow {
            generation: Generation {
                fingerprint: row.fingerprint,
                effective_from: Trigger::from_secs(row.effective_from),
            },
            closed: row.namespace & CLOSED != 0,
            cursor: Trigger::from_secs(row.cursor),
            low_water: Trigger::from_secs(row.low_water),
            fence: Fence::from_u64(row.fence),
            last_success: maybe(row.last_success),
            window_from,
            pause: None,
        }
    }

    /// Writes the plan's row, but for its pause.
    pub(super) fn set(&mut self, plan: u32, row: &PlanRow) {
        let to = self.rows.get_mut(plan as usize);
        to.fingerprint = row.generation.fingerprint;
        to.effective_from = row.generation.effective_from.as_secs();
        to.cursor = row.cursor.as_secs();
        to.low_water = row.low_water.as_secs();
        to.fence = row.fence.as_u64();
        to.last_success = row.last_success.map_or(NEVER, Trigger::as_secs);
        to.namespace = (to.namespace & !CLOSED) | if row.closed { CLOSED } else { 0 };
        match row.window_from {
            Some(from) => drop(self.windows.insert(plan, from)),
            None if self.windows.is_empty() => {}
            None => drop(self.windows.remove(&plan)),
        }
    }

    pub(super) fn cursor(&self, plan: u32) -> Trigger {
        Trigger::from_secs(self.plan(plan).cursor)
    }

    pub(super) fn raise_low_water(&mut self, plan: u32, to: Trigger) {
        let row = self.rows.get_mut(plan as usize);
        row.low_water = row.low_water.max(to.as_secs());
    }

    pub(super) fn records(&self, plan: u32) -> u32 {
        self.plan(plan).records
    }

    pub(super) fn set_records(&mut self, plan: u32, records: u32) {
        self.rows.get_mut(plan as usize).records = records;
    }

    pub(super) fn namespace(&self, plan: u32) -> &Namespace {
        &self.namespaces[(self.plan(plan).namespace & !CLOSED) as usize]
    }

    pub(super) fn key(&self, plan: u32) -> PlanKey {
        PlanKey { namespace: self.namespace(plan).clone(), plan: self.plan(plan).id.clone() }
    }

    /// The numbers of the namespace's first `limit` plans after `after`, by id.
    pub(super) fn by_id(&mut self, namespace: &Namespace, after: Option<&PlanId>, limit: usize) -> Vec<u32> {
        if self.sorted.len() < self.rows.len() {
            // Plans are only ever added, so an order of all is still good where it has them all. Otherwise the stable sort
            // finds what was in order before as one run, and merges the new ones into it.
            let (rows, namespaces) = (&self.rows, &self.namespaces);
            let name = |n: u32| {
                let row = rows.get(n as usize);
                (&namespaces[(row.namespace & !CLOSED) as usize], &row.id)
            };
            self.sorted.reserve_exact(rows.len() - self.sorted.len());
            self.sorted.extend(index(self.sorted.len())..index(rows.len()));
            self.sorted.sort_by(|a, b| name(*a).cmp(&name(*b)));
        }
        // `None` is the namespace itself, and comes before each plan's id.
        let last = (namespace, after);
        let start = self.sorted.partition_point(|n| (self.namespace(*n), self.plan(*n).id.as_ref()) <= last);
        let here = self.sorted[start..].iter().copied();
        here.take_while(|n| self.namespace(*n) == namespace).take(limit).collect()
    }
}

fn hash(hasher: &DefaultHashBuilder, namespace: &str, plan: &str) -> u64 {
    hasher.hash_one((namespace, plan))
}

fn maybe(secs: i64) -> Option<Trigger> {
    (secs != NEVER).then(|| Trigger::from_secs(secs))
}
