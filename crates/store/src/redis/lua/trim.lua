-- Lets go of events that are too old, some thousands at a time, and says when the oldest that stays was written.
local head, events, channel = KEYS[1], KEYS[2], KEYS[3]
local known = redis.call('HMGET', head, 'e', 'f', 'n', 'k', 'o')
if not known[1] then
  return {'none'}
end
local function digits(number)
  return string.format('%.0f', number)
end
local oldest = tonumber((known[4] == '2') and ARGV[2] or (known[4] == '7') and ARGV[3] or ARGV[1])
local from, next = tonumber(known[2]), tonumber(known[3])
local first, since = from, ''
while first < next and since == '' and first - from < 5000 do
  local chunk = redis.call('XRANGE', events, digits(first) .. '-0', '+', 'COUNT', 100)
  if #chunk == 0 then
    first = next
  end
  for _, entry in ipairs(chunk) do
    if tonumber(entry[2][2]) >= oldest then
      since = entry[2][2]
      break
    end
    first = tonumber(string.match(entry[1], '^%d+')) + 1
  end
end
if first > from then
  redis.call('HSET', head, 'f', digits(first))
  redis.call('XTRIM', events, 'MINID', '=', digits(first) .. '-0')
  redis.call('SPUBLISH', channel, '')
end
local more = (first < next and since == '') and '1' or '0'
return {'done', digits(from), digits(first), since, more, known[4] or '', known[5] or ''}
