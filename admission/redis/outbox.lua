-- Two operations on a shard's outbox, for relays.
--
-- claim <lease key> <owner> <ttl ms>: 1 when the owner holds the lease now.
-- release <lease key> <owner>: gives it up; only the owner can.
-- trim <outbox> <meta> <last entry> <first kept> <cumulative>: drops entries
-- through the last one and raises the count of trimmed records, which never
-- falls, so a relay that trims late does no harm.

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
local trimmed = tonumber(redis.call('HGET', KEYS[2], 'trimmed')) or 0
if tonumber(ARGV[3]) > trimmed then redis.call('HSET', KEYS[2], 'trimmed', ARGV[3]) end
return redis.call('XTRIM', KEYS[1], 'MINID', ARGV[2])
