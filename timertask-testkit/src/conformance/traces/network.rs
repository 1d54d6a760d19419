//! Requests on their way to the store and back.

use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Claim, ClaimRequest, EndRequest, Ended, Ledger, PlanOp, PlanState, Renewal, Retention, Term,
};
use timertask_core::time::Timestamp;

use super::spec::TTL;
use super::world::World;
use crate::conformance::Step;
use crate::conformance::probe::{answer, only};

/// A request.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Plan(PlanKey, PlanOp),
    Claim(Box<ClaimRequest>),
    Renew(Term),
    End(EndRequest),
    Purge(Retention, usize),
}

/// Its answer.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Plan(Box<PlanState>),
    Claim(Claim),
    Renew(Renewal),
    End(Ended),
    Purged,
}

impl<H: Step> World<'_, H> {
    /// Sends a request; `None` where no answer came. It may have taken effect all the same, or may still do so later.
    pub(super) fn send(&mut self, call: Call) -> Option<(Timestamp, Reply)> {
        if !self.chaos {
            return Some(self.carry_out(&call, ""));
        }
        match self.random.below(100) {
            0..=5 => {
                self.log.tally.faults += 1;
                None
            }
            6..=11 => {
                self.log.tally.faults += 1;
                self.carry_out(&call, "(answer lost) ");
                None
            }
            12..=15 => {
                self.log.tally.faults += 1;
                self.late.push(call);
                None
            }
            16..=19 => {
                self.log.tally.faults += 1;
                self.late.push(call.clone());
                Some(self.carry_out(&call, ""))
            }
            _ => Some(self.carry_out(&call, "")),
        }
    }

    /// Lets a request that was on its way arrive; whoever sent it does not wait for it any more.
    pub(super) fn arrive_late(&mut self) {
        if !self.late.is_empty() {
            let i = self.below(self.late.len());
            let call = self.late.swap_remove(i);
            self.carry_out(&call, "(late) ");
        }
    }

    fn carry_out(&mut self, call: &Call, how: &'static str) -> (Timestamp, Reply) {
        self.log.tally.calls += 1;
        let (now, reply) = match call {
            Call::Plan(key, op) => {
                let states = answer(self.ledger.plan(&[(key.clone(), op.clone())]));
                (states.now, Reply::Plan(Box::new(only(states.value))))
            }
            Call::Claim(request) => {
                let claims = answer(self.ledger.claim(std::slice::from_ref(request)));
                (claims.now, Reply::Claim(only(claims.value)))
            }
            Call::Renew(term) => {
                let renewals = answer(self.ledger.renew(std::slice::from_ref(term), TTL));
                (renewals.now, Reply::Renew(only(renewals.value)))
            }
            Call::End(request) => {
                let ends = answer(self.ledger.end(std::slice::from_ref(request)));
                (ends.now, Reply::End(only(ends.value)))
            }
            Call::Purge(keep, at_most) => (answer(self.ledger.purge(&self.plan, *keep, *at_most)).now, Reply::Purged),
        };
        self.remember(now, how, call, &reply);
        let seen = match (call, &reply) {
            (Call::Claim(request), Reply::Claim(claim)) => self.log.see_claim(request, claim),
            (Call::End(request), Reply::End(ended)) => self.log.see_end(&request.key, *ended),
            _ => Ok(()),
        };
        self.hold(seen);
        let set_back = matches!(call, Call::Plan(_, PlanOp::SetBack { .. }));
        self.look_at_the_row(set_back);
        (now, reply)
    }
}
