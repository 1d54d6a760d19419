//! The runs that this instance has claimed and not yet recorded as ended.

use std::sync::{Arc, MutexGuard, PoisonError};

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::key::Nonce;
use crate::run::RunCell;

/// Filled by the claimer, emptied by the scribe, read by `close` and the renewals. The lock covers the map only.
#[derive(Default)]
pub(crate) struct Live(std::sync::Mutex<Cells>);

/// By nonce, which is random already: the cheap hasher does.
type Cells = HashMap<Nonce, Arc<RunCell>, DefaultHashBuilder>;

impl Live {
    fn lock(&self) -> MutexGuard<'_, Cells> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, cells: &[Arc<RunCell>]) {
        let mut map = self.lock();
        for cell in cells {
            map.insert(cell.nonce, Arc::clone(cell));
        }
    }

    pub(crate) fn remove<'a>(&self, nonces: impl IntoIterator<Item = &'a Nonce>) {
        let mut map = self.lock();
        for nonce in nonces {
            map.remove(nonce);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// All of them, in the order of their claims (by fence within a plan, by due across plans).
    pub(crate) fn all(&self) -> Vec<Arc<RunCell>> {
        let mut cells: Vec<_> = self.lock().values().cloned().collect();
        cells.sort_by_key(|cell| (cell.due, cell.plan.seq, cell.grant.fence));
        cells
    }
}
