//! What is played: the plans, and what is done to the instances and to their server, and when.

/// A row of the table of plans.
#[derive(Clone, Copy)]
pub(crate) struct PlanRow {
    pub(crate) id: &'static str,
    pub(crate) spec: &'static str,
    pub(crate) zone: Option<&'static str>,
    pub(crate) job: &'static str,
    /// How many may run at once.
    pub(crate) at_once: u32,
    /// How many of the slots that were missed are made up.
    pub(crate) make_up: u32,
}

/// More than are ever missed.
pub(crate) const ALL: u32 = 10_000;

const fn row(id: &'static str, spec: &'static str, job: &'static str) -> PlanRow {
    PlanRow { id, spec, zone: None, job, at_once: 1, make_up: 1 }
}

/// The plans from the start.
pub(crate) const PLANS: &[PlanRow] = &[
    row("every-1s", "@every 1s", "insert"),
    row("every-2s", "@every 2s", "insert"),
    row("each-second", "* * * * * *", "insert"),
    PlanRow { zone: Some("Europe/Berlin"), ..row("berlin", "*/5 * * * * *", "insert") },
    row("flaky", "@every 2s", "flaky"),
    row("panicky", "@every 1s", "panicky"),
    row("short-lived", "@every 1s", "insert"),
    row("slow", "@every 1s", "slow"),
    PlanRow { at_once: 3, ..row("slow-in-parallel", "@every 1s", "slow") },
];

/// Those where the server goes away: of some all missed slots are made up, of others the latest.
pub(crate) const OUTAGE_PLANS: &[PlanRow] = &[
    PlanRow { make_up: ALL, ..row("all-each-1s", "@every 1s", "insert") },
    PlanRow { make_up: ALL, zone: Some("Europe/Berlin"), ..row("all-berlin", "*/3 * * * * *", "insert") },
    PlanRow { make_up: ALL, ..row("all-flaky", "@every 2s", "flaky") },
    row("latest-each-1s", "@every 1s", "insert"),
    row("latest-each-2s", "*/2 * * * * *", "insert"),
    PlanRow { at_once: 3, ..row("latest-slow", "@every 1s", "slow") },
];

#[derive(Clone, Copy)]
pub(crate) enum Act {
    Put(PlanRow),
    Disable(&'static str),
    Kill(usize),
    Restart(usize),
    Freeze(usize),
    Thaw(usize),
    KillServer,
    RestartServer,
}

/// What is done, and when: parts of the time, in thousandths.
pub(crate) const SCORE: &[(u64, Act)] = &[
    (120, Act::Kill(1)),
    (250, Act::Put(row("late-comer", "*/2 * * * * *", "insert"))),
    (350, Act::Put(row("every-2s", "@every 3s", "insert"))),
    (420, Act::Restart(1)),
    (500, Act::Freeze(0)),
    (600, Act::Disable("short-lived")),
    (700, Act::Put(PlanRow { zone: Some("Europe/Berlin"), ..row("berlin", "*/4 * * * * *", "insert") })),
    (850, Act::Thaw(0)),
];

/// The second mode: the server dies and comes back.
pub(crate) const OUTAGE: &[(u64, Act)] = &[(200, Act::KillServer), (700, Act::RestartServer)];
