//! What can only be seen from inside: sizes, the calendar arithmetic, the spans, and the bounds of a search.

use chrono::{DateTime, Datelike as _, NaiveDate, Offset as _, TimeZone as _, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};

use super::fields::{ALL_DAYS, ALL_WEEKDAYS, DAY, Date, Fields, Marks, Steps, weekday};
use super::zone::{SAMPLE, Zone};
use super::{EARLIEST, Fold, Gap, Kind, LATEST, Schedule, ScheduleOptions};
use crate::time::Trigger;

#[test]
fn values_are_small() {
    assert_eq!(size_of::<Fields>(), 32);
    assert_eq!(size_of::<Option<Schedule>>(), 48);
    // With the counts of an `Arc` and an entry of a hash set of pointers: 48 + 16 + 8 + 1, spread over a load of 7/8.
    let interned = size_of::<Schedule>() + 16 + (size_of::<usize>() + 1) * 8 / 7;
    assert!(interned <= 96, "{interned}");
    assert!(size_of::<super::SpecError>() == size_of::<usize>());
}

#[test]
fn dates_agree_with_chrono() {
    let first = i64::from(NaiveDate::MIN.num_days_from_ce()) - 719_163;
    let last = i64::from(NaiveDate::MAX.num_days_from_ce()) - 719_163;
    let near = -200_000..200_000;
    let far = (first..=last).step_by(4_999);
    for days in near.chain(far).chain([first, last]) {
        let ours = Date::of(days);
        let theirs = NaiveDate::from_num_days_from_ce_opt(i32::try_from(days + 719_163).unwrap()).unwrap();
        assert_eq!((ours.year, ours.month, ours.day), (theirs.year(), theirs.month(), theirs.day()));
        assert_eq!(ours.days(), days);
        assert_eq!(weekday(days), theirs.weekday().num_days_from_sunday());
        let next_month = Date { day: Date::month_length(ours.year, ours.month), ..ours }.days() + 1;
        assert_eq!(Date::of(next_month).day, 1);
    }
}

/// The offset that chrono-tz gives.
fn offset(zone: Tz, instant: i64) -> i64 {
    let utc = DateTime::from_timestamp(instant, 0).unwrap().naive_utc();
    i64::from(zone.offset_from_utc_datetime(&utc).fix().local_minus_utc())
}

#[test]
fn spans_agree_with_the_zone_data() {
    for zone in TZ_VARIANTS {
        let table = Zone::of(zone);
        let mut next = i64::MIN;
        for index in 0..table.len() {
            let span = table.span(index);
            assert_eq!(span.begin, next, "{zone} has no holes");
            next = span.end;
            if index > 0 {
                // Rules of the search: changes lie days apart, folds and gaps are no longer than two days.
                assert!(span.end.saturating_sub(span.begin) > SAMPLE, "{zone} {span:?}");
                assert!((span.offset - span.before).abs() <= DAY, "{zone} {span:?}");
                assert_eq!(offset(zone, span.begin), span.offset, "{zone} {span:?}");
                assert_eq!(offset(zone, span.begin - 1), span.before, "{zone} {span:?}");
                assert_eq!(table.index(span.begin), index, "{zone}");
                assert_eq!(table.index(span.begin - 1), index - 1, "{zone}");
            }
        }
        assert_eq!(next, i64::MAX, "{zone}");
        // Sampled at odd distances: no change is missed between the samples that the table was made from.
        let mut instant = -4_500_000_000 + i64::try_from(zone as usize).unwrap() * 61;
        while instant < 4_300_000_000 {
            assert_eq!(table.at(instant).offset, offset(zone, instant), "{zone} {instant}");
            instant += 333_333;
        }
        for far in [-200_000_000_000, 200_000_000_000, EARLIEST, LATEST] {
            assert_eq!(table.at(far).offset, offset(zone, far), "{zone} {far}");
        }
    }
}

fn fields(days: u32, months: u16, weekdays: u8, marks: Marks) -> Fields {
    let (gap, fold) = (Gap::Skip, Fold::Both);
    Fields { seconds: 1, minutes: 1, hours: 1, days, months, weekdays, marks, gap, fold }
}

#[test]
fn whatever_can_fire_is_found_within_the_steps() {
    // The rarest of all: a leap day on a given weekday, at worst 40 years apart.
    for week in 0..7 {
        let rare = fields(1 << 29, 1 << 2, 1 << week, Marks::default());
        assert!(rare.can_fire());
        for year in (1_600..2_400).step_by(3) {
            let from = Date { year, month: 3, day: 1 }.days() * DAY;
            let next = rare.next_local(from, None, &mut Steps::new()).unwrap();
            let prev = rare.prev_local(from, None, &mut Steps::new()).unwrap();
            for found in [next, prev] {
                let date = Date::of(found.div_euclid(DAY));
                assert_eq!((date.month, date.day, weekday(found.div_euclid(DAY))), (2, 29, week));
            }
        }
    }
}

#[test]
fn each_candidate_day_is_counted_both_ways() {
    // From March 2004, leap days on a Sunday are 2032 and 1976: 28 Februaries away, of 28 or 29 days.
    let rare = fields(1 << 29, 1 << 2, 1, Marks::default());
    let from = Date { year: 2_004, month: 3, day: 1 }.days() * DAY;
    for (left, found) in [(28 * 27, false), (28 * 30, true)] {
        let steps = || {
            let mut steps = Steps::new();
            steps.take(12_000 - left).unwrap();
            steps
        };
        assert_eq!(rare.next_local(from, None, &mut steps()).is_some(), found, "{left}");
        let from = from - 40 * DAY;
        assert_eq!(rare.prev_local(from, None, &mut steps()).is_some(), found, "{left} back");
    }
}

#[test]
fn what_cannot_fire_ends_after_the_steps() {
    let never = fields(1 << 30, 1 << 2, ALL_WEEKDAYS, Marks::default());
    assert!(!never.can_fire());
    let mut steps = Steps::new();
    assert_eq!(never.next_local(0, None, &mut steps), None);
    assert_eq!(never.prev_local(0, None, &mut steps), None);
}

#[test]
fn a_calendar_may_exclude_twelve_thousand_days_and_no_more() {
    let start = NaiveDate::from_ymd_opt(2_000, 1, 1).unwrap();
    let mut asked = [0_usize; 2];
    for (days, found) in [(11_900, true), (12_100, false)] {
        let end = start + chrono::Days::new(days);
        let calendar = move |day: NaiveDate| day >= start && day < end;
        let options = ScheduleOptions::new().calendar("closed", std::sync::Arc::new(calendar));
        for text in ["30 4 * * *", "@every 1h"] {
            let schedule = options.parse(text).unwrap();
            let before = Trigger::from(start.and_hms_opt(0, 0, 0).unwrap().and_utc());
            let after = Trigger::from(end.and_hms_opt(0, 0, 0).unwrap().and_utc());
            assert_eq!(schedule.next_trigger(Trigger::from_secs(before.as_secs() - 1)).is_some(), found);
            assert_eq!(schedule.prev_trigger(after).is_some(), found);
            asked[usize::from(found)] += 1;
        }
    }
    assert_eq!(asked, [2, 2]);
}

#[test]
fn the_ends_of_time_are_answers() {
    let texts =
        ["* * * * * *", "0 0 29 2 *", "@every 292h", "@at 2000-01-01T00:00:00Z", "quartz:0 0 0 29 2 1 2032,2060"];
    for zone in ["UTC", "Pacific/Apia", "America/St_Johns", "Pacific/Kiritimati"] {
        let options = ScheduleOptions::new().zone(zone.parse().unwrap());
        for text in texts {
            let schedule = options.parse(text).unwrap();
            for t in [
                DateTime::<Utc>::MIN_UTC,
                DateTime::<Utc>::MAX_UTC,
                DateTime::from_timestamp(EARLIEST, 0).unwrap(),
                DateTime::from_timestamp(LATEST, 0).unwrap(),
            ] {
                let _ = (schedule.next_after(t), schedule.prev_before(t), schedule.is_due_at(t));
                for occurrence in schedule.upcoming(t).take(3) {
                    assert!(occurrence.instant > t && !occurrence.to_string().is_empty());
                }
                let _ = (schedule.swallowed(t).take(3).count(), schedule.between(t, t).count());
            }
            for t in [i64::MIN, i64::MIN + 1, EARLIEST - 1, EARLIEST, LATEST, LATEST + 1, i64::MAX - 1, i64::MAX] {
                let t = Trigger::from_secs(t);
                let next = schedule.next_trigger(t);
                assert!(next.is_none_or(|next| next > t));
                let prev = schedule.prev_trigger(t);
                assert!(prev.is_none_or(|prev| prev < t));
                let _ = (schedule.period_after(t), schedule.count_between(t, Trigger::from_secs(i64::MAX), 3));
            }
        }
    }
}

#[test]
fn each_day_or_is_each_day() {
    let Kind::Cron(fields) = Schedule::parse("0 0 1-31 * 1").unwrap().kind else { panic!() };
    assert_eq!((fields.days, fields.weekdays), (ALL_DAYS, ALL_WEEKDAYS));
    assert_eq!(Schedule::parse("0 0 1-31 * 1"), Schedule::parse("0 0 * * *"));
}
