//! Random expressions against the crates `cron` and `croner`, in UTC and where the dialects agree, both ways.

use std::str::FromStr as _;

use chrono::{DateTime, Utc};
use proptest::prelude::*;
use timertask_core::time::Trigger;
use timertask_core::{Dst, Fold, Gap, Schedule, ScheduleOptions};

use crate::random::Random;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).unwrap()
}

/// In the crate's dialect weekdays begin with 1, and both day fields must match. Names are the same in both.
#[test]
fn the_crate_cron_agrees_in_utc() {
    let mut random = Random::new(1);
    let mut compared = 0;
    while compared < 1_500 {
        let (seconds, minutes, hours) = (random.field(0, 59, 1), random.field(0, 59, 3), random.field(0, 23, 3));
        let (days, months) = (random.field(1, 31, 5), random.field(1, 12, 5));
        let weekdays = *random.pick(&["*", "*", "mon", "tue,thu", "Mon-Fri", "SUN", "fri-sat,mon"]);
        let years = *random.pick(&["", "", " 2024-2040", " 2024/2", " *"]);
        let text = format!("{seconds} {minutes} {hours} {days} {months} {weekdays}{years}");
        let theirs = cron::Schedule::from_str(&text).unwrap();
        let Ok(ours) = Schedule::parse(&format!("quartz:{text}")) else {
            assert_eq!(theirs.after(&at(0)).next(), None, "{text}");
            continue;
        };
        assert_eq!(ours, Schedule::from(theirs.clone()), "{text}");
        // Where at most one day field restricts, and no year does, the native dialect says the same.
        let native = years.trim().is_empty() && (days == "*" || weekdays == "*");
        let native = native.then(|| Schedule::parse(&text).unwrap());
        for _ in 0..3 {
            let t = at(random.instant());
            let want: Vec<_> = theirs.after(&t).take(3).collect();
            let got: Vec<_> = ours.upcoming(t).take(3).map(|o| o.instant).collect();
            // The crate ends with the year 2100.
            assert_eq!(got[..want.len()], want, "{text} after {t}");
            // Backwards into an earlier year of a list, the crate starts at the day and month of the instant asked.
            let back = if years.trim().len() > 1 { 0 } else { 3 };
            let back: Vec<_> = theirs.after(&t).rev().take(back).collect();
            let mut last = t;
            for want in back {
                let prev = ours.prev_before(last).unwrap();
                assert_eq!(prev, want, "{text} before {last}");
                last = prev;
            }
            if let Some(native) = &native {
                assert_eq!(native.next_after(t), ours.next_after(t), "{text}");
                assert_eq!(native.prev_before(t), ours.prev_before(t), "{text}");
            }
        }
        compared += 1;
    }
}

#[test]
fn croner_agrees_in_utc() {
    let mut random = Random::common(2);
    for _ in 0..1_500 {
        let text = random.five();
        let ours = Schedule::parse(&text).unwrap();
        let theirs = croner::Cron::from_str(&text).unwrap();
        for _ in 0..3 {
            let t = at(random.instant());
            assert_eq!(ours.next_after(t), theirs.find_next_occurrence(&t, false).ok(), "{text} after {t}");
            assert_eq!(ours.prev_before(t), theirs.find_previous_occurrence(&t, false).ok(), "{text} before {t}");
        }
    }
}

const ZONES: [&str; 6] =
    ["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca"];
const RULES: [Dst; 4] = [Dst::Auto, Dst::Cron, Dst::Exact(Gap::Shift, Fold::Both), Dst::Exact(Gap::Skip, Fold::First)];

fn any_schedule() -> impl Strategy<Value = (Schedule, String)> {
    (any::<u64>(), prop::sample::select(&ZONES[..]), prop::sample::select(&RULES[..])).prop_map(|(seed, zone, dst)| {
        let mut random = Random::new(seed);
        let text = match random.below(8) {
            0 => format!("@every {}s", 1 + random.below(1_000_000)),
            1 => {
                let fields = random.quartz();
                let text = format!("quartz:{fields}{}", random.pick(&["", " 2001-2030", " 2024/2", " 1999,2041"]));
                // A day that none of the years has would be refused.
                if Schedule::parse(&text).is_ok() { text } else { format!("quartz:{fields}") }
            }
            _ => random.five(),
        };
        let options = ScheduleOptions::new().zone(zone.parse().unwrap()).dst(dst);
        (options.parse(&text).unwrap(), text)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// There and back: nothing lies between an instant and the one before the next.
    #[test]
    fn there_and_back((schedule, _) in any_schedule(), seconds in -2_000_000_000_i64..5_000_000_000) {
        let t = Trigger::from_secs(seconds);
        if let Some(next) = schedule.next_trigger(t) {
            prop_assert!(next > t);
            prop_assert!(schedule.is_due_at(next.to_datetime()));
            let prev = schedule.prev_trigger(next);
            prop_assert!(prev.is_none_or(|prev| prev <= t));
            prop_assert_eq!(prev.and_then(|prev| schedule.next_trigger(prev)).unwrap_or(next), next);
        }
        if let Some(prev) = schedule.prev_trigger(t) {
            prop_assert!(prev < t);
            prop_assert!(schedule.is_due_at(prev.to_datetime()));
            let next = schedule.next_trigger(prev);
            prop_assert!(next.is_none_or(|next| next >= t));
            prop_assert_eq!(next.and_then(|next| schedule.prev_trigger(next)).unwrap_or(prev), prev);
        }
    }

    /// Counting agrees with stepping, and stops at the limit.
    #[test]
    fn counting_is_stepping((schedule, _) in any_schedule(), from in 0_i64..3_000_000_000, days in 0_i64..40) {
        let (after, upto) = (Trigger::from_secs(from), Trigger::from_secs(from + days * 86_400));
        let steps = schedule.between(after.to_datetime(), upto.to_datetime()).take(100).count() as u64;
        prop_assert_eq!(schedule.count_between(after, upto, 100), steps);
        prop_assert_eq!(schedule.count_between(after, upto, 3), steps.min(3));
    }

    /// The canonical form reads back to an equal schedule and is its own canonical form.
    #[test]
    fn the_canonical_form_reads_back((_, text) in any_schedule(), zone in prop::sample::select(&ZONES[..])) {
        let schedule = ScheduleOptions::new().zone(zone.parse().unwrap()).parse(&text).unwrap();
        let canonical = schedule.to_string();
        let again: Schedule = canonical.parse().unwrap();
        prop_assert_eq!(&again, &schedule, "{} {}", text, canonical);
        prop_assert_eq!(again.to_string(), canonical);
    }
}
