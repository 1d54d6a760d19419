//! Carrying out a reconcile. What differs is computed off the timer's thread, and no lock is held over user code or a
//! call of a store.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Inner;
use crate::engine::{GenerationOp, GroupKey, Installed, Policy, ScribeMail, TimerMail, Wanted, state};
use crate::error::SchedulerError;
use crate::fingerprint::Fingerprints;
use crate::key::{Fingerprint, PlanId};
use crate::observer::Event;
use crate::plan::Plan;
use crate::reconcile::{PlanChange, PlanError, PlanFailure, ReconcileReport, UnknownJob};
use crate::schedule::{EveryBase, Schedule, ScheduleOptions};
use crate::time::Trigger;

/// What the drop guard is for this reconcile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// Ask it.
    Ask,
    /// Go past it.
    Pass,
    /// Change nothing, only tell.
    DryRun,
}

/// A plan that is to be installed, and what it replaces.
struct Change {
    wanted: Wanted,
    before: Option<Arc<Installed>>,
}

/// How a set differs from what is installed.
#[derive(Default)]
struct Difference {
    changes: Vec<Change>,
    removed: Vec<Arc<Installed>>,
    /// Disabled plans of a whole set that are not installed here; their generations are closed all the same.
    disabled: Option<Vec<PlanId>>,
    unchanged: usize,
    failed: Vec<PlanFailure>,
}

impl Inner {
    pub(super) fn reconcile(&self, plans: &[Plan], guard: Guard) -> Result<ReconcileReport, SchedulerError> {
        self.running()?;
        // Calendars are user code: those of the set are tried before any lock is taken.
        let tried = self.try_calendars(plans);
        let turn = self.turn();
        let difference = self.differ(plans, &tried)?;
        if guard == Guard::DryRun {
            drop(turn);
            return Ok(self.report(&difference));
        }
        let (dropped, installed) = (difference.removed.len(), self.shared.registry().len());
        let guard = self.shared.config.drop_guard.filter(|_| guard == Guard::Ask);
        if let Some(guard) = guard.filter(|guard| guard.refuses(dropped, installed)) {
            let error = SchedulerError::DropGuard { dropped, installed, allowed: guard.allows(installed) };
            drop(turn);
            log::error!(target: "timertask::reconcile", "{}: {error}; nothing is changed", self.shared.config.instance);
            return Err(error);
        }
        let report = self.report(&difference);
        self.carry_out(difference);
        let failed_before = self.failed_before(&report.failed);
        let failed = report.failed.iter().map(|failure| (failure.id.clone(), failure.reason.to_string())).collect();
        self.shared.registry_mut().set_failed(failed);
        self.revive(plans, &tried);
        self.shared.reconciles.fetch_add(1, Ordering::AcqRel);
        drop(turn);
        self.log(&report, &failed_before);
        self.shared.reports.event(&Event::Reconciled(&report));
        Ok(report)
    }

    /// Which plans failed as they did the last time. That is told quietly: a source is asked again and again.
    fn failed_before(&self, failures: &[PlanFailure]) -> Vec<bool> {
        let registry = self.shared.registry();
        failures
            .iter()
            .map(|failure| registry.failed(failure.id.as_str()) == Some(&failure.reason.to_string()))
            .collect()
    }

    /// Logs what a reconcile did; a logger is user code, so no lock is held here.
    fn log(&self, report: &ReconcileReport, failed_before: &[bool]) {
        let instance = &self.shared.config.instance;
        for (failure, before) in report.failed.iter().zip(failed_before) {
            let level = if *before { log::Level::Debug } else { log::Level::Warn };
            log::log!(target: "timertask::reconcile", level, "{instance}: {failure}");
        }
        let news = report.is_changed() || failed_before.contains(&false);
        let level = if news { log::Level::Info } else { log::Level::Debug };
        log::log!(target: "timertask::reconcile", level, "{instance}: {report}");
    }

    pub(super) fn upsert(&self, plan: &Plan) -> Result<ReconcileReport, SchedulerError> {
        self.running()?;
        let tried = self.try_calendars(std::slice::from_ref(plan));
        let turn = self.turn();
        let id = PlanId::new(Arc::clone(&plan.id)).map_err(|source| SchedulerError::PlanId { index: 0, source })?;
        let before = self.shared.registry().get(&id);
        let mut difference = Difference::default();
        if plan.enabled {
            self.want(plan, id.clone(), before, tried.get(&0), &mut difference);
        } else {
            difference.removed.extend(before);
        }
        if let Some(failure) = difference.failed.pop() {
            drop(turn);
            log::warn!(target: "timertask::reconcile", "{}: {failure}", self.shared.config.instance);
            return Err(SchedulerError::Plan { id, reason: failure.reason });
        }
        let report = self.report(&difference);
        self.carry_out(difference);
        drop(turn);
        Ok(report)
    }

    pub(super) fn remove(&self, id: &str) -> Result<bool, SchedulerError> {
        self.running()?;
        let turn = self.turn();
        let there = self.shared.registry().find(id).cloned();
        let was = there.is_some();
        self.carry_out(Difference { removed: there.into_iter().collect(), ..Difference::default() });
        drop(turn);
        Ok(was)
    }

    /// Searches once with each plan that has a calendar and is new, changed, or failed by it before; what went wrong, by
    /// place in the set.
    fn try_calendars(&self, plans: &[Plan]) -> HashMap<usize, PlanError> {
        let now = self.shared.clock.now().trigger();
        let mut fingerprints = Fingerprints::new(self.shared.config.defaults_fingerprint);
        let mut wrong = HashMap::new();
        for (index, plan) in plans.iter().enumerate() {
            let Some(name) = plan.rest.calendar.as_deref().filter(|_| plan.enabled) else { continue };
            let there = self.shared.registry().find(&plan.id).cloned();
            if there.is_some_and(|t| t.state() != state::FAILED && t.fingerprint == fingerprints.of(plan)) {
                continue;
            }
            let Ok(schedule) = self.schedule_of(plan) else { continue };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| schedule.next_trigger(now))) {
                let _ = crate::engine::panic_text(panic);
                wrong.insert(index, PlanError::CalendarPanicked(name.to_owned()));
            }
        }
        wrong
    }

    /// How `plans` differ from what is installed. A set with a bad or a double id is refused as a whole.
    fn differ(&self, plans: &[Plan], tried: &HashMap<usize, PlanError>) -> Result<Difference, SchedulerError> {
        let mut fingerprints = Fingerprints::new(self.shared.config.defaults_fingerprint);
        let mut difference = Difference::default();
        let mut disabled = Vec::new();
        let mut fresh: HashSet<&str> = HashSet::new();
        let registry = self.shared.registry();
        let mut seen = registry.nothing_seen();
        for (index, plan) in plans.iter().enumerate() {
            let (before, double) = match registry.see(&plan.id, &mut seen) {
                Some((there, double)) => (Some(there), double),
                None => (None, !fresh.insert(&plan.id)),
            };
            if let Some(there) =
                before.filter(|there| plan.enabled && !double && there.fingerprint == fingerprints.of(plan))
            {
                if let Some(reason) = tried.get(&index) {
                    let failure = PlanFailure { id: there.id.clone(), reason: reason.clone(), kept: true };
                    difference.failed.push(failure);
                }
                difference.unchanged += 1;
                continue;
            }
            let id = match before {
                Some(there) => there.id.clone(),
                None => PlanId::new(Arc::clone(&plan.id)).map_err(|source| SchedulerError::PlanId { index, source })?,
            };
            if double {
                return Err(SchedulerError::DuplicatePlan(id));
            }
            match (plan.enabled, before) {
                (true, _) => self.want(plan, id, before.cloned(), tried.get(&index), &mut difference),
                (false, Some(there)) => difference.removed.push(Arc::clone(there)),
                (false, None) => disabled.push(id),
            }
        }
        difference.disabled = Some(disabled);
        difference.removed.extend(registry.unseen(&seen).cloned());
        difference.removed.sort_by_key(|plan| plan.seq);
        Ok(difference)
    }

    /// Checks a plan that is new or changed.
    fn want(
        &self,
        plan: &Plan,
        id: PlanId,
        before: Option<Arc<Installed>>,
        tried: Option<&PlanError>,
        difference: &mut Difference,
    ) {
        let fingerprint = Fingerprints::new(self.shared.config.defaults_fingerprint).of(plan);
        if before.as_ref().is_some_and(|before| before.fingerprint == fingerprint) {
            difference.unchanged += 1;
            return;
        }
        let wanted = match tried {
            Some(reason) => Err(reason.clone()),
            None => self.check(plan, id.clone(), fingerprint),
        };
        match wanted {
            Ok(wanted) => difference.changes.push(Change { wanted, before }),
            Err(reason) => difference.failed.push(PlanFailure { id, reason, kept: before.is_some() }),
        }
    }

    fn check(&self, plan: &Plan, id: PlanId, fingerprint: Fingerprint) -> Result<Wanted, PlanError> {
        let config = &self.shared.config;
        let (rest, defaults) = (&plan.rest, &config.defaults);
        let schedule = self.schedule_of(plan)?;
        let job = rest.job.as_deref().unwrap_or(&plan.id);
        if let Some(names) = config.job_names.as_ref().filter(|names| !names.contains(job)) {
            return Err(PlanError::Job(UnknownJob::new(job, names)));
        }
        let start_window = rest.start_window.unwrap_or(defaults.start_window);
        if start_window < Duration::from_secs(2) {
            return Err(PlanError::StartWindow(start_window));
        }
        let retry = rest.retry.or(defaults.retry);
        if self.shared.mutex.is_some() {
            let ttl = retry.unwrap_or_default().lock_ttl();
            let sum = rest.spread.saturating_add(start_window).saturating_add(config.max_skew.saturating_mul(2));
            if sum >= ttl {
                return Err(PlanError::LockTooShort { sum, ttl });
            }
        }
        let policy = Policy {
            job: rest.job.clone(),
            overlap: rest.overlap.unwrap_or(defaults.overlap),
            catch_up: rest.catch_up.unwrap_or(defaults.catch_up),
            catch_up_window: rest.catch_up_window,
            start_window,
            on_orphan: rest.on_orphan.unwrap_or(defaults.on_orphan),
            retry,
        };
        let offset = crate::plan::spread_offset(&id, rest.spread);
        Ok(Wanted { id, fingerprint, schedule, policy, payload: plan.payload.as_deref().map(Box::from), offset })
    }

    fn schedule_of(&self, plan: &Plan) -> Result<Schedule, PlanError> {
        let config = &self.shared.config;
        let (rest, defaults) = (&plan.rest, &config.defaults);
        let zone = match &rest.zone {
            None => defaults.zone,
            Some(name) => chrono_tz::Tz::from_str(name).map_err(|_| PlanError::Zone(short(name)))?,
        };
        let every_base = if defaults.every_from_install {
            EveryBase::Install(self.shared.clock.now().trigger())
        } else {
            EveryBase::Epoch
        };
        let mut options = ScheduleOptions::new()
            .zone(zone)
            .dst(rest.dst.unwrap_or(defaults.dst))
            .dialect(defaults.dialect)
            .limits(defaults.limits)
            .anchor(rest.anchor)
            .every_base(every_base);
        if let Some(name) = &rest.calendar {
            let calendar = config.calendars.get(name).ok_or_else(|| PlanError::Calendar(short(name)))?;
            options = options.calendar(Arc::clone(name), Arc::clone(calendar));
        }
        Ok(options.parse(&plan.spec)?)
    }

    /// Puts a difference into force: in the registry at once, in the ledger and the timer through their mailboxes.
    fn carry_out(&self, difference: Difference) {
        let Difference { changes, removed, disabled, .. } = difference;
        let shared = &self.shared;
        let mut ops = Vec::with_capacity(changes.len() + removed.len());
        let mut gone = Vec::new();
        let mut registry = shared.registry_mut();
        for plan in removed {
            if let Some(plan) = registry.remove(plan.id.as_str()) {
                ops.push(GenerationOp::Close(plan.id.clone(), plan.generation()));
                gone.push(plan);
            }
        }
        if let Some(disabled) = disabled {
            ops.extend(registry.close_once(disabled).into_iter().map(|id| GenerationOp::Close(id, None)));
        }
        registry.reserve(changes.len());
        for change in changes {
            let (plan, before) = registry.install(change.wanted);
            let replaces = before.as_ref().and_then(|before| before.generation());
            gone.extend(before);
            ops.push(GenerationOp::Open(plan, replaces));
        }
        registry.tidy(gone.len());
        drop(registry);
        gone.retain(|plan| plan.generation().is_some());
        if !gone.is_empty() {
            shared.timer.send(TimerMail::Removed(gone));
        }
        if !ops.is_empty() {
            shared.scribe.send(ScribeMail::Generations(ops));
        }
    }

    /// Plans with a calendar that panicked, or that found nothing any more, are searched again.
    fn revive(&self, plans: &[Plan], tried: &HashMap<usize, PlanError>) {
        let (mut seen, mut groups) = (HashSet::new(), Vec::new());
        for (index, plan) in plans.iter().enumerate().filter(|(_, plan)| plan.rest.calendar.is_some() && plan.enabled) {
            let Some(there) = self.shared.registry().find(&plan.id).cloned() else { continue };
            if tried.contains_key(&index) || there.generation().is_none() {
                continue;
            }
            if there.state() == state::FAILED {
                there.activate();
            }
            let key = GroupKey::of(&there);
            if seen.insert(key.clone()) {
                groups.push(key);
            }
        }
        if !groups.is_empty() {
            self.shared.timer.send(TimerMail::Revive(groups));
        }
    }

    fn report(&self, difference: &Difference) -> ReconcileReport {
        let now = self.shared.clock.now().trigger();
        let mut known: HashMap<*const Schedule, Option<Trigger>> = HashMap::new();
        let mut next = |schedule: &Schedule| {
            if schedule.has_calendar() {
                return None;
            }
            *known.entry(std::ptr::from_ref(schedule)).or_insert_with(|| schedule.next_trigger(now))
        };
        let mut report = ReconcileReport { unchanged: difference.unchanged, ..ReconcileReport::default() };
        for change in &difference.changes {
            let change_of = PlanChange {
                id: change.wanted.id.clone(),
                next_before: change.before.as_ref().and_then(|b| next(&b.schedule)).map(Trigger::to_datetime),
                next_after: next(&change.wanted.schedule).map(Trigger::to_datetime),
            };
            if change.before.is_some() { report.replaced.push(change_of) } else { report.installed.push(change_of) }
        }
        for plan in &difference.removed {
            let next_before = next(&plan.schedule).map(Trigger::to_datetime);
            report.removed.push(PlanChange { id: plan.id.clone(), next_before, next_after: None });
        }
        report.failed.clone_from(&difference.failed);
        report
    }
}

/// At most 40 characters of a text that came from outside.
fn short(text: &str) -> String {
    text.chars().take(40).collect()
}
