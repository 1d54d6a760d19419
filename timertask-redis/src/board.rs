//! The notice board.

use timertask_core::key::Namespace;
use timertask_core::seam::{Answer, Board, Outcome, Posting, PostingKind};
use timertask_core::time::Timestamp;

use crate::error::Fault;
use crate::lane::Repeat;
use crate::layout::board;
use crate::script::{BOARD, Call, Reply};
use crate::server::Kind;
use crate::store::Redis;

impl Board for Redis {
    fn post(&self, posting: &Posting) -> Outcome<()> {
        let mut call = self.board_call(&posting.namespace, posting.kind, "post");
        call.arg(posting.key.as_str()).number(posting.until.as_micros()).arg(posting.body.as_str());
        self.ask_board("post", Repeat::Harmless, call, |_| Ok(()))
    }

    fn list(&self, namespace: &Namespace, kind: PostingKind) -> Outcome<Vec<Posting>> {
        let listed =
            self.ask_board("list the board", Repeat::Harmless, self.board_call(namespace, kind, "list"), |reply| {
                let mut postings = Vec::new();
                while !reply.is_at_end() {
                    let key = reply.text()?;
                    postings.push(posting(namespace, kind, key, reply)?);
                }
                Ok(postings)
            });
        let Answer { now, value: mut postings } = listed?;
        postings.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Answer { now, value: postings })
    }

    fn take(&self, namespace: &Namespace, kind: PostingKind, key: &str) -> Outcome<Option<Posting>> {
        let mut call = self.board_call(namespace, kind, "take");
        call.arg(key);
        // Asked twice, what was taken the first time would seem to be another's.
        self.ask_board("take from the board", Repeat::Never, call, |reply| {
            if reply.is_at_end() { Ok(None) } else { posting(namespace, kind, key.to_owned(), reply).map(Some) }
        })
    }
}

fn posting(namespace: &Namespace, kind: PostingKind, key: String, reply: &mut Reply) -> Result<Posting, Fault> {
    let until = Timestamp::from_micros(reply.number()?);
    Ok(Posting { namespace: namespace.clone(), kind, key, body: reply.text()?, until })
}

impl Redis {
    fn board_call(&self, namespace: &Namespace, kind: PostingKind, what: &str) -> Call {
        let (bodies, ends) = board(namespace, kind);
        let mut call = Call::new(self.scope());
        call.fixed_key(bodies).fixed_key(ends).arg(what);
        call
    }

    fn ask_board<T>(
        &self,
        doing: &str,
        repeat: Repeat,
        call: Call,
        read: impl FnOnce(&mut Reply) -> Result<T, Fault>,
    ) -> Outcome<T> {
        self.answer(Kind::Reads, repeat, 1, &BOARD, Ok(call), read).map_err(|fault| self.told(doing, fault))
    }
}
