//! Requests as the scripts' arguments, and the scripts' answers as the ledger's.

use std::sync::Arc;
use std::time::Duration;

use timertask_core::key::{Fence, PlanKey, SlotKey};
use timertask_core::seam::{
    Applied, Cancel, Claim, ClaimRequest, Cover, EndOp, EndRequest, Ended, Ending, Gate, Grant, NotStarted, Overlap,
    PlanOp, PlanState, Refusal, Renewal, SlotRow, SlotState, StoreErrorKind, Term,
};
use timertask_core::time::{Timestamp, Trigger};

use crate::codec::{plan_row, state};
use crate::error::Fault;
use crate::layout::{escape, maybe, maybe_text, micros, parse_maybe_text, secs, slot, slot_at, unescape, whole_for};
use crate::script::{Call, Reply};

/// What is about one plan, or about a namespace.
pub(crate) trait OfPlan {
    fn plan(&self) -> &PlanKey;
}

impl OfPlan for (PlanKey, PlanOp) {
    fn plan(&self) -> &PlanKey {
        &self.0
    }
}

impl OfPlan for SlotKey {
    fn plan(&self) -> &PlanKey {
        &self.plan
    }
}

impl OfPlan for ClaimRequest {
    fn plan(&self) -> &PlanKey {
        self.key.plan()
    }
}

impl OfPlan for Term {
    fn plan(&self) -> &PlanKey {
        self.key.plan()
    }
}

impl OfPlan for EndRequest {
    fn plan(&self) -> &PlanKey {
        self.key.plan()
    }
}

pub(crate) fn claim(call: &mut Call, request: &ClaimRequest) -> Result<(), Fault> {
    let key = &request.key;
    let row_of_all = whole_for(&key.plan, call.scope());
    call.claimed_plan(&key.plan, row_of_all).arg(slot(key)?);
    call.number(request.nonce).number(request.fingerprint);
    call.arg(request.prev.map_or_else(String::new, |prev| crate::layout::bound(prev).to_string()));
    call.number(request.kind.code());
    call.arg(maybe_text(request.asked.as_ref().map(|a| a.by())));
    call.arg(escape(request.asked.as_ref().map_or("", |a| a.why())));
    let (gate, may_run) = match request.gate {
        Gate::Force => ("F", 0),
        Gate::Policy(Overlap::Skip) => ("S", 1),
        Gate::Policy(Overlap::QueueOne) => ("Q", 1),
        Gate::Policy(Overlap::CancelPrevious) => ("C", 1),
        Gate::Policy(Overlap::Allow(n)) => ("A", n),
    };
    call.arg(gate).number(may_run).number(request.attempts_allowed).number(micros(request.ttl));
    call.arg(escape(request.instance.as_str())).arg(maybe_text(request.version.as_deref()));
    Ok(())
}

pub(crate) fn claimed(reply: &mut Reply) -> Result<Claim, Fault> {
    Ok(match reply.text()?.as_str() {
        "G" => Claim::Granted(Grant {
            at: Trigger::from_secs(reply.number()?),
            fence: Fence::from_u64(reply.number()?),
            attempt: reply.number()?,
            lease_end: Timestamp::from_micros(reply.number()?),
            cursor: Trigger::from_secs(reply.number()?),
            last_success: maybe_trigger(reply)?,
            window_from: maybe_trigger(reply)?,
        }),
        "H" => Claim::Held,
        "E" => Claim::Ended(ending(reply)?),
        "R" => Claim::Refused(match reply.text()?.as_str() {
            "released" => Refusal::Released,
            "not-started" => Refusal::NotStarted(not_started(reply)?),
            "accounted" => Refusal::Accounted,
            "too-old" => Refusal::TooOld,
            "unknown" => Refusal::Unknown,
            "paused" => Refusal::Paused,
            "full" => Refusal::Full,
            other => return Err(Fault::nonsense(format!("{other:?} is no refusal"))),
        }),
        other => return Err(Fault::nonsense(format!("{other:?} is no answer to a claim"))),
    })
}

pub(crate) fn renew(call: &mut Call, term: &Term) -> Result<(), Fault> {
    call.plan(&term.key.plan).arg(slot(&term.key)?).number(term.nonce).number(term.fence);
    Ok(())
}

pub(crate) fn renewed(reply: &mut Reply) -> Result<Renewal, Fault> {
    Ok(match reply.text()?.as_str() {
        "H" => Renewal::Held(Timestamp::from_micros(reply.number()?)),
        "C" => {
            let lease_end = Timestamp::from_micros(reply.number()?);
            let by = parse_maybe_text(&reply.text()?)?.unwrap_or_default();
            Renewal::Cancel(lease_end, Arc::new(Cancel { by, why: unescape(&reply.text()?)? }))
        }
        "L" => Renewal::Lost,
        other => return Err(Fault::nonsense(format!("{other:?} is no answer to a renewal"))),
    })
}

pub(crate) fn end(call: &mut Call, request: &EndRequest) -> Result<(), Fault> {
    call.plan(&request.key.plan).arg(slot(&request.key)?).number(request.fence);
    match &request.op {
        EndOp::Settle { nonce, ending, started_at, ended_at, tries, detail } => {
            call.arg("S").number(nonce).number(ending.code());
            call.number(started_at.as_micros()).number(ended_at.as_micros()).number(tries);
            call.arg(maybe_text(detail.as_deref().map(shorten)));
        }
        EndOp::GiveBack { nonce } => _ = call.arg("G").number(nonce),
        EndOp::Expire { attempts_allowed } => _ = call.arg("X").number(attempts_allowed),
        EndOp::CutLease { max_skew } => _ = call.arg("C").number(micros(*max_skew)),
        EndOp::Resolve { reason } => _ = call.arg("R").number(reason.code()),
    }
    Ok(())
}

/// `detail`, cut to what a row holds, at a character's end.
fn shorten(detail: &str) -> &str {
    let end = (0..=SlotRow::DETAIL.min(detail.len())).rev().find(|at| detail.is_char_boundary(*at));
    &detail[..end.unwrap_or(0)]
}

pub(crate) fn ended(reply: &mut Reply) -> Result<Ended, Fault> {
    Ok(match reply.text()?.as_str() {
        "R" => Ended::Recorded(slot_state(reply)?),
        "A" => Ended::AlreadyRecorded,
        "L" => Ended::Lost(Some(slot_state(reply)?)),
        "N" => Ended::Lost(None),
        other => return Err(Fault::nonsense(format!("{other:?} is no answer to an end"))),
    })
}

pub(crate) fn plan(call: &mut Call, (key, op): &(PlanKey, PlanOp)) -> Result<(), Fault> {
    call.plan(key);
    match op {
        PlanOp::Read => _ = call.arg("read"),
        PlanOp::Open { fingerprint, replaces } => {
            call.arg("open").number(fingerprint).number(u8::from(replaces.is_some()));
            if let Some(generation) = replaces {
                call.number(generation.fingerprint).number(generation.effective_from.as_secs());
            }
        }
        PlanOp::Close { generation } => {
            call.arg("close").number(generation.fingerprint).number(generation.effective_from.as_secs());
        }
        PlanOp::Account { fingerprint, from, to, cover } => {
            call.arg("account").number(fingerprint).number(secs(*from)?).number(secs(*to)?);
            self::cover(call, cover)?;
        }
        PlanOp::SetBack { max_skew } => _ = call.arg("set-back").number(micros(*max_skew)),
        PlanOp::Pause { by, why, until } => {
            call.arg("pause").arg(escape(by)).arg(escape(why)).arg(maybe(*until));
        }
        PlanOp::Resume { since, lapsed_only } => {
            call.arg("resume").number(since.as_micros()).number(u8::from(*lapsed_only));
        }
        PlanOp::Cancel { at, request, cancel } => {
            call.arg("cancel").arg(slot_at(*at, request.as_ref())?);
            call.arg(maybe_text(Some(&cancel.by))).arg(escape(&cancel.why));
        }
        _ => return Err(Fault::new(StoreErrorKind::Internal, "a request on a plan that this version does not know")),
    }
    Ok(())
}

fn cover(call: &mut Call, cover: &Cover) -> Result<(), Fault> {
    let slots = match cover {
        Cover::Nothing => {
            call.arg("nothing");
            return Ok(());
        }
        Cover::Range { count, reason } => {
            call.arg("range").arg(count.map_or_else(String::new, |n| n.to_string())).number(reason.code());
            return Ok(());
        }
        Cover::Rows(slots) => {
            call.arg("rows");
            slots
        }
        Cover::Slots(slots, reason) => {
            call.arg("slots").number(reason.code());
            slots
        }
        _ => return Err(Fault::new(StoreErrorKind::Internal, "a way to account that this version does not know")),
    };
    call.number(slots.len());
    for at in slots {
        call.number(secs(*at)?);
    }
    Ok(())
}

pub(crate) fn planned(reply: &mut Reply) -> Result<PlanState, Fault> {
    let applied = match reply.text()?.as_str() {
        "D" => Applied::Done,
        "U" => Applied::Unchanged,
        "C" => Applied::Conflict,
        other => return Err(Fault::nonsense(format!("{other:?} is no answer to a request on a plan"))),
    };
    let row = match reply.text()?.as_str() {
        "" => None,
        text => Some(plan_row(text)?),
    };
    Ok(PlanState { applied, row })
}

/// The TTL that comes before the terms.
pub(crate) fn ttl(call: &mut Call, ttl: Duration) {
    call.number(micros(ttl));
}

fn maybe_trigger(reply: &mut Reply) -> Result<Option<Trigger>, Fault> {
    match reply.text()?.as_str() {
        "" => Ok(None),
        text => match text.parse() {
            Ok(secs) => Ok(Some(Trigger::from_secs(secs))),
            Err(_) => Err(Fault::damaged(format!("{text:?} is no trigger point"))),
        },
    }
}

fn ending(reply: &mut Reply) -> Result<Ending, Fault> {
    Ending::from_code(reply.number()?).ok_or_else(|| Fault::damaged("an ending that is none"))
}

fn not_started(reply: &mut Reply) -> Result<NotStarted, Fault> {
    NotStarted::from_code(reply.number()?).ok_or_else(|| Fault::damaged("a reason that is none"))
}

fn slot_state(reply: &mut Reply) -> Result<SlotState, Fault> {
    let (code, how) = (reply.text()?, reply.text()?);
    state(&code, &how).ok_or_else(|| Fault::damaged("a state that is none"))
}

#[cfg(test)]
mod tests {
    use timertask_core::seam::RunKind;

    use super::*;

    /// `lua/rows.lua` names a few of core's codes.
    #[test]
    fn the_scripts_know_cores_codes() {
        let lua = include_str!("lua/rows.lua");
        for line in [
            format!("local SUCCEEDED, ORPHANED = '{}', '{}'", Ending::Succeeded.code(), Ending::Orphaned.code()),
            format!(
                "local OVERLAP, SUPERSEDED, EDITED, DISABLED = '{}', '{}', '{}', '{}'",
                NotStarted::Overlap.code(),
                NotStarted::Superseded.code(),
                NotStarted::Edited.code(),
                NotStarted::Disabled.code()
            ),
            format!(
                "local SCHEDULED, BACKFILL, MANUAL = '{}', '{}', '{}'",
                RunKind::Scheduled.code(),
                RunKind::Backfill.code(),
                RunKind::Manual.code()
            ),
            format!("local RELEASED = {}", SlotRow::RELEASED),
        ] {
            assert!(lua.lines().any(|l| l == line), "{line}");
        }
    }

    #[test]
    fn a_detail_is_cut_at_a_characters_end() {
        let long = "é".repeat(SlotRow::DETAIL);
        assert_eq!(shorten(&long).len(), SlotRow::DETAIL);
        assert_eq!(shorten(&format!("x{long}")).len(), SlotRow::DETAIL - 1);
        assert_eq!(shorten("short"), "short");
    }
}
