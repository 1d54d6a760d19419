-- Renewals: `rules::renew` of core, term by term.
--
-- KEYS: the buckets of the plans.
-- ARGV: the number of terms, the TTL in microseconds; of each term its bucket, plan, slot, nonce, fence.
-- Answers, of each: H lease_end | C lease_end by why | L.

local function renew(ttl)
    local bucket, plan, member, nonce, fence = key_arg(), arg(), arg(), arg(), arg()
    prove(bucket)
    count_running(index_key(bucket, plan))
    local slot, found = get_slot(bucket, plan, member)
    if not slot or slot[STATE] ~= RUNNING or slot[NONCE] ~= nonce or slot[FENCE] ~= fence then
        say('L')
        return
    end
    -- Only ever lengthened, and no time is compared: a term whose end has passed goes on too.
    local lease_end = math.max(tonumber(slot[LEASE_END]), NOW + ttl)
    if lease_end ~= tonumber(slot[LEASE_END]) then
        local new = copy(slot)
        new[LEASE_END], new[TTL] = text(lease_end), text(ttl)
        put_slot(bucket, plan, found, slot, new)
    end
    if slot[CANCEL_BY] == '' then
        say('H', text(lease_end))
    else
        say('C', text(lease_end), slot[CANCEL_BY], slot[CANCEL_WHY])
    end
end

local terms = number(arg(), 'the number of terms')
local ttl = number(arg(), 'a TTL')
for _ = 1, terms do
    renew(ttl)
end
return answer
