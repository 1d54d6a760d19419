//! The cost of `next` and of reading an expression, beside the crates `cron` and `croner`, as ratios in one run.
//!
//! `cargo run --release --bin next` prints nanoseconds per call, the median of interleaved rounds over random
//! instants, and how many times faster ours is than the faster of the two. `--check` exits with 1 where `next` in a
//! zone is less than twice as fast, or reading takes more than a microsecond.

use std::hint::black_box;
use std::str::FromStr;
use std::time::Instant;

use chrono::{DateTime, TimeZone, Utc};
use chrono_tz::Tz;
use timertask::{Schedule, ScheduleOptions, Trigger};

/// Ours and the crate cron's form. The crate knows no "or" of the two day fields, so `0 0 13 * 5` is less work there.
const EXPRESSIONS: [(&str, &str); 8] = [
    ("* * * * *", "0 * * * * *"),
    ("*/5 * * * *", "0 */5 * * * *"),
    ("0 3 * * *", "0 0 3 * * *"),
    ("0 0 29 2 *", "0 0 0 29 2 *"),
    ("0 0 1 1 *", "0 0 0 1 1 *"),
    ("30 2 * * 1-5", "0 30 2 * * 2-6"),
    ("0 0 13 * 5", "0 0 0 13 * 6"),
    ("*/15 * * * * *", "*/15 * * * * *"),
];
const ZONE: Tz = Tz::Europe__Berlin;
const INSTANTS: usize = 4_096;
const ROUNDS: usize = 15;

fn main() {
    let check = std::env::args().any(|arg| arg == "--check");
    let instants = instants();
    let mut missed = false;
    println!("nanoseconds per call; x: times faster than the faster of cron and croner");
    println!(
        "{:<16}{:>8}{:>8}{:>8}{:>7} |{:>8}{:>8}{:>8}{:>7} |{:>8} |{:>8}{:>8}{:>8}",
        "", "utc", "cron", "croner", "x", "Berlin", "cron", "croner", "x", "prev", "parse", "cron", "croner"
    );
    for (ours, theirs) in EXPRESSIONS {
        let utc = next(Tz::UTC, ours, theirs, &instants);
        let zone = next(ZONE, ours, theirs, &instants);
        let parse = parse(ours, theirs);
        println!(
            "{ours:<16}{:>8.0}{:>8.0}{:>8.0}{:>7.1} |{:>8.0}{:>8.0}{:>8.0}{:>7.1} |{:>8.0} |{:>8.0}{:>8.0}{:>8.0}",
            utc[0],
            utc[1],
            utc[2],
            ratio(&utc),
            zone[0],
            zone[1],
            zone[2],
            ratio(&zone),
            prev(ours, &instants),
            parse[0],
            parse[1],
            parse[2],
        );
        missed |= ratio(&zone) < 2.0 || parse[0] > 1_000.0;
    }
    zones();
    if check && missed {
        eprintln!("a limit was missed");
        std::process::exit(1);
    }
}

fn ratio(times: &[f64; 3]) -> f64 {
    times[1].min(times[2]) / times[0]
}

/// Random instants between 2026 and 2036.
fn instants() -> Vec<i64> {
    let mut state = 0x1234_5678_9abc_def1_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        1_767_225_600 + (state % 315_360_000) as i64
    })
    .take(INSTANTS)
    .collect()
}

/// Ours, `cron`, `croner`.
fn next(zone: Tz, ours: &str, theirs: &str, instants: &[i64]) -> [f64; 3] {
    let ours_text = ours;
    let ours = ScheduleOptions::new().zone(zone).parse(ours_text).expect("an expression");
    let cron = cron::Schedule::from_str(theirs).expect("an expression");
    let croner = croner::parser::CronParser::builder()
        .seconds(croner::parser::Seconds::Optional)
        .build()
        .parse(ours_text)
        .expect("an expression");
    let triggers: Vec<Trigger> = instants.iter().map(|t| Trigger::from_secs(*t)).collect();
    let local: Vec<DateTime<Tz>> = instants.iter().map(|t| zone.timestamp_opt(*t, 0).unwrap()).collect();
    let utc: Vec<DateTime<Utc>> = instants.iter().map(|t| Utc.timestamp_opt(*t, 0).unwrap()).collect();
    if zone == Tz::UTC {
        median([
            &mut || over(&triggers, |t| ours.next_trigger(*t)),
            &mut || over(&utc, |t| cron.after(t).next()),
            &mut || over(&utc, |t| croner.find_next_occurrence(t, false)),
        ])
    } else {
        median([
            &mut || over(&triggers, |t| ours.next_trigger(*t)),
            &mut || over(&local, |t| cron.after(t).next()),
            &mut || over(&local, |t| croner.find_next_occurrence(t, false)),
        ])
    }
}

/// Ours, backwards in the zone.
fn prev(text: &str, instants: &[i64]) -> f64 {
    let schedule = ScheduleOptions::new().zone(ZONE).parse(text).expect("an expression");
    let mut times: Vec<f64> =
        (0..ROUNDS).map(|_| over(instants, |t| schedule.prev_trigger(Trigger::from_secs(*t)))).collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn parse(ours: &str, theirs: &str) -> [f64; 3] {
    let ours = vec![ours; INSTANTS / 8];
    let theirs = vec![theirs; INSTANTS / 8];
    let parser = croner::parser::CronParser::builder().seconds(croner::parser::Seconds::Optional).build();
    median([
        &mut || over(&ours, |text| Schedule::parse(text)),
        &mut || over(&theirs, |text| cron::Schedule::from_str(text)),
        &mut || over(&ours, |text| parser.parse(text)),
    ])
}

/// How long the first use of a zone takes: the walk over its years.
fn zones() {
    let zones = ["Europe/Paris", "America/Chicago", "Asia/Tokyo", "Africa/Casablanca", "Asia/Gaza"];
    print!("\nfirst use of a zone, microseconds:");
    for zone in zones {
        let schedule = Schedule::parse(&format!("CRON_TZ={zone} 0 3 * * *")).expect("an expression");
        let start = Instant::now();
        black_box(schedule.next_trigger(Trigger::from_secs(1_800_000_000)));
        print!(" {zone} {}", start.elapsed().as_micros());
    }
    println!();
}

/// Nanoseconds per item.
fn over<T, U>(items: &[T], call: impl Fn(&T) -> U) -> f64 {
    let start = Instant::now();
    for item in items {
        black_box(call(black_box(item)));
    }
    start.elapsed().as_nanos() as f64 / items.len() as f64
}

/// The median of each over rounds in which they take turns.
fn median(mut runs: [&mut dyn FnMut() -> f64; 3]) -> [f64; 3] {
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (times, run) in times.iter_mut().zip(runs.iter_mut()) {
            times.push(run());
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    })
}
