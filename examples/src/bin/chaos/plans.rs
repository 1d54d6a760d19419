//! What the processes run: plans of every policy, two of which are edited all the time, and what each allows.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use timertask::key::Fingerprint;
use timertask::{Backoff, Builder, CatchUp, Job, OnOrphan, Overlap, Plan, RetryBudget, Run, Schedule, Scheduler};

use crate::Result;

/// How late a live slot may start.
pub(crate) const WINDOW: Duration = Duration::from_secs(5);
/// How many runs an instance can have at once: more than the plans ever ask for.
const WORKERS: usize = 32;

/// The expressions between which the plan `edited` changes.
const EDITIONS: [&str; 3] = ["*/2 * * * * *", "@every 3s", "* * * * * *"];

/// What the table of plans says just now; the processes read it every second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// The place of `edited`'s expression.
    pub(crate) edition: usize,
    /// Whether `switched` is enabled.
    pub(crate) switched: bool,
}

impl Table {
    pub(crate) const FIRST: Self = Self { edition: 0, switched: true };

    /// All that it can be.
    fn all() -> impl Iterator<Item = Self> {
        (0..EDITIONS.len()).map(|edition| Self { edition, switched: true })
    }

    /// With another expression.
    pub(crate) fn edited(self) -> Self {
        Self { edition: (self.edition + 1) % EDITIONS.len(), ..self }
    }

    /// Writes it in one step.
    pub(crate) fn write(self, path: &Path) -> Result<()> {
        let draft = path.with_extension("draft");
        std::fs::write(&draft, format!("{} {}", self.edition, self.switched))?;
        Ok(std::fs::rename(draft, path)?)
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let (edition, switched) = text.split_once(' ').ok_or("the table of plans is damaged")?;
        Ok(Self { edition: edition.parse()?, switched: switched.parse()? })
    }

    /// The plans.
    pub(crate) fn plans(self) -> Vec<Plan> {
        let parallel = Overlap::Allow(100);
        let retry = RetryBudget {
            attempts: 2,
            timeout: Duration::from_secs(5),
            backoff: Backoff::Fixed(Duration::from_millis(200)),
            ..RetryBudget::default()
        };
        let edition = EDITIONS[self.edition % EDITIONS.len()];
        vec![
            Plan::new("quick", "* * * * * *").job("quick").overlap(parallel).catch_up(CatchUp::None),
            Plan::new("latest", "*/2 * * * * *").job("quick").overlap(parallel),
            Plan::new("all", "*/3 * * * * *").job("quick").overlap(parallel).catch_up(CatchUp::All { cap: 20 }),
            Plan::new("retried", "*/3 * * * * *").job("flaky").overlap(parallel).retry(retry),
            Plan::new("rerun", "*/2 * * * * *").job("work").overlap(parallel).on_orphan(OnOrphan::Rerun { max: 2 }),
            Plan::new("long", "*/10 * * * * *").job("long").overlap(Overlap::Allow(4)),
            Plan::new("skip", "@every 2s").job("work").overlap(Overlap::Skip),
            Plan::new("queue", "@every 3s")
                .job("work")
                .overlap(Overlap::QueueOne)
                .on_orphan(OnOrphan::Rerun { max: 1 }),
            Plan::new("cancel", "@every 4s").job("long").overlap(Overlap::CancelPrevious).catch_up(CatchUp::None),
            Plan::new("paused", "* * * * * *").job("quick").overlap(parallel),
            Plan::new("edited", edition).job("quick").overlap(parallel),
            Plan::new("switched", "* * * * * *").job("quick").overlap(parallel).enabled(self.switched),
        ]
    }
}

/// How many starts a slot of this plan may have.
pub(crate) fn starts_allowed(plan: &str) -> u32 {
    match plan {
        "rerun" => OnOrphan::Rerun { max: 2 }.attempts_allowed(),
        "queue" => OnOrphan::Rerun { max: 1 }.attempts_allowed(),
        _ => OnOrphan::Record.attempts_allowed(),
    }
}

/// Whether nothing of the plan's own stands against a start: no overlap, no edit, no pause. What is said of starting holds
/// for these without further ado.
pub(crate) fn always_starts(plan: &str) -> bool {
    ["quick", "latest", "all", "retried", "rerun"].contains(&plan)
}

/// The scheduler's defaults, which are part of what its plans' fingerprints stand for.
pub(crate) fn builder(job: impl Job + 'static) -> Builder {
    Scheduler::builder(job).concurrency(WORKERS).start_window(WINDOW)
}

/// The schedules that a plan has had, by fingerprint.
pub(crate) type Versions = HashMap<(String, Fingerprint), Arc<Schedule>>;

/// All versions of all plans, as a scheduler reads them. It stands alone, and ends before anything falls due.
pub(crate) fn versions() -> Result<Versions> {
    let mut versions = Versions::new();
    for table in Table::all() {
        let scheduler = builder(|_: &Run| Ok(())).start()?;
        scheduler.reconcile(table.plans())?.all_taken()?;
        for view in scheduler.plans()? {
            versions.insert((view.id.as_str().to_owned(), view.fingerprint), view.schedule);
        }
        scheduler.close_now()?;
    }
    Ok(versions)
}
