//! Requests of operators as they stand on the notice board, and what came of them: a text of lines, `key value`, the first
//! of which says what it is and under which version. No value holds a line feed, since ids and reasons have no control
//! characters; so nothing needs to be escaped.
//!
//! ```text
//! timertask-request 1          timertask-request 1          timertask-answer 1
//! do run-now                   do backfill                  is started
//! plan report                  plan report                  at 1767225600
//! id import-7                  id 4a1f…
//! by ana                       by ana
//! why the import was late      why a gap since Monday
//! at 1767225600                from 1767225600
//! force no                     to 1767312000
//!                              cap 100
//! ```
//!
//! A body of another version, or with a line that isn't known, is left to those who know it.

use std::fmt::Write as _;

use crate::key::{Namespace, PlanId, RequestId};
use crate::seam::{Asked, Ending, Posting, PostingKind};
use crate::time::{Timestamp, Trigger};

const REQUEST: &str = "timertask-request 1";
const ANSWER: &str = "timertask-answer 1";

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) plan: PlanId,
    pub(crate) id: RequestId,
    pub(crate) asked: Asked,
    pub(crate) wish: Wish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    RunNow {
        /// The instant of acceptance.
        at: Trigger,
        force: bool,
    },
    Backfill {
        from: Trigger,
        to: Trigger,
        cap: usize,
    },
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Started(Trigger),
    Running(Trigger),
    Ended(Trigger, Ending),
    /// A backfill goes on, and will start so many slots.
    Goes(usize),
    /// Why not, in words.
    Refused(String),
}

impl Notice {
    /// The key of its posting: what is asked of which plan under which id. Plan ids hold no line feed.
    pub(crate) fn key(&self) -> String {
        key(self.wish.name(), &self.plan, &self.id)
    }

    pub(crate) fn posting(&self, namespace: &Namespace, until: Timestamp) -> Posting {
        let mut body = format!(
            "{REQUEST}\ndo {}\nplan {}\nid {}\nby {}\nwhy {}\n",
            self.wish.name(),
            self.plan,
            self.id,
            self.asked.by(),
            self.asked.why()
        );
        // Writing to a string cannot fail.
        let _ = match self.wish {
            Wish::RunNow { at, force } => {
                writeln!(body, "at {}\nforce {}", at.as_secs(), if force { "yes" } else { "no" })
            }
            Wish::Backfill { from, to, cap } => {
                writeln!(body, "from {}\nto {}\ncap {cap}", from.as_secs(), to.as_secs())
            }
        };
        Posting { namespace: namespace.clone(), kind: PostingKind::Request, key: self.key(), body, until }
    }

    /// Reads a posting's body.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn parse(body: &str) -> Result<Self, String> {
        let mut lines = Lines::of(body, REQUEST)?;
        let what = lines.take("do")?;
        let wrong = |e: crate::key::IdError| e.to_string();
        let plan = PlanId::new(lines.take("plan")?).map_err(wrong)?;
        let id = RequestId::new(lines.take("id")?).map_err(wrong)?;
        let asked = Asked::new(lines.take("by")?, lines.take("why")?).map_err(wrong)?;
        let wish = match what {
            RUN_NOW => Wish::RunNow {
                at: lines.trigger("at")?,
                force: match lines.take("force")? {
                    "yes" => true,
                    "no" => false,
                    other => return Err(format!("force is {other:?}")),
                },
            },
            BACKFILL => {
                Wish::Backfill { from: lines.trigger("from")?, to: lines.trigger("to")?, cap: lines.number("cap")? }
            }
            other => return Err(format!("it asks to do {other:?}")),
        };
        lines.end()?;
        Ok(Self { plan, id, asked, wish })
    }
}

const RUN_NOW: &str = "run-now";
const BACKFILL: &str = "backfill";

impl Wish {
    fn name(self) -> &'static str {
        match self {
            Self::RunNow { .. } => RUN_NOW,
            Self::Backfill { .. } => BACKFILL,
        }
    }
}

/// The key under which a backfill of this id stands on the board.
pub(crate) fn backfill_key(plan: &PlanId, id: &RequestId) -> String {
    key(BACKFILL, plan, id)
}

fn key(what: &str, plan: &PlanId, id: &RequestId) -> String {
    format!("{what}\n{plan}\n{id}")
}

impl Verdict {
    pub(crate) fn posting(&self, namespace: &Namespace, key: String, until: Timestamp) -> Posting {
        let said = match self {
            Self::Started(at) => format!("is started\nat {}\n", at.as_secs()),
            Self::Running(at) => format!("is running\nat {}\n", at.as_secs()),
            Self::Ended(at, how) => format!("is ended\nat {}\nhow {}\n", at.as_secs(), how.code()),
            Self::Goes(starts) => format!("is going\nstarts {starts}\n"),
            Self::Refused(why) => {
                let why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                format!("is refused\nwhy {why}\n")
            }
        };
        let body = format!("{ANSWER}\n{said}");
        Posting { namespace: namespace.clone(), kind: PostingKind::Answer, key, body, until }
    }

    /// Reads a posting's body.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn parse(body: &str) -> Result<Self, String> {
        let mut lines = Lines::of(body, ANSWER)?;
        let verdict = match lines.take("is")? {
            "started" => Self::Started(lines.trigger("at")?),
            "running" => Self::Running(lines.trigger("at")?),
            "ended" => {
                let at = lines.trigger("at")?;
                let how = Ending::from_code(lines.number("how")?).ok_or("an unknown ending")?;
                Self::Ended(at, how)
            }
            "going" => Self::Goes(lines.number("starts")?),
            "refused" => Self::Refused(lines.take("why")?.to_owned()),
            other => return Err(format!("it is {other:?}")),
        };
        lines.end()?;
        Ok(verdict)
    }
}

/// The lines of a body, one after the other.
struct Lines<'a>(std::str::Split<'a, char>);

impl<'a> Lines<'a> {
    fn of(body: &'a str, head: &str) -> Result<Self, String> {
        let mut lines = body.strip_suffix('\n').ok_or("it is cut")?.split('\n');
        match lines.next() {
            Some(line) if line == head => Ok(Self(lines)),
            line => {
                let line: String = line.unwrap_or_default().chars().take(40).collect();
                Err(format!("it begins with {line:?} instead of {head:?}"))
            }
        }
    }

    fn take(&mut self, key: &str) -> Result<&'a str, String> {
        let line = self.0.next().ok_or_else(|| format!("{key} is missing"))?;
        let value = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(' '));
        value.ok_or_else(|| format!("{key} is missing, or another line stands in its place"))
    }

    fn number<T: std::str::FromStr>(&mut self, key: &str) -> Result<T, String> {
        self.take(key)?.parse().map_err(|_| format!("{key} is not a number of its kind"))
    }

    fn trigger(&mut self, key: &str) -> Result<Trigger, String> {
        self.number(key).map(Trigger::from_secs)
    }

    fn end(&mut self) -> Result<(), String> {
        if self.0.next().is_none() { Ok(()) } else { Err("it has more lines than are known".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(most: usize) -> impl Strategy<Value = String> {
        proptest::string::string_regex(&format!("[^\\p{{Cc}}]{{1,{most}}}"))
            .expect("a pattern")
            .prop_filter("short enough", |text| text.len() <= 255)
    }

    prop_compose! {
        fn notice()(
            (plan, id, by, why) in (text(60), text(60), text(60), text(60)),
            (a, b, cap, run_now, force) in (any::<i64>(), any::<i64>(), any::<usize>(), any::<bool>(), any::<bool>()),
        ) -> Notice {
            let (a, b) = (Trigger::from_secs(a), Trigger::from_secs(b));
            Notice {
                plan: PlanId::new(plan).unwrap(),
                id: RequestId::new(id).unwrap(),
                asked: Asked::new(by, why).unwrap(),
                wish: if run_now { Wish::RunNow { at: a, force } } else { Wish::Backfill { from: a, to: b, cap } },
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_asked_is_read_back(notice in notice()) {
            let posting = notice.posting(&Namespace::default(), Timestamp::EPOCH);
            prop_assert_eq!(Notice::parse(&posting.body), Ok(notice));
        }

        #[test]
        fn any_text_is_a_request_or_refused(text in ".{0,200}", notice in notice(), cut in 0..400_usize) {
            let _ = (Notice::parse(&text), Verdict::parse(&text));
            let body = notice.posting(&Namespace::default(), Timestamp::EPOCH).body;
            let cut: String = body.chars().take(cut).collect();
            prop_assert_eq!(Notice::parse(&cut).is_ok(), cut == body, "a body that was cut is told");
        }
    }

    #[test]
    fn a_body_of_another_version_is_told() {
        for body in
            ["", "timertask-request 2\ndo run-now\n", "timertask-request 1\ndo sing\nplan p\nid i\nby b\nwhy w\n"]
        {
            assert!(Notice::parse(body).is_err(), "{body:?}");
        }
        let more = "timertask-request 1\ndo run-now\nplan p\nid i\nby b\nwhy w\nat 1\nforce no\nunless it rains\n";
        assert_eq!(Notice::parse(more).unwrap_err(), "it has more lines than are known");
    }

    #[test]
    fn what_came_of_it_is_read_back() {
        let at = Trigger::from_secs(1_767_225_600);
        let mut all =
            vec![Verdict::Started(at), Verdict::Running(at), Verdict::Goes(3), Verdict::Refused("no".to_owned())];
        all.extend(Ending::ALL.map(|how| Verdict::Ended(at, how)));
        for verdict in all {
            let posting = verdict.posting(&Namespace::default(), "key".to_owned(), Timestamp::EPOCH);
            assert_eq!(Verdict::parse(&posting.body), Ok(verdict));
        }
        let refused = Verdict::Refused("two\nlines".to_owned());
        let body = refused.posting(&Namespace::default(), String::new(), Timestamp::EPOCH).body;
        assert_eq!(Verdict::parse(&body), Ok(Verdict::Refused("two lines".to_owned())));
    }
}
