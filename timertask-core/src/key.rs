//! Who is meant: plans, slots, instances, and the numbers that prove a term.

use std::fmt;
use std::sync::Arc;

use crate::time::Trigger;

/// Why an id was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// Nothing was given. Give 1 to 255 bytes (a namespace: 1 to 64; a reason: 1 to 1,000).
    #[error("{what} is empty; allowed are 1 to {max} bytes")]
    Empty {
        /// Which id.
        what: &'static str,
        /// The most bytes allowed.
        max: usize,
    },
    /// Too long. Shorten it, or use a hash of it.
    #[error("{what} has {len} bytes; allowed are 1 to {max}")]
    TooLong {
        /// Which id.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The most bytes allowed.
        max: usize,
    },
    /// A character that is not allowed: control characters in plan and request ids, in labels and in what
    /// an operator says, all but
    /// `A-Z a-z 0-9 _ . -` in a namespace.
    #[error("{what} has the character U+{:04X} at byte {at}; {allowed}", u32::from(*.found))]
    Character {
        /// Which id.
        what: &'static str,
        /// The byte offset.
        at: usize,
        /// The character.
        found: char,
        /// What is allowed, in words.
        allowed: &'static str,
    },
}

pub(crate) fn check(what: &'static str, text: &str, max: usize) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty { what, max });
    }
    if text.len() > max {
        return Err(IdError::TooLong { what, len: text.len(), max });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        None => Ok(()),
        Some((at, found)) => Err(IdError::Character { what, at, found, allowed: "control characters are not allowed" }),
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and takes `text`.
            ///
            /// # Errors
            /// [`IdError`] where `text` is empty, too long, or holds a control character.
            pub fn new(text: impl Into<Arc<str>>) -> Result<Self, IdError> {
                let text = text.into();
                check($what, &text, $max)?;
                Ok(Self(text))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = IdError;
            fn try_from(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::new(text)
            }
        }
    };
}

text_id!(
    /// The id of a plan: 1–255 bytes of UTF-8 without control characters, compared byte by byte (no Unicode
    /// normalisation: the composed and the decomposed form of a letter are two plans). Clones share the text.
    PlanId, "plan id", 255
);
text_id!(
    /// The id that a caller gives to a `run_now`, so that a repeated call is one run: 1–255 bytes, no control
    /// characters.
    RequestId, "request id", 255
);
text_id!(
    /// The label of an instance: for people, never proof of identity. 1–255 bytes, no control characters.
    InstanceId, "instance label", 255
);

/// A part of a store that several services share: empty (the default), or 1–64 of `A-Z a-z 0-9 _ . -`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Namespace(Option<Arc<str>>);

impl Namespace {
    /// Checks and takes `text`.
    ///
    /// # Errors
    /// [`IdError`] where `text` is empty, longer than 64 bytes or holds another character.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, IdError> {
        let text = text.into();
        check("namespace", &text, 64)?;
        let odd = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
        match text.char_indices().find(|(_, c)| odd(c)) {
            None => Ok(Self(Some(text))),
            Some((at, found)) => Err(IdError::Character {
                what: "namespace",
                at,
                found,
                allowed: "allowed are letters, digits, '_', '.' and '-'",
            }),
        }
    }

    /// The text; empty where none was set.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or("")
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A plan within a namespace; what the rows of a ledger belong to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlanKey {
    /// The namespace.
    pub namespace: Namespace,
    /// The plan; `None` is the namespace itself, whose row holds what counts for all its plans (a pause of all).
    pub plan: Option<PlanId>,
}

impl PlanKey {
    /// The plan `plan` in `namespace`.
    #[must_use]
    pub fn new(namespace: Namespace, plan: PlanId) -> Self {
        Self { namespace, plan: Some(plan) }
    }

    /// The namespace itself.
    #[must_use]
    pub fn whole(namespace: Namespace) -> Self {
        Self { namespace, plan: None }
    }

    /// The plan's id; empty for the namespace itself (no plan has an empty id).
    #[must_use]
    pub fn plan_str(&self) -> &str {
        self.plan.as_ref().map_or("", PlanId::as_str)
    }
}

/// What is run at most once: a plan's trigger point; for `run_now` the instant of acceptance and the request id.
///
/// Idempotency key, lock key and ledger key are this one identity. `Display` gives its text form:
/// `[<namespace>:]timertask/cron/exec/<plan id>/<trigger>[/<request id>]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotKey {
    /// The plan.
    pub plan: PlanKey,
    /// The trigger point.
    pub at: Trigger,
    /// The request of a `run_now`.
    pub request: Option<RequestId>,
}

impl fmt::Display for SlotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.plan.namespace.as_str();
        if !namespace.is_empty() {
            write!(f, "{namespace}:")?;
        }
        write!(f, "timertask/cron/exec/{}/{}", self.plan.plan_str(), self.at)?;
        match &self.request {
            None => Ok(()),
            Some(request) => write!(f, "/{request}"),
        }
    }
}

/// The key of a [`Mutex`](crate::seam::Mutex)'s lease: the slot that it guards.
pub type LockKey = SlotKey;

/// 128 bits, the upper half first. What holds a `u128` is as wide as its alignment of 16 bytes wants; a million plans hold
/// some.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Halves([u64; 2]);

impl Halves {
    const fn of(bits: u128) -> Self {
        Self([(bits >> 64) as u64, bits as u64])
    }

    const fn bits(self) -> u128 {
        (self.0[0] as u128) << 64 | self.0[1] as u128
    }
}

/// 128 random bits that name one decision to claim; the proof that an answer belongs to the asker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Nonce(Halves);

impl Nonce {
    /// From its bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(Halves::of(bits))
    }

    /// Its bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0.bits()
    }

    /// From the clock's entropy.
    #[must_use]
    pub fn random(clock: &dyn crate::clock::Clock) -> Self {
        Self(Halves([clock.entropy(), clock.entropy()]))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.bits())
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.bits())
    }
}

/// A number that rises with each grant within one plan. The job hands it to whatever it writes to, which refuses
/// a lower one than it has seen (M. Kleppmann, "How to do distributed locking", 2016, calls it a fencing token).
///
/// Between 0 and 2⁵³ − 1, so that every language holds it exactly; 0 is "none yet".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence(u64);

impl Fence {
    /// None yet; lower than each granted one.
    pub const NONE: Self = Self(0);

    /// From its number.
    #[must_use]
    pub const fn from_u64(n: u64) -> Self {
        Self(n)
    }

    /// Its number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What all behaviour of a plan comes down to; two generations of a plan are equal where theirs are. 128 bits of
/// FNV-1a (RFC 9923) over the caller's text, or over all that changes behaviour.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fingerprint(Halves);

impl Fingerprint {
    /// From its bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(Halves::of(bits))
    }

    /// Its bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0.bits()
    }

    /// The fingerprint of these parts, each ended by its length, so that no two lists run together.
    #[must_use]
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        parts.into_iter().fold(Self::EMPTY, Self::and)
    }

    /// Of no parts at all.
    pub const EMPTY: Self = Self::from_bits(FNV_OFFSET);

    /// With one part more.
    #[must_use]
    pub fn and(self, part: &[u8]) -> Self {
        Self::from_bits(fnv(fnv(self.bits(), part), &(part.len() as u64).to_le_bytes()))
    }
}

const FNV_OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

fn fnv(hash: u128, bytes: &[u8]) -> u128 {
    bytes.iter().fold(hash, |h, b| (h ^ u128::from(*b)).wrapping_mul(FNV_PRIME))
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.bits())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.bits())
    }
}
