//! `timertask next --jsonl`: a line in, a line out, whatever the line is.

use std::io::{self, BufRead, Write};

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use serde_json::{Map, Value};
use timertask::{Dst, ScheduleOptions};

use super::{MOST, local};
use crate::text;

/// Longer lines are answered with an error; a megabyte of text in an expression, escaped, still fits.
const LONGEST: usize = 16 << 20;

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
            (Value::Null, Err(format!("a line of more than {LONGEST} bytes")))
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

/// The row's id, and its instants or what is wrong with it.
fn reply(defaults: &Defaults, line: &[u8]) -> (Value, Result<Vec<String>, String>) {
    match serde_json::from_slice::<Value>(line) {
        Ok(Value::Object(row)) => (row.get("id").cloned().unwrap_or_default(), next(defaults, &row)),
        Ok(_) => (Value::Null, Err("not a JSON object".into())),
        Err(error) => {
            let what = if error.is_eof() { "it ends too soon" } else { "not understood" };
            (Value::Null, Err(format!("not JSON: {what}, at column {}", error.column())))
        }
    }
}

fn next(defaults: &Defaults, row: &Map<String, Value>) -> Result<Vec<String>, String> {
    let expression = text_of(row, "expr")?.ok_or("expr is missing")?;
    let zone = text_of(row, "tz")?.map_or(Ok(defaults.zone), text::zone)?;
    let from = text_of(row, "from")?.map_or(Ok(defaults.from), text::instant)?;
    let dst = text_of(row, "dst")?.map_or(Ok(defaults.dst), text::dst)?;
    let n = match row.get("n") {
        None | Some(Value::Null) => defaults.n,
        Some(n) => n
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (1..=MOST).contains(n))
            .ok_or_else(|| format!("n is no whole number from 1 to {MOST}"))?,
    };
    let schedule = ScheduleOptions::new().zone(zone).dst(dst).parse(expression).map_err(|error| error.to_string())?;
    Ok(schedule.upcoming(from).take(n as usize).map(|occurrence| local(&occurrence)).collect())
}

/// A member that is text, or left out.
fn text_of<'a>(row: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, String> {
    match row.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name} is no text")),
    }
}
