-- Grants the right to write: higher than every grant before, also than those which a flushed server has forgotten, as
-- long as its clock goes forward.
local head = KEYS[1]
if redis.call('HEXISTS', head, 'x') == 0 then
  return {'none'}
end
redis.call('HINCRBY', head, 'x', 1)
local granted = redis.call('HGET', head, 'x')
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
if #granted < #now or (#granted == #now and granted < now) then
  granted = now
  redis.call('HSET', head, 'x', granted)
end
return {'done', granted}
