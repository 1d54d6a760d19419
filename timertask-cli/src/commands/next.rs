//! `timertask next`: the next instants of an expression.

mod rows;

use std::io::{self, Write};

use chrono::{DateTime, NaiveDateTime, Offset as _, SecondsFormat, Utc};
use chrono_tz::Tz;
use clap::Args;
use serde_json::{Value, json};
use timertask::{Clock as _, Dst, Note, Occurrence, Schedule, ScheduleOptions, Swallowed, SystemClock, Upcoming};

use crate::exit::{Outcome, complain};
use crate::text;

/// The most instants that one answer may have.
const MOST: u32 = 100_000;

/// Print the next instants of an expression, in its zone and in UTC, with notes where clocks change.
///
/// With --jsonl, rows {"id","expr","tz","from","n","dst"} are read from standard input, and each is answered with one
/// line, {"id","next":[…]} or {"id","error":"…"}. What a row leaves out is taken from the options.
#[derive(Args)]
#[command(after_help = crate::exit::HELP)]
pub(crate) struct Next {
    /// The expression, such as "30 2 * * MON-FRI", "@every 15m" or "quartz:0 30 2 * * *"
    #[arg(value_name = "EXPR", required_unless_present = "jsonl", conflicts_with = "jsonl")]
    expression: Option<String>,

    /// The zone in which it is read, unless it names one itself
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = text::zone)]
    tz: Tz,

    /// The instant after which to look, in RFC 3339; now, if left out
    #[arg(long, value_name = "INSTANT", value_parser = text::instant)]
    from: Option<DateTime<Utc>>,

    /// How many
    #[arg(short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)))]
    n: u32,

    /// The rule for clock changes: auto, cron, or a pair of skip or shift and first or both, such as shift+first
    #[arg(long, value_name = "POLICY", default_value = "auto", value_parser = text::dst)]
    dst: Dst,

    /// Print one JSON object
    #[arg(long, conflicts_with = "jsonl")]
    json: bool,

    /// Answer rows from standard input
    #[arg(long)]
    jsonl: bool,
}

impl Next {
    pub(crate) fn run(self) -> Outcome {
        let from = self.from.unwrap_or_else(|| SystemClock.now().to_datetime());
        let Some(expression) = &self.expression else {
            let defaults = rows::Defaults { zone: self.tz, from, n: self.n, dst: self.dst };
            let mut input = io::BufReader::with_capacity(1 << 16, io::stdin().lock());
            return Outcome::of_io(rows::answer(&defaults, &mut input, &mut io::stdout().lock()));
        };
        let schedule = match ScheduleOptions::new().zone(self.tz).dst(self.dst).parse(expression) {
            Ok(schedule) => schedule,
            Err(error) => {
                complain(&error);
                return Outcome::Refused;
            }
        };
        for warning in schedule.lint() {
            complain(&format_args!("warning: {warning}"));
        }
        let lines = Lines::new(&schedule, from).take(self.n as usize);
        let mut out = io::BufWriter::new(io::stdout().lock());
        Outcome::of_io(if self.json {
            self.write_json(expression, &schedule, from, lines, &mut out)
        } else {
            write_text(lines, &mut out)
        })
    }

    fn write_json(
        &self,
        expression: &str,
        schedule: &Schedule,
        from: DateTime<Utc>,
        lines: impl Iterator<Item = Line>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let answer = json!({
            "expr": expression,
            "canonical": schedule.to_string(),
            "tz": schedule.zone().name(),
            "tzdata": timertask::ZONE_DATA_VERSION,
            "dst": self.dst.to_string(),
            "from": utc(from),
            "next": lines.map(|line| line.json()).collect::<Vec<_>>(),
        });
        writeln!(out, "{answer}")?;
        out.flush()
    }
}

fn write_text(lines: impl Iterator<Item = Line>, out: &mut impl Write) -> io::Result<()> {
    let mut count = 0;
    for line in lines {
        writeln!(out, "{}", line.text())?;
        count += 1;
    }
    out.flush()?;
    if count == 0 {
        complain(&"no further instant");
    }
    Ok(())
}

/// Occurrences, each with what gaps swallowed since the one before.
struct Lines<'a> {
    upcoming: Upcoming<'a>,
    swallowed: std::iter::Peekable<Swallowed<'a>>,
}

/// One instant of the answer.
struct Line {
    occurrence: Occurrence,
    /// How many local times were skipped on the way to it, and the first of them.
    skipped: Option<(u64, NaiveDateTime)>,
}

impl<'a> Lines<'a> {
    fn new(schedule: &'a Schedule, from: DateTime<Utc>) -> Self {
        Self { upcoming: schedule.upcoming(from), swallowed: schedule.swallowed(from).peekable() }
    }
}

impl Iterator for Lines<'_> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        let occurrence = self.upcoming.next()?;
        let mut skipped: Option<(u64, NaiveDateTime)> = None;
        while let Some(gone) = self.swallowed.next_if(|gone| gone.gap_ends <= occurrence.instant) {
            let (count, first) = skipped.unwrap_or((0, gone.local));
            skipped = Some((count + 1, first));
        }
        Some(Line { occurrence, skipped })
    }
}

impl Line {
    fn text(&self) -> String {
        let mut text = format!("{}  {}", self.local(), utc(self.occurrence.instant));
        match self.occurrence.note {
            Note::ShiftedFrom(gone) => text += &format!("  gap: shifted from {}", naive(gone)),
            Note::Repeated { first } => text += &format!("  fold: second time, first at {}", utc(first)),
            _ => {}
        }
        if let Some((count, first)) = self.skipped {
            text += &format!("  gap: {count} skipped before, from {}", naive(first));
        }
        text
    }

    fn json(&self) -> Value {
        let mut line = json!({ "local": self.local(), "utc": utc(self.occurrence.instant) });
        match self.occurrence.note {
            Note::ShiftedFrom(gone) => line["shifted_from"] = naive(gone).into(),
            Note::Repeated { first } => line["repeats"] = utc(first).into(),
            _ => {}
        }
        if let Some((count, first)) = self.skipped {
            line["skipped_before"] = json!({ "count": count, "first": naive(first) });
        }
        line
    }

    fn local(&self) -> String {
        local(&self.occurrence)
    }
}

/// The local time; RFC 3339 but for offsets with seconds, which that form has not.
fn local(occurrence: &Occurrence) -> String {
    let form = if whole_minutes(occurrence) { "%Y-%m-%dT%H:%M:%S%:z" } else { "%Y-%m-%dT%H:%M:%S%::z" };
    occurrence.local.format(form).to_string()
}

/// The instant in RFC 3339, by the clock of the zone where that form can say its offset.
fn rfc3339(occurrence: &Occurrence) -> String {
    if whole_minutes(occurrence) { local(occurrence) } else { utc(occurrence.instant) }
}

fn whole_minutes(occurrence: &Occurrence) -> bool {
    occurrence.local.offset().fix().local_minus_utc() % 60 == 0
}

fn utc(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

fn naive(local: NaiveDateTime) -> String {
    local.format("%Y-%m-%dT%H:%M:%S").to_string()
}
