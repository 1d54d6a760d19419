//! Setting a store back to what it held before, as a failover does that loses acknowledged writes.

use std::fmt;

use timertask_core::{MemLedger, Store};

use super::Cluster;
use super::witness::Seen;

/// A store that can be set back to what it held at an earlier instant.
pub trait Rewind: Store {
    /// Remembers what it holds; the answer sets it back to that, as often as it is called.
    fn save(&self) -> Box<dyn Fn() + Send>;
}

impl Rewind for MemLedger {
    fn save(&self) -> Box<dyn Fn() + Send> {
        let (ledger, saved) = (self.clone(), self.snapshot());
        Box::new(move || ledger.restore(&saved))
    }
}

/// What a store held, and what was known of it; see [`Cluster::save_store`].
pub struct SavedStore {
    restore: Box<dyn Fn() + Send>,
    seen: Seen,
}

impl fmt::Debug for SavedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedStore").finish_non_exhaustive()
    }
}

impl Cluster {
    /// Remembers what the store holds, for [`restore_store`](Self::restore_store).
    ///
    /// # Panics
    /// Where the cluster was built on a store of one's own that was not given by
    /// [`rewinding_store`](super::ClusterBuilder::rewinding_store).
    #[must_use]
    pub fn save_store(&self) -> SavedStore {
        let Some(rewind) = &self.rewind else { panic!("this cluster's store cannot be set back") };
        let order = self.witness.order();
        let saved = SavedStore { restore: rewind.save(), seen: self.witness.read(Clone::clone) };
        drop(order);
        saved
    }

    /// Sets the store back to `saved`, while the instances go on: what a failover does to a replica that had not received
    /// the last writes.
    ///
    /// From here on [`check`](Self::check) excuses promises 1 to 3 for those slots whose grants or ends were lost with it,
    /// and for them alone. Fences must still rise, over the loss too (unless the wall clock was set back as well, behind
    /// the last one granted: then nothing is left that could know it); nothing may run without a grant; and every slot has
    /// to be accounted for again.
    pub fn restore_store(&mut self, saved: &SavedStore) {
        self.clock.note("the store is set back");
        let order = self.witness.order();
        (saved.restore)();
        self.witness.rewind(&saved.seen);
        drop(order);
        self.everybody_begins_anew();
    }
}
