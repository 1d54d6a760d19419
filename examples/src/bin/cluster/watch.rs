//! Notes which version of each plan counted from when on: the ledger's generations, and the edits that caused them.

use std::collections::BTreeMap;

use timertask::{ScheduleOptions, Timestamp, Trigger};
use timertask_examples::rows;

use crate::Result;
use crate::store::Store;

/// One version of a plan, as the table of plans had it.
pub(crate) struct Version {
    /// When it was written there.
    pub(crate) since: Timestamp,
    /// Its expression and zone; `None`: disabled.
    pub(crate) spec: Option<(String, Option<String>)>,
}

/// All plans, their versions, and from when on the ledger had a generation of them.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) versions: BTreeMap<String, Vec<Version>>,
    pub(crate) generations: BTreeMap<String, Vec<Trigger>>,
    /// How many missed slots of each plan are made up.
    pub(crate) make_up: BTreeMap<String, u32>,
}

/// A span of time in which one version of a plan counted: slots later than `from`, up to `to`.
pub(crate) struct Segment {
    pub(crate) from: Trigger,
    pub(crate) to: Trigger,
    pub(crate) spec: String,
    pub(crate) zone: Option<String>,
}

impl Watch {
    /// A version was written to the table of plans.
    pub(crate) fn wrote(&mut self, id: &str, since: Timestamp, spec: Option<(&str, Option<&str>)>) {
        let spec = spec.map(|(spec, zone)| (spec.to_owned(), zone.map(str::to_owned)));
        self.versions.entry(id.to_owned()).or_default().push(Version { since, spec });
    }

    /// Looks which generations the ledger has now.
    pub(crate) fn look(&mut self, store: &Store) -> Result<()> {
        for (id, row) in rows::plans(&*store.ledger, &store.namespace)? {
            let known = self.generations.entry(id.as_str().to_owned()).or_default();
            if known.last() != Some(&row.generation.effective_from) {
                known.push(row.generation.effective_from);
            }
        }
        Ok(())
    }

    /// Whether any version of a plan has this trigger point.
    pub(crate) fn ever_had(&self, id: &str, at: Trigger) -> bool {
        let has = |spec: &str, zone: Option<&str>| {
            let one = Segment {
                from: Trigger::from_secs(at.as_secs() - 1),
                to: at,
                spec: spec.to_owned(),
                zone: zone.map(str::to_owned),
            };
            one.triggers().is_ok_and(|triggers| !triggers.is_empty())
        };
        let versions = self.versions.get(id).map_or(&[][..], Vec::as_slice);
        versions.iter().filter_map(|v| v.spec.as_ref()).any(|(spec, zone)| has(spec, zone.as_deref()))
    }

    /// The segments of a plan up to `end`.
    pub(crate) fn segments(&self, id: &str, end: Trigger) -> Vec<Segment> {
        let versions = self.versions.get(id).map_or(&[][..], Vec::as_slice);
        let starts = self.generations.get(id).map_or(&[][..], Vec::as_slice);
        let mut segments = Vec::new();
        for (n, from) in starts.iter().enumerate() {
            // The version that was the newest when the ledger opened the generation; its second is rounded down.
            let second = Trigger::from_secs(from.as_secs() + 1).timestamp();
            let Some(place) = versions.iter().rposition(|v| v.since < second && v.spec.is_some()) else { continue };
            let Some((spec, zone)) = versions[place].spec.clone() else { continue };
            let next = starts.get(n + 1).copied();
            // A plan that was disabled has slots up to that moment; a second more may have gone by unnoticed.
            let disabled = versions[place..].iter().find(|v| v.spec.is_none()).map(|v| v.since.trigger());
            let to = next.into_iter().chain(disabled).fold(end, Trigger::min);
            if *from < to {
                segments.push(Segment { from: *from, to, spec, zone });
            }
        }
        segments
    }
}

impl Segment {
    /// The trigger points of the segment.
    pub(crate) fn triggers(&self) -> Result<Vec<Trigger>> {
        let zone = self.zone.as_deref().unwrap_or("UTC").parse().map_err(|e| format!("{e}"))?;
        let schedule = ScheduleOptions::new().zone(zone).parse(&self.spec)?;
        let mut triggers = Vec::new();
        let mut at = self.from;
        while let Some(next) = schedule.next_trigger(at).filter(|next| *next <= self.to) {
            triggers.push(next);
            at = next;
        }
        Ok(triggers)
    }
}
