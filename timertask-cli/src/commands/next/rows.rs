//! `timertask next --jsonl`: a line in, a line out, whatever the line is.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use serde_json::Value;
use serde_json::value::RawValue;
use timertask::{Dst, ScheduleOptions};

use super::{MOST, rfc3339};
use crate::text;

/// Longer lines are answered with an error; a megabyte of text in an expression, escaped, still fits.
const LONGEST: usize = 16 << 20;

/// The id of a row that has none, or that was not understood.
const NO_ID: &str = "null";

/// What a row may leave out.
pub(super) struct Defaults {
    pub(super) zone: Tz,
    pub(super) from: DateTime<Utc>,
    pub(super) n: u32,
    pub(super) dst: Dst,
}

/// Answers each line of `input`; an error is one of reading or writing, never of a row.
pub(super) fn answer<R: io::Read>(
    defaults: &Defaults,
    input: &mut io::BufReader<R>,
    output: &mut impl Write,
) -> io::Result<()> {
    let mut output = io::BufWriter::new(output);
    let mut line = Vec::new();
    while let Some(fits) = read_line(input, &mut line)? {
        let (id, outcome) = if !fits {
            (NO_ID.into(), Err(format!("a line of more than {LONGEST} bytes")))
        } else if line.trim_ascii().is_empty() {
            continue;
        } else {
            reply(defaults, &line)
        };
        // The id goes first, as in the row.
        match outcome {
            Ok(next) => writeln!(output, r#"{{"id":{id},"next":{}}}"#, Value::from(next))?,
            Err(error) => writeln!(output, r#"{{"id":{id},"error":{}}}"#, Value::from(error))?,
        }
        // Who writes a row and waits for its answer gets it; who writes many gets them in blocks.
        if input.buffer().is_empty() {
            output.flush()?;
        }
    }
    output.flush()
}

/// Reads up to the next line feed; `None` at the end, `Some(false)` where the line is too long to keep.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    let mut fits = true;
    let mut any = false;
    loop {
        let block = match input.fill_buf() {
            Ok(block) => block,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if block.is_empty() {
            return Ok(any.then_some(fits));
        }
        any = true;
        let end = block.iter().position(|b| *b == b'\n');
        let part = &block[..end.unwrap_or(block.len())];
        fits = fits && line.len() + part.len() <= LONGEST;
        if fits {
            line.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Ok(Some(fits));
        }
    }
}

/// A row's members as they were written. A later one of the same name counts.
type Row<'a> = BTreeMap<String, &'a RawValue>;

/// The row's id, just as it was written, and its instants or what is wrong with it.
fn reply(defaults: &Defaults, line: &[u8]) -> (String, Result<Vec<String>, String>) {
    match serde_json::from_slice::<Row<'_>>(line) {
        // Outside of texts a carriage return is a blank, but some readers would see the end of a line.
        Ok(row) => (row.get("id").map_or(NO_ID.into(), |id| id.get().replace('\r', " ")), next(defaults, &row)),
        Err(error) if error.is_data() => (NO_ID.into(), Err("not a JSON object".into())),
        Err(error) => {
            let what = if error.is_eof() { "it ends too soon" } else { "not understood" };
            (NO_ID.into(), Err(format!("not JSON: {what}, at column {}", error.column())))
        }
    }
}

fn next(defaults: &Defaults, row: &Row<'_>) -> Result<Vec<String>, String> {
    let expression = text_of(row, "expr")?.ok_or("expr is missing")?;
    let zone = text_of(row, "tz")?.map_or(Ok(defaults.zone), |zone| text::zone(&zone))?;
    let from = text_of(row, "from")?.map_or(Ok(defaults.from), |from| text::instant(&from))?;
    let dst = text_of(row, "dst")?.map_or(Ok(defaults.dst), |dst| text::dst(&dst))?;
    let n = member(row, "n").map_or(Ok(defaults.n), |n| {
        let n = n.parse().ok().filter(|n| (1..=MOST).contains(n));
        n.ok_or_else(|| format!("n is no whole number from 1 to {MOST}"))
    })?;
    let schedule = ScheduleOptions::new().zone(zone).dst(dst).parse(&expression).map_err(|error| error.to_string())?;
    Ok(schedule.upcoming(from).take(n as usize).map(|occurrence| rfc3339(&occurrence)).collect())
}

/// A member, unless it is left out or null.
fn member<'a>(row: &Row<'a>, name: &str) -> Option<&'a str> {
    row.get(name).map(|value| value.get()).filter(|value| *value != "null")
}

/// A member that is text, or left out.
fn text_of(row: &Row<'_>, name: &str) -> Result<Option<String>, String> {
    member(row, name).map(|value| serde_json::from_str(value).map_err(|_| format!("{name} is no text"))).transpose()
}
