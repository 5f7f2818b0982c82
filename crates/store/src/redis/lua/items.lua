-- All items whose key starts with a prefix, in no order.
local head, items, prefix = KEYS[1], KEYS[2], ARGV[1]
if redis.call('EXISTS', head) == 0 then
  return {'none'}
end
local wanted, found = {}, {}
local function fetch()
  if #wanted > 0 then
    local values = redis.call('HMGET', items, unpack(wanted))
    for i, key in ipairs(wanted) do
      found[#found + 1] = key
      found[#found + 1] = values[i]
    end
    wanted = {}
  end
end
for _, key in ipairs(redis.call('HKEYS', items)) do
  if string.sub(key, 1, #prefix) == prefix then
    wanted[#wanted + 1] = key
    if #wanted == 500 then
      fetch()
    end
  end
end
fetch()
return {'done', found}
