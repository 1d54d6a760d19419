//! The fingerprint of a plan, from all that changes its behaviour. Pure, and the same for every build: instances of
//! different builds must agree on it.

use std::time::Duration;

use crate::budget::{Backoff, RetryBudget};
use crate::key::Fingerprint;
use crate::plan::{CatchUp, OnOrphan, Plan, Rest};
use crate::schedule::Dst;
use crate::seam::Overlap;

/// Parts of a fingerprint, one after the other; what isn't set is a part, too.
struct Parts(Fingerprint);

impl Parts {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0 = self.0.and(bytes);
        self
    }

    fn text(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            None => self.bytes(b"-"),
            Some(text) => self.bytes(b"+").bytes(text.as_bytes()),
        }
    }

    fn number(&mut self, n: Option<u128>) -> &mut Self {
        match n {
            None => self.bytes(b"-"),
            Some(n) => self.bytes(&n.to_le_bytes()),
        }
    }

    fn duration(&mut self, d: Option<Duration>) -> &mut Self {
        self.number(d.map(|d| d.as_nanos()))
    }

    fn dst(&mut self, dst: Option<Dst>) -> &mut Self {
        use crate::schedule::{Fold, Gap};
        self.bytes(match dst {
            None => b"-",
            Some(Dst::Auto) => b"auto",
            Some(Dst::Cron) => b"cron",
            Some(Dst::Exact(Gap::Skip, Fold::First)) => b"skip+first",
            Some(Dst::Exact(Gap::Skip, Fold::Both)) => b"skip+both",
            Some(Dst::Exact(Gap::Shift, Fold::First)) => b"shift+first",
            Some(Dst::Exact(Gap::Shift, Fold::Both)) => b"shift+both",
        })
    }

    fn overlap(&mut self, overlap: Option<Overlap>) -> &mut Self {
        match overlap {
            None => self.bytes(b"-"),
            Some(Overlap::Skip) => self.bytes(b"skip"),
            Some(Overlap::QueueOne) => self.bytes(b"queue"),
            Some(Overlap::CancelPrevious) => self.bytes(b"cancel"),
            Some(Overlap::Allow(n)) => self.bytes(b"allow").number(Some(n.into())),
        }
    }

    fn catch_up(&mut self, catch_up: Option<CatchUp>) -> &mut Self {
        match catch_up {
            None => self.bytes(b"-"),
            Some(CatchUp::None) => self.bytes(b"none"),
            Some(CatchUp::Latest) => self.bytes(b"latest"),
            Some(CatchUp::All { cap }) => self.bytes(b"all").number(Some(cap.into())),
        }
    }

    fn on_orphan(&mut self, on_orphan: Option<OnOrphan>) -> &mut Self {
        match on_orphan {
            None => self.bytes(b"-"),
            Some(OnOrphan::Record) => self.bytes(b"record"),
            Some(OnOrphan::Rerun { max }) => self.bytes(b"rerun").number(Some(max.into())),
        }
    }

    fn retry(&mut self, budget: Option<RetryBudget>) -> &mut Self {
        let Some(b) = budget else { return self.bytes(b"-") };
        self.number(Some(b.attempts.into())).duration(Some(b.timeout));
        match b.backoff {
            Backoff::Fixed(d) => self.duration(Some(d)),
            Backoff::Exponential { first, max } => self.bytes(b"doubled").duration(Some(first)).duration(Some(max)),
        };
        self.duration(Some(b.slack))
    }
}

/// What the scheduler's defaults contribute; computed once.
pub(crate) fn of_defaults(d: &crate::engine::Defaults) -> Fingerprint {
    let mut parts = Parts(Fingerprint::EMPTY);
    parts
        .bytes(b"timertask defaults 1")
        .text(Some(d.zone.name()))
        .dst(Some(d.dst))
        .bytes(match d.dialect {
            crate::schedule::Dialect::Five => b"five",
            crate::schedule::Dialect::Six => b"six",
            crate::schedule::Dialect::FiveOrSix => b"either",
        })
        .overlap(Some(d.overlap))
        .catch_up(Some(d.catch_up))
        .duration(Some(d.start_window))
        .on_orphan(Some(d.on_orphan))
        .retry(d.retry);
    parts.0
}

/// The fingerprints of the plans of a set: of the caller's text where there is one, else of all that changes behaviour.
/// What is set beside expression and payload is often the same from plan to plan, and then it is read once.
pub(crate) struct Fingerprints<'a> {
    defaults: Fingerprint,
    last: Option<(&'a Rest, Fingerprint)>,
}

impl<'a> Fingerprints<'a> {
    pub(crate) fn new(defaults: Fingerprint) -> Self {
        Self { defaults, last: None }
    }

    /// The fingerprint of `plan`.
    pub(crate) fn of(&mut self, plan: &'a Plan) -> Fingerprint {
        if let Some(text) = &plan.fingerprint {
            return Fingerprint::EMPTY.and(b"text").and(text.as_bytes());
        }
        let rest = match self.last {
            Some((rest, fingerprint)) if *rest == plan.rest => fingerprint,
            _ => of_rest(&plan.rest, self.defaults),
        };
        self.last = Some((&plan.rest, rest));
        let mut parts = Parts(rest);
        parts.bytes(plan.spec.as_bytes());
        match &plan.payload {
            None => parts.bytes(b"-"),
            Some(payload) => parts.bytes(b"+").bytes(payload),
        };
        parts.0
    }
}

fn of_rest(rest: &Rest, defaults: Fingerprint) -> Fingerprint {
    let mut parts = Parts(defaults);
    parts
        .text(rest.job.as_deref())
        .text(rest.zone.as_deref())
        .dst(rest.dst)
        .text(rest.calendar.as_deref())
        .number(rest.anchor.map(|at| at.as_secs() as u64 as u128))
        .duration(Some(rest.spread))
        .retry(rest.retry)
        .overlap(rest.overlap)
        .catch_up(rest.catch_up)
        .duration(rest.catch_up_window)
        .duration(rest.start_window)
        .on_orphan(rest.on_orphan);
    parts.0
}
