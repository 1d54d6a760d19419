//! Where instances and the operator's tools leave word for each other.

use std::sync::Arc;

use super::{Ledger, Outcome};
use crate::key::Namespace;
use crate::time::Timestamp;

/// A notice board in the store, beside the ledger and optional: heartbeats and plan views of the instances,
/// requests of the operator's tools. Nothing on it decides a start.
pub trait Board: Send + Sync {
    /// Puts up `posting`, in the place of one of the same namespace, kind and key.
    ///
    /// # Errors
    /// [`StoreError`](super::StoreError) where the store could not take it.
    ///
    /// # Blocking
    /// As long as the store's own time-outs say.
    fn post(&self, posting: &Posting) -> Outcome<()>;

    /// The postings of `kind`, by key; those whose `until` has passed are left out, and may be deleted.
    ///
    /// # Errors
    /// [`StoreError`](super::StoreError) where the store could not read them.
    ///
    /// # Blocking
    /// As long as the store's own time-outs say.
    fn list(&self, namespace: &Namespace, kind: PostingKind) -> Outcome<Vec<Posting>>;

    /// Takes one down; of several callers one gets it.
    ///
    /// # Errors
    /// [`StoreError`](super::StoreError) where the store could not decide.
    ///
    /// # Blocking
    /// As long as the store's own time-outs say.
    fn take(&self, namespace: &Namespace, kind: PostingKind, key: &str) -> Outcome<Option<Posting>>;
}

impl<B: Board + ?Sized> Board for Arc<B> {
    fn post(&self, posting: &Posting) -> Outcome<()> {
        (**self).post(posting)
    }
    fn list(&self, namespace: &Namespace, kind: PostingKind) -> Outcome<Vec<Posting>> {
        (**self).list(namespace, kind)
    }
    fn take(&self, namespace: &Namespace, kind: PostingKind, key: &str) -> Outcome<Option<Posting>> {
        (**self).take(namespace, kind, key)
    }
}

/// A ledger with a notice board beside it: what [`Builder::store`](crate::Builder::store) takes.
pub trait Store: Ledger + Board {}

impl<S: Ledger + Board + ?Sized> Store for S {}

/// One piece of paper on the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posting {
    /// The namespace.
    pub namespace: Namespace,
    /// What it is.
    pub kind: PostingKind,
    /// What it is about: an instance, a plan, a request id.
    pub key: String,
    /// Its content, as its kind defines it.
    pub body: String,
    /// From when on it counts as gone.
    pub until: Timestamp,
}

/// What a posting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PostingKind {
    /// An instance is alive.
    Heartbeat,
    /// What an instance has installed.
    View,
    /// What an operator asks for.
    Request,
    /// What came of a request.
    Answer,
}

impl PostingKind {
    /// Its name, as stores spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Heartbeat => "heartbeat",
            Self::View => "view",
            Self::Request => "request",
            Self::Answer => "answer",
        }
    }
}
