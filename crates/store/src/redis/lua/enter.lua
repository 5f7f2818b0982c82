-- Writes a name into an index, newer than anything written there under this name before. Says when, if it is
-- new there.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local was = redis.call('ZSCORE', KEYS[1], ARGV[1])
if was and tonumber(was) >= now then
  now = tonumber(was) + 1
end
local entered = string.format('%.0f', now)
redis.call('ZADD', KEYS[1], entered, ARGV[1])
return was and '' or entered
