-- What every script of the ledger begins with: the server's time, the arguments one after the other, rows as text, and
-- the few ways in which they are read and written. docs/layout.md describes the keys.
--
-- A row is one text, its fields separated by line feeds; free text comes escaped and goes back as it came. Numbers are
-- exact: whole seconds and microseconds stay below 2^53, the client refuses or cuts what does not. Lua has no way back,
-- so whatever can fail (a key of another type, a damaged row) is read before the first write of a request.

local call = redis.call
local time = call('TIME')
local NOW_S = tonumber(time[1])
local NOW = NOW_S * 1000000 + tonumber(time[2])

-- Trigger points are spelled with 16 digits, shifted so that none is negative: bytewise order is the order of time.
local SHIFT = 4503599627370496
local FENCE_MAX = 9007199254740991
-- How far the clock may lift a fence: a trillion grants below the largest.
local FENCE_BY_CLOCK = FENCE_MAX - 1099511627776
local RELEASED = 8
-- Beside plans, in a hash by their ids: no id holds a line feed.
local ROW_VERSION = '\n'

-- States as they stand in rows.
local RUNNING, OPEN, ENDED, NOT_STARTED = '0', '1', '2', '3'
-- Endings, reasons and kinds by their codes in core; a test compares them.
local SUCCEEDED, ORPHANED = '0', '3'
local OVERLAP, SUPERSEDED, EDITED, DISABLED = '0', '1', '5', '6'
local SCHEDULED, BACKFILL, MANUAL = '0', '2', '3'

-- Fields of a slot's row.
local STATE, HOW, KIND, NONCE, RELEASED_NONCES, FENCE, ATTEMPT, LEASE_END, TTL = 1, 2, 3, 4, 5, 6, 7, 8, 9
local CANCEL_BY, CANCEL_WHY, INSTANCE, VERSION, CLAIMED_AT, STARTED_AT, ENDED_AT, TRIES, DETAIL =
    10, 11, 12, 13, 14, 15, 16, 17, 18
local ASKED_BY, ASKED_WHY = 19, 20
local SLOT_FIELDS = 20
-- Fields of a plan's row.
local FINGERPRINT, EFFECTIVE_FROM, CLOSED, CURSOR, LOW_WATER, LAST_FENCE, LAST_SUCCESS, WINDOW_FROM = 1, 2, 3, 4, 5, 6, 7, 8
local PAUSE_SINCE, PAUSE_BY, PAUSE_WHY, PAUSE_UNTIL = 9, 10, 11, 12
local PLAN_FIELDS = 12

-- Classes of entries in a plan's index. Each slot with a row stands in one of the first two; unfinished ones also in one
-- of the next two.
local OTHER, STARTED, IS_RUNNING, IS_OPEN, RANGE = '0', '1', '2', '3', '4'

local function bad(what)
    error('TTBAD ' .. what, 0)
end

-- Digits alone: Lua itself would take 'nan', which compares with nothing, so that whatever it guards would pass.
local function number(text, what)
    return text and string.find(text, '^%-?%d+$') and tonumber(text) or bad(what .. ' is not a number')
end

local function text(n)
    return string.format('%.0f', n)
end

-- The arguments, one after the other.
local read = 0
local function arg()
    read = read + 1
    return ARGV[read] or bad('an argument is missing')
end

local function key_arg()
    return KEYS[tonumber(arg())] or bad('a key is missing')
end

local function spell(at)
    return string.format('%016.0f', at + SHIFT)
end

local function at_of(member)
    return number(string.sub(member, 1, 16), 'a trigger point') - SHIFT
end

local function request_of(member)
    return string.sub(member, 17)
end

local function fields(row, wanted, what)
    local found, n = {}, 0
    for field in string.gmatch(row .. '\n', '([^\n]*)\n') do
        n = n + 1
        found[n] = field
    end
    if n ~= wanted then
        bad(what .. ' has ' .. n .. ' fields')
    end
    return found
end

local function pack(row)
    return table.concat(row, '\n')
end

local function copy(row)
    local new = {}
    for i = 1, #row do
        new[i] = row[i]
    end
    return new
end

-- Where the slots and the index of a plan are.
local function slots_key(bucket, plan)
    return bucket .. ':slots:' .. plan
end

local function index_key(bucket, plan)
    return bucket .. ':index:' .. plan
end

-- Fails where one of the bucket's own keys is of another type, or has moved to another node, before anything is written.
local proved = {}
local function prove(bucket)
    if not proved[bucket] then
        call('HLEN', bucket)
        call('ZCARD', bucket .. ':ids')
        call('ZCARD', bucket .. ':ends')
        call('ZCARD', bucket .. ':grants')
        proved[bucket] = true
    end
end

-- A plan's row as text and as fields; nil where the ledger does not know it.
local function get_plan(bucket, plan)
    local row = call('HGET', bucket, plan)
    if not row then
        return nil
    end
    local parsed = fields(row, PLAN_FIELDS, 'a plan')
    number(parsed[CURSOR], 'a cursor')
    number(parsed[LOW_WATER], 'a low water')
    number(parsed[LAST_FENCE], 'a fence')
    return parsed, row
end

-- The version of the row of a namespace, or of a copy of it.
local function version_of(key)
    return number(call('HGET', key, ROW_VERSION) or '0', 'a version')
end

local function put_plan(bucket, plan, row, is_new)
    -- The namespace's own row has the empty id, and is no plan. It has a version, which rises as fences do.
    if plan == '' then
        call('HSET', bucket, ROW_VERSION, text(math.max(version_of(bucket) + 1, NOW)))
    end
    call('HSET', bucket, plan, pack(row))
    if is_new and plan ~= '' then
        call('ZADD', bucket .. ':ids', 0, plan)
    end
end

-- Reading takes more than that nothing is refused: a replica would answer from what it has got so far.
local is_master = false
local function must_be_master()
    is_master = is_master or string.find(call('INFO', 'replication'), 'role:master', 1, true)
    if not is_master then
        error(redis.error_reply('READONLY this server is a replica'))
    end
end

local function parse_slot(row)
    local parsed = fields(row, SLOT_FIELDS, 'a slot')
    local state = parsed[STATE]
    if state ~= RUNNING and state ~= OPEN and state ~= ENDED and state ~= NOT_STARTED then
        -- What is none of the others must not pass for open.
        bad('a slot is in no state')
    end
    number(parsed[FENCE], 'a fence')
    number(parsed[ATTEMPT], 'an attempt')
    number(parsed[LEASE_END], 'a lease end')
    number(parsed[TTL], 'a TTL')
    return parsed
end

-- The row of a slot, and the name under which it stands: that of a `run_now` is found by its request, whatever its
-- instant.
local function get_slot(bucket, plan, member)
    local slots = slots_key(bucket, plan)
    local request = request_of(member)
    if request ~= '' then
        member = call('HGET', slots, '@' .. request) or member
    end
    local row = call('HGET', slots, member)
    return row and parse_slot(row) or nil, member
end

-- Whether a row counts as a scheduled slot that was started; only that it is not ahead of now is left to be asked.
local function was_started(member, row)
    if #member > 16 then
        return false
    end
    return row[STATE] == RUNNING or row[STATE] == ENDED or (row[STATE] == OPEN and tonumber(row[ATTEMPT]) > 0)
end

local function unfinished_class(row)
    return (row[STATE] == RUNNING and IS_RUNNING) or (row[STATE] == OPEN and IS_OPEN) or nil
end

-- Writes a row. `old` is the row that stood there; nil where none did.
local function put_slot(bucket, plan, member, old, new)
    local slots, index = slots_key(bucket, plan), index_key(bucket, plan)
    local swept = plan .. '\n' .. member
    call('HSET', slots, member, pack(new))
    local class = was_started(member, new) and STARTED or OTHER
    local old_class = old and (was_started(member, old) and STARTED or OTHER)
    if class ~= old_class then
        if not old_class and #member > 16 then
            call('HSET', slots, '@' .. request_of(member), member)
        end
        -- Added before the other goes: a key that vanishes is not made anew on a node that its slot is leaving.
        call('ZADD', index, 0, class .. member)
        if old_class then
            call('ZREM', index, old_class .. member)
        end
    end
    local unfinished, was_unfinished = unfinished_class(new), old and unfinished_class(old)
    if unfinished ~= was_unfinished then
        if unfinished then
            call('ZADD', index, 0, unfinished .. member)
        end
        if was_unfinished then
            call('ZREM', index, was_unfinished .. member)
        end
    end
    if unfinished == IS_RUNNING then
        local lease_end = tonumber(new[LEASE_END])
        call('ZADD', bucket .. ':ends', text(lease_end), swept)
        call('ZADD', bucket .. ':grants', text(lease_end - tonumber(new[TTL])), swept)
    elseif unfinished == IS_OPEN then
        -- Open slots come first in each sweep, the oldest before the others.
        call('ZADD', bucket .. ':ends', text(at_of(member) - SHIFT), swept)
        call('ZREM', bucket .. ':grants', swept)
        proved[bucket] = nil
    elseif was_unfinished then
        call('ZREM', bucket .. ':ends', swept)
        call('ZREM', bucket .. ':grants', swept)
        proved[bucket] = nil
    end
end

-- A range record over (after, upto]; nothing where that holds no second.
local function put_range(bucket, plan, after, upto, count, reason)
    if after < upto then
        local range = RANGE .. spell(upto) .. spell(after + 1) .. '\n' .. count .. '\n' .. reason .. '\n' .. text(NOW)
        call('ZADD', index_key(bucket, plan), 0, range)
    end
end

-- How many rows of the plan are running, whatever their lease ends.
local function count_running(index)
    return call('ZLEXCOUNT', index, '[' .. IS_RUNNING, '(' .. IS_OPEN)
end

-- The row of a slot that was not started. Lua has no named arguments: see the list of fields.
local function not_started(kind, reason)
    return { NOT_STARTED, reason, kind, string.rep('0', 32), '', '0', '0', '0', '0', '', '', '', '', '', '', text(NOW), '0', '', '', '' }
end

-- Makes `row` one that nobody will start: orphaned where it was started before, else not started for `reason`.
local function lay_to_rest(row, reason)
    if tonumber(row[ATTEMPT]) == 0 then
        row[STATE], row[HOW] = NOT_STARTED, reason
    else
        row[STATE], row[HOW] = ENDED, ORPHANED
    end
    row[LEASE_END] = '0'
    row[ENDED_AT] = text(NOW)
end

-- Opens `row` again and remembers its nonce as released, so that a late duplicate of its claim is granted nothing.
local function release(row)
    row[STATE], row[HOW] = OPEN, ''
    row[LEASE_END] = '0'
    local released = row[RELEASED_NONCES] .. row[NONCE]
    row[RELEASED_NONCES] = string.sub(released, -32 * RELEASED)
end

local function is_released(row, nonce)
    local released = row[RELEASED_NONCES]
    for from = 1, #released, 32 do
        if string.sub(released, from, from + 31) == nonce then
            return true
        end
    end
    return false
end

-- The answer: texts, one after the other. First the number of the call, so that no answer is ever taken for that of
-- another, then the server's now.
local answer = { arg(), text(NOW) }
local function say(...)
    local n = #answer
    for i = 1, select('#', ...) do
        answer[n + i] = (select(i, ...))
    end
end
