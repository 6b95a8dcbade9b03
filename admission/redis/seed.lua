-- Rebuilds one tenant's state after Redis was lost, or marks a shard rebuilt.
--
-- tenant: KEYS epoch, tenant hash, tenant leases, tenants set; ARGV 'tenant',
-- epoch, tenant id, then commands: 'H' field value | 'Z' key deadline member |
-- 'R' key record ttl-or-0. Values replace what is there. A shard that has an
-- epoch is in use, and a tenant seeded under this epoch is done: both are left
-- alone, so several rebuilders give the value once.
--
-- finish: KEYS epoch; ARGV 'finish', epoch. Returns the epoch in force.

if ARGV[1] == 'finish' then
  redis.call('SETNX', KEYS[1], ARGV[2])
  return redis.call('GET', KEYS[1])
end

if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if redis.call('HGET', KEYS[2], '@seed') == ARGV[2] then return 0 end
redis.call('DEL', KEYS[2], KEYS[3])
local i = 4
while i <= #ARGV do
  local what = ARGV[i]
  if what == 'H' then
    redis.call('HSET', KEYS[2], ARGV[i + 1], ARGV[i + 2])
    i = i + 3
  elseif what == 'Z' then
    redis.call('ZADD', ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
    i = i + 4
  else
    if ARGV[i + 3] == '0' then
      redis.call('SET', ARGV[i + 1], ARGV[i + 2])
    else
      redis.call('SET', ARGV[i + 1], ARGV[i + 2], 'PX', ARGV[i + 3])
    end
    i = i + 4
  end
end
redis.call('HSET', KEYS[2], '@', '1', '@seed', ARGV[2])
redis.call('SADD', KEYS[4], ARGV[3])
return 1
