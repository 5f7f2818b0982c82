-- Grants the right to write, unless it has a holder that neither makes the claim nor is named by it: higher than every
-- grant before, also than those which a flushed server has forgotten, as long as its clock goes forward. Says which
-- commit was the last one then.
local head, by, instead_of = KEYS[1], ARGV[1], ARGV[2]
local known = redis.call('HMGET', head, 'x', 'h', 'l')
local holder = known[2]
if not known[1] then
  return {'none'}
end
if holder and holder ~= by and holder ~= instead_of then
  return {'held', holder}
end
redis.call('HINCRBY', head, 'x', 1)
local granted = redis.call('HGET', head, 'x')
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
if #granted < #now or (#granted == #now and granted < now) then
  granted = now
end
redis.call('HSET', head, 'x', granted, 'h', by)
return {'done', granted, known[3] or ''}
