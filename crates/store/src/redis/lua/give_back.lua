-- The log has no holder any more, if this node still held it under this fence.
local head, by, fence = KEYS[1], ARGV[1], ARGV[2]
local known = redis.call('HMGET', head, 'x', 'h')
if known[1] == fence and known[2] == by then
  redis.call('HDEL', head, 'h')
end
return {'done'}
