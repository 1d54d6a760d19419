//! The public face: dialects, limits, grids, calendars, the canonical form.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Datelike as _, NaiveDate, Utc, Weekday};
use chrono_tz::Tz;
use timertask_core::time::Trigger;
use timertask_core::{
    Dialect, Dst, EveryBase, Fold, Gap, Note, Schedule, ScheduleOptions, SpecField, SpecLimits, SpecProblem,
    SpecWarning,
};

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn parse(text: &str) -> Schedule {
    Schedule::parse(text).unwrap()
}

fn next(schedule: &Schedule, after: &str, n: usize) -> Vec<String> {
    schedule.upcoming(at(after)).take(n).map(|o| o.to_string()).collect()
}

#[test]
fn a_schedule_crosses_threads_and_lives_in_sets() {
    fn check<T: Send + Sync + Clone + Eq + std::hash::Hash + std::fmt::Debug + std::fmt::Display>() {}
    check::<Schedule>();
    fn error<T: std::error::Error + Send + Sync + Clone + 'static>() {}
    error::<timertask_core::SpecError>();
    let same = ["@daily", "@MIDNIGHT", "0 0 * * *", "0 0 0 ? * ?", "00 00 1-31 * mon", "TZ=UTC 0\t0 */1 1-12 0-7"];
    let distinct: HashSet<Schedule> = same.iter().map(|text| parse(text)).collect();
    assert_eq!(distinct.len(), 1);
    let other = ["CRON_TZ=Europe/Berlin 0 0 * * *", "0 0 * * 1", "0 0 1 * *", "0 */24 * * *"];
    assert!(other.iter().all(|text| Schedule::parse(text).ok().is_none_or(|s| !distinct.contains(&s))));
}

#[test]
fn the_canonical_form() {
    for (text, canonical) in [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@Monthly", "0 0 1 * *"),
        ("@WEEKLY", "0 0 * * 0"),
        ("@hourly", "0 * * * *"),
        ("*/15 8-18 ? jan-mar MON-FRI", "*/15 8-18 * 1-3 1-5"),
        ("0,15,30,45 * * * *", "0-45/15 * * * *"),
        ("5,*/15 * * * *", "*/15,5 * * * *"),
        ("0-59 0-23 * * *", "0-59 0-23 * * *"),
        ("0 0 */2 * 7", "0 0 */2 * 0"),
        ("0 0 1 * */2", "0 0 1 * */2"),
        ("0 5 * * * *", "5 * * * *"),
        ("*/10 5 * * * *", "*/10 5 * * * *"),
        ("TZ=Asia/Tokyo  1,2,3,9 0 * * *", "CRON_TZ=Asia/Tokyo 1-3,9 0 * * *"),
        ("@every 90m", "@every 1h30m"),
        ("@EVERY 1.5h", "@every 1h30m"),
        ("@every 2000ms", "@every 2s"),
        ("CRON_TZ=Europe/Berlin @every 61s", "CRON_TZ=Europe/Berlin @every 1m1s"),
        ("@at 2030-01-01T01:00:00+01:00", "@at 2030-01-01T00:00:00Z"),
        ("@at 9999-12-31T23:59:59Z", "@at 9999-12-31T23:59:59Z"),
        ("@at 0000-01-01T00:00:00Z", "@at 0000-01-01T00:00:00Z"),
        ("quartz:0 30 9 * * 2-6", "30 9 * * 1-5"),
        ("quartz:0 30 9 13 * 6", "quartz:0 30 9 13 * 6"),
        ("QUARTZ:0 */5 9 * * FRI 2026-2030", "quartz:0 */5 9 * * 6 2026-2030"),
        ("quartz:0 0 0 29 2 * 2028,2032,2036,2040", "quartz:0 0 0 29 2 * 2028-2040/4"),
    ] {
        let schedule = parse(text);
        assert_eq!(schedule.to_string(), canonical, "{text}");
        assert_eq!(parse(canonical), schedule, "{text}");
    }
}

#[test]
fn a_dialect_accepts_only_its_own_number_of_fields() {
    let read = |dialect, text| ScheduleOptions::new().dialect(dialect).parse(text);
    for (dialect, good, bad) in
        [(Dialect::Five, "0 3 * * *", "0 0 3 * * *"), (Dialect::Six, "0 0 3 * * *", "0 3 * * *")]
    {
        assert!(read(dialect, good).is_ok());
        assert_eq!(read(dialect, bad).unwrap_err().problem(), SpecProblem::FieldCount);
        for text in ["@daily", "@every 1h", "quartz:0 0 3 * * *", "quartz:0 0 3 * * * 2030"] {
            assert!(read(dialect, text).is_ok(), "{dialect:?} {text}");
        }
    }
    assert_eq!(read(Dialect::FiveOrSix, "0 3 * * *").unwrap(), read(Dialect::FiveOrSix, "0 0 3 * * *").unwrap());
}

#[test]
fn the_star_rule() {
    let days = |text: &str| {
        next(&parse(text), "2024-05-31T23:59:59Z", 4).iter().map(|t| t[5..10].to_owned()).collect::<Vec<_>>()
    };
    // June 2024 begins with a Saturday.
    assert_eq!(days("0 0 13 * 5"), ["06-07", "06-13", "06-14", "06-21"]);
    for star in ["*", "?", "*/1", "13,*", "?,13"] {
        assert_eq!(days(&format!("0 0 {star} * 5")), ["06-07", "06-14", "06-21", "06-28"], "{star}");
        assert_eq!(days(&format!("0 0 13 * {}", star.replace("13", "3"))), ["06-13", "07-13", "08-13", "09-13"]);
    }
    assert_eq!(days("0 0 */10 * 5"), ["06-01", "06-07", "06-11", "06-14"]);
    assert_eq!(days("0 0 1-31 * 5"), ["06-01", "06-02", "06-03", "06-04"]);
    assert_eq!(days("0 0 13 * 0-6"), ["06-01", "06-02", "06-03", "06-04"]);
}

#[test]
fn sunday_is_0_and_7_and_steps_of_weekdays_end_with_saturday() {
    let days = |text: &str| parse(text).to_string().rsplit(' ').next().unwrap().to_owned();
    for (text, canonical) in
        [("7", "0"), ("5-7", "0,5,6"), ("1/2", "1,3,5"), ("*/7", "0"), ("6-7", "0,6"), ("7/2", "0")]
    {
        assert_eq!(days(&format!("0 0 * * {text}")), canonical, "{text}");
    }
}

#[test]
fn limits_refuse_what_fires_too_often() {
    let read = |seconds, text| {
        let limits = SpecLimits::none().min_interval(Duration::from_secs(seconds));
        ScheduleOptions::new().limits(limits).parse(text)
    };
    for (text, shortest) in [
        ("* * * * * *", 1),
        ("*/15 * * * * *", 15),
        ("0,59 * * * * *", 1),
        ("* * * * *", 60),
        ("0,40 * * * *", 1_200),
        ("59,0 * * * *", 60),
        ("30 * * * *", 3_600),
        ("0,30 9,10 * * *", 1_800),
        ("0,59 9,10 * * *", 60),
        ("0 3 * * *", 86_400),
        ("0 0,23 * * *", 3_600),
        ("0 0,23 * * 1", 23 * 3_600),
        ("0 3 * * 1,4", 3 * 86_400),
        ("0 3 1 * *", 28 * 86_400),
        ("0 3 1 1 *", 365 * 86_400),
        ("0 3 29 2 *", 4 * 366 * 86_400 - 3 * 86_400),
        ("@every 90s", 90),
        ("@hourly", 3_600),
        ("quartz:0 0 3 1 1 * 2030,2032", 730 * 86_400),
    ] {
        assert!(read(shortest, text).is_ok(), "{text}");
        let error = read(shortest + 1, text).expect_err(text);
        assert_eq!((error.problem(), error.field()), (SpecProblem::TooOften, SpecField::Expression), "{text}");
    }
    assert!(read(u64::MAX, "@at 2030-01-01T00:00:00Z").is_ok());
    assert!(read(u64::MAX, "quartz:0 0 3 1 1 * 2030").is_ok());
}

#[test]
fn every_keeps_to_one_grid() {
    let every = parse("@every 90m");
    assert_eq!(next(&every, "2024-01-01T00:00:00Z", 2), ["2024-01-01T01:30:00+00:00", "2024-01-01T03:00:00+00:00"]);
    assert!(every.is_due_at(at("1970-01-01T00:00:00Z")) && every.is_due_at(at("1969-12-31T22:30:00Z")));
    assert_eq!(every.prev_before(at("1970-01-01T00:00:00Z")), Some(at("1969-12-31T22:30:00Z")));

    let anchored = |t: &str| ScheduleOptions::new().anchor(Some(at(t).into())).parse("@every 24h").unwrap();
    let schedule = anchored("2024-03-10T05:30:10.7Z");
    assert_eq!(schedule.next_after(at("2020-01-01T00:00:00Z")), Some(at("2020-01-01T05:30:10Z")));
    assert_eq!(schedule, anchored("1999-01-01T05:30:10Z"));
    assert_ne!(schedule, anchored("1999-01-01T05:30:11Z"));

    let installed = Trigger::from(at("2024-05-01T10:00:07Z"));
    let options = ScheduleOptions::new().every_base(EveryBase::Install(installed));
    let schedule = options.parse("@every 10m").unwrap();
    assert_eq!(schedule.next_trigger(installed), Some(at("2024-05-01T10:10:07Z").into()));
    let both = options.anchor(Some(Trigger::default())).parse("@every 10m").unwrap();
    assert_eq!(both, parse("@every 10m"));

    let longest = parse("@every 9223372036s");
    assert_eq!(longest.count_between(Trigger::from_secs(0), Trigger::from_secs(i64::MAX), u64::MAX), 890);
    let second = parse("@every 1s");
    assert_eq!(
        second.count_between(Trigger::from_secs(-5), Trigger::from_secs(1_000_000_000), u64::MAX),
        1_000_000_005
    );
    assert_eq!(second.count_between(Trigger::from_secs(0), Trigger::from_secs(1_000_000_000), 10), 10);
    assert_eq!(second.count_between(Trigger::from_secs(5), Trigger::from_secs(5), 10), 0);
}

#[test]
fn at_runs_once() {
    let once = parse("@at 2030-06-01T12:00:00+02:00");
    let instant = at("2030-06-01T10:00:00Z");
    assert_eq!(once.next_after(at("2020-01-01T00:00:00Z")), Some(instant));
    assert_eq!(once.next_after(instant), None);
    assert_eq!(once.prev_before(instant), None);
    assert_eq!(once.prev_before(at("2030-06-01T10:00:00.1Z")), Some(instant));
    assert_eq!(once.period_after(Trigger::from_secs(0)), None);
    assert_eq!(once.count_between(Trigger::from_secs(0), instant.into(), 5), 1);
}

#[test]
fn fractions_of_a_second_are_cut_forward_and_count_back() {
    let schedule = parse("* * * * * *");
    assert_eq!(schedule.next_after(at("2024-01-01T00:00:00.999Z")), Some(at("2024-01-01T00:00:01Z")));
    assert_eq!(schedule.prev_before(at("2024-01-01T00:00:00.001Z")), Some(at("2024-01-01T00:00:00Z")));
    assert_eq!(schedule.prev_before(at("2024-01-01T00:00:00Z")), Some(at("2023-12-31T23:59:59Z")));
    assert!(!schedule.is_due_at(at("2024-01-01T00:00:00.5Z")));
    let leap_second = at("2016-12-31T23:59:60Z");
    assert_eq!(schedule.next_after(leap_second), Some(at("2017-01-01T00:00:00Z")));
    assert_eq!(schedule.prev_before(leap_second), Some(at("2016-12-31T23:59:59Z")));
    let between: Vec<_> = schedule.between(at("2024-01-01T00:00:00.5Z"), at("2024-01-01T00:00:02.5Z")).collect();
    assert_eq!(between.len(), 2);
}

#[test]
fn zones_by_prefix_then_option_then_utc() {
    let berlin = ScheduleOptions::new().zone(Tz::Europe__Berlin);
    assert_eq!(berlin.parse("CRON_TZ=Asia/Tokyo 0 3 * * *").unwrap().zone(), Tz::Asia__Tokyo);
    assert_eq!(berlin.parse("0 3 * * *").unwrap().zone(), Tz::Europe__Berlin);
    assert_eq!(parse("0 3 * * *").zone(), Tz::UTC);
    assert_eq!(berlin.parse("TZ=Asia/Tokyo quartz:0 0 3 * * *").unwrap().zone(), Tz::Asia__Tokyo);
    assert_eq!(timertask_core::ZONE_DATA_VERSION, chrono_tz::IANA_TZDB_VERSION);
}

/// Fault 47: the host's zone decides, or a zone that is missing silently becomes UTC.
#[test]
fn fault_47_neither_environment_nor_files_of_the_host_decide() {
    let here = std::env::current_exe().unwrap();
    let list = |zone: Option<&str>, files: Option<&str>| {
        let mut child = std::process::Command::new(&here);
        child.args(["--exact", "surface::fault_47_what_a_host_sees", "--nocapture", "--include-ignored"]);
        child.env_remove("TZ").env_remove("TZDIR");
        child.envs(zone.map(|z| ("TZ", z))).envs(files.map(|f| ("TZDIR", f)));
        let output = child.output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.starts_with("slot ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let plain = list(None, None);
    assert_eq!(plain.len(), 6);
    for (zone, files) in
        [(Some("Asia/Tokyo"), None), (Some("America/New_York"), Some("/nowhere")), (Some("nonsense"), None)]
    {
        assert_eq!(list(zone, files), plain);
    }
    let error = Schedule::parse("CRON_TZ=Atlantis/City 0 3 * * *").unwrap_err();
    assert_eq!(error.problem(), SpecProblem::UnknownZone);
}

/// What the test above runs in processes with other environments.
#[test]
fn fault_47_what_a_host_sees() {
    for text in ["0 3 * * *", "CRON_TZ=Europe/Berlin 0 3 * * *"] {
        for slot in next(&parse(text), "2024-03-29T00:00:00Z", 3) {
            println!("\nslot {text} {slot}");
        }
    }
}

#[test]
fn old_zone_names_are_accepted_with_a_warning() {
    for name in ["EST", "CST6CDT", "CET", "Japan"] {
        let schedule = parse(&format!("CRON_TZ={name} 0 3 * * *"));
        let warnings = schedule.lint();
        assert!(matches!(warnings[..], [SpecWarning::LegacyZone { .. }]), "{name}");
        assert!(warnings[0].to_string().contains(name));
    }
    for name in ["UTC", "Europe/Berlin", "Etc/GMT+5", "GMT"] {
        assert_eq!(parse(&format!("CRON_TZ={name} 0 3 * * *")).lint(), []);
    }
}

#[test]
fn rules_have_names() {
    for text in ["auto", "cron", "skip+first", "skip+both", "shift+first", "shift+both"] {
        assert_eq!(text.parse::<Dst>().unwrap().to_string(), text);
    }
    for text in ["", "Auto", "first+skip", "shift", "shift + first"] {
        assert!(text.parse::<Dst>().is_err());
    }
}

#[test]
fn auto_looks_at_the_text_of_hour_and_minute() {
    let fold = "2024-10-26T22:00:00Z"; // Berlin: 02:00 comes twice
    let twice = |text: &str| {
        let schedule = ScheduleOptions::new().zone(Tz::Europe__Berlin).parse(text).unwrap();
        schedule
            .upcoming(at(fold))
            .take_while(|o| o.instant < at("2024-10-27T03:00:00Z"))
            .any(|o| matches!(o.note, Note::Repeated { .. }))
    };
    for text in
        ["*/30 2 * * *", "0 * * * *", "0 1,*/2 * * *", "? 2 * * *", "@hourly", "* 0 */2 * * *", "quartz:0 */5 2 * * *"]
    {
        assert!(twice(text), "{text}");
    }
    for text in ["0,30 2 * * *", "0 0-23 * * *", "30 2 * * *", "* 30 2 * * *", "quartz:* 0 2 * * *"] {
        assert!(!twice(text), "{text}");
    }
    let cron = |text: &str| {
        let schedule: cron::Schedule = text.parse().unwrap();
        format!("{:?}", Schedule::from(schedule))
    };
    assert_eq!(cron("@hourly"), "Schedule(0 * * * *; Skip+Both)");
    assert_eq!(cron("@daily"), "Schedule(0 0 * * *; Shift+First)");
    assert_eq!(cron("0 */5 2 * * *"), "Schedule(*/5 2 * * *; Skip+Both)");
    assert_eq!(cron("0  5 , 7  2 * * *"), "Schedule(5,7 2 * * *; Shift+First)");
}

#[test]
fn notes_and_what_a_gap_swallowed() {
    let read = |gap, fold, text| {
        ScheduleOptions::new().zone(Tz::Europe__Berlin).dst(Dst::Exact(gap, fold)).parse(text).unwrap()
    };
    let spring = "2026-03-28T12:00:00Z";
    let shifted = read(Gap::Shift, Fold::First, "0,30 2 * * *");
    let first = shifted.upcoming(at(spring)).next().unwrap();
    assert_eq!(
        first.note,
        Note::ShiftedFrom(NaiveDate::from_ymd_opt(2026, 3, 29).unwrap().and_hms_opt(2, 0, 0).unwrap())
    );
    assert_eq!(first.trigger().to_datetime(), at("2026-03-29T01:00:00Z"));
    assert_eq!(shifted.swallowed(at(spring)).count(), 0);
    // Where the first instant after the gap matches by itself, it is regular.
    let natural = read(Gap::Shift, Fold::First, "0 2,3 * * *");
    assert_eq!(natural.upcoming(at(spring)).next().unwrap().note, Note::Regular);

    let skipping = read(Gap::Skip, Fold::Both, "0,30 2 * * *");
    let upcoming = skipping.upcoming(at(spring));
    let lost: Vec<_> = upcoming.swallowed().take(3).map(|l| l.local.to_string()).collect();
    assert_eq!(lost, ["2026-03-29 02:00:00", "2026-03-29 02:30:00", "2027-03-28 02:00:00"]);
    assert_eq!(
        next(&skipping, "2026-10-24T12:00:00Z", 4),
        [
            "2026-10-25T02:00:00+02:00",
            "2026-10-25T02:30:00+02:00",
            "2026-10-25T02:00:00+01:00 (second time)",
            "2026-10-25T02:30:00+01:00 (second time)",
        ]
    );
    assert_eq!(parse("@every 1h").swallowed(at(spring)).count(), 0);
}

/// Liberia kept 44 minutes and 30 seconds behind Greenwich until 1972; RFC 3339 would make 45 minutes of it.
#[test]
fn offsets_with_seconds_are_shown_as_they_are() {
    let monrovia = parse("CRON_TZ=Africa/Monrovia 0 0 * * *");
    assert_eq!(monrovia.next_after(at("1972-01-06T12:00:00Z")), Some(at("1972-01-07T00:44:30Z")));
    assert_eq!(
        next(&monrovia, "1972-01-05T12:00:00Z", 3),
        [
            "1972-01-06T00:00:00-00:44:30",
            "1972-01-07T00:44:30+00:00 (shifted from 1972-01-07T00:00:00)",
            "1972-01-08T00:00:00+00:00"
        ]
    );
}

#[test]
fn a_single_date_in_the_second_pass_is_found_from_both_sides() {
    // Nothing matches before it, or after it, in local time: the search must still look at the other pass.
    let read = |fold, text| {
        ScheduleOptions::new().zone(Tz::Europe__Berlin).dst(Dst::Exact(Gap::Skip, fold)).parse(text).unwrap()
    };
    let text = "quartz:0 30 2 26 10 * 2025";
    let (first, second) = (at("2025-10-26T00:30:00Z"), at("2025-10-26T01:30:00Z"));
    let both = read(Fold::Both, text);
    assert_eq!(both.next_after(at("2025-10-26T00:45:00Z")), Some(second));
    assert_eq!(both.next_after(second), None);
    assert_eq!(both.prev_before(at("2025-10-26T01:15:00Z")), Some(first));
    let once = read(Fold::First, text);
    assert_eq!(once.next_after(first), None);
    assert_eq!(once.prev_before(at("2025-10-26T01:15:00Z")), Some(first));
    assert_eq!(once.prev_before(at("2030-01-01T00:00:00Z")), Some(first));
    assert_eq!(once.prev_before(first), None);
}

fn weekend(day: NaiveDate) -> bool {
    matches!(day.weekday(), Weekday::Sat | Weekday::Sun)
}

#[test]
fn calendars_exclude_days_of_local_time() {
    let options = ScheduleOptions::new().zone(Tz::Asia__Tokyo).calendar("weekends", Arc::new(weekend));
    let daily = options.parse("0 3 * * *").unwrap();
    assert!(daily.has_calendar() && daily.calendar_name() == Some("weekends"));
    // Friday 2024-06-07, then Monday; in UTC these are a day earlier.
    assert_eq!(next(&daily, "2024-06-06T12:00:00Z", 2), ["2024-06-07T03:00:00+09:00", "2024-06-10T03:00:00+09:00"]);
    assert_eq!(daily.prev_before(at("2024-06-09T18:00:00Z")), Some(at("2024-06-06T18:00:00Z")));
    let every = options.parse("@every 6h").unwrap();
    assert_eq!(next(&every, "2024-06-07T12:00:00Z", 2), ["2024-06-10T03:00:00+09:00", "2024-06-10T09:00:00+09:00"]);
    assert_eq!(every.prev_before(at("2024-06-09T18:00:00Z")), Some(at("2024-06-07T12:00:00Z")));
    assert_eq!(every.count_between(at("2024-06-06T15:00:00Z").into(), at("2024-06-09T18:00:00Z").into(), 99), 5);
    // Sunday 2030-06-02.
    assert_eq!(options.parse("@at 2030-06-01T20:00:00Z").unwrap().next_after(at("2024-01-01T00:00:00Z")), None);
    // The name alone makes calendars equal.
    let other = ScheduleOptions::new().zone(Tz::Asia__Tokyo).calendar("weekends", Arc::new(|_: NaiveDate| false));
    assert_eq!(other.parse("0 3 * * *").unwrap(), daily);
    let renamed = ScheduleOptions::new().zone(Tz::Asia__Tokyo).calendar("none", Arc::new(weekend));
    assert_ne!(renamed.parse("0 3 * * *").unwrap(), daily);
}

#[test]
fn a_calendar_that_excludes_all_is_never_and_a_panic_passes() {
    let all = ScheduleOptions::new().calendar("all", Arc::new(|_: NaiveDate| true));
    for text in [
        "* * * * * *",
        "0 0 * * 1",
        "0 0 29 2 *",
        "@every 1s",
        "@every 292h",
        "quartz:0 0 0 1 1 2",
        "@at 2030-01-01T00:00:00Z",
    ] {
        let schedule = all.parse(text).unwrap();
        assert_eq!(schedule.next_after(at("2024-01-01T00:00:00Z")), None, "{text}");
        assert_eq!(schedule.prev_before(at("2024-01-01T00:00:00Z")), None, "{text}");
        assert_eq!(schedule.upcoming(at("2024-01-01T00:00:00Z")).count(), 0);
    }
    let broken = ScheduleOptions::new().calendar("broken", Arc::new(|_: NaiveDate| -> bool { panic!("broken") }));
    let schedule = broken.parse("0 0 * * *").unwrap();
    let search = || schedule.next_after(at("2024-01-01T00:00:00Z"));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(search));
    assert!(caught.is_err());
}

#[test]
fn a_search_asks_a_calendar_a_counted_number_of_times() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let asked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asked);
    let calendar = move |_: NaiveDate| {
        counter.fetch_add(1, Ordering::Relaxed);
        true
    };
    let options = ScheduleOptions::new().zone(Tz::Europe__Berlin).calendar("all", Arc::new(calendar));
    for text in ["* * * * * *", "*/7 3 * * *", "0 0 * * 1", "0 0 13 * 5", "0 0 29 2 *", "@every 1s", "@every 1000h"] {
        let schedule = options.parse(text).unwrap();
        assert_eq!(schedule.next_after(at("2024-01-01T00:00:00Z")), None);
        let forward = asked.swap(0, Ordering::Relaxed);
        assert_eq!(schedule.prev_before(at("2024-01-01T00:00:00Z")), None);
        let back = asked.swap(0, Ordering::Relaxed);
        assert!((1..=12_001).contains(&forward) && (1..=12_001).contains(&back), "{text} {forward} {back}");
    }
}

/// Shown times ask about the days of gaps alone, of which there are some hundred, and not about all days behind them.
#[test]
fn what_a_gap_swallowed_asks_a_calendar_about_the_days_of_gaps() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let asked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asked);
    let calendar = move |day: NaiveDate| {
        counter.fetch_add(1, Ordering::Relaxed);
        day != NaiveDate::from_ymd_opt(2026, 3, 29).unwrap()
    };
    let options = ScheduleOptions::new().zone(Tz::Europe__Berlin).calendar("one day", Arc::new(calendar));
    let skipping = options.clone().dst(Dst::Cron).parse("30 2 * * *").unwrap();
    let lost: Vec<_> = skipping.swallowed(DateTime::<Utc>::MIN_UTC).map(|l| l.local.to_string()).collect();
    assert_eq!(lost, ["2026-03-29 02:30:00"]);
    assert!(asked.swap(0, Ordering::Relaxed) < 300);

    let shifting = options.dst(Dst::Exact(Gap::Shift, Fold::First)).parse("30 2 * * *").unwrap();
    let shown = next(&shifting, "2026-03-28T12:00:00Z", 1);
    assert_eq!(shown, ["2026-03-29T03:00:00+02:00 (shifted from 2026-03-29T02:30:00)"]);
    assert!(asked.load(Ordering::Relaxed) < 10);
}

#[test]
fn a_time_that_a_gap_swallows_every_year_ends_the_search() {
    // The last Sunday of March, half past two: the gap itself, in each year of the zone's data.
    let options = ScheduleOptions::new().zone(Tz::Europe__Berlin).dst(Dst::Exact(Gap::Skip, Fold::Both));
    let never = options.parse("quartz:0 30 2 25-31 3 1").unwrap();
    assert_eq!(never.next_after(at("2026-01-01T00:00:00Z")), None);
    assert_eq!(never.swallowed(at("2026-01-01T00:00:00Z")).count(), 74);
    // Nearer to the end of the data, the years without a gap are in reach; backwards, those before the rule.
    assert_eq!(never.next_after(at("2080-01-01T00:00:00Z")), Some(at("2100-03-28T01:30:00Z")));
    assert_eq!(never.prev_before(at("1990-01-01T00:00:00Z")), Some(at("1980-03-30T01:30:00Z")));
    assert_eq!(never.prev_before(at("2099-01-01T00:00:00Z")), None);
}

#[test]
fn periods() {
    let period = |text: &str, after: &str| parse(text).period_after(at(after).into()).map(|d| d.as_secs());
    assert_eq!(period("0 3 * * 1", "2024-06-01T00:00:00Z"), Some(7 * 86_400));
    assert_eq!(period("CRON_TZ=Europe/Berlin 0 3 * * *", "2024-03-29T12:00:00Z"), Some(82_800));
    assert_eq!(period("@every 90s", "2024-06-01T00:00:00Z"), Some(90));
}
