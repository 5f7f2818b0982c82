-- What time it is for all nodes, in milliseconds. A node that has a clock already says it (ARGV[1]), and how far that is
-- from the time of this server is kept for a while (ARGV[2]); a node that begins asks, with ARGV[1] empty.
local time = redis.call('TIME')
local own = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if ARGV[1] ~= '' then
  redis.call('SET', KEYS[1], string.format('%.0f', tonumber(ARGV[1]) - own), 'PX', ARGV[2])
  return ARGV[1]
end
local ahead = tonumber(redis.call('GET', KEYS[1]) or '') or 0
return string.format('%.0f', own + ahead)
