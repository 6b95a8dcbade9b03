-- Makes the caller the publisher: whoever was it before finds another fence.
-- KEYS: version (hash). ARGV: an epoch for a Redis that has none.
-- Returns fence, epoch, and the published version or "".
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not epoch then
  epoch = ARGV[1]
  redis.call('HSET', KEYS[1], 'epoch', epoch)
end
local fence = redis.call('HINCRBY', KEYS[1], 'fence', 1)
return {tostring(fence), epoch, redis.call('HGET', KEYS[1], 'version') or ''}
