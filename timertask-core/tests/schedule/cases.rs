//! Every row of `../cases/expressions.jsonl` is answered as `cases/README.md` says.

use chrono::{DateTime, Utc};
use serde_json::Value;
use timertask_core::time::Trigger;
use timertask_core::{Dst, EveryBase, Schedule, ScheduleOptions};

struct Row(Value);

impl Row {
    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.0[key].as_bool()
    }

    fn id(&self) -> &str {
        self.text("id")
    }

    fn from(&self) -> DateTime<Utc> {
        self.text("from").parse().expect("an instant")
    }

    fn options(&self) -> ScheduleOptions {
        let zone = self.text("tz").parse().unwrap_or_default();
        let mut options = ScheduleOptions::new().zone(zone);
        if self.text("expr").starts_with("@every") && self.flag("valid").is_none() {
            options = options.every_base(EveryBase::Install(Trigger::from(self.from())));
        }
        options
    }

    /// The instants of a list, duplicates once; `None` where there is no list.
    fn answer(&self, who: &str) -> Option<Vec<DateTime<Utc>>> {
        list(&self.0["answers"][who])
    }

    fn parse(&self, dst: Dst) -> Schedule {
        match self.options().dst(dst).parse(self.text("expr")) {
            Ok(schedule) => schedule,
            Err(error) => panic!("{}: {error}", self.id()),
        }
    }

    fn check(&self, dst: Dst, want: &[DateTime<Utc>]) {
        let schedule = self.parse(dst);
        let got: Vec<_> = schedule.upcoming(self.from()).take(want.len()).map(|o| o.instant).collect();
        assert_eq!(got, want, "{} {dst} {}", self.id(), self.text("expr"));
        for pair in want.windows(2) {
            assert_eq!(schedule.prev_before(pair[1]), Some(pair[0]), "{} back", self.id());
        }
    }

    fn refused(&self) {
        let text = self.text("expr");
        let error = self.options().parse(text).expect_err(self.id());
        assert!(error.column() >= 1 && error.column() <= text.chars().count() + 1, "{error}");
        assert!(!error.allowed().is_empty(), "{error}");
    }
}

fn list(value: &Value) -> Option<Vec<DateTime<Utc>>> {
    let instants = value.as_array()?.iter();
    let mut list: Vec<_> = instants.map(|text| text.as_str().expect("text").parse().expect("an instant")).collect();
    list.dedup();
    Some(list)
}

fn rows() -> Vec<Row> {
    let text = include_str!("../cases/expressions.jsonl");
    text.lines().map(|line| Row(serde_json::from_str(line).expect("a row"))).collect()
}

/// Disputed rows whose answer is a decision of ours, not one of the lists.
const ACCEPTED: [&str; 3] = ["S-bad-004", "S-bad-030", "S-bad-067"];
/// Disputed rows on which only the rule for day of month and day of week differs.
const STAR_RULE: [&str; 6] = ["S-act-002", "S-basic-026", "S-basic-027", "S-basic-044", "S-cal-004", "S-cal-005"];
/// Disputed rows where a whole local day is skipped or a zone moved for good; and the answer under `Dst::Auto`.
const OWN: [(&str, &[&str]); 3] = [
    ("S-dst-057", &["2018-05-03T23:45:00+08:30", "2018-05-05T00:00:00+09:00", "2018-05-05T23:45:00+09:00"]),
    ("S-dst-098", &["2011-12-31T00:00:00+14:00", "2012-01-06T09:00:00+14:00", "2012-01-13T09:00:00+14:00"]),
    ("S-dst-100", &["1993-08-20T12:00:00-12:00", "1993-08-22T00:00:00+12:00", "1993-08-22T12:00:00+12:00"]),
];

#[test]
fn every_row_is_answered_as_the_readme_says() {
    let rows = rows();
    assert_eq!(rows.len(), 304);
    let mut kinds = [0_usize; 6];
    for row in &rows {
        let disputed = row.flag("dispute") == Some(true);
        let kind = if row.text("expr").starts_with("@every") && row.flag("valid").is_none() {
            every(row);
            0
        } else if disputed && row.id().starts_with("S-bad") {
            if ACCEPTED.contains(&row.id()) {
                row.parse(Dst::Auto);
            } else {
                row.refused();
            }
            1
        } else if disputed {
            dispute(row);
            2
        } else if row.flag("valid") == Some(false) || row.flag("never") == Some(true) {
            row.refused();
            3
        } else {
            let want = list(&row.0["next"]).expect("next");
            assert!(!want.is_empty(), "{}", row.id());
            row.check(Dst::Cron, &want);
            if row.id() != "S-dst-096" {
                row.check(Dst::Auto, &want);
            }
            4
        };
        kinds[kind] += 1;
    }
    assert_eq!(kinds, [9, 17, 59, 71, 148, 0]);
}

/// `robfig` counts from the instant asked, which is [`EveryBase::Install`]; it rounds fractions, we refuse them.
fn every(row: &Row) {
    match row.options().parse(row.text("expr")) {
        Ok(_) => row.check(Dst::Auto, &list(&row.0["next"]).expect("next")),
        Err(_) => assert!(row.text("expr").contains("ms"), "{}", row.id()),
    }
}

fn dispute(row: &Row) {
    let instant = row.answer("instant").expect("all instants");
    row.check(Dst::Cron, &instant);
    if STAR_RULE.contains(&row.id()) {
        row.check(Dst::Auto, &row.answer("robfig").expect("robfig"));
    } else if let Some((_, own)) = OWN.iter().find(|(id, _)| *id == row.id()) {
        let own: Vec<_> = own.iter().map(|t| t.parse().expect("an instant")).collect();
        row.check(Dst::Auto, &own);
    } else if let Some(daemon) = row.answer("vixie") {
        row.check(Dst::Auto, &daemon);
    }
}

#[test]
fn the_one_row_that_differs_has_an_instant_more() {
    let row = rows().into_iter().find(|row| row.id() == "S-dst-096").expect("the row");
    let mut want = list(&row.0["next"]).expect("next");
    want.insert(1, "2021-03-28T04:00:00+03:00".parse().expect("an instant"));
    row.check(Dst::Auto, &want);
}
