package redis

import (
	"context"
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Progress returns how many records were ever put into each shard's outbox, and
// the epochs before and after that was read, all in one exchange. The number is
// written together with the state that the records tell of and never falls,
// unless the state itself is replaced by an older copy.
func (s *Store) Progress(ctx context.Context) (before map[int]string, added map[int]int64, after map[int]string, err error) {
	pipe := s.client.Pipeline() // in order on each node
	n := s.opts.Shards
	first, counts, second := make([]*redis.StringCmd, n), make([]*redis.StringCmd, n), make([]*redis.StringCmd, n)
	for shard := range n {
		first[shard] = pipe.Get(ctx, s.shardKey(shard, "epoch"))
		counts[shard] = pipe.HGet(ctx, s.shardKey(shard, "meta"), "added")
		second[shard] = pipe.Get(ctx, s.shardKey(shard, "epoch"))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, nil, nil, s.outOfReach(ctx, err)
	}
	before, added, after = map[int]string{}, map[int]int64{}, map[int]string{}
	for shard := range n {
		for _, cmd := range [...]*redis.StringCmd{first[shard], counts[shard], second[shard]} {
			if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
				return nil, nil, nil, s.outOfReach(ctx, err)
			}
		}
		if epoch := first[shard].Val(); epoch != "" {
			before[shard] = epoch
		}
		if epoch := second[shard].Val(); epoch != "" {
			after[shard] = epoch
		}
		added[shard], _ = strconv.ParseInt(counts[shard].Val(), 10, 64) // the script wrote it; 0 for none
	}
	return before, added, after, nil
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
