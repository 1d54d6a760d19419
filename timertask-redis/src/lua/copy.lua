-- The row of a namespace, and its copies in each bucket of a cluster: the newest wins.
--
-- KEYS: where the row or a copy of it stands.
-- ARGV: a version, and the row of that version.
-- Answers: the version that stands there then, and its row; 0 and nothing where there is none.

local version, row = number(arg(), 'a version'), arg()
local known = version_of(KEYS[1])
if version > known then
    call('HSET', KEYS[1], '', row, ROW_VERSION, text(version))
    known = version
end
say(text(known), call('HGET', KEYS[1], '') or '')
return answer
