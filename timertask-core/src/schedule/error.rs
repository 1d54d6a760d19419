//! Why an expression was refused: where, what stands there, and what may.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// At most this many characters of the user's text are repeated in an error.
const ECHO: usize = 40;

/// The part of an expression that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpecField {
    /// The expression as a whole.
    Expression,
    /// The zone behind `CRON_TZ=` or `TZ=`.
    Zone,
    /// A name that begins with `@`.
    Macro,
    /// The duration of `@every`.
    Duration,
    /// The instant of `@at`.
    Instant,
    /// Seconds, 0–59.
    Second,
    /// Minutes, 0–59.
    Minute,
    /// Hours, 0–23.
    Hour,
    /// Days of the month, 1–31.
    DayOfMonth,
    /// Months, 1–12 or their names.
    Month,
    /// Days of the week, 0–7 or their names; in `quartz:` 1–7.
    DayOfWeek,
    /// Years, 1970–2100, in `quartz:` only.
    Year,
}

impl fmt::Display for SpecField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expression => "expression",
            Self::Zone => "zone",
            Self::Macro => "macro",
            Self::Duration => "duration",
            Self::Instant => "instant",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
            Self::Year => "year",
        })
    }
}

/// What is wrong with an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpecProblem {
    /// Longer than 256 bytes.
    TooLong,
    /// Not the number of fields that the dialect has.
    FieldCount,
    /// Something that is no value, range, list or step.
    Syntax,
    /// A number or name outside of what the field knows.
    OutOfRange,
    /// A range whose end lies before its start.
    Reversed,
    /// A step of zero, or beyond the field's span.
    Step,
    /// No such `@` name.
    UnknownMacro,
    /// No duration that `@every` takes.
    Duration,
    /// No instant that `@at` takes.
    Instant,
    /// No such zone.
    UnknownZone,
    /// It could never fire.
    Never,
    /// It fires more often than the limits allow.
    TooOften,
    /// The crate `cron` refuses a `quartz:` expression.
    Quartz,
}

/// A refused expression. Nothing was changed; the text needs an edit.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use timertask::{Schedule, SpecField, SpecProblem};
///
/// let error = Schedule::parse("0 24 * * *").unwrap_err();
/// assert_eq!(error.to_string(), "hour (column 3): out of range: found `24`, allowed: 0-23");
/// assert_eq!(error.field(), SpecField::Hour);
/// assert_eq!(error.problem(), SpecProblem::OutOfRange);
/// assert_eq!((error.column(), error.found(), error.allowed()), (3, "24", "0-23"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SpecError(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    problem: SpecProblem,
    field: SpecField,
    column: usize,
    found: String,
    allowed: Cow<'static, str>,
}

impl SpecError {
    /// `found` is echoed, shortened and with everything but plain ASCII escaped.
    #[cold]
    pub(crate) fn new(
        problem: SpecProblem,
        field: SpecField,
        column: usize,
        found: &str,
        allowed: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(Inner { problem, field, column, found: echo(found), allowed: allowed.into() }))
    }

    /// What is wrong.
    #[must_use]
    pub fn problem(&self) -> SpecProblem {
        self.0.problem
    }

    /// The part of the expression that it is about.
    #[must_use]
    pub fn field(&self) -> SpecField {
        self.0.field
    }

    /// Where, in characters from 1.
    #[must_use]
    pub fn column(&self) -> usize {
        self.0.column
    }

    /// What stands there: at most 40 characters, all of them printable ASCII; others appear as `\u{…}`.
    #[must_use]
    pub fn found(&self) -> &str {
        &self.0.found
    }

    /// What may stand there.
    #[must_use]
    pub fn allowed(&self) -> &str {
        &self.0.allowed
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { problem, field, column, found, allowed } = &*self.0;
        let problem = match problem {
            SpecProblem::TooLong => "too long",
            SpecProblem::FieldCount => "wrong number of fields",
            SpecProblem::Syntax => "not understood",
            SpecProblem::OutOfRange => "out of range",
            SpecProblem::Reversed => "reversed range",
            SpecProblem::Step => "bad step",
            SpecProblem::UnknownMacro => "unknown name",
            SpecProblem::Duration => "bad duration",
            SpecProblem::Instant => "bad instant",
            SpecProblem::UnknownZone => "unknown zone",
            SpecProblem::Never => "can never fire",
            SpecProblem::TooOften => "fires too often",
            SpecProblem::Quartz => "refused by the crate cron",
        };
        write!(f, "{field} (column {column}): {problem}: found `{found}`, allowed: {allowed}")
    }
}

impl fmt::Debug for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { problem, field, column, found, allowed } = &*self.0;
        f.debug_struct("SpecError")
            .field("problem", problem)
            .field("field", field)
            .field("column", column)
            .field("found", found)
            .field("allowed", allowed)
            .finish()
    }
}

impl std::error::Error for SpecError {}

/// At most [`ECHO`] characters. What is not plain ASCII is escaped, so that neither control characters nor
/// marks of writing direction nor look-alike letters reach a log unseen.
fn echo(text: &str) -> String {
    let mut shown = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let before = shown.len();
        match c {
            ' '..='~' => shown.push(c),
            '\t' => shown.push_str("\\t"),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            _ => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
        }
        let more = !chars.as_str().is_empty();
        if shown.len() > if more { ECHO - 3 } else { ECHO } {
            shown.truncate(before);
            shown.push_str("...");
            break;
        }
    }
    shown
}
