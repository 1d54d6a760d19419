//! Which call meets which fault: rules, counters, and the calls that hang.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask_core::clock::Signal;
use timertask_core::seam::StoreErrorKind;

use crate::random::Random;

/// A method of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// `Ledger::describe`
    Describe,
    /// `Ledger::plan`
    Plan,
    /// `Ledger::claim`
    Claim,
    /// `Ledger::renew`
    Renew,
    /// `Ledger::end`
    End,
    /// `Ledger::read`
    Read,
    /// `Ledger::purge`
    Purge,
    /// `Mutex::try_lock`
    TryLock,
    /// `Mutex::extend`
    Extend,
    /// `Mutex::unlock`
    Unlock,
    /// `Board::post`
    Post,
    /// `Board::list`
    List,
    /// `Board::take`
    Take,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Describe,
        Self::Plan,
        Self::Claim,
        Self::Renew,
        Self::End,
        Self::Read,
        Self::Purge,
        Self::TryLock,
        Self::Extend,
        Self::Unlock,
        Self::Post,
        Self::List,
        Self::Take,
    ];

    /// Those of them that change what the store holds.
    pub const WRITES: [Self; 10] = [
        Self::Plan,
        Self::Claim,
        Self::Renew,
        Self::End,
        Self::Purge,
        Self::TryLock,
        Self::Extend,
        Self::Unlock,
        Self::Post,
        Self::Take,
    ];

    /// The method's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Describe => "describe",
            Self::Plan => "plan",
            Self::Claim => "claim",
            Self::Renew => "renew",
            Self::End => "end",
            Self::Read => "read",
            Self::Purge => "purge",
            Self::TryLock => "try_lock",
            Self::Extend => "extend",
            Self::Unlock => "unlock",
            Self::Post => "post",
            Self::List => "list",
            Self::Take => "take",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What befalls a call.
#[derive(Clone)]
#[non_exhaustive]
pub enum Fault {
    /// It is not carried out, and answers this error.
    Error(StoreErrorKind),
    /// It is carried out; the answer is lost: a time-out, outcome unknown.
    LostAnswer,
    /// It is not carried out, and the asker cannot know: a time-out, outcome unknown.
    LostRequest,
    /// The asker is told that it timed out, outcome unknown; so much later it is carried out all the same, before the
    /// first call of anybody that comes after.
    Straggler(Duration),
    /// It takes so long to arrive.
    Slow(Duration),
    /// It is carried out, and so long passes until the answer is there.
    SlowAnswer(Duration),
    /// It is carried out twice in a row; the asker sees the first answer.
    Duplicate,
    /// It is carried out and answered, and so much later carried out again, before the first call of anybody that comes
    /// after.
    DuplicateLater(Duration),
    /// It hangs until [`release`](super::Faulty::release), and is carried out then.
    Stall,
    /// This runs before it is carried out: a kill or a freeze of the asker's clock, say, or an edit behind its back.
    Before(Arc<dyn Fn() + Send + Sync>),
    /// This runs after it was carried out and before the asker sees the answer.
    After(Arc<dyn Fn() + Send + Sync>),
}

impl Fault {
    /// [`Fault::Before`] of a closure.
    #[must_use]
    pub fn before(f: impl Fn() + Send + Sync + 'static) -> Self {
        Self::Before(Arc::new(f))
    }

    /// [`Fault::After`] of a closure.
    #[must_use]
    pub fn after(f: impl Fn() + Send + Sync + 'static) -> Self {
        Self::After(Arc::new(f))
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(kind) => write!(f, "Error({kind})"),
            Self::LostAnswer => f.write_str("LostAnswer"),
            Self::LostRequest => f.write_str("LostRequest"),
            Self::Straggler(d) => write!(f, "Straggler({d:?})"),
            Self::Slow(d) => write!(f, "Slow({d:?})"),
            Self::SlowAnswer(d) => write!(f, "SlowAnswer({d:?})"),
            Self::Duplicate => f.write_str("Duplicate"),
            Self::DuplicateLater(d) => write!(f, "DuplicateLater({d:?})"),
            Self::Stall => f.write_str("Stall"),
            Self::Before(_) => f.write_str("Before(..)"),
            Self::After(_) => f.write_str("After(..)"),
        }
    }
}

/// Which of the calls that a rule is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// The nth from when the rule was made, counted from 1.
    Nth(u64),
    /// That many, from when it was made.
    Next(u64),
    Always,
    Chance(f64),
}

struct Rule {
    /// `None`: any.
    call: Option<Call>,
    when: When,
    fault: Fault,
    seen: u64,
}

#[derive(Default)]
struct Book {
    rules: Vec<Rule>,
    calls: [u64; Call::ALL.len()],
    faults: [u64; Call::ALL.len()],
    random: Option<Random>,
    stalled: Vec<Signal>,
}

/// The rules and counters of one handle of a faulty store.
pub(super) struct Script(std::sync::Mutex<Book>);

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        Self(std::sync::Mutex::new(Book { random: Some(Random::new(seed)), ..Book::default() }))
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seed(&self, seed: u64) {
        self.book().random = Some(Random::new(seed));
    }

    pub(super) fn add(&self, call: Option<Call>, when: When, fault: Fault) {
        self.book().rules.push(Rule { call, when, fault, seen: 0 });
    }

    pub(super) fn clear(&self) {
        self.book().rules.clear();
    }

    pub(super) fn calls(&self, call: Call) -> u64 {
        self.book().calls[call as usize]
    }

    pub(super) fn faults(&self, call: Call) -> u64 {
        self.book().faults[call as usize]
    }

    /// Counts a call; its number, from 1, and its fault, from the first rule that applies.
    pub(super) fn next(&self, call: Call) -> (u64, Option<Fault>) {
        let mut book = self.book();
        let Book { rules, calls, faults, random, .. } = &mut *book;
        calls[call as usize] += 1;
        let mut fault = None;
        // Every rule about this call counts it, also where another one has spoken.
        rules.retain_mut(|rule| {
            if rule.call.is_some_and(|c| c != call) {
                return true;
            }
            rule.seen += 1;
            let (applies, stays) = match rule.when {
                When::Nth(n) => (rule.seen == n, rule.seen < n),
                When::Next(n) => (rule.seen <= n, rule.seen < n),
                When::Always => (true, true),
                When::Chance(p) => (random.as_mut().is_some_and(|r| r.chance(p)), true),
            };
            if applies && fault.is_none() {
                fault = Some(rule.fault.clone());
            }
            stays
        });
        faults[call as usize] += u64::from(fault.is_some());
        (calls[call as usize], fault)
    }

    /// A signal that [`release`](Self::release) notifies.
    pub(super) fn stall(&self) -> Signal {
        let signal = Signal::new();
        self.book().stalled.push(signal.clone());
        signal
    }

    pub(super) fn release(&self) {
        let stalled = std::mem::take(&mut self.book().stalled);
        stalled.iter().for_each(Signal::notify);
    }

    pub(super) fn stalled(&self) -> usize {
        self.book().stalled.len()
    }
}
