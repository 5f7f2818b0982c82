-- Takes a name out of an index, unless it was entered anew since: at or before the given moment if there is one, else
-- longer ago than any commit that follows an entry can take.
local was = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not was then
  return 0
end
local limit
if ARGV[2] ~= '' then
  limit = tonumber(ARGV[2])
else
  local time = redis.call('TIME')
  limit = (tonumber(time[1]) - 600) * 1000000
end
if tonumber(was) <= limit then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0
