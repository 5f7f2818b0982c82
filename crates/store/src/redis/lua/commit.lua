-- One commit to one log: all of it or nothing.
--
-- Everything that can refuse it is looked at before the first write, since Redis does not undo a script that fails.
-- Numbers stay below 2^53 and so are exact in Lua; fences need not, and are compared as decimal digits.
local head, events, items, ghost, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local at = 0
local function take()
  at = at + 1
  return ARGV[at]
end
local function digits(number)
  return string.format('%.0f', number)
end
local function less(a, b)
  if #a ~= #b then
    return #a < #b
  end
  return a < b
end

local run, trusted = take(), take() == '1'
local id, after, fence, fresh_epoch, at_ms = take(), take(), take(), take(), take()
local others_max, tasks_max, nodes_max = tonumber(take()), tonumber(take()), tonumber(take())
local create_epoch, create_after, release = take(), take(), take()

local known = redis.call('HMGET', head, 'e', 's', 'f', 'n', 'x', 'r', 'l', 'a', 'k', 'o')
local epoch, epoch_first, first, next = known[1], known[2], tonumber(known[3]), tonumber(known[4])

-- The same commit again: its answer was lost on the way. Writing makes the wait for replicas cover it.
if epoch and known[7] == id then
  redis.call('HSET', head, 'l', id)
  return cjson.decode(known[8])
end
if not epoch then
  local gone = redis.call('GET', ghost)
  if gone and string.sub(gone, 1, #id) == id then
    redis.call('EXPIRE', ghost, 120)
    return cjson.decode(string.sub(gone, #id + 1))
  end
end

if create_epoch ~= '' then
  if epoch then
    return {'exists'}
  end
  epoch, first = create_epoch, tonumber(create_after) + 1
  epoch_first, next = digits(first), first
elseif not epoch then
  return {'none'}
elseif less(fence, known[5]) then
  return {'stale', known[5]}
elseif fence ~= '0' and fence == known[5] then
  -- One process at a time has this fence, and it numbers its commits. An earlier number is a copy of a commit that was
  -- sent again on another connection, done there, and followed by others: it came late, and is not done once more.
  local writer, nth = string.match(id, '^(%x+)%.(%d+);$')
  local last_writer, last_nth = string.match(known[7] or '', '^(%x+)%.(%d+);$')
  if writer and writer == last_writer and less(nth, last_nth) then
    return {'late'}
  end
end
local count = tonumber(take())
if next + count > 9007199254740991 then
  return {'spent'}
end

-- Another server, or another life of this one, wrote here last. Unless it kept everything before it answered, and this
-- one began with what that one kept, numbers may have been given out that no node has any more.
if create_epoch == '' then
  local kept = string.match(known[6], '^[^+]*') == string.match(run, '^[^+]*')
    or string.sub(known[6], -1) == '+' and trusted
      and string.match(known[6], '^[^/]*') == string.match(run, '^[^/]*')
  if after ~= '' and after ~= known[7] and (not kept or fence ~= known[5]) then
    -- The commit that this one builds on went with that life, or with the grant of its fence, and an earlier holder may
    -- have gone on since. What its writer believes is not what is here.
    return {'lost'}
  end
  if not kept then
    epoch, epoch_first = fresh_epoch, digits(next)
  end
end

if create_epoch == '' and fence ~= known[5] then
  -- This fence was granted to no node, as far as this server still knows; so its holder, if it knows one, is of the past.
  redis.call('HDEL', head, 'h')
end
if create_epoch ~= '' then
  -- What is left of a log whose head was deleted.
  redis.call('DEL', events, items)
end
local base = next
for _ = 1, count do
  local before, behind = take(), take()
  local seq = digits(next)
  local bytes = before .. '"seq":' .. seq .. ',"event_id":"' .. epoch .. '-' .. seq .. '"' .. behind
  local added = redis.pcall('XADD', events, seq .. '-0', 't', at_ms, 'e', bytes)
  if type(added) == 'table' and added.err then
    if next > base or string.find(added.err, 'OOM', 1, true) then
      return redis.error_reply(added.err)
    end
    -- Another program wrote to this key. What it holds is not ours, and the log begins here now.
    redis.call('DEL', events)
    first = next
    redis.call('XADD', events, seq .. '-0', 't', at_ms, 'e', bytes)
  end
  next = next + 1
end

local fields = {'e', epoch, 's', epoch_first, 'n', digits(next), 'x', fence, 'r', run, 'l', id}
local kind, owner = known[9], known[10]
if take() == '1' then
  kind, owner = take(), take()
  for _, field in ipairs({'k', kind, 'o', owner, 't', take(), 'b', take()}) do
    fields[#fields + 1] = field
  end
end
for _ = 1, tonumber(take()) do
  local key = take()
  if take() == '1' then
    redis.call('HSET', items, key, take())
  else
    redis.call('HDEL', items, key)
  end
end

local events_max = (kind == '2') and tasks_max or (kind == '7') and nodes_max or others_max
local from = first
if next - first > events_max then
  first = next - events_max
  redis.call('XTRIM', events, 'MINID', '=', digits(first) .. '-0')
end
local answer = {'done', epoch, digits(base), digits(next), digits(from), digits(first)}
local news = ''
if release == 'log' then
  redis.call('DEL', head, events, items)
  redis.call('SET', ghost, id .. cjson.encode(answer), 'EX', 120)
else
  if release == 'contents' then
    redis.call('DEL', events, items)
    first = next
  end
  fields[#fields + 1] = 'f'
  fields[#fields + 1] = digits(first)
  fields[#fields + 1] = 'a'
  fields[#fields + 1] = cjson.encode(answer)
  redis.call('HSET', head, unpack(fields))
  news = id .. ' ' .. epoch .. ' ' .. digits(first) .. ' ' .. digits(next)
end
-- How far the log has come, for those who know that much already and need not look.
redis.call('SPUBLISH', channel, news)
-- What the record said before, so that the directory can be put right.
answer[7], answer[8] = known[9] or '', known[10] or ''
return answer
