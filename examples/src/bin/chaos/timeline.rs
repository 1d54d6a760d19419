//! What happened when, in the host's own time, and which instance was fit meanwhile: up, not frozen, its clock right, the
//! store in reach, and all that for a while already.

use timertask::Timestamp;

/// How long after the last trouble an instance counts as fit: what it takes to notice, to reach the store again and to
/// look at the plans anew. Microseconds.
pub(crate) const RECOVERY: i64 = 5_000_000;

/// A span in which an instance was fit, microseconds of real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    pub(crate) from: i64,
    pub(crate) to: i64,
    /// What the host's clock was off by.
    pub(crate) offset: i64,
}

/// A span of real time about one instance, or about none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) node: usize,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

/// How an instance stands.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    up: bool,
    frozen: bool,
    skewed: bool,
    fit_since: Option<i64>,
    beyond_since: Option<i64>,
}

/// The whole course of a run.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) events: Vec<(i64, String)>,
    pub(crate) fit: Vec<Fit>,
    /// In which no store can have granted anything.
    pub(crate) outages: Vec<Span>,
    /// In which an instance's clock was off by more than `max_skew`.
    pub(crate) beyond: Vec<Span>,
    /// What the host's clock was off by, from when on.
    pub(crate) offsets: Vec<(i64, i64)>,
    nodes: Vec<Node>,
    out_since: Option<i64>,
    troubled: bool,
}

impl Timeline {
    pub(crate) fn new(nodes: usize, now: i64) -> Self {
        Self {
            events: Vec::new(),
            fit: Vec::new(),
            outages: Vec::new(),
            beyond: Vec::new(),
            offsets: vec![(now, 0)],
            nodes: vec![Node::default(); nodes],
            out_since: None,
            troubled: false,
        }
    }

    pub(crate) fn note(&mut self, now: i64, text: String) {
        self.events.push((now, text));
    }

    /// What the host's clock is off by.
    pub(crate) fn offset(&self) -> i64 {
        self.offsets.last().map_or(0, |(_, offset)| *offset)
    }

    pub(crate) fn up(&mut self, node: usize, up: bool, now: i64) {
        self.nodes[node].up = up;
        self.settle(now);
    }

    pub(crate) fn frozen(&mut self, node: usize, frozen: bool, now: i64) {
        self.nodes[node].frozen = frozen;
        self.settle(now);
    }

    /// An instance's clock goes wrong, or right again; `beyond`: by more than is allowed.
    pub(crate) fn skewed(&mut self, node: usize, skewed: bool, beyond: bool, now: i64) {
        self.nodes[node].skewed = skewed;
        let since = if beyond { Some(now) } else { None };
        if let Some(from) = std::mem::replace(&mut self.nodes[node].beyond_since, since) {
            self.beyond.push(Span { node, from, to: now });
        }
        self.settle(now);
    }

    /// The store is in trouble, or no longer; `out`: so that it grants nothing at all.
    pub(crate) fn store(&mut self, troubled: bool, out: bool, now: i64) {
        self.troubled = troubled;
        let since = if out { Some(now) } else { None };
        if let Some(from) = std::mem::replace(&mut self.out_since, since) {
            self.outages.push(Span { node: 0, from, to: now });
        }
        self.settle(now);
    }

    /// The host's clock is set.
    pub(crate) fn step(&mut self, offset: i64, now: i64) {
        let before = std::mem::replace(&mut self.troubled, true);
        self.settle(now);
        self.offsets.push((now, offset));
        self.troubled = before;
        self.settle(now);
    }

    /// Closes the spans that have ended, and opens those that begin.
    fn settle(&mut self, now: i64) {
        let offset = self.offset();
        for node in &mut self.nodes {
            let fit = node.up && !node.frozen && !node.skewed && !self.troubled;
            match node.fit_since {
                None if fit => node.fit_since = Some(now + RECOVERY),
                Some(from) if !fit => {
                    node.fit_since = None;
                    if from < now {
                        self.fit.push(Fit { from, to: now, offset });
                    }
                }
                _ => {}
            }
        }
    }

    /// Closes all spans; since when an instance has been fit that still is, by the host's clock.
    pub(crate) fn finish(&mut self, now: i64) -> Option<Timestamp> {
        let since = self.nodes.iter().filter_map(|node| node.fit_since).min();
        let since = since.map(|real| Timestamp::from_micros(real + self.offset()));
        for node in 0..self.nodes.len() {
            self.skewed(node, true, false, now);
        }
        self.store(true, false, now);
        since
    }

    /// The spans of the host's wall time before the clock was last set, each with the real time at which it ended.
    pub(crate) fn passes(&self, end: i64) -> Vec<Pass> {
        let ends = self.offsets.iter().skip(1).map(|(at, _)| *at).chain([end]);
        self.offsets
            .iter()
            .zip(ends)
            .map(|((from, offset), to)| Pass { from: from + offset, to: to + offset })
            .collect()
    }
}

/// A span of wall time between two steps of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    pub(crate) from: i64,
    pub(crate) to: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_fit_a_while_after_its_last_trouble_and_until_the_next() {
        let mut timeline = Timeline::new(2, 0);
        timeline.up(0, true, 10);
        timeline.store(true, true, RECOVERY + 20);
        timeline.store(false, false, RECOVERY + 30);
        timeline.frozen(0, true, RECOVERY + 40);
        timeline.frozen(0, false, RECOVERY + 50);
        timeline.step(7, 2 * RECOVERY + 60);
        assert_eq!(timeline.finish(4 * RECOVERY), Some(Timestamp::from_micros(3 * RECOVERY + 67)));
        assert_eq!(
            timeline.fit,
            [
                Fit { from: RECOVERY + 10, to: RECOVERY + 20, offset: 0 },
                Fit { from: 2 * RECOVERY + 50, to: 2 * RECOVERY + 60, offset: 0 },
                Fit { from: 3 * RECOVERY + 60, to: 4 * RECOVERY, offset: 7 },
            ]
        );
        assert_eq!(timeline.outages, [Span { node: 0, from: RECOVERY + 20, to: RECOVERY + 30 }]);
        let passes = [(0, 2 * RECOVERY + 60), (2 * RECOVERY + 67, 9 * RECOVERY + 7)];
        assert_eq!(timeline.passes(9 * RECOVERY), passes.map(|(from, to)| Pass { from, to }));
    }

    #[test]
    fn a_clock_beyond_the_bound_is_a_span_of_its_own() {
        let mut timeline = Timeline::new(1, 0);
        timeline.up(0, true, 0);
        timeline.skewed(0, true, true, 10);
        timeline.skewed(0, false, false, 30);
        assert_eq!(timeline.beyond, [Span { node: 0, from: 10, to: 30 }]);
    }
}
