//! Any text and any instant: reading ends with a schedule or a reason, searching with an instant or none.
//!
//! From the crate's folder: `cargo +nightly fuzz run schedule -- -dict=fuzz/dictionaries/schedule.txt`.

#![no_main]

use chrono_tz::TZ_VARIANTS;
use libfuzzer_sys::fuzz_target;
use timertask_core::{Dialect, Dst, Fold, Gap, Schedule, ScheduleOptions, Trigger};

const RULES: [Dst; 6] = [
    Dst::Auto,
    Dst::Cron,
    Dst::Exact(Gap::Skip, Fold::First),
    Dst::Exact(Gap::Skip, Fold::Both),
    Dst::Exact(Gap::Shift, Fold::First),
    Dst::Exact(Gap::Shift, Fold::Both),
];
const DIALECTS: [Dialect; 3] = [Dialect::Five, Dialect::Six, Dialect::FiveOrSix];

fuzz_target!(|input: (i64, u16, u8, &str)| {
    let (seconds, zone, rule, text) = input;
    let options = ScheduleOptions::new()
        .zone(TZ_VARIANTS[usize::from(zone) % TZ_VARIANTS.len()])
        .dst(RULES[usize::from(rule) % RULES.len()])
        .dialect(DIALECTS[usize::from(rule) / RULES.len() % DIALECTS.len()]);
    let schedule = match options.parse(text) {
        Ok(schedule) => schedule,
        Err(error) => {
            assert!(error.found().len() <= 40 && error.column() >= 1);
            assert!(error.to_string().is_ascii());
            return;
        }
    };

    // The canonical form is read back, and stands for itself.
    let canonical = schedule.to_string();
    let again: Schedule = canonical.parse().expect("the canonical form");
    assert_eq!(again.to_string(), canonical);

    // There and back, near now and anywhere.
    for t in [seconds, seconds % 4_000_000_000] {
        let t = Trigger::from_secs(t);
        if let Some(next) = schedule.next_trigger(t) {
            assert!(next > t);
            assert!(schedule.prev_trigger(next).is_none_or(|prev| prev <= t));
            assert!(schedule.is_due_at(next.to_datetime()));
        }
        if let Some(prev) = schedule.prev_trigger(t) {
            assert!(prev < t);
            assert!(schedule.next_trigger(prev).is_none_or(|next| next >= t));
            assert!(schedule.is_due_at(prev.to_datetime()));
        }
        for occurrence in schedule.upcoming(t.to_datetime()).take(2) {
            assert!(!occurrence.to_string().is_empty());
        }
    }
});
