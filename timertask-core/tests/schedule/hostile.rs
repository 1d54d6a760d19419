//! Bad input: an error that says what and where, soon, and repeats little of it.

use timertask_core::{Schedule, ScheduleOptions, SpecError, SpecField, SpecProblem};

use crate::random::Random;

/// What holds for each error.
fn sound(text: &str, error: &SpecError) {
    assert!(error.found().chars().count() <= 40, "{error}");
    assert!(error.found().bytes().all(|b| (b' '..=b'~').contains(&b)), "{error}");
    assert!((1..=257).contains(&error.column()), "{error}");
    assert!(error.column() <= text.chars().count() + 1, "{error}");
    let shown = error.to_string();
    assert!(shown.len() < 300 && !shown.ends_with('.') && shown.is_ascii(), "{shown}");
    assert!(shown.starts_with(|c: char| c.is_ascii_lowercase()), "{shown}");
    assert!(!error.allowed().is_empty());
}

fn refused(text: &str) -> SpecError {
    let error = Schedule::parse(text).expect_err(text);
    sound(text, &error);
    error
}

#[test]
fn each_refusal_names_field_column_and_what_is_allowed() {
    use SpecField as F;
    use SpecProblem as P;
    let cases = [
        ("", F::Expression, P::FieldCount, 1, ""),
        ("0 0", F::Expression, P::FieldCount, 1, "0 0"),
        ("* * * * * * *", F::Expression, P::FieldCount, 1, "* * * * * * *"),
        ("60 * * * *", F::Minute, P::OutOfRange, 1, "60"),
        ("60 * * * * *", F::Second, P::OutOfRange, 1, "60"),
        ("* 24 * * *", F::Hour, P::OutOfRange, 3, "24"),
        ("* *\t0 * *", F::DayOfMonth, P::OutOfRange, 5, "0"),
        ("* * 32 * *", F::DayOfMonth, P::OutOfRange, 5, "32"),
        ("* * * 13 *", F::Month, P::OutOfRange, 7, "13"),
        ("* * * mon *", F::Month, P::OutOfRange, 7, "mon"),
        ("* * * * jan", F::DayOfWeek, P::OutOfRange, 9, "jan"),
        ("* * * * friday", F::DayOfWeek, P::OutOfRange, 9, "friday"),
        ("* * * * 8", F::DayOfWeek, P::OutOfRange, 9, "8"),
        ("* jan * * *", F::Hour, P::OutOfRange, 3, "jan"),
        ("  1,,2 * * * *", F::Minute, P::Syntax, 5, ""),
        ("1, * * * *", F::Minute, P::Syntax, 3, ""),
        ("* 1,5-2,7 * * *", F::Hour, P::Reversed, 5, "5-2"),
        ("* * * * sat-sun", F::DayOfWeek, P::Reversed, 9, "sat-sun"),
        ("*/0 * * * *", F::Minute, P::Step, 3, "0"),
        ("*/60 * * * *", F::Minute, P::Step, 3, "60"),
        ("* 5/24 * * *", F::Hour, P::Step, 5, "24"),
        ("* * */31 * *", F::DayOfMonth, P::Step, 7, "31"),
        ("* * * */12 *", F::Month, P::Step, 9, "12"),
        ("* * * * */8", F::DayOfWeek, P::Step, 11, "8"),
        ("?/2 * * * *", F::Minute, P::Syntax, 1, "?/2"),
        ("*-5 * * * *", F::Minute, P::Syntax, 1, "*-5"),
        ("+5 * * * *", F::Minute, P::Syntax, 1, "+5"),
        ("99999999999999999999999999999 * * * *", F::Minute, P::OutOfRange, 1, "99999999999999999999999999999"),
        ("1/18446744073709551617 * * * *", F::Minute, P::Step, 3, "18446744073709551617"),
        ("\u{200f}5 * * * *", F::Minute, P::Syntax, 1, "\\u{200f}5"),
        ("* * * * \u{43c}\u{43e}n", F::DayOfWeek, P::Syntax, 9, "\\u{43c}\\u{43e}n"),
        ("* \u{0} * * *", F::Hour, P::Syntax, 3, "\\u{0}"),
        ("* * * * *\n", F::DayOfWeek, P::Syntax, 9, "*\\n"),
        ("CRON_TZ=Nowhere/City * * * * *", F::Zone, P::UnknownZone, 9, "Nowhere/City"),
        ("TZ=europe/berlin * * * * *", F::Zone, P::UnknownZone, 4, "europe/berlin"),
        ("CRON_TZ= * * * * *", F::Zone, P::UnknownZone, 9, ""),
        ("TZ=UTC", F::Expression, P::FieldCount, 7, ""),
        ("TZ=UTC 61 * * * *", F::Minute, P::OutOfRange, 8, "61"),
        ("TZ=UTC TZ=UTC * * * * *", F::Second, P::Syntax, 8, "TZ=UTC"),
        ("@fortnightly", F::Macro, P::UnknownMacro, 1, "@fortnightly"),
        ("@reboot", F::Macro, P::UnknownMacro, 1, "@reboot"),
        ("@daily extra", F::Macro, P::Syntax, 8, "extra"),
        ("@every", F::Duration, P::Duration, 7, ""),
        ("@every 0s", F::Duration, P::Duration, 8, "0s"),
        ("@every -1h", F::Duration, P::Duration, 8, "-1h"),
        ("@every 1.5s", F::Duration, P::Duration, 8, "1.5s"),
        ("@every 999ms", F::Duration, P::Duration, 8, "999ms"),
        ("@every 2562048h", F::Duration, P::Duration, 8, "2562048h"),
        ("@every 99999999999999999999999h", F::Duration, P::Duration, 8, "99999999999999999999999h"),
        ("@every 5", F::Duration, P::Duration, 8, "5"),
        ("@every 1h 5m", F::Duration, P::Duration, 8, "1h 5m"),
        ("@at tomorrow", F::Instant, P::Instant, 5, "tomorrow"),
        ("@at 2030-01-01", F::Instant, P::Instant, 5, "2030-01-01"),
        ("@at 2030-01-01T00:00:00.5Z", F::Instant, P::Instant, 5, "2030-01-01T00:00:00.5Z"),
        // A minus sign that is no hyphen, and years that the canonical form could not write in four digits.
        ("@at 2030-01-01T00:00:00\u{2212}02:00", F::Instant, P::Instant, 5, "2030-01-01T00:00:00\\u{2212}02:00"),
        ("@at 9999-12-31T23:59:59-00:01", F::Instant, P::Instant, 5, "9999-12-31T23:59:59-00:01"),
        ("@at 0000-01-01T00:00:00+00:01", F::Instant, P::Instant, 5, "0000-01-01T00:00:00+00:01"),
        ("@at 2016-12-31T23:59:60Z", F::Instant, P::Instant, 5, "2016-12-31T23:59:60Z"),
        ("0 0 30 2 *", F::DayOfMonth, P::Never, 5, "30 2"),
        ("TZ=UTC  0 0 0  31 \tapr,jun  ?", F::DayOfMonth, P::Never, 16, "31 \\tapr,jun"),
        ("quartz:* * * * *", F::Expression, P::FieldCount, 8, "* * * * *"),
        ("quartz:0 0 3 * * 8", F::DayOfWeek, P::Quartz, 18, "8"),
        ("quartz:0 0 3 1, 2 * *", F::DayOfMonth, P::Syntax, 16, ""),
        ("quartz:0 0 3 1* * * ", F::DayOfMonth, P::Syntax, 14, "1*"),
        ("quartz:0 0 3 L * *", F::DayOfMonth, P::Quartz, 14, "L"),
        ("quartz:0 0 3 * * * 1969", F::Year, P::Quartz, 20, "1969"),
        ("quartz:0 0 0 29 2 * 2023", F::DayOfMonth, P::Never, 14, "29 2 * 2023"),
        ("quartz:@daily", F::Expression, P::FieldCount, 8, "@daily"),
    ];
    for (text, field, problem, column, found) in cases {
        let error = refused(text);
        assert_eq!(
            (error.field(), error.problem(), error.column(), error.found()),
            (field, problem, column, found),
            "{text:?}: {error}"
        );
    }
}

#[test]
fn what_quartz_allows_is_said_for_each_field() {
    for (text, allowed) in [
        ("quartz:60 0 0 * * *", "0-59"),
        ("quartz:0 */60 0 * * *", "0-59"),
        ("quartz:0 0 24 * * *", "0-23"),
        ("quartz:0 0 0 0 * *", "1-31"),
        ("quartz:0 0 0 L * *", "1-31"),
        ("quartz:0 0 0 * 13 *", "1-12"),
        ("quartz:0 0 0 * * 0", "1-7"),
        ("quartz:0 0 0 * * FRI#2", "1-7"),
        ("quartz:0 0 0 * * * 2101", "1970-2100"),
    ] {
        let error = refused(text);
        assert!(error.allowed().contains(allowed), "{text}: {error}");
    }
}

#[test]
fn a_megabyte_is_refused_by_its_length() {
    for text in [
        "*".repeat(1 << 20),
        "1,".repeat(1 << 19),
        " ".repeat(1 << 20),
        "\u{202e}".repeat(1 << 18),
        format!("@every {}h", "9".repeat(1 << 20)),
        format!("{} * * * *", (0..10_000).map(|n| (n % 60).to_string()).collect::<Vec<_>>().join(",")),
    ] {
        let error = refused(&text);
        assert_eq!((error.problem(), error.column()), (SpecProblem::TooLong, 1));
    }
    // 256 bytes are read.
    let longest = format!("{} * * * *", "1,".repeat(123) + "21");
    assert_eq!(longest.len(), 256);
    assert!(Schedule::parse(&longest).is_ok());
    assert_eq!(refused(&format!("{longest} ")).problem(), SpecProblem::TooLong);
}

#[test]
fn every_control_character_mark_and_homoglyph_is_refused_in_every_place() {
    let whole = "CRON_TZ=Europe/Berlin 0 12 1-5 JAN */2";
    let strange = (0..32_u8).chain([127]).map(char::from).chain(
        "\u{85}\u{a0}\u{ad}\u{2028}\u{200b}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{feff}\u{660}\u{ff11}\u{2217}\u{2212}\u{d7}\u{1f4a3}\u{10ffff}\u{430}"
            .chars(),
    );
    for c in strange.filter(|c| *c != '\t') {
        for place in 0..=whole.len() {
            let mut text = whole.to_owned();
            text.insert(place, c);
            refused(&text);
        }
        for text in [
            format!("@every{c}1h"),
            format!("@every 1{c}h"),
            format!("@daily{c}"),
            format!("@at {c}2030-01-01T00:00:00Z"),
            format!("@at 2030-01-01T00:00:00{c}02:00"),
        ] {
            refused(&text);
        }
        refused(&format!("quartz:0 0 3 {c} * *"));
    }
}

/// Fault 48: an impossible date makes the search spin, give up, or answer with the past.
#[test]
fn fault_48_impossible_is_refused_and_rare_is_found() {
    for text in ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *", "0 0 0 31 NOV ?", "0 0 30-31 FEB *"] {
        assert_eq!(refused(text).problem(), SpecProblem::Never, "{text}");
    }
    let leap_day = Schedule::parse("0 0 29 2 *").unwrap();
    let next = leap_day.next_after("2096-03-01T00:00:00Z".parse().unwrap());
    assert_eq!(next, Some("2104-02-29T00:00:00Z".parse().unwrap()));
    let prev = leap_day.prev_before(next.unwrap());
    assert_eq!(prev, Some("2096-02-29T00:00:00Z".parse().unwrap()));
}

/// A million strings: broken expressions, random bytes, and what is nearly right. No panic, no search without end.
#[test]
fn fault_48_a_million_strings() {
    const PIECES: [&str; 40] = [
        "*",
        "?",
        "/",
        "-",
        ",",
        " ",
        "  ",
        "\t",
        "0",
        "1",
        "5",
        "7",
        "12",
        "29",
        "30",
        "31",
        "59",
        "60",
        "99999999999",
        "jan",
        "FEB",
        "mon",
        "Sun",
        "friday",
        "L",
        "W",
        "#",
        "@",
        "@every ",
        "@at ",
        "@daily",
        "1h30m",
        "1.5h",
        "90s",
        "CRON_TZ=",
        "TZ=",
        "Europe/Berlin ",
        "America/St_Johns ",
        "quartz:",
        "2030-01-01T00:00:00Z",
    ];
    const PREFIXES: [&str; 5] = ["", "", "", "CRON_TZ=America/St_Johns ", "quartz:0 "];
    const STRANGE: [char; 8] = ['\0', '\n', '\u{7f}', '\u{e9}', '\u{202e}', '\u{430}', '\u{1f4a3}', 'x'];
    let mut random = Random::new(48);
    let options = ScheduleOptions::new();
    let mut text = String::new();
    let (mut accepted, mut seen) = (0_u32, 0_u32);
    while seen < 1_000_000 {
        text.clear();
        if seen % 4 == 0 {
            text += *random.pick(&PREFIXES);
            let fields = random.five();
            text.push_str(&fields);
        }
        for _ in 0..random.below(if seen % 4 == 0 { 3 } else { 12 }) {
            let piece = *random.pick(&PIECES);
            let mut place = usize::try_from(random.below(text.len() as u64 + 1)).unwrap();
            while !text.is_char_boundary(place) {
                place -= 1;
            }
            if random.below(20) == 0 {
                text.insert(place, *random.pick(&STRANGE));
            } else {
                text.insert_str(if seen % 2 == 0 { place } else { text.len() }, piece);
            }
        }
        match options.parse(&text) {
            Err(error) => {
                if seen % 16 == 0 {
                    sound(&text, &error);
                }
            }
            Ok(schedule) => {
                accepted += 1;
                let t = chrono::DateTime::from_timestamp(random.instant(), 0).unwrap();
                let next = schedule.next_after(t);
                assert!(next.is_none_or(|next| next > t), "{text}");
                let prev = schedule.prev_before(t);
                assert!(prev.is_none_or(|prev| prev < t), "{text}");
            }
        }
        seen += 1;
    }
    assert!(accepted > 50_000, "{accepted}");
}
