-- Which records go, and how far low water rises with them: `rules::purge` of core.
--
-- KEYS: the plan's bucket.
-- ARGV: plan, age in microseconds (nothing: no limit), count (likewise), keep_last, at_most.
-- Answers: how many went, low water, 1 where more is to be deleted.

-- Purging by count spares what ended within this time: a clock that stepped back must not reopen it.
local SPARED_BY_COUNT = 86400000000

local bucket, id = KEYS[1], arg()
local age, count = tonumber(arg()), tonumber(arg())
local keep_last, at_most = number(arg(), 'how many stay'), number(arg(), 'how many go')
local slots, index = slots_key(bucket, id), index_key(bucket, id)

-- Whether the oldest of `left` records goes, which ended or was written at `since`.
local function goes(left, since)
    if left <= keep_last then
        return false
    end
    local old = age and since < NOW - age
    local surplus = count and left > count and since < NOW - SPARED_BY_COUNT
    return old or surplus
end

-- When a row ended; by its own account, else by the last that is known of it.
local function ended_at(row, at)
    return tonumber(row[ENDED_AT]) or tonumber(row[CLAIMED_AT]) or at * 1000000
end

local function oldest(class, upto, limit)
    return call('ZRANGEBYLEX', index, '[' .. class, '(' .. upto, 'LIMIT', 0, limit)
end

-- The oldest trigger point of the running and open slots.
local function oldest_unfinished()
    local least
    for _, class in ipairs({ IS_RUNNING, IS_OPEN }) do
        local first = oldest(class, class + 1, 1)[1]
        local at = first and at_of(string.sub(first, 2))
        least = at and math.min(least or at, at) or least
    end
    return least
end

local plan = get_plan(bucket, id)
if not plan then
    say('0', '0', '0')
    return answer
end
call('HLEN', slots)
local others, started = oldest(OTHER, STARTED, at_most + 1), oldest(STARTED, IS_RUNNING, at_most + 1)
local ranges = oldest(RANGE, RANGE + 1, at_most + 1)
local unfinished = oldest_unfinished()
local left = call('ZLEXCOUNT', index, '[' .. OTHER, '(' .. IS_RUNNING)
    + call('ZLEXCOUNT', index, '[' .. RANGE, '(' .. (RANGE + 1))
local cursor, low_water = tonumber(plan[CURSOR]), tonumber(plan[LOW_WATER])

-- The next slot, of the two classes that are each in order. A trigger point's own slot comes before its requests.
local next_other, next_started, next_range = 1, 1, 1
local function next_slot()
    local other, own = others[next_other], started[next_started]
    if own and (not other or at_of(string.sub(own, 2)) <= at_of(string.sub(other, 2))) then
        return own, true
    end
    return other, false
end

local gone_slots, gone_ranges, more = {}, {}, false
while true do
    local slot, is_started = next_slot()
    local range = ranges[next_range]
    local at, since, last
    if range then
        last = number(string.sub(range, 2, 17), 'a range') - SHIFT
    end
    local slot_first = slot and (not range or at_of(string.sub(slot, 2)) <= last)
    if slot_first then
        at = at_of(string.sub(slot, 2))
        local row = call('HGET', slots, string.sub(slot, 2))
        row = parse_slot(row or bad('a slot without a row'))
        if row[STATE] == RUNNING or row[STATE] == OPEN then
            break
        end
        since = ended_at(row, at)
    elseif range then
        -- A range record goes only together with the rows inside it.
        at, since = last, number(string.match(range, '\n([^\n]*)$'), 'a range')
    else
        break
    end
    if at > cursor or (unfinished and at >= unfinished) or not goes(left, since) then
        break
    end
    if #gone_slots + #gone_ranges >= at_most then
        more = true
        break
    end
    if slot_first then
        gone_slots[#gone_slots + 1] = slot
        if is_started then
            next_started = next_started + 1
        else
            next_other = next_other + 1
        end
    else
        gone_ranges[#gone_ranges + 1] = range
        next_range = next_range + 1
    end
    left = left - 1
    low_water = math.max(low_water, at)
end

if low_water ~= tonumber(plan[LOW_WATER]) then
    plan[LOW_WATER] = text(low_water)
    put_plan(bucket, id, plan)
end
for i = 1, #gone_slots do
    local member = string.sub(gone_slots[i], 2)
    call('HDEL', slots, member)
    if #member > 16 then
        call('HDEL', slots, '@' .. request_of(member))
    end
    call('ZREM', index, gone_slots[i])
end
for i = 1, #gone_ranges do
    call('ZREM', index, gone_ranges[i])
end
say(text(#gone_slots + #gone_ranges), text(low_water), more and '1' or '0')
return answer
