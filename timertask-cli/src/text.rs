//! From what was typed to values, and back without surprises on a terminal.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use timertask::Dst;

/// At most this much of a text is repeated in an error.
const ECHO: usize = 40;

/// The name of a zone.
pub(crate) fn zone(text: &str) -> Result<Tz, String> {
    text.parse().map_err(|_| format!("unknown zone `{}`, allowed: a name such as Europe/Berlin", echo(text)))
}

/// An instant.
pub(crate) fn instant(text: &str) -> Result<DateTime<Utc>, String> {
    // chrono would take U+2212 for a minus.
    Some(text)
        .filter(|text| text.is_ascii())
        .and_then(|text| DateTime::parse_from_rfc3339(text).ok())
        .map(|instant| instant.to_utc())
        .ok_or_else(|| format!("bad instant `{}`, allowed: RFC 3339 such as 2030-01-31T12:00:00Z", echo(text)))
}

/// The rule for clock changes.
pub(crate) fn dst(text: &str) -> Result<Dst, String> {
    text.parse().map_err(|error| format!("`{}`: {error}", echo(text)))
}

/// The start of a text, with everything but printable ASCII escaped.
pub(crate) fn echo(text: &str) -> String {
    let escaped: String = text.chars().take(ECHO + 1).flat_map(char::escape_default).collect();
    if escaped.len() <= ECHO {
        return escaped;
    }
    escaped.chars().take(ECHO - 3).chain("...".chars()).collect()
}
