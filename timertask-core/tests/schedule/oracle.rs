//! The search against brute force: each local minute around a change of clocks, mapped by chrono-tz itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Datelike, Days, MappedLocalTime, NaiveDate, NaiveDateTime, TimeDelta, TimeZone, Timelike, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};

use crate::random::Random;
use timertask_core::clock::{Clock as _, SystemClock};
use timertask_core::{Dst, Fold, Gap, Note, Schedule, ScheduleOptions};

/// Zones with changes of all kinds: half hours, midnight, whole days, two hours, Ramadan, moves for good.
const ZONES: [Tz; 26] = [
    Tz::UTC,
    Tz::Europe__Berlin,
    Tz::Europe__London,
    Tz::Europe__Riga,
    Tz::Europe__Moscow,
    Tz::America__New_York,
    Tz::America__St_Johns,
    Tz::America__Sao_Paulo,
    Tz::America__Santiago,
    Tz::America__Havana,
    Tz::America__Nuuk,
    Tz::America__Caracas,
    Tz::America__Asuncion,
    Tz::Antarctica__Troll,
    Tz::Asia__Beirut,
    Tz::Asia__Gaza,
    Tz::Asia__Tehran,
    Tz::Asia__Pyongyang,
    Tz::Asia__Kathmandu,
    Tz::Africa__Casablanca,
    Tz::Africa__Cairo,
    Tz::Australia__Lord_Howe,
    Tz::Pacific__Apia,
    Tz::Pacific__Chatham,
    Tz::Pacific__Kwajalein,
    Tz::Pacific__Kiritimati,
];

const POLICIES: [Dst; 6] = [
    Dst::Auto,
    Dst::Cron,
    Dst::Exact(Gap::Skip, Fold::First),
    Dst::Exact(Gap::Skip, Fold::Both),
    Dst::Exact(Gap::Shift, Fold::First),
    Dst::Exact(Gap::Shift, Fold::Both),
];

const EXPRESSIONS: [&str; 16] = [
    "* * * * *",
    "*/15 * * * *",
    "30 2 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "0 1,2,3 * * *",
    "15,45 0-4 * * *",
    "*/20 1-3 * * *",
    "0 */2 * * *",
    "7 2-23/5 * * 5-7",
    "0 12 * * *",
    "30 0 29,30,31 * 6",
    "45 23 1-7 * *",
    "0 3 * 3,4,10,11 0",
    "30 * 27-31 * *",
    "1 0 */3 12 *",
];

/// An expression, read in the plainest way: a table for each field.
struct Plain {
    fields: [[bool; 60]; 5],
    either: bool,
}

impl Plain {
    fn read(expression: &str) -> Self {
        let texts: Vec<&str> = expression.split(' ').collect();
        let mut fields = [[false; 60]; 5];
        for ((table, text), (min, max)) in
            fields.iter_mut().zip(&texts).zip([(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)])
        {
            for item in text.split(',') {
                let (range, step) = item.split_once('/').unwrap_or((item, "1"));
                let number = |text: &str| text.parse::<usize>().expect("a number");
                let (from, upto) = match range.split_once('-') {
                    Some((from, upto)) => (number(from), number(upto)),
                    None if range == "*" => (min, max),
                    None => (number(range), if item.contains('/') { max } else { number(range) }),
                };
                for value in (from..=upto).step_by(number(step)) {
                    table[if max == 6 { value % 7 } else { value }] = true;
                }
            }
        }
        Self { fields, either: texts[2] != "*" && texts[4] != "*" }
    }

    fn matches(&self, local: NaiveDateTime) -> bool {
        let [minute, hour, day, month, week] = &self.fields;
        let of_month = day[local.day() as usize];
        let of_week = week[local.weekday().num_days_from_sunday() as usize];
        minute[local.minute() as usize]
            && hour[local.hour() as usize]
            && month[local.month() as usize]
            && if self.either { of_month || of_week } else { of_month && of_week }
    }
}

/// What a local minute stands for, asked of chrono-tz.
#[derive(Clone, Copy)]
enum Image {
    One(DateTime<Utc>),
    Two(DateTime<Utc>, DateTime<Utc>),
    Gone { until: DateTime<Utc> },
}

/// Somewhat over two days around a change of a zone; beyond them, local times that may stand for an instant in them.
struct Around {
    zone: Tz,
    change: DateTime<Utc>,
    from: DateTime<Utc>,
    upto: DateTime<Utc>,
    closed: Option<Closed>,
}

/// The days that a calendar excludes.
type Closed = fn(NaiveDate) -> bool;

/// Three days closed, two days open.
fn three_of_five(day: NaiveDate) -> bool {
    day.num_days_from_ce() % 5 < 3
}

impl Around {
    fn new(zone: Tz, change: DateTime<Utc>, closed: Option<Closed>) -> Self {
        let reach = TimeDelta::hours(26);
        Self { zone, change, from: change - reach, upto: change + reach, closed }
    }

    fn options(&self, dst: Dst) -> ScheduleOptions {
        let options = ScheduleOptions::new().zone(self.zone).dst(dst);
        match self.closed {
            Some(closed) => options.calendar("closed", Arc::new(closed)),
            None => options,
        }
    }

    fn image(&self, local: NaiveDateTime) -> Image {
        match self.zone.from_local_datetime(&local) {
            MappedLocalTime::Single(t) => Image::One(t.to_utc()),
            MappedLocalTime::Ambiguous(a, b) => Image::Two(a.to_utc(), b.to_utc()),
            // Real time goes on from the change, in the middle.
            MappedLocalTime::None => Image::Gone { until: self.change },
        }
    }

    /// The images of all matching local minutes.
    fn images(&self, plain: &Plain) -> Vec<Image> {
        let whole = |t: DateTime<Utc>| t.naive_utc().with_second(0).expect("a minute");
        let mut local = whole(self.from - Days::new(1));
        let end = whole(self.upto + Days::new(1));
        let mut images = Vec::new();
        while local < end {
            if plain.matches(local) && !self.closed.is_some_and(|closed| closed(local.date())) {
                images.push(self.image(local));
            }
            local += TimeDelta::minutes(1);
        }
        images
    }

    /// The set of instants by the rule.
    fn instants(&self, images: &[Image], gap: Gap, fold: Fold) -> BTreeSet<DateTime<Utc>> {
        let mut set = BTreeSet::new();
        for image in images {
            match image {
                Image::One(t) => set.extend([*t]),
                Image::Two(a, _) if fold == Fold::First => set.extend([*a]),
                Image::Two(a, b) => set.extend([*a, *b]),
                Image::Gone { until } => set.extend((gap == Gap::Shift).then_some(*until)),
            }
        }
        set.into_iter().filter(|t| *t > self.from && *t < self.upto).collect()
    }

    /// What a gap swallowed is what has no image, where such times are skipped.
    fn check_swallowed(&self, schedule: &Schedule, images: &[Image], gap: Gap) {
        let gone = images.iter().filter(|image| matches!(image, Image::Gone { .. })).count();
        let lost = schedule.swallowed(self.from).take_while(|lost| lost.gap_ends < self.upto).count();
        assert_eq!(lost, if gap == Gap::Skip { gone } else { 0 }, "{} {schedule:?}", self.change);
    }

    /// All instants of a schedule, forward and back.
    fn check(&self, schedule: &Schedule, want: &BTreeSet<DateTime<Utc>>, what: &dyn Fn() -> String) {
        let forward: Vec<_> = schedule.between(self.from, self.upto - TimeDelta::seconds(1)).collect();
        assert!(forward.iter().map(|o| o.instant).eq(want.iter().copied()), "{} forward", what());
        let mut back = Vec::new();
        let mut t = self.upto;
        while let Some(prev) = schedule.prev_before(t).filter(|prev| *prev > self.from) {
            back.push(prev);
            t = prev;
        }
        assert!(back.iter().rev().eq(want.iter()), "{} back", what());
        // From instants that are no trigger points, in and beside gap and fold.
        for step in -12..=12 {
            let t = self.change + TimeDelta::seconds(step * 1_007);
            let next = schedule.next_after(t).filter(|next| *next < self.upto);
            assert_eq!(next, want.range(t + TimeDelta::seconds(1)..).next().copied(), "{} after {t}", what());
            let prev = schedule.prev_before(t).filter(|prev| *prev > self.from);
            assert_eq!(prev, want.range(..t).next_back().copied(), "{} before {t}", what());
        }
    }

    fn check_notes(&self, schedule: &Schedule, what: &dyn Fn() -> String) {
        for occurrence in schedule.between(self.from, self.upto - TimeDelta::seconds(1)) {
            let local = occurrence.local.naive_local();
            let fits = match (occurrence.note, self.image(local)) {
                (Note::ShiftedFrom(gone), _) => {
                    matches!(self.image(gone), Image::Gone { until } if until == occurrence.instant)
                }
                (Note::Repeated { first }, Image::Two(a, b)) => (a, b) == (first, occurrence.instant),
                (_, Image::Two(a, _)) => a == occurrence.instant,
                (note, _) => note == Note::Regular,
            };
            assert!(fits, "{} {occurrence:?}", what());
        }
    }
}

/// The changes of a zone's offset between two years, found by asking for each quarter of an hour.
fn changes(zone: Tz, years: std::ops::Range<i32>) -> Vec<DateTime<Utc>> {
    let start = |year| Utc.with_ymd_and_hms(year, 1, 1, 0, 0, 0).single().expect("a new year");
    let offset = |t: DateTime<Utc>| t.with_timezone(&zone).naive_local() - t.naive_utc();
    let (mut t, end) = (start(years.start), start(years.end));
    let mut changes = Vec::new();
    while t < end {
        let day = t + Days::new(1);
        if offset(t) != offset(day) {
            let mut low = t;
            while offset(low) == offset(low + TimeDelta::minutes(15)) {
                low += TimeDelta::minutes(15);
            }
            while offset(low) == offset(low + TimeDelta::seconds(1)) {
                low += TimeDelta::seconds(1);
            }
            changes.push(low + TimeDelta::seconds(1));
        }
        t = day;
    }
    changes
}

fn pair(dst: Dst, expression: &str) -> (Gap, Fold) {
    let mut fields = expression.split(' ');
    let star = fields.by_ref().take(2).any(|field| field.contains('*'));
    match dst {
        Dst::Exact(gap, fold) => (gap, fold),
        Dst::Auto if !star => (Gap::Shift, Fold::First),
        Dst::Auto | Dst::Cron => (Gap::Skip, Fold::Both),
    }
}

/// Runs all policies and expressions over the changes of some zones; answers how many changes there were.
fn run(
    zones: &[Tz],
    years: std::ops::Range<i32>,
    closed: Option<Closed>,
    mut expressions: impl FnMut(usize, DateTime<Utc>) -> Vec<String>,
) -> usize {
    let mut count = 0;
    for zone in zones {
        for change in changes(*zone, years.clone()) {
            let around = Around::new(*zone, change, closed);
            for expression in expressions(count, change) {
                let images = around.images(&Plain::read(&expression));
                for dst in POLICIES {
                    let schedule = around.options(dst).parse(&expression).expect("valid");
                    let (gap, fold) = pair(dst, &expression);
                    let want = around.instants(&images, gap, fold);
                    around.check_swallowed(&schedule, &images, gap);
                    let what = || format!("{zone} {change} {dst} {expression}");
                    around.check(&schedule, &want, &what);
                    around.check_notes(&schedule, &what);
                }
            }
            count += 1;
        }
    }
    count
}

fn all() -> Vec<String> {
    EXPRESSIONS.iter().map(ToString::to_string).collect()
}

/// Matches near a change, and then nothing for a year.
fn on_the_day(random: &mut Random, change: DateTime<Utc>) -> String {
    let day = change - Days::new(random.below(2));
    format!("{} {} {} {} *", random.field(0, 59, 1), random.field(0, 23, 2), day.day(), day.month())
}

/// Fault 44: a time that clocks skip or repeat is run never, or twice, and no rule says so.
#[test]
fn fault_44_changes_of_clocks_follow_the_stated_rule_in_all_zones() {
    // Each change with an expression of the list, in turn, and a random one.
    let mut random = Random::new(44);
    let changes = run(&ZONES, 1990..2035, None, |count, change| {
        let known = EXPRESSIONS[count % EXPRESSIONS.len()].to_owned();
        let other = match count % 4 {
            0 | 1 => on_the_day(&mut random, change),
            // Early hours, where clocks change, and any time of the day.
            n => {
                let hours = if n == 2 { random.field(0, 4, 1) } else { random.field(0, 23, 2) };
                let (minutes, days) = (random.field(0, 59, 1), random.field(1, 31, 7));
                format!("{minutes} {hours} {days} {} {}", random.field(1, 12, 9), random.field(0, 6, 7))
            }
        };
        vec![known, other]
    });
    assert!(changes > 1_000, "{changes}");
}

#[test]
fn fault_44_each_expression_meets_the_strangest_changes() {
    assert_eq!(run(&[Tz::Pacific__Apia], 2011..2012, None, |_, _| all()), 3);
    assert_eq!(run(&[Tz::Pacific__Kwajalein], 1993..1994, None, |_, _| all()), 1);
    let zones = [Tz::Australia__Lord_Howe, Tz::Antarctica__Troll, Tz::America__Sao_Paulo, Tz::Asia__Beirut];
    assert_eq!(run(&zones, 2018..2019, None, |_, _| all()), 8);
}

/// Zones beside those above that changed their clocks twice in 2018.
const MORE: [Tz; 20] = [
    Tz::Europe__Paris,
    Tz::Europe__Madrid,
    Tz::Europe__Athens,
    Tz::Europe__Kyiv,
    Tz::Europe__Chisinau,
    Tz::America__Chicago,
    Tz::America__Denver,
    Tz::America__Los_Angeles,
    Tz::America__Anchorage,
    Tz::America__Halifax,
    Tz::America__Asuncion,
    Tz::America__Miquelon,
    Tz::Asia__Jerusalem,
    Tz::Asia__Tehran,
    Tz::Asia__Damascus,
    Tz::Asia__Amman,
    Tz::Australia__Sydney,
    Tz::Australia__Adelaide,
    Tz::Pacific__Auckland,
    Tz::Pacific__Chatham,
];

#[test]
fn fault_44_two_changes_in_each_of_forty_zones_and_more() {
    let zones: Vec<Tz> = MORE.into_iter().filter(|zone| !ZONES.contains(zone)).collect();
    assert!(zones.len() + ZONES.len() >= 40, "{} zones beside {}", zones.len(), ZONES.len());
    let changes = run(&zones, 2018..2019, None, |count, _| vec![EXPRESSIONS[count % EXPRESSIONS.len()].to_owned()]);
    assert_eq!(changes, 2 * zones.len());
}

/// Zones whose changes come at midnight, in the night, at noon or skip a day, so that closed days begin and end around them.
const WITH_CALENDAR: [Tz; 7] = [
    Tz::Europe__Berlin,
    Tz::America__Havana,
    Tz::America__Sao_Paulo,
    Tz::Asia__Beirut,
    Tz::Antarctica__Troll,
    Tz::Pacific__Apia,
    Tz::Pacific__Kwajalein,
];

#[test]
fn calendars_agree_with_brute_force_where_clocks_change() {
    let changes = run(&WITH_CALENDAR, 1993..2020, Some(three_of_five), |count, change| {
        let day = change + TimeDelta::days(i64::try_from(count % 3).expect("small") - 1);
        vec![EXPRESSIONS[count % EXPRESSIONS.len()].to_owned(), format!("*/20 * {},{} * *", day.day(), change.day())]
    });
    assert!(changes > 250, "{changes}");
}

/// `@every` counts real time; a calendar closes the days of the clock on the wall.
#[test]
fn every_with_a_calendar_agrees_with_brute_force_where_clocks_change() {
    let mut found = 0;
    for zone in WITH_CALENDAR {
        for change in changes(zone, 1993..2020) {
            let around = Around::new(zone, change, Some(three_of_five));
            for period in [11 * 60, 17 * 60, 7_200, 5 * 3_600] {
                let schedule = around.options(Dst::Auto).parse(&format!("@every {period}s")).expect("valid");
                let first = around.from.timestamp().div_euclid(period) + 1;
                let want: BTreeSet<_> = (first..)
                    .map(|n| DateTime::from_timestamp(n * period, 0).expect("in range"))
                    .take_while(|t| *t < around.upto)
                    .filter(|t| !three_of_five(t.with_timezone(&zone).date_naive()))
                    .collect();
                found += want.len();
                around.check(&schedule, &want, &|| format!("{zone} {change} every {period}"));
            }
        }
    }
    assert!(found > 10_000, "{found}");
}

#[test]
fn a_fold_is_not_jumped_over_where_the_next_match_is_far() {
    // Nothing matches for a year after the first pass, and the second pass is still to come.
    let expressions = ["*/19 2/9 25-31 10 *", "*/30 2 26 10 *", "30 1-2 24-26 9-10 *"];
    let zones = [Tz::Europe__Berlin, Tz::America__New_York, Tz::Australia__Lord_Howe];
    assert_eq!(run(&zones, 2025..2027, None, |_, _| expressions.map(str::to_owned).to_vec()), 12);
    assert_eq!(run(&[Tz::Antarctica__Palmer], 1964..1966, None, |_, _| vec!["*/19 21 31 12 *".to_owned()]), 3);
}

/// Any zone, any year of its data, random expressions: for as long as `TIMERTASK_SOAK_SECONDS` says, else three seconds.
#[test]
fn soak_schedules_agree_with_brute_force() {
    let seconds = std::env::var("TIMERTASK_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    let clock = SystemClock;
    let end = clock.monotonic() + Duration::from_secs(seconds);
    let seed = clock.entropy();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut count = 0;
    while clock.monotonic() < end {
        let zone = *random.pick(&TZ_VARIANTS);
        let year = i32::try_from(1_846 + random.below(254)).expect("a year");
        let closed = (random.below(3) == 0).then_some(three_of_five as Closed);
        count += run(&[zone], year..year + 1, closed, |_, change| vec![random.five(), on_the_day(&mut random, change)]);
    }
    println!("{count} changes");
}
