package redis

import (
	"context"
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Added returns how many records were ever put into each shard's outbox. It is
// written together with the state they tell of and never falls, unless the
// state itself is replaced by an older copy.
func (s *Store) Added(ctx context.Context) (map[int]int64, error) {
	metas, err := s.metas(ctx, "added")
	if err != nil {
		return nil, err
	}
	added := make(map[int]int64, len(metas))
	for shard, values := range metas {
		added[shard] = 0
		if text, ok := values[0].(string); ok {
			added[shard], _ = strconv.ParseInt(text, 10, 64) // the script wrote it
		}
	}
	return added, nil
}

// forgetScript closes a shard, if its epoch is still the one meant.
var forgetScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`)

// Forget takes the epochs away from shards that are still in them: every
// gateway refuses their operations from then on, until they are seeded anew.
// It returns how many shards it closed. Their outboxes stay.
func (s *Store) Forget(ctx context.Context, epochs map[int]string) (int, error) {
	closed := 0
	for shard, epoch := range epochs {
		if epoch == "" {
			continue
		}
		n, err := forgetScript.Run(ctx, s.client, []string{s.shardKey(shard, "epoch")}, epoch).Int()
		if err != nil {
			return closed, s.outOfReach(ctx, err)
		}
		closed += n
	}
	return closed, nil
}

// Waiting returns how many entries are in the outboxes of some shards.
func (s *Store) Waiting(ctx context.Context, shards map[int]bool) (int64, error) {
	pipe := s.client.Pipeline()
	var lengths []*redis.IntCmd
	for shard := range shards {
		lengths = append(lengths, pipe.XLen(ctx, s.shardKey(shard, "outbox")))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return 0, s.outOfReach(ctx, err)
	}
	var sum int64
	for _, n := range lengths {
		sum += n.Val()
	}
	return sum, nil
}
