-- The notice board: of each kind a hash of bodies and a sorted set of ends.
--
-- KEYS: bodies, ends.
-- ARGV: post key until body | list | take key.
-- Answers: nothing | key until body of each | until body, nothing where there is none.

local what = arg()
call('ZCARD', KEYS[2])
call('HLEN', KEYS[1])

if what == 'post' then
    local key, until_, body = arg(), arg(), arg()
    -- Whoever posts takes down what is over, so that instances that went away leave nothing behind.
    local over = call('ZRANGEBYSCORE', KEYS[2], '-inf', text(NOW), 'LIMIT', 0, 100)
    for i = 1, #over do
        call('HDEL', KEYS[1], over[i])
        call('ZREM', KEYS[2], over[i])
    end
    call('HSET', KEYS[1], key, until_ .. '\n' .. body)
    call('ZADD', KEYS[2], until_, key)
elseif what == 'list' then
    local all = call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
        local until_, body = string.match(all[i + 1], '^(-?%d+)\n(.*)$')
        if not until_ then
            bad('a posting holds something else')
        elseif tonumber(until_) > NOW then
            say(all[i], until_, body)
        end
    end
elseif what == 'take' then
    local key = arg()
    local posting = call('HGET', KEYS[1], key)
    if posting then
        local until_, body = string.match(posting, '^(-?%d+)\n(.*)$')
        if not until_ then
            bad('a posting holds something else')
        end
        call('HDEL', KEYS[1], key)
        call('ZREM', KEYS[2], key)
        -- What is over counts as gone.
        if tonumber(until_) > NOW then
            say(until_, body)
        end
    end
else
    bad('nobody knows how to ' .. what)
end
return answer
