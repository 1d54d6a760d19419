-- Leases. A key is a lock that is held; the server drops it when it lapses. What ran is not remembered.
--
-- KEYS: the lock, and the last fences of its bucket's plans.
-- ARGV: lock | extend | unlock, plan, nonce, fence, TTL in milliseconds.
-- Answers: the fence of the lease, nothing where it is held by another or no longer the asker's.

local what, plan, nonce, fence, ttl = arg(), arg(), arg(), arg(), arg()
local held = call('GET', KEYS[1])
local holder, term = nil, nil
if held then
    holder, term = string.match(held, '^(%x+) (%d+)$')
    if not holder then
        bad('a lock holds something else')
    end
end

if what == 'lock' then
    local last = call('HGET', KEYS[2], plan) or '0'
    if not held then
        local next_fence = math.max(number(last, 'a fence') + 1, math.min(NOW, FENCE_BY_CLOCK))
        if next_fence > FENCE_MAX then
            bad('the fences of the plan are used up')
        end
        term = text(next_fence)
        call('HSET', KEYS[2], plan, term)
        call('SET', KEYS[1], nonce .. ' ' .. term, 'PX', ttl)
        say(term)
    elseif holder == nonce then
        call('PEXPIRE', KEYS[1], ttl)
        say(term)
    else
        say('')
    end
elseif holder ~= nonce or term ~= fence then
    say('')
elseif what == 'extend' then
    call('PEXPIRE', KEYS[1], ttl)
    say(term)
elseif what == 'unlock' then
    call('DEL', KEYS[1])
    say(term)
else
    bad('nobody knows how to ' .. what)
end
return answer
