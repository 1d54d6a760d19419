//! Rows from the texts in which the scripts keep them. What cannot have been written by this library is
//! [`Corrupt`](timertask_core::seam::StoreErrorKind::Corrupt), never a panic and never a guess.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use timertask_core::key::{Fence, Fingerprint, InstanceId, Nonce, PlanKey, SlotKey};
use timertask_core::seam::{
    Asked, Cancel, Ending, Generation, NotStarted, Pause, PlanRow, RangeRow, RunKind, SlotRow, SlotState,
};
use timertask_core::time::{Timestamp, Trigger};

use crate::error::Fault;
use crate::layout::{parse_at, parse_maybe_text, parse_slot, unescape};

/// A plan's row.
pub(crate) fn plan_row(text: &str) -> Result<PlanRow, Fault> {
    let mut f = Fields::of(text, "a plan's row");
    Ok(PlanRow {
        generation: Generation { fingerprint: Fingerprint::from_bits(f.bits()?), effective_from: f.trigger()? },
        closed: f.number::<u8>()? != 0,
        cursor: f.trigger()?,
        low_water: f.trigger()?,
        fence: Fence::from_u64(f.number()?),
        last_success: f.maybe()?.map(Trigger::from_secs),
        window_from: f.maybe()?.map(Trigger::from_secs),
        pause: {
            let since = f.maybe()?;
            let (by, why, until) = (unescape(f.next()?)?, unescape(f.next()?)?, f.maybe()?);
            f.end()?;
            since.map(|since| {
                let since = Timestamp::from_micros(since);
                Arc::new(Pause { since, by, why, until: until.map(Timestamp::from_micros) })
            })
        },
    })
}

/// The row of a slot of `plan`, from its name and its text.
pub(crate) fn slot_row(plan: &PlanKey, name: &str, text: &str) -> Result<SlotRow, Fault> {
    let (at, request) = parse_slot(name)?;
    let mut f = Fields::of(text, "a slot's row");
    let mut row = SlotRow {
        key: SlotKey { plan: plan.clone(), at, request },
        state: {
            let (code, how) = (f.next()?, f.next()?);
            state(code, how).ok_or_else(|| f.wrong("its state"))?
        },
        kind: RunKind::from_code(f.number()?).ok_or_else(|| f.wrong("its kind"))?,
        asked: None,
        nonce: Nonce::from_bits(f.bits()?),
        released: nonces(f.next()?).ok_or_else(|| f.wrong("its released nonces"))?,
        fence: Fence::from_u64(f.number()?),
        attempt: f.number()?,
        lease_end: Timestamp::from_micros(f.number()?),
        ttl: Duration::from_micros(f.number()?),
        cancel: {
            let (by, why) = (parse_maybe_text(f.next()?)?, unescape(f.next()?)?);
            by.map(|by| Arc::new(Cancel { by, why }))
        },
        instance: match f.next()? {
            "" => None,
            text => Some(InstanceId::new(unescape(text)?).map_err(|e| f.wrong(&e.to_string()))?),
        },
        version: parse_maybe_text(f.next()?)?.map(Arc::from),
        claimed_at: f.maybe()?.map(Timestamp::from_micros),
        started_at: f.maybe()?.map(Timestamp::from_micros),
        ended_at: f.maybe()?.map(Timestamp::from_micros),
        tries: f.number()?,
        detail: parse_maybe_text(f.next()?)?.map(Arc::from),
    };
    let (by, why) = (parse_maybe_text(f.next()?)?, unescape(f.next()?)?);
    if let Some(by) = by {
        row.asked = Some(Arc::new(Asked::new(by, why).map_err(|e| f.wrong(&e.to_string()))?));
    }
    f.end()?;
    Ok(row)
}

/// A range record, from its entry in the plan's index.
pub(crate) fn range_row(entry: &str) -> Result<RangeRow, Fault> {
    let mut f = Fields::of(entry, "a range record");
    let bounds = f.next()?;
    // One digit for the class of the entry, then last and first.
    let bound = |from: usize| bounds.get(from..from + 16).and_then(parse_at).ok_or_else(|| f.wrong("its bounds"));
    let (last, first) = (bound(1)?, bound(17)?);
    let count = f.maybe()?;
    let reason = NotStarted::from_code(f.number()?).ok_or_else(|| f.wrong("its reason"))?;
    let row = RangeRow { first, last, count, reason, at: Timestamp::from_micros(f.number()?) };
    f.end()?;
    Ok(row)
}

/// A state from its code and, of one that ended or was not started, the code of how.
pub(crate) fn state(code: &str, how: &str) -> Option<SlotState> {
    match (code, how) {
        ("0", "") => Some(SlotState::Running),
        ("1", "") => Some(SlotState::Open),
        ("2", how) => Ending::from_code(how.parse().ok()?).map(SlotState::Ended),
        ("3", how) => NotStarted::from_code(how.parse().ok()?).map(SlotState::NotStarted),
        _ => None,
    }
}

/// Nonces of 32 digits, one behind the other.
fn nonces(text: &str) -> Option<Vec<Nonce>> {
    let (whole, rest) = text.as_bytes().as_chunks::<32>();
    let nonce = |digits: &[u8; 32]| u128::from_str_radix(str::from_utf8(digits).ok()?, 16).ok().map(Nonce::from_bits);
    if rest.is_empty() { whole.iter().map(nonce).collect() } else { None }
}

/// The fields of a row, one after the other.
struct Fields<'a> {
    fields: std::str::Split<'a, char>,
    what: &'static str,
}

impl<'a> Fields<'a> {
    fn of(text: &'a str, what: &'static str) -> Self {
        Self { fields: text.split('\n'), what }
    }

    fn next(&mut self) -> Result<&'a str, Fault> {
        self.fields.next().ok_or_else(|| self.wrong("its end, which is missing"))
    }

    fn number<T: FromStr>(&mut self) -> Result<T, Fault> {
        let text = self.next()?;
        text.parse().map_err(|_| self.wrong(&format!("{text:?}, which is not a number of its kind")))
    }

    fn maybe<T: FromStr>(&mut self) -> Result<Option<T>, Fault> {
        match self.next()? {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| self.wrong(&format!("{text:?}, which is not a number"))),
        }
    }

    fn trigger(&mut self) -> Result<Trigger, Fault> {
        self.number().map(Trigger::from_secs)
    }

    fn bits(&mut self) -> Result<u128, Fault> {
        let text = self.next()?;
        u128::from_str_radix(text, 16).map_err(|_| self.wrong(&format!("{text:?}, which is not hexadecimal")))
    }

    fn end(&mut self) -> Result<(), Fault> {
        if self.fields.next().is_none() { Ok(()) } else { Err(self.wrong("more fields than it has")) }
    }

    fn wrong(&self, what: &str) -> Fault {
        Fault::corrupt(format!("{} has wrong {what}", self.what))
    }
}
