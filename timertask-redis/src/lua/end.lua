-- How terms end: `rules::end` of core, request by request.
--
-- KEYS: the buckets of the plans.
-- ARGV: the number of requests; of each its bucket, plan, slot, fence, and what to record: S nonce ending started_at
-- ended_at tries detail | G nonce | X attempts_allowed | C max_skew | R reason.
-- Answers, of each: R state how | A | L state how | N.

local function runs(slot, nonce, fence)
    return slot[STATE] == RUNNING and slot[NONCE] == nonce and slot[FENCE] == fence
end

local function orphaned_at(slot, fence)
    return slot[FENCE] == fence and slot[STATE] == ENDED and slot[HOW] == ORPHANED
end

-- Each answers the slot's new row, or nothing and whether the same was recorded before.
local record = {}

function record.S(slot, fence, op)
    if runs(slot, op.nonce, fence) then
        local new = copy(slot)
        new[STATE], new[HOW], new[LEASE_END] = ENDED, op.ending, '0'
        new[STARTED_AT], new[ENDED_AT], new[TRIES], new[DETAIL] = op.started_at, op.ended_at, op.tries, op.detail
        return new
    end
    local same = slot[NONCE] == op.nonce and slot[FENCE] == fence and slot[STATE] == ENDED and slot[HOW] == op.ending
    return nil, same
end

function record.G(slot, fence, op)
    if runs(slot, op.nonce, fence) then
        local new = copy(slot)
        release(new)
        -- Never entered, so not a start.
        new[ATTEMPT] = text(math.max(tonumber(slot[ATTEMPT]) - 1, 0))
        return new
    end
    return nil, slot[STATE] == OPEN and slot[FENCE] == fence and is_released(slot, op.nonce)
end

function record.X(slot, fence, op)
    if slot[STATE] == RUNNING and slot[FENCE] == fence and tonumber(slot[LEASE_END]) <= NOW then
        local new = copy(slot)
        if tonumber(slot[ATTEMPT]) < op.allowed and slot[CANCEL_BY] == '' then
            release(new)
        else
            new[STATE], new[HOW], new[LEASE_END], new[ENDED_AT] = ENDED, ORPHANED, '0', text(NOW)
        end
        return new
    end
    return nil, orphaned_at(slot, fence)
end

function record.C(slot, fence, op)
    local ttl = tonumber(slot[TTL])
    if slot[FENCE] == fence and slot[STATE] == RUNNING and tonumber(slot[LEASE_END]) > NOW + ttl + op.max_skew then
        local new = copy(slot)
        new[LEASE_END] = text(NOW + ttl)
        return new
    end
    return nil, false
end

function record.R(slot, fence, op)
    if slot[STATE] == OPEN and slot[FENCE] == fence then
        local new = copy(slot)
        lay_to_rest(new, op.reason)
        return new
    end
    local same = slot[FENCE] == fence and slot[STATE] == NOT_STARTED and slot[HOW] == op.reason
    return nil, same or orphaned_at(slot, fence)
end

local function op_args()
    local op = { what = arg() }
    if op.what == 'S' then
        op.nonce, op.ending, op.started_at, op.ended_at, op.tries, op.detail = arg(), arg(), arg(), arg(), arg(), arg()
    elseif op.what == 'G' then
        op.nonce = arg()
    elseif op.what == 'X' then
        op.allowed = number(arg(), 'how many attempts are allowed')
    elseif op.what == 'C' then
        op.max_skew = number(arg(), 'a skew')
    elseif op.what == 'R' then
        op.reason = arg()
    else
        bad('nothing ends like ' .. op.what)
    end
    return op
end

local function finish()
    local bucket, plan_id, member, fence, op = key_arg(), arg(), arg(), arg(), op_args()
    prove(bucket)
    count_running(index_key(bucket, plan_id))
    local plan = get_plan(bucket, plan_id)
    local slot, found = get_slot(bucket, plan_id, member)
    if not slot then
        say('N')
        return
    end
    local new, same = record[op.what](slot, fence, op)
    if not new then
        if same then
            say('A')
        else
            say('L', slot[STATE], slot[HOW])
        end
        return
    end
    put_slot(bucket, plan_id, found, slot, new)
    -- The latest success is that of scheduled slots; a `run_now` says nothing about them.
    if op.what == 'S' and op.ending == SUCCEEDED and plan and #found == 16 and slot[KIND] ~= MANUAL then
        local last, at = tonumber(plan[LAST_SUCCESS]), at_of(found)
        if not last or last < at then
            plan[LAST_SUCCESS] = text(at)
            put_plan(bucket, plan_id, plan)
        end
    end
    say('R', new[STATE], new[HOW])
end

for _ = 1, number(arg(), 'the number of requests') do
    finish()
end
return answer
