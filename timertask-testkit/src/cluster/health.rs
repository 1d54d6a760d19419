//! Which instances nothing is wrong with, and since when: what promises 4 and 5 hang on.

use std::sync::atomic::Ordering;

use chrono::TimeDelta;
use timertask_core::clock::Clock;
use timertask_core::time::Timestamp;

use super::journal::Start;
use super::timely::Care;
use super::{Cluster, Life};

/// How far an instance's clock may be off the store's before it stops starting; the engine's default.
pub(super) const MAX_SKEW: TimeDelta = TimeDelta::seconds(5);

impl Cluster {
    /// Whether the instance is fit has changed, or may have.
    pub(super) fn refit(&mut self, index: usize) {
        let now = self.clock.now();
        let life = self.life_mut(index);
        let fit =
            !life.view.is_frozen() && !life.line.cut.load(Ordering::Acquire) && life.view.skew().abs() <= MAX_SKEW;
        life.fit_since = fit.then(|| life.fit_since.unwrap_or(now));
    }

    /// Something befell them all: from now on their health counts anew.
    pub(super) fn everybody_begins_anew(&mut self) {
        let now = self.clock.now();
        for life in self.instances.iter_mut().filter_map(|instance| instance.live.as_mut()) {
            life.fit_since = life.fit_since.map(|_| now);
            life.line.forget();
        }
    }

    /// The lives that nothing is wrong with, and since when it has been so.
    pub(super) fn fit(&self) -> impl Iterator<Item = (usize, &Life, Timestamp)> {
        let now = self.clock.now();
        let live = self.instances.iter().enumerate().filter_map(|(i, instance)| Some((i, instance.live.as_ref()?)));
        live.filter_map(move |(i, life)| {
            let well = life.view.is_alive() && !life.view.is_frozen() && !life.line.hangs();
            let thawed = life.view.thawed_ago().map(|ago| now.saturating_sub(ago));
            let since = life.fit_since.filter(|_| well)?;
            Some((i, life, [thawed, life.line.last_fault()].into_iter().flatten().fold(since, Timestamp::max)))
        })
    }

    /// Since when the fittest of them has been fit, and has reached the store.
    pub(super) fn healthy_since(&self) -> Option<Timestamp> {
        self.fit().map(|(_, _, since)| since).min()
    }

    /// Who is fit, and cares for which plans.
    pub(super) fn cares(&self) -> Vec<Care> {
        self.journal.read(|starts| {
            let care = |(index, life, since): (usize, &Life, Timestamp)| Care {
                instance: index,
                life: self.instances[index].life,
                fit_since: since,
                free_since: self.free_since(starts, index),
                installed: life.installed.clone(),
                workers: self.concurrency.max(1),
            };
            self.fit().map(care).collect()
        })
    }

    /// Since when the instance has had a free worker without a break; `None`: it has none.
    fn free_since(&self, starts: &[Start], index: usize) -> Option<Timestamp> {
        let life = self.instances[index].life;
        let own = starts.iter().filter(|s| s.instance == index && s.life == life);
        // Entries first; a clock that was set back does not let a run end before it began.
        let left = |s: &Start| s.left.as_ref().map(|(at, _)| ((*at).max(s.at), true));
        let mut events: Vec<(Timestamp, bool)> = own.flat_map(|s| [Some((s.at, false)), left(s)]).flatten().collect();
        events.sort();
        let (mut busy, mut since) = (0_usize, Some(Timestamp::EPOCH));
        for (at, leaves) in events {
            busy = if leaves { busy.saturating_sub(1) } else { busy + 1 };
            since = (busy < self.concurrency.max(1)).then(|| since.unwrap_or(at));
        }
        since
    }
}
