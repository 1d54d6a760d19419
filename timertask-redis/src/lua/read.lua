-- Reading, by pages. Nothing is written.
--
-- KEYS: what the query is about: a plan's bucket; for the queries of a whole namespace its buckets, one after the other.
-- ARGV: the query, then what it asks for:
--   slots n (bucket plan slot)…          answers, of each that has a row: its place, slot, row
--   unfinished plan limit                answers slot, row of each; of both classes up to limit
--   history plan after upto slot first? limit   answers the plan's row, the number of range records and they, slot and row
--                                        of each; one more than limit where there are more
--   lapsed n skew bucket phase score name limit   n buckets from the one of that number; answers the version of the first's
--                                        copy of the namespace's row, 1 where there are more, then bucket, phase, score,
--                                        name, row of each
--   plans n after each                   answers, of each bucket: 1 where it has more, how many, and name and row of each

local queries = {}

local function say_slot(bucket, plan, member)
    local row = call('HGET', slots_key(bucket, plan), member)
    say(member, row or bad('a slot without a row'))
end

function queries.slots()
    for place = 1, number(arg(), 'the number of slots') do
        local bucket, plan, member = key_arg(), arg(), arg()
        local slots = slots_key(bucket, plan)
        local request = request_of(member)
        if request ~= '' then
            member = call('HGET', slots, '@' .. request) or member
        end
        local row = call('HGET', slots, member)
        if row then
            say(text(place), member, row)
        end
    end
end

function queries.unfinished()
    local plan, limit = arg(), number(arg(), 'a limit')
    local index = index_key(KEYS[1], plan)
    for _, class in ipairs({ IS_RUNNING, IS_OPEN }) do
        local found = call('ZRANGEBYLEX', index, '[' .. class, '(' .. (class + 1), 'LIMIT', 0, limit)
        for i = 1, #found do
            say_slot(KEYS[1], plan, string.sub(found[i], 2))
        end
    end
end

function queries.history()
    local bucket, plan = KEYS[1], arg()
    local after, upto = number(arg(), 'a trigger point'), number(arg(), 'a trigger point')
    local last, first_page, limit = arg(), arg() == '1', number(arg(), 'a limit')
    local index = index_key(bucket, plan)
    local _, row = get_plan(bucket, plan)
    say(row or '')
    local ranges = {}
    if first_page then
        local reaching = call('ZRANGEBYLEX', index, '[' .. RANGE .. spell(after + 1), '(' .. (RANGE + 1))
        for i = 1, #reaching do
            if number(string.sub(reaching[i], 18, 33), 'a range') - SHIFT <= upto then
                ranges[#ranges + 1] = reaching[i]
            end
        end
    end
    say(text(#ranges))
    for i = 1, #ranges do
        say(ranges[i])
    end
    -- The two classes are each in order; merged, a trigger point's own slot comes before its requests.
    local function page(class)
        local from = last == '' and '[' .. class .. spell(after + 1) or '(' .. class .. last
        return call('ZRANGEBYLEX', index, from, '(' .. class .. spell(upto + 1), 'LIMIT', 0, limit + 1)
    end
    local others, started, i, j = page(OTHER), page(STARTED), 1, 1
    for _ = 1, limit + 1 do
        local other, own = others[i], started[j]
        if own and (not other or at_of(string.sub(own, 2)) <= at_of(string.sub(other, 2))) then
            say_slot(bucket, plan, string.sub(own, 2))
            j = j + 1
        elseif other then
            say_slot(bucket, plan, string.sub(other, 2))
            i = i + 1
        else
            break
        end
    end
end

-- The place in a sorted set, counted from 0, behind the entry `name` with `score`; where that has moved on, of the first
-- with as high a score.
local function behind(key, score, name)
    local now = call('ZSCORE', key, name)
    if now and tonumber(now) == score then
        return call('ZRANK', key, name) + 1
    end
    return call('ZCOUNT', key, '-inf', '(' .. text(score))
end

-- The buckets in turn; in each first the slots that are open or have lapsed, by lease end, then those whose last renewal
-- lies ahead of now, by that.
function queries.lapsed()
    local buckets = number(arg(), 'the number of buckets')
    local skew, from_bucket, from_phase = number(arg(), 'a skew'), number(arg(), 'a bucket'), number(arg(), 'a phase')
    local score, name, limit = tonumber(arg()), arg(), number(arg(), 'a limit')
    local found, more = {}, false
    local function walk(b, phase, bucket, key, from, upto)
        while not more do
            local page = call('ZRANGE', key, from, from + limit - #found, 'WITHSCORES')
            for i = 1, #page, 2 do
                if upto and tonumber(page[i + 1]) > upto then
                    return
                elseif #found >= limit then
                    more = true
                    return
                end
                local plan, member = string.match(page[i], '^([^\n]*)\n(.*)$')
                local row = plan and call('HGET', slots_key(bucket, plan), member)
                found[#found + 1] = { text(b), text(phase), page[i + 1], page[i], row or bad('a slot without a row') }
            end
            if #page == 0 then
                return
            end
            from = from + #page / 2
        end
    end
    for place = 1, buckets do
        local b, bucket = from_bucket + place - 1, KEYS[place]
        for phase = (b == from_bucket and from_phase or 1), 2 do
            local resumes = score and b == from_bucket and phase == from_phase
            if phase == 1 then
                local ends = bucket .. ':ends'
                walk(b, phase, bucket, ends, resumes and behind(ends, score, name) or 0, NOW)
            else
                local grants = bucket .. ':grants'
                local ahead = call('ZCOUNT', grants, '-inf', text(NOW + skew))
                walk(b, phase, bucket, grants, math.max(ahead, resumes and behind(grants, score, name) or 0), nil)
            end
            if more then
                break
            end
        end
        if more then
            break
        end
    end
    say(text(version_of(KEYS[1])), more and '1' or '0')
    for i = 1, #found do
        say(unpack(found[i]))
    end
end

function queries.plans()
    local buckets, after, each = number(arg(), 'the number of buckets'), arg(), number(arg(), 'a limit')
    for place = 1, buckets do
        local bucket = KEYS[place]
        local ids = call('ZRANGEBYLEX', bucket .. ':ids', '(' .. after, '+', 'LIMIT', 0, each)
        if #ids > 0 then
            say(#ids == each and '1' or '0', text(#ids))
            for i = 1, #ids do
                local _, row = get_plan(bucket, ids[i])
                say(ids[i], row or bad('a plan without a row'))
            end
        end
    end
end

must_be_master()
local query = arg();
(queries[query] or bad('nobody knows how to read ' .. query))()
return answer
