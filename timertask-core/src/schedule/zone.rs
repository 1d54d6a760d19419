//! Offsets of a zone as a table of spans, read once from `chrono-tz` and then looked up in a few nanoseconds.
//!
//! `chrono-tz` answers "which offset at this instant", not "until when". The search needs both, so the first
//! use of a zone walks over its years once (below a millisecond) and keeps the spans between two changes of
//! the offset. The table is a pure function of the compiled-in zone data; nothing ever changes it.

use std::sync::OnceLock;

use chrono::{DateTime, Offset as _, TimeZone as _};
use chrono_tz::{TZ_VARIANTS, Tz};

/// No zone changes its offset before this instant (1829) or after [`LAST`] (2103).
const FIRST: i64 = -4_450_000_000;
const LAST: i64 = 4_200_000_000;
/// The offset is sampled this often. No two changes of one zone lie closer together than 6.9 days; a test
/// over all zones notices when a new `chrono-tz` breaks that.
pub(crate) const SAMPLE: i64 = 6 * 86_400;
/// One bucket of the index covers 2^22 seconds, about 48 days.
const BUCKET_BITS: u32 = 22;

/// The time between two changes of a zone's offset: `begin <= instant < end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First instant, or `i64::MIN`.
    pub(crate) begin: i64,
    /// First instant that no longer belongs to it, or `i64::MAX`.
    pub(crate) end: i64,
    /// Local time minus UTC, in seconds.
    pub(crate) offset: i64,
    /// The offset of the span before; its own for the first span.
    pub(crate) before: i64,
}

impl Span {
    /// Local time jumps forward at `begin`: the local times from `begin + before` to `begin + offset` don't exist.
    pub(crate) const fn after_gap(&self) -> bool {
        self.offset > self.before
    }

    /// Local time jumps back at `begin`: the local times from `begin + offset` to `begin + before` come twice.
    pub(crate) const fn after_fold(&self) -> bool {
        self.offset < self.before
    }
}

/// All spans of one zone, in order.
pub(crate) struct Zone {
    spans: Vec<Span>,
    /// For each bucket of time the span that holds its first second.
    buckets: Vec<u16>,
}

static ZONES: [OnceLock<Zone>; TZ_VARIANTS.len()] = [const { OnceLock::new() }; TZ_VARIANTS.len()];
static UTC: Span = Span { begin: i64::MIN, end: i64::MAX, offset: 0, before: 0 };

impl Zone {
    /// The table of `tz`, built at its first use.
    pub(crate) fn of(tz: Tz) -> &'static Zone {
        ZONES[tz as usize].get_or_init(|| Zone::read(tz))
    }

    fn read(tz: Tz) -> Zone {
        let mut spans: Vec<Span> = Vec::new();
        let first = offset_at(tz, FIRST);
        let mut span = Span { begin: i64::MIN, end: i64::MAX, offset: first, before: first };
        let mut t = FIRST;
        while t < LAST {
            let sample = offset_at(tz, t + SAMPLE);
            if sample != span.offset {
                let change = bisect(tz, t, t + SAMPLE, span.offset);
                span.end = change;
                spans.push(span);
                span = Span { begin: change, end: i64::MAX, offset: sample, before: span.offset };
            }
            t += SAMPLE;
        }
        spans.push(span);

        let mut buckets = Vec::new();
        if spans.len() > 1 {
            let mut index = 0_usize;
            let mut start = FIRST;
            while start < LAST {
                while start >= spans[index].end {
                    index += 1;
                }
                buckets.push(u16::try_from(index).unwrap_or(0));
                start += 1 << BUCKET_BITS;
            }
        }
        Zone { spans, buckets }
    }

    /// The number of the span that holds `instant`.
    pub(crate) fn index(&self, instant: i64) -> usize {
        if self.buckets.is_empty() {
            return 0;
        }
        let bucket = usize::try_from((instant - FIRST) >> BUCKET_BITS).unwrap_or(0);
        let mut index = usize::from(self.buckets[bucket.min(self.buckets.len() - 1)]);
        while instant >= self.spans[index].end {
            index += 1;
        }
        index
    }

    /// The span of that number; one over the whole of time where there is none.
    pub(crate) fn span(&self, index: usize) -> &Span {
        self.spans.get(index).unwrap_or(&UTC)
    }

    /// The span that holds `instant`.
    pub(crate) fn at(&self, instant: i64) -> &Span {
        self.span(self.index(instant))
    }

    /// How many spans there are; at least one.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }
}

/// The first instant in `(low, high]` at which the offset is no longer `offset`.
fn bisect(tz: Tz, mut low: i64, mut high: i64, offset: i64) -> i64 {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if offset_at(tz, middle) == offset {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

fn offset_at(tz: Tz, instant: i64) -> i64 {
    let utc = DateTime::from_timestamp(instant, 0).unwrap_or_default().naive_utc();
    i64::from(tz.offset_from_utc_datetime(&utc).fix().local_minus_utc())
}
