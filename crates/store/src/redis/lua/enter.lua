-- Writes a name into an index, newer than anything written there under this name before. Says whether it is new there.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local was = redis.call('ZSCORE', KEYS[1], ARGV[1])
if was and tonumber(was) >= now then
  now = tonumber(was) + 1
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
return was and 0 or 1
