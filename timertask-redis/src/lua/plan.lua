-- What concerns a plan as a whole: `rules::plan` of core, request by request.
--
-- KEYS: the buckets of the plans, or the rows of namespaces.
-- ARGV: the number of requests; of each its key, plan (nothing: the namespace itself) and what to do:
--   read | open fingerprint replaces? [fingerprint effective_from] | close fingerprint effective_from
--   | account fingerprint from to (nothing | rows n at… | slots reason n at… | range count reason)
--   | set-back max_skew | pause by why until | resume since lapsed_only | cancel slot by why
-- Answers, of each: D (done), U (unchanged) or C (conflict), and the row as it is now, nothing where there is none.

-- Each answers D, U or C, and the plan's new row where it changes.
local ops = {}

local function blank()
    return { string.rep('0', 32), '0', '0', '0', '0', '0', '', '', '', '', '', '' }
end

function ops.open(key, id, row, op)
    if not row then
        local new = blank()
        new[FINGERPRINT], new[EFFECTIVE_FROM], new[CURSOR] = op.fingerprint, text(NOW_S), text(NOW_S)
        return 'D', new
    end
    if row[FINGERPRINT] == op.fingerprint and row[CLOSED] == '0' then
        return 'U'
    end
    if op.replaces and (row[FINGERPRINT] ~= op.replaces or row[EFFECTIVE_FROM] ~= op.replaces_from) then
        return 'C'
    end
    local cursor = tonumber(row[CURSOR])
    local from = math.max(NOW_S, cursor)
    local new = copy(row)
    new[FINGERPRINT], new[EFFECTIVE_FROM], new[CURSOR] = op.fingerprint, text(from), text(from)
    new[CLOSED], new[WINDOW_FROM] = '0', row[CURSOR]
    put_range(key, id, cursor, from, '', row[CLOSED] ~= '0' and DISABLED or EDITED)
    return 'D', new
end

function ops.close(_, _, row, op)
    if row[FINGERPRINT] ~= op.fingerprint or row[EFFECTIVE_FROM] ~= op.from then
        return 'C'
    elseif row[CLOSED] ~= '0' then
        return 'U'
    end
    local new = copy(row)
    new[CLOSED] = '1'
    return 'D', new
end

-- Whether the slots that a cover names rise strictly and lie in (from, to].
local function in_order(op)
    local last = op.from
    for i = 1, #op.slots do
        if op.slots[i] <= last then
            return false
        end
        last = op.slots[i]
    end
    return last <= op.to
end

function ops.account(key, id, row, op)
    if tonumber(row[CURSOR]) ~= op.from or op.to < op.from or op.to * 1000000 > NOW or not in_order(op) then
        return 'C'
    elseif op.to == op.from then
        return 'U'
    end
    local slots, reached = slots_key(key, id), op.to
    local missing = {}
    for i = 1, #op.slots do
        if call('HEXISTS', slots, spell(op.slots[i])) == 0 then
            missing[#missing + 1] = i
        end
    end
    if op.cover == 'rows' and missing[1] then
        -- The cursor moves over the leading ones that have a row.
        reached = missing[1] > 1 and op.slots[missing[1] - 1] or op.from
    end
    if reached == op.from then
        return 'U'
    end
    if op.cover == 'slots' then
        for i = 1, #missing do
            put_slot(key, id, spell(op.slots[missing[i]]), nil, not_started(SCHEDULED, op.reason))
        end
    end
    if op.cover == 'range' then
        put_range(key, id, op.from, op.to, op.count, op.reason)
    elseif op.fingerprint ~= row[FINGERPRINT] then
        -- The asker's schedule isn't the current one: what the current one has in between it cannot know.
        put_range(key, id, op.from, reached, '', EDITED)
    end
    local new = copy(row)
    new[CURSOR] = text(reached)
    return 'D', new
end

-- Nothing after `at` counts any more: range records are cut there. What their writers had counted no longer holds.
local function cut_ranges(key, id, at)
    local index = index_key(key, id)
    local behind = call('ZRANGEBYLEX', index, '[' .. RANGE .. spell(at + 1), '(' .. (RANGE + 1))
    local left = {}
    for i = 1, #behind do
        local first = string.sub(behind[i], 18, 33)
        if number(first, 'a range') - SHIFT <= at then
            local rest = string.match(behind[i], '^[^\n]*\n[^\n]*(\n.*)$') or bad('a range is cut short')
            left[#left + 1] = RANGE .. spell(at) .. first .. '\n' .. rest
        end
    end
    for i = 1, #left do
        call('ZADD', index, 0, left[i])
    end
    for i = 1, #behind do
        call('ZREM', index, behind[i])
    end
end

ops['set-back'] = function(key, id, row, op)
    local limit, target = NOW + op.max_skew, math.max(NOW_S, tonumber(row[LOW_WATER]))
    local function corrected(at)
        return at * 1000000 > limit and math.min(at, target) or at
    end
    local was = tonumber(row[CURSOR])
    local from = corrected(number(row[EFFECTIVE_FROM], 'an effective-from'))
    -- What lies before an effective-from that stays was another generation's: this one would never account for it again.
    local cursor = math.max(corrected(was), math.min(from, was))
    if cursor == was and from == tonumber(row[EFFECTIVE_FROM]) then
        return 'U'
    end
    local new = copy(row)
    new[CURSOR], new[EFFECTIVE_FROM] = text(cursor), text(from)
    if row[WINDOW_FROM] ~= '' then
        new[WINDOW_FROM] = text(math.min(number(row[WINDOW_FROM], 'a window'), cursor))
    end
    if cursor < was then
        cut_ranges(key, id, cursor)
    end
    return 'D', new
end

function ops.pause(_, _, row, op)
    if row[PAUSE_SINCE] ~= '' then
        return 'U'
    end
    local new = copy(row)
    new[PAUSE_SINCE], new[PAUSE_BY], new[PAUSE_WHY], new[PAUSE_UNTIL] = text(NOW), op.by, op.why, op.until_
    return 'D', new
end

function ops.resume(_, _, row, op)
    if row[PAUSE_SINCE] == '' then
        return 'U'
    end
    local until_ = tonumber(row[PAUSE_UNTIL])
    if row[PAUSE_SINCE] ~= op.since or (op.lapsed_only and (not until_ or until_ > NOW)) then
        return 'C'
    end
    local new = copy(row)
    new[PAUSE_SINCE], new[PAUSE_BY], new[PAUSE_WHY], new[PAUSE_UNTIL] = '', '', '', ''
    return 'D', new
end

function ops.cancel(key, id, _, op)
    local slot, member = get_slot(key, id, op.member)
    if not slot or slot[STATE] ~= RUNNING then
        return 'C'
    elseif slot[CANCEL_BY] ~= '' then
        return 'U'
    end
    local new = copy(slot)
    new[CANCEL_BY], new[CANCEL_WHY] = op.by, op.why
    put_slot(key, id, member, slot, new)
    return 'D'
end

-- Reads a list of trigger points.
local function slots_arg()
    local slots = {}
    for i = 1, number(arg(), 'the number of slots') do
        slots[i] = number(arg(), 'a trigger point')
    end
    return slots
end

local parse = {
    read = function() end,
    open = function(op)
        op.fingerprint = arg()
        if arg() == '1' then
            op.replaces, op.replaces_from = arg(), arg()
        end
    end,
    close = function(op)
        op.fingerprint, op.from = arg(), arg()
    end,
    account = function(op)
        op.fingerprint, op.from, op.to = arg(), number(arg(), 'a cursor'), number(arg(), 'a cursor')
        op.cover, op.slots = arg(), {}
        if op.cover == 'rows' then
            op.slots = slots_arg()
        elseif op.cover == 'slots' then
            op.reason = arg()
            op.slots = slots_arg()
        elseif op.cover == 'range' then
            op.count, op.reason = arg(), arg()
        end
    end,
    ['set-back'] = function(op)
        op.max_skew = number(arg(), 'a skew')
    end,
    pause = function(op)
        op.by, op.why, op.until_ = arg(), arg(), arg()
    end,
    resume = function(op)
        op.since, op.lapsed_only = arg(), arg() == '1'
    end,
    cancel = function(op)
        op.member, op.by, op.why = arg(), arg(), arg()
    end,
}

local function decide(key, id, row, what, op)
    if what == 'read' then
        return 'U'
    elseif id == '' then
        -- The namespace's row holds the pause of all, and nothing else.
        if what == 'pause' then
            return ops.pause(key, id, row or blank(), op)
        elseif what == 'resume' and row then
            return ops.resume(key, id, row, op)
        end
        return 'C'
    elseif what ~= 'open' and not row then
        return 'C'
    end
    return ops[what](key, id, row, op)
end

local function plan()
    local key, id, what = key_arg(), arg(), arg()
    local op = {};
    (parse[what] or bad('nobody knows how to ' .. what))(op)
    if what == 'read' then
        must_be_master()
    else
        prove(key)
        call('HLEN', slots_key(key, id))
        count_running(index_key(key, id))
    end
    local row, as_text = get_plan(key, id)
    local applied, new = decide(key, id, row, what, op)
    if new then
        as_text = pack(new)
        put_plan(key, id, new, not row)
    end
    say(applied, as_text or '')
end

for _ = 1, number(arg(), 'the number of requests') do
    plan()
end
return answer
