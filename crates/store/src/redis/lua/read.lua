-- Events from a number on, within limits, and where the log stands at this very moment.
local head, events = KEYS[1], KEYS[2]
local known = redis.call('HMGET', head, 'e', 's', 'f', 'n')
if not known[1] then
  return {'none'}
end
local function digits(number)
  return string.format('%.0f', number)
end
local from, events_left, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local first, next = tonumber(known[3]), tonumber(known[4])
local found = {}

local function read(seq)
  while seq < next and events_left > 0 do
    local chunk = redis.call('XRANGE', events, digits(seq) .. '-0', '+', 'COUNT', math.min(events_left, 64))
    if #chunk == 0 then
      return seq, next
    end
    for _, entry in ipairs(chunk) do
      local number = tonumber(string.match(entry[1], '^%d+'))
      if number ~= seq then
        return seq, number
      end
      local bytes = entry[2][4]
      if #found > 0 and #bytes > bytes_left then
        return nil
      end
      found[#found + 1] = bytes
      bytes_left = bytes_left - #bytes
      events_left = events_left - 1
      seq = seq + 1
    end
  end
  return nil
end

from = math.max(from, first)
local hole, behind = read(from)
if hole and #found == 0 then
  -- What should be here is not, so the log begins behind the hole now, and its readers are told of a gap. A hole further
  -- on is met by the next read.
  first = math.min(behind, next)
  redis.call('HSET', head, 'f', digits(first))
  redis.call('XTRIM', events, 'MINID', '=', digits(first) .. '-0')
  from = first
  read(from)
end
return {'done', known[1], known[2], digits(first), digits(next), digits(from), found}
