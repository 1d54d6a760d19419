//! What holds for any rows and requests, sensible or not.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

/// Few values, close together, so that rows and requests meet.
fn trigger() -> impl Strategy<Value = Trigger> {
    prop_oneof![8 => (0..40_i64).prop_map(at), 1 => Just(at(i64::MAX)), 1 => Just(at(i64::MIN))]
}

fn instant() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        8 => (0..40_000_000_i64).prop_map(Timestamp::from_micros),
        1 => Just(Timestamp::MAX),
        1 => Just(Timestamp::from_micros(i64::MIN)),
    ]
}

fn fence() -> impl Strategy<Value = Fence> {
    prop_oneof![8 => 0..40_000_000_u64, 1 => Just((1 << 53) - 1), 1 => any::<u64>()].prop_map(Fence::from_u64)
}

fn nonces() -> impl Strategy<Value = Nonce> {
    (0..4_u128).prop_map(Nonce::from_bits)
}

fn ttl() -> impl Strategy<Value = Duration> {
    prop_oneof![8 => (0..60_u64).prop_map(Duration::from_secs), 1 => Just(Duration::MAX)]
}

fn state() -> impl Strategy<Value = SlotState> {
    prop_oneof![
        Just(SlotState::Running),
        Just(SlotState::Open),
        (0..4_u8).prop_map(|code| SlotState::Ended(Ending::from_code(code).unwrap())),
        (0..10_u8).prop_map(|code| SlotState::NotStarted(NotStarted::from_code(code).unwrap())),
    ]
}

fn kind() -> impl Strategy<Value = RunKind> {
    (0..4_u8).prop_map(|code| RunKind::from_code(code).unwrap())
}

prop_compose! {
    fn plan_row()(
        bits in 1..3_u128,
        (effective_from, cursor, low_water) in (trigger(), trigger(), trigger()),
        fence in fence(),
        closed: bool,
        (last_success, window_from) in (option::of(trigger()), option::of(trigger())),
        paused in option::weighted(0.2, instant()),
    ) -> PlanRow {
        let pause = paused.map(|since| {
            let until = Some(since.saturating_add(TTL));
            std::sync::Arc::new(Pause { since, by: String::new(), why: String::new(), until })
        });
        PlanRow {
            generation: Generation { fingerprint: fingerprint(bits), effective_from },
            closed, cursor, low_water, fence, last_success, window_from, pause,
        }
    }
}

prop_compose! {
    fn slot_row()(
        (at, state, kind) in (trigger(), state(), kind()),
        (nonce, released) in (nonces(), vec(nonces(), 0..10)),
        (fence, attempt) in (fence(), prop_oneof![8 => 0..4_u32, 1 => Just(u32::MAX)]),
        (lease_end, ttl) in (instant(), ttl()),
        (cancelled, ended_at) in (any::<bool>(), option::of(instant())),
    ) -> SlotRow {
        let key = SlotKey { plan: key(), at, request: None };
        let cancel = cancelled.then(|| std::sync::Arc::new(Cancel { by: String::new(), why: String::new() }));
        SlotRow {
            state, nonce, released, fence, attempt, lease_end, ttl, cancel, ended_at,
            ..SlotRow::not_started(key, kind, NotStarted::TooLate, Timestamp::EPOCH)
        }
    }
}

fn gates() -> impl Strategy<Value = Gate> {
    let overlap = prop_oneof![
        Just(Overlap::Skip),
        Just(Overlap::QueueOne),
        Just(Overlap::CancelPrevious),
        (0..3_u32).prop_map(Overlap::Allow)
    ];
    prop_oneof![4 => overlap.prop_map(Gate::Policy), 1 => Just(Gate::Force)]
}

prop_compose! {
    fn any_request()(
        (slot, nonce, bits) in (trigger(), nonces(), 1..3_u128),
        (prev, kind, gate) in (option::of(trigger()), kind(), gates()),
        (attempts_allowed, ttl) in (0..4_u32, ttl()),
    ) -> ClaimRequest {
        ClaimRequest {
            key: SlotKey { plan: key(), at: slot, request: None },
            nonce: super::Nonce::from_bits(nonce.bits()),
            fingerprint: fingerprint(bits),
            prev, kind, gate, attempts_allowed, ttl,
            ..request(0, 0)
        }
    }
}

/// A claim with what it is judged by.
#[derive(Debug, Clone)]
struct Judged {
    now: Timestamp,
    request: ClaimRequest,
    plan: Option<PlanRow>,
    slot: Option<SlotRow>,
    running: usize,
    older: Vec<SlotRow>,
    newest_started: Option<Trigger>,
    all_paused: bool,
}

impl Judged {
    fn rows(&self) -> ClaimRows<'_> {
        ClaimRows {
            plan: self.plan.as_ref(),
            all_paused: self.all_paused,
            slot: self.slot.as_ref(),
            running: self.running,
            older: &self.older,
            newest_started: self.newest_started,
        }
    }

    fn claim(&self) -> (Claim, Change) {
        claim(self.now, &self.request, &self.rows())
    }
}

prop_compose! {
    fn judged()(
        now in instant(),
        request in any_request(),
        plan in option::weighted(0.9, plan_row()),
        slot in option::weighted(0.7, slot_row()),
        running in 0..4_usize,
        older in vec(slot_row(), 0..3),
        newest_started in option::of(trigger()),
        all_paused in prop::bool::weighted(0.1),
    ) -> Judged {
        let slot = slot.map(|row| SlotRow { key: request.key.clone(), ..row });
        Judged { now, request, plan, slot, running, older, newest_started, all_paused }
    }
}

fn end_op() -> impl Strategy<Value = EndOp> {
    let settle = (nonces(), 0..4_u8, instant(), 0..700_usize).prop_map(|(nonce, code, at, letters)| EndOp::Settle {
        nonce,
        ending: Ending::from_code(code).unwrap(),
        started_at: at,
        ended_at: at,
        tries: 1,
        detail: Some("é".repeat(letters).into()),
    });
    prop_oneof![
        settle,
        nonces().prop_map(|nonce| EndOp::GiveBack { nonce }),
        (0..4_u32).prop_map(|attempts_allowed| EndOp::Expire { attempts_allowed }),
        ttl().prop_map(|max_skew| EndOp::CutLease { max_skew }),
        (0..10_u8).prop_map(|code| EndOp::Resolve { reason: NotStarted::from_code(code).unwrap() }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_grant_is_a_new_start_under_a_higher_fence(judged in judged()) {
        let (answer, change) = judged.claim();
        let Claim::Granted(grant) = answer else { return Ok(()) };
        let plan = judged.plan.as_ref().expect("without a plan nothing starts");
        let before = judged.slot.as_ref();
        if before.is_some_and(|row| row.state == SlotState::Running) {
            let term = before.map(|row| (row.nonce, row.fence, row.attempt));
            prop_assert_eq!(term, Some((judged.request.nonce, grant.fence, grant.attempt)));
            return Ok(());
        }
        let row = change.slot.as_ref().expect("a start has a row");
        prop_assert_eq!((row.state, row.fence, row.lease_end), (SlotState::Running, grant.fence, grant.lease_end));
        prop_assert_eq!(row.nonce, judged.request.nonce);
        prop_assert!(grant.fence > plan.fence && grant.fence.as_u64() < 1 << 53);
        prop_assert_eq!(change.plan.as_ref().map(|plan| plan.fence), Some(grant.fence));
        prop_assert_eq!(grant.cursor, plan.cursor);
        match before {
            None => prop_assert!(judged.request.key.at > plan.low_water),
            Some(row) => {
                prop_assert!(!row.released.contains(&judged.request.nonce));
                prop_assert!(!matches!(row.state, SlotState::Ended(_)));
                if row.state == SlotState::Open {
                    prop_assert!(row.attempt < judged.request.attempts_allowed.max(1));
                }
            }
        }
    }

    #[test]
    fn a_claim_moves_the_cursor_only_forwards_and_onto_its_slot(judged in judged()) {
        let (_, change) = judged.claim();
        let (Some(before), Some(after)) = (&judged.plan, &change.plan) else { return Ok(()) };
        prop_assert!(after.fence >= before.fence);
        let moved = after.cursor != before.cursor;
        prop_assert!(!moved || (after.cursor == judged.request.key.at && after.cursor > before.cursor));
        prop_assert!(!moved || judged.request.kind != RunKind::Manual);
        let rest = PlanRow { fence: before.fence, cursor: before.cursor, ..after.clone() };
        prop_assert_eq!(&rest, before);
        if let Some(range) = &change.range {
            prop_assert!(moved && range.first > before.cursor);
            prop_assert!(range.first <= range.last && range.last < after.cursor);
        }
    }

    #[test]
    fn a_claim_that_is_repeated_is_answered_alike(judged in judged()) {
        let (answer, change) = judged.claim();
        if !matches!(answer, Claim::Granted(_)) {
            return Ok(());
        }
        let plan = change.plan.clone().or(judged.plan.clone());
        let slot = change.slot.clone().or(judged.slot.clone());
        let again = Judged { plan, slot, ..judged.clone() };
        let (second, change) = again.claim();
        let of = |claim: &Claim| match claim {
            Claim::Granted(grant) => Some((grant.fence, grant.attempt, grant.lease_end)),
            _ => None,
        };
        prop_assert_eq!(of(&second), of(&answer));
        prop_assert!(change.slot.is_none() && change.plan.is_none(), "and there is nothing to write: {:?}", change);
    }

    #[test]
    fn what_is_not_needed_does_not_matter(judged in judged(), other in judged_by_nothing()) {
        let needs = needs(&judged.request);
        let mut bare = judged.clone();
        if !needs.running {
            bare.running = other.0;
        }
        if !needs.older {
            bare.older = other.1;
        }
        if !needs.newest_started {
            bare.newest_started = other.2;
        }
        prop_assert_eq!(bare.claim(), judged.claim());
    }

    #[test]
    fn a_refusal_that_says_so_writes_nothing(judged in judged()) {
        let (answer, change) = judged.claim();
        let cancels = judged.request.gate == Gate::Policy(Overlap::CancelPrevious);
        match answer {
            Claim::Refused(Refusal::Full) if cancels => {
                prop_assert!(change.slot.is_none() && change.plan.is_none() && change.range.is_none());
                for row in &change.more_slots {
                    prop_assert!(row.cancel.is_some() && row.key.at < judged.request.key.at);
                    prop_assert_eq!(row.state, SlotState::Running);
                }
            }
            Claim::Refused(Refusal::NotStarted(_)) => {}
            Claim::Refused(_) => prop_assert!(change.is_empty(), "{:?}", change),
            Claim::Held => prop_assert!(change.slot.is_none()),
            _ => {}
        }
    }

    #[test]
    fn a_started_slot_is_never_accounted_as_not_started(judged in judged(), op in end_op()) {
        let started = |row: &SlotRow| matches!(row.state, SlotState::NotStarted(_)) && row.attempt > 0;
        let accounted = |change: &Change| change.slots().any(started);
        let possible = judged.slot.as_ref().is_none_or(|row| !matches!(row.state, SlotState::NotStarted(_)));
        if possible {
            prop_assert!(!accounted(&judged.claim().1));
            let fence = judged.slot.as_ref().map_or(Fence::NONE, |row| row.fence);
            let request = EndRequest { key: judged.request.key.clone(), fence, op };
            prop_assert!(!accounted(&end(judged.now, &request, judged.slot.as_ref(), judged.plan.as_ref()).1));
        }
    }

    #[test]
    fn only_a_recorded_end_changes_a_row(
        now in instant(), row in slot_row(), plan in plan_row(), op in end_op(), off in fence(),
    ) {
        for fence in [row.fence, off] {
            let request = EndRequest { key: row.key.clone(), fence, op: op.clone() };
            let (answer, change) = end(now, &request, Some(&row), Some(&plan));
            match answer {
                Ended::Recorded(state) => {
                    let after = change.slot.as_ref().expect("it was recorded");
                    prop_assert_eq!((after.state, &after.key, after.fence), (state, &row.key, row.fence));
                    prop_assert_eq!(fence, row.fence);
                    prop_assert!(matches!(row.state, SlotState::Running | SlotState::Open));
                    prop_assert!(after.detail.as_ref().is_none_or(|detail| detail.len() <= SlotRow::DETAIL));
                    prop_assert!(after.released.len() <= SlotRow::RELEASED.max(row.released.len()));
                    prop_assert!(state == SlotState::Running || after.lease_end == Timestamp::EPOCH);
                }
                Ended::AlreadyRecorded => prop_assert!(change.is_empty() && row.state != SlotState::Running),
                Ended::Lost(state) => prop_assert!(change.is_empty() && state == Some(row.state)),
            }
        }
    }

    #[test]
    fn a_renewal_only_lengthens(now in instant(), row in slot_row(), ttl in ttl(), nonce in nonces(), off in fence()) {
        for fence in [row.fence, off] {
            let term = Term { key: row.key.clone(), nonce, fence };
            let (answer, after) = renew(now, &term, ttl, Some(&row));
            match answer {
                Renewal::Held(end) | Renewal::Cancel(end, _) => {
                    prop_assert!(end >= row.lease_end && end >= now.saturating_add(ttl));
                    prop_assert_eq!(after.map_or(row.lease_end, |row| row.lease_end), end);
                    prop_assert!(row.state == SlotState::Running && row.nonce == nonce && row.fence == fence);
                }
                Renewal::Lost => prop_assert!(after.is_none()),
            }
        }
    }

    #[test]
    fn an_open_plan_never_counts_from_before_its_cursor(
        now in instant(), row in option::of(plan_row()), bits in 1..4_u128,
    ) {
        let op = PlanOp::Open { fingerprint: fingerprint(bits), replaces: None };
        let (applied, change) = plan(now, &key(), &op, &PlanRows { plan: row.as_ref(), ..PlanRows::default() });
        match (applied, row, change.plan) {
            (Applied::Done, before, Some(after)) => {
                prop_assert!(!after.closed && after.cursor == after.generation.effective_from);
                prop_assert!(after.cursor >= now.trigger());
                if let Some(before) = before {
                    prop_assert!(after.cursor >= before.cursor);
                    prop_assert_eq!((after.low_water, after.fence), (before.low_water, before.fence));
                    prop_assert_eq!(change.range.is_some(), after.cursor > before.cursor);
                }
            }
            (applied, before, after) => {
                prop_assert_eq!((applied, after), (Applied::Unchanged, None));
                prop_assert!(before.is_some_and(|row| !row.closed && row.generation.fingerprint == fingerprint(bits)));
            }
        }
    }

    #[test]
    fn an_account_moves_the_cursor_by_compare_and_within_now(
        (now, row) in (instant(), plan_row()), (from, to) in (trigger(), trigger()),
        slots in vec(trigger(), 0..5), which in 0..4_u8, bits in 1..3_u128,
    ) {
        let cover = match which {
            0 => Cover::Nothing,
            1 => Cover::Rows(slots.clone()),
            2 => Cover::Slots(slots.clone(), NotStarted::TooLate),
            _ => Cover::Range { count: None, reason: NotStarted::TooLate },
        };
        let op = PlanOp::Account { fingerprint: fingerprint(bits), from, to, cover };
        let mut taken: Vec<_> = slots.iter().step_by(2).copied().collect();
        taken.sort();
        let (applied, change) = plan(now, &key(), &op, &PlanRows { plan: Some(&row), taken: &taken, slot: None });
        if applied != Applied::Done {
            prop_assert!(change.is_empty());
            return Ok(());
        }
        let after = change.plan.clone().expect("the cursor moved");
        prop_assert!(row.cursor == from && after.cursor > from && after.cursor <= to && to.timestamp() <= now);
        prop_assert!(change.slots().all(|row| row.key.at > from && row.key.at <= to && !taken.contains(&row.key.at)));
        if let Some(range) = &change.range {
            prop_assert!(range.first > from && range.last == after.cursor);
        }
        let foreign = row.generation.fingerprint != fingerprint(bits);
        prop_assert!(!foreign || change.range.is_some());
    }

    #[test]
    fn a_set_back_only_goes_back_to_now(now in instant(), row in plan_row(), max_skew in ttl()) {
        let op = PlanOp::SetBack { max_skew };
        let (applied, change) = plan(now, &key(), &op, &PlanRows { plan: Some(&row), ..PlanRows::default() });
        let after = change.plan.clone().unwrap_or_else(|| row.clone());
        prop_assert_eq!(applied == Applied::Done, change.plan.is_some());
        prop_assert!(after.cursor <= row.cursor && after.generation.effective_from <= row.generation.effective_from);
        prop_assert!(after.cursor >= row.cursor.min(row.low_water), "low water is never passed");
        let floor = row.cursor.min(after.generation.effective_from);
        prop_assert!(after.cursor >= floor, "what the generation before had is not opened again");
        prop_assert_eq!(after.cursor < row.cursor, change.cut_ranges == Some(after.cursor));
        prop_assert!(after.cursor == row.cursor || row.cursor.timestamp() > now.saturating_add(max_skew));
    }

    #[test]
    fn a_purge_takes_the_oldest_and_low_water_stays_below_what_is_left(
        (now, row) in (instant(), plan_row()), mut slots in vec(slot_row(), 0..12),
        lasts in vec((0..40_i64, 0..3_i64, instant()), 0..6), at_most in 0..12_usize,
        (age, count, keep_last) in (option::of(ttl()), option::of(0..12_usize), 0..4_usize),
    ) {
        slots.sort_by(|a, b| a.key.cmp(&b.key));
        slots.dedup_by(|a, b| a.key == b.key);
        let mut ranges: Vec<_> = lasts
            .into_iter()
            .map(|(last, length, at)| RangeRow {
                first: super::at(last - length),
                last: super::at(last),
                count: None,
                reason: NotStarted::TooLate,
                at,
            })
            .collect();
        ranges.sort_by_key(|range| range.last);
        let unfinished = |row: &&SlotRow| matches!(row.state, SlotState::Running | SlotState::Open);
        let blocked = slots.iter().find(unfinished).map(|row| row.key.at);
        let rows = PurgeRows { plan: &row, records: slots.len() + ranges.len(), unfinished: blocked };
        let keep = Retention { age, count, keep_last };
        let purge = purge(now, keep, at_most, &rows, &slots, &ranges);
        let deleted = purge.slots + purge.ranges;
        prop_assert!(deleted <= at_most);
        prop_assert!(slots.len() + ranges.len() - deleted >= keep_last.min(slots.len() + ranges.len()));
        prop_assert!(purge.low_water >= row.low_water);
        if deleted > 0 {
            prop_assert!(purge.low_water <= row.low_water.max(row.cursor));
            prop_assert!(purge.low_water == row.low_water || blocked.is_none_or(|blocked| purge.low_water < blocked));
        } else {
            prop_assert_eq!(purge.low_water, row.low_water);
        }
        prop_assert!(slots[..purge.slots].iter().all(|row| !unfinished(&row) && row.key.at <= purge.low_water));
        prop_assert!(ranges[..purge.ranges].iter().all(|range| range.last <= purge.low_water));
        prop_assert!(!purge.more || deleted == at_most);
        // Page by page it comes to the same.
        if at_most > 0 && purge.more {
            let all = super::super::purge(now, keep, usize::MAX, &rows, &slots, &ranges);
            prop_assert!(all.slots + all.ranges > deleted);
        }
    }
}

fn judged_by_nothing() -> impl Strategy<Value = (usize, Vec<SlotRow>, Option<Trigger>)> {
    (0..4_usize, vec(slot_row(), 0..3), option::of(trigger()))
}
