//! What can happen, and in which order it does: cards of a deck that is shuffled by the seed, so that each kind comes up
//! before any comes up twice.

use crate::random::Random;

/// Something to let happen. How, to whom and for how long is decided when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A process is killed (SIGKILL), and started again.
    Kill,
    /// All are, at once.
    KillAll,
    /// A process is frozen (SIGSTOP) for a moment.
    Freeze,
    /// One is frozen for longer than a lease and three sweeps.
    FreezeLong,
    /// The store goes away, and comes back.
    Outage,
    /// No file of the store may grow.
    Full,
    /// A clock is set by less than instances may differ. On SQLite the host's, for all; on Redis an instance's.
    StepSmall,
    /// A clock is set by more.
    StepLarge,
    /// The host's clock is hours ahead for a while (SQLite only).
    Excursion,
    /// A plan gets another expression.
    Edit,
    /// A plan is disabled, or enabled again.
    Switch,
    /// A plan is paused by an operator, and resumed.
    Pause,
}

impl Fault {
    const ALL: [Self; 12] = [
        Self::Kill,
        Self::KillAll,
        Self::Freeze,
        Self::FreezeLong,
        Self::Outage,
        Self::Full,
        Self::StepSmall,
        Self::StepLarge,
        Self::Excursion,
        Self::Edit,
        Self::Switch,
        Self::Pause,
    ];
}

/// The cards that are left.
pub(crate) struct Deck {
    cards: Vec<Fault>,
    on_redis: bool,
}

impl Deck {
    pub(crate) fn new(on_redis: bool) -> Self {
        Self { cards: Vec::new(), on_redis }
    }

    /// The next card.
    pub(crate) fn draw(&mut self, random: &mut Random) -> Fault {
        if self.cards.is_empty() {
            self.cards = Fault::ALL.into_iter().filter(|fault| !self.on_redis || *fault != Fault::Excursion).collect();
            random.shuffle(&mut self.cards);
        }
        self.cards.pop().unwrap_or(Fault::Kill)
    }
}
