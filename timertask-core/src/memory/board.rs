//! The notice board beside the ledger.

use std::collections::BTreeMap;

use crate::key::Namespace;
use crate::seam::{Posting, PostingKind};
use crate::time::Timestamp;

/// What is posted, by namespace, kind and key.
#[derive(Clone, Debug, Default)]
pub(super) struct Postings {
    by_key: BTreeMap<(Namespace, &'static str, String), Posting>,
    /// At how many to look for those that are gone, since nobody may ever list some of them.
    tidy_at: usize,
}

impl Postings {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn post(&mut self, now: Timestamp, posting: &Posting) {
        let key = (posting.namespace.clone(), posting.kind.as_str(), posting.key.clone());
        self.by_key.insert(key, posting.clone());
        if self.by_key.len() > self.tidy_at {
            self.by_key.retain(|_, posting| posting.until > now);
            self.tidy_at = 64 + 2 * self.by_key.len();
        }
    }

    pub(super) fn list(&mut self, now: Timestamp, namespace: &Namespace, kind: PostingKind) -> Vec<Posting> {
        let from = (namespace.clone(), kind.as_str(), String::new());
        let here = self.by_key.range(from..).take_while(|((of, name, _), _)| of == namespace && *name == kind.as_str());
        here.map(|(_, posting)| posting).filter(|posting| posting.until > now).cloned().collect()
    }

    pub(super) fn take(
        &mut self,
        now: Timestamp,
        namespace: &Namespace,
        kind: PostingKind,
        key: &str,
    ) -> Option<Posting> {
        let key = (namespace.clone(), kind.as_str(), key.to_owned());
        self.by_key.remove(&key).filter(|posting| posting.until > now)
    }
}
