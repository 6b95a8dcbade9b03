-- Writes a part of a publication, if the caller is still the publisher.
-- KEYS: documents (hash), version (hash), changes (sorted set).
-- ARGV: fence, epoch, version, "1" in the last part, channel, then pairs of
-- field and document, where an empty document removes the field.
-- Returns 1, or 0 where the fence or epoch is another's by now.
local known = redis.call('HMGET', KEYS[2], 'fence', 'epoch', 'version')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then
  return 0
end
local version = tonumber(ARGV[3])
if known[3] and tonumber(known[3]) >= version then
  return redis.error_reply('version ' .. ARGV[3] .. ' is not after ' .. known[3])
end
for i = 6, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[i])
end
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[2], 'version', ARGV[3])
  redis.call('PUBLISH', ARGV[5], ARGV[3])
end
return 1
