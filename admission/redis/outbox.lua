-- Three operations on a shard's outbox, for relays.
--
-- claim <lease key> <owner> <ttl ms>: 1 when the owner holds the lease now.
-- release <lease key> <owner>: gives it up; only the owner can.
-- trim <outbox> <meta> <epoch key>, <first kept> <last entry> <its epoch>: drops
-- entries through the last one, and sets the count of trimmed records by what is
-- left: what was counted before the first entry that stays. A relay that trims
-- late may mean a stream that is no more, because Redis was emptied or restored
-- since; then nothing is dropped, and the count is this stream's all the same.

local what = ARGV[1]
if what == 'claim' then
  local owner = redis.call('GET', KEYS[1])
  if owner and owner ~= ARGV[2] then return 0 end
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 1
end
if what == 'release' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return 0 end
  return redis.call('DEL', KEYS[1])
end

local function fields(entry)
  local out = {}
  for i = 1, #entry[2], 2 do out[entry[2][i]] = entry[2][i + 1] end
  return out
end

local dropped = 0
local same = redis.call('GET', KEYS[3]) == ARGV[4]
if not same then -- an entry that outlived its epoch leaves as well
  local last = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
  same = last and fields(last).p == ARGV[4]
end
if same then dropped = redis.call('XTRIM', KEYS[1], 'MINID', ARGV[2]) end

local trimmed = tonumber(redis.call('HGET', KEYS[2], 'added')) or 0
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if first then
  local f = fields(first)
  local through, n = tonumber(f.c), tonumber(f.n)
  if not through or not n then return dropped end
  trimmed = math.max(0, math.min(trimmed, through - n))
end
redis.call('HSET', KEYS[2], 'trimmed', string.format('%.0f', trimmed))
return dropped
