//! Leases. A key is a lock that is held; the server itself drops it when it lapses.

use std::time::Duration;

use timertask_core::key::{Fence, LockKey, Nonce};
use timertask_core::seam::{Held, Lease, Mutex, StoreError};

use crate::error::Fault;
use crate::lane::Repeat;
use crate::layout::{lock, millis};
use crate::script::{Call, LOCK};
use crate::server::Kind;
use crate::store::Redis;

impl Mutex for Redis {
    fn try_lock(&self, key: &LockKey, nonce: Nonce, ttl: Duration) -> Result<Option<Lease>, StoreError> {
        let fence = self.lock(Kind::Claims, Repeat::Harmless, "lock", key, nonce, Fence::NONE, ttl)?;
        Ok(fence.map(|fence| Lease { key: key.clone(), nonce, fence }))
    }

    fn extend(&self, lease: &Lease, ttl: Duration) -> Result<Held, StoreError> {
        let fence = self.lock(Kind::Renewals, Repeat::Harmless, "extend", &lease.key, lease.nonce, lease.fence, ttl)?;
        Ok(held(fence))
    }

    fn unlock(&self, lease: &Lease) -> Result<Held, StoreError> {
        let never = Duration::ZERO;
        // Asked twice, what was given back the first time would look lost.
        let fence = self.lock(Kind::Ends, Repeat::Never, "unlock", &lease.key, lease.nonce, lease.fence, never)?;
        Ok(held(fence))
    }
}

fn held(fence: Option<Fence>) -> Held {
    if fence.is_some() { Held::Held } else { Held::Lost }
}

impl Redis {
    #[expect(clippy::too_many_arguments, reason = "one place for three calls of the same shape")]
    fn lock(
        &self,
        kind: Kind,
        repeat: Repeat,
        what: &str,
        key: &LockKey,
        nonce: Nonce,
        fence: Fence,
        ttl: Duration,
    ) -> Result<Option<Fence>, StoreError> {
        let ask = || {
            let (key, fences) = lock(key)?;
            let mut call = Call::new(self.scope());
            call.fixed_key(key).fixed_key(fences);
            Ok(call)
        };
        let ask = ask().map(|mut call: Call| {
            call.arg(what).arg(key.plan.plan_str()).number(nonce).number(fence).number(millis(ttl));
            call
        });
        let answer = self.answer(kind, repeat, 1, &LOCK, ask, |reply| match reply.text()?.as_str() {
            "" => Ok(None),
            text => text
                .parse()
                .map(|fence| Some(Fence::from_u64(fence)))
                .map_err(|_| Fault::nonsense(format!("{text:?} is no fence"))),
        });
        match answer {
            Ok(answer) => Ok(answer.value),
            Err(fault) => Err(self.told(what, fault)),
        }
    }
}
