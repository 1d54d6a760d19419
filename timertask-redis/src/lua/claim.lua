-- Whether slots may be started: `rules::claim` of core, request by request.
--
-- KEYS: the buckets of the plans and the rows of their namespaces, as the arguments name them.
-- ARGV: the number of requests; of each its bucket, its namespace's key, plan, slot, nonce, fingerprint, prev (or
-- nothing), kind, who asked and why, gate (F: force, S: skip, Q: queue one, C: cancel previous, A: allow), how many may run, attempts
-- allowed, TTL in microseconds, instance, version.
-- Answers, of each: G at fence attempt lease_end cursor last_success window_from | H | E ending | R why [reason].

local function grant_answer(at, fence, attempt, lease_end, plan)
    return { 'G', text(at), fence, attempt, lease_end, plan[CURSOR], plan[LAST_SUCCESS], plan[WINDOW_FROM] }
end

-- The same decision asks again: the same grant, so that a lost answer is safe to ask for.
local function again(request, plan, slot)
    if not plan then
        return { 'R', 'unknown' }
    end
    local lease_end = math.max(tonumber(slot[LEASE_END]), NOW + request.ttl)
    local new
    if lease_end ~= tonumber(slot[LEASE_END]) then
        new = copy(slot)
        new[LEASE_END], new[TTL] = text(lease_end), text(request.ttl)
    end
    return grant_answer(request.row_at, slot[FENCE], slot[ATTEMPT], text(lease_end), plan), new
end

local function account(request, slot, reason)
    local new
    if slot then
        new = copy(slot)
        lay_to_rest(new, reason)
    else
        new = not_started(request.kind, reason)
    end
    return { 'R', 'not-started', reason }, new
end

-- The latest trigger point of a scheduled slot that was started and is not ahead of now.
local function newest_started(index)
    local found = call('ZREVRANGEBYLEX', index, '(' .. STARTED .. spell(NOW_S + 1), '[' .. STARTED, 'LIMIT', 0, 1)
    return found[1] and at_of(string.sub(found[1], 2))
end

-- The running rows of older slots, without a mark to stop yet: they are told to make room.
local function older_unmarked(request)
    local index, found = index_key(request.bucket, request.plan), {}
    local older = call('ZRANGEBYLEX', index, '[' .. IS_RUNNING, '(' .. IS_RUNNING .. spell(request.at))
    for i = 1, #older do
        local member = string.sub(older[i], 2)
        local row = call('HGET', slots_key(request.bucket, request.plan), member)
        local old = row and parse_slot(row)
        if old and old[CANCEL_BY] == '' then
            found[#found + 1] = { member = member, old = old }
        end
    end
    return found
end

-- Overlap, judged over the plan's running rows, for all instances at once. Nothing: it passes.
local function gate(request, slot)
    if request.gate == 'F' then
        return nil
    end
    local index = index_key(request.bucket, request.plan)
    -- What was started before is claimed as catch-up is: a full gate lets it wait, and it is never accounted as not
    -- started.
    local live = request.kind == SCHEDULED and (not slot or tonumber(slot[ATTEMPT]) == 0)
    local queues = request.gate == 'Q' or request.gate == 'C'
    if live and queues then
        local newest = newest_started(index)
        if newest and newest > request.at then
            return account(request, slot, SUPERSEDED)
        end
    end
    local limit = request.gate == 'A' and math.max(request.may_run, 1) or 1
    if count_running(index) < limit then
        return nil
    end
    if live and not queues then
        return account(request, slot, OVERLAP)
    end
    return { 'R', 'full' }, nil, live and request.gate == 'C' and older_unmarked(request) or nil
end

local function grant(request, plan, slot)
    local fence = math.max(tonumber(plan[LAST_FENCE]) + 1, math.min(NOW, FENCE_BY_CLOCK))
    if fence > FENCE_MAX then
        -- Only a damaged row has used up its fences. Without a higher one nothing may start.
        return { 'R', 'full' }
    end
    local attempt = math.min((slot and tonumber(slot[ATTEMPT]) or 0) + 1, 4294967295)
    local open, asked = slot and slot[STATE] == OPEN, request.asked_by ~= ''
    local new = {
        RUNNING, '', request.kind, request.nonce, slot and slot[RELEASED_NONCES] or '', text(fence), text(attempt),
        text(NOW + request.ttl), text(request.ttl),
        -- An operator's word to stop outlives a give-back; of a slot that was laid to rest it is spent.
        open and slot[CANCEL_BY] or '', open and slot[CANCEL_WHY] or '',
        request.instance, request.version, text(NOW), '', '', '0', '',
        asked and request.asked_by or slot and slot[ASKED_BY] or '',
        asked and request.asked_why or slot and slot[ASKED_WHY] or '',
    }
    return grant_answer(request.row_at, new[FENCE], new[ATTEMPT], new[LEASE_END], plan), new, nil, new[FENCE]
end

-- The answer, the slot's new row, older runs to be marked, and the fence that was granted; each but the first may be
-- missing.
local function decide(request, plan, slot, all_paused)
    if slot then
        local state = slot[STATE]
        if state == ENDED then
            return { 'E', slot[HOW] }
        elseif state == RUNNING then
            if slot[NONCE] == request.nonce then
                return again(request, plan, slot)
            end
            -- Whatever its lease end says.
            return { 'H' }
        elseif is_released(slot, request.nonce) then
            return { 'R', 'released' }
        elseif state == NOT_STARTED then
            if request.kind ~= BACKFILL then
                return { 'R', 'not-started', slot[HOW] }
            end
        elseif tonumber(slot[ATTEMPT]) >= math.max(request.allowed, 1) then
            local new = copy(slot)
            new[STATE], new[HOW], new[ENDED_AT] = ENDED, ORPHANED, text(NOW)
            return { 'E', ORPHANED }, new
        end
    end
    if not plan or request.plan == '' then
        return { 'R', 'unknown' }
    end
    local operator = request.kind == MANUAL or request.kind == BACKFILL
    if not slot then
        if request.at <= tonumber(plan[LOW_WATER]) then
            return { 'R', 'too-old' }
        elseif request.at <= tonumber(plan[CURSOR]) and not operator then
            return { 'R', 'accounted' }
        end
    end
    if (all_paused or plan[PAUSE_SINCE] ~= '') and not operator then
        return { 'R', 'paused' }
    end
    local refused, new, marked = gate(request, slot)
    if refused then
        return refused, new, marked
    end
    return grant(request, plan, slot)
end

-- Whether the cursor goes to the slot: where nothing before it is open, never back, and never for a `run_now`.
local function moves_cursor(request, plan, decided)
    local leaves_a_row = decided[1] ~= 'R' or decided[2] == 'not-started'
    if not leaves_a_row or not plan or #request.member > 16 or request.kind == MANUAL then
        return false
    end
    local cursor = tonumber(plan[CURSOR])
    return request.at > cursor and (not request.prev or cursor >= request.prev)
end

local function claim()
    local request = { bucket = key_arg(), whole = key_arg(), plan = arg(), member = arg(), nonce = arg(), fingerprint = arg() }
    request.prev = tonumber(arg())
    request.kind, request.asked_by, request.asked_why, request.gate = arg(), arg(), arg(), arg()
    request.may_run = number(arg(), 'how many may run')
    request.allowed = number(arg(), 'how many attempts are allowed')
    request.ttl = number(arg(), 'a TTL')
    request.instance, request.version = arg(), arg()
    request.at = at_of(request.member)

    -- Read and decide; what can fail does so here.
    local bucket = request.bucket
    prove(bucket)
    local plan = get_plan(bucket, request.plan)
    local slot, member = get_slot(bucket, request.plan, request.member)
    -- A `run_now` is found by its request, and keeps its first instant.
    request.row_at = at_of(member)
    count_running(index_key(bucket, request.plan))
    local whole = get_plan(request.whole, '')
    local decided, new, marked, fence = decide(request, plan, slot, whole and whole[PAUSE_SINCE] ~= '')
    local moves = moves_cursor(request, plan, decided)

    -- Write.
    if new then
        put_slot(bucket, request.plan, member, slot, new)
    end
    for i = 1, marked and #marked or 0 do
        local row = copy(marked[i].old)
        row[CANCEL_BY], row[CANCEL_WHY] = '+' .. request.instance, 'a newer slot waits (overlap)'
        put_slot(bucket, request.plan, marked[i].member, marked[i].old, row)
    end
    if moves and request.fingerprint ~= plan[FINGERPRINT] then
        -- The asker's schedule isn't the current one: what the current one has in between it cannot know.
        put_range(bucket, request.plan, tonumber(plan[CURSOR]), request.at - 1, '', EDITED)
    end
    if moves or fence then
        plan[LAST_FENCE] = fence or plan[LAST_FENCE]
        plan[CURSOR] = moves and text(request.at) or plan[CURSOR]
        put_plan(bucket, request.plan, plan)
    end
    say(unpack(decided))
end

for _ = 1, number(arg(), 'the number of requests') do
    claim()
end
return answer
