//! The notice board.

use rusqlite::params;
use timertask_core::key::Namespace;
use timertask_core::seam::{Board, Outcome, Posting, PostingKind};
use timertask_core::time::Timestamp;

use crate::store::Sqlite;
use crate::writer::Urgency;

impl Board for Sqlite {
    fn post(&self, posting: &Posting) -> Outcome<()> {
        let posting = posting.clone();
        self.write("post", Urgency::Last, 1, move |t| {
            let (namespace, kind) = (posting.namespace.as_str(), posting.kind.as_str());
            // Whoever posts takes down what is over, so that instances that went away leave nothing behind.
            t.run(
                "DELETE FROM timertask_board WHERE namespace = ?1 AND kind = ?2 AND until <= ?3",
                params![namespace, kind, t.now().as_micros()],
            )?;
            t.run(
                "INSERT OR REPLACE INTO timertask_board (namespace, kind, key, body, until) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![namespace, kind, posting.key, posting.body, posting.until.as_micros()],
            )
            .map(drop)
        })
    }

    fn list(&self, namespace: &Namespace, kind: PostingKind) -> Outcome<Vec<Posting>> {
        self.snapshot("list the board", |t| {
            t.all(
                "SELECT key, body, until FROM timertask_board \
                 WHERE namespace = ?1 AND kind = ?2 AND until > ?3 ORDER BY key",
                params![namespace.as_str(), kind.as_str(), t.now().as_micros()],
                |row| {
                    Ok(Posting {
                        namespace: namespace.clone(),
                        kind,
                        key: row.get(0)?,
                        body: row.get(1)?,
                        until: Timestamp::from_micros(row.get(2)?),
                    })
                },
            )
        })
    }

    fn take(&self, namespace: &Namespace, kind: PostingKind, key: &str) -> Outcome<Option<Posting>> {
        let (namespace, key) = (namespace.clone(), key.to_owned());
        self.write("take from the board", Urgency::Last, 1, move |t| {
            let found = t.first(
                "DELETE FROM timertask_board WHERE namespace = ?1 AND kind = ?2 AND key = ?3 RETURNING body, until",
                params![namespace.as_str(), kind.as_str(), key],
                |row| {
                    Ok(Posting {
                        namespace: namespace.clone(),
                        kind,
                        key: key.clone(),
                        body: row.get(0)?,
                        until: Timestamp::from_micros(row.get(1)?),
                    })
                },
            )?;
            // What is over counts as gone.
            Ok(found.filter(|posting| posting.until > t.now()))
        })
    }
}
