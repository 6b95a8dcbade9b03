package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"tollgate/admission"
)

// How much a sweep takes at once.
const (
	sweepTenants = 512 // tenants asked in one pipeline
	sweepHolds   = 1024
)

// Sweep expires the holds of a shard whose deadline has passed: the leases end,
// the hold stays until somebody settles or cancels it, and an event says so.
// It returns how many it expired. Any number of sweepers may run at once.
func (s *Store) Sweep(ctx context.Context, shard int) (int, error) {
	var now int64
	expired := 0
	var cursor uint64
	for first := true; ; first = false {
		pipe := s.client.Pipeline()
		var clock *redis.Cmd
		if first {
			// TIME has no key; an empty evaluation in the shard's slot asks its node.
			clock = pipe.Eval(ctx, "local t = redis.call('TIME') return {t[1], t[2]}", []string{s.shardKey(shard, "meta")})
		}
		scan := pipe.SScan(ctx, s.shardKey(shard, "tenants"), cursor, "", sweepTenants)
		if _, err := pipe.Exec(ctx); err != nil {
			return expired, s.outOfReach(ctx, err)
		}
		if first {
			var err error
			if now, err = s.millis(clock); err != nil {
				return expired, fmt.Errorf("%w: time of shard %d: %w", admission.ErrUnavailable, shard, err)
			}
		}
		tenants, next := scan.Val()
		n, err := s.sweepTenants(ctx, shard, tenants, now)
		expired += n
		if err != nil {
			return expired, err
		}
		if cursor = next; cursor == 0 {
			return expired, nil
		}
	}
}

// millis is the time that Redis answered.
func (s *Store) millis(clock *redis.Cmd) (int64, error) {
	if s.redisNow != nil {
		return s.redisNow().UnixMilli(), nil
	}
	v, err := clock.StringSlice()
	if err != nil {
		return 0, err
	}
	if len(v) != 2 {
		return 0, fmt.Errorf("%d values", len(v))
	}
	sec, err1 := strconv.ParseInt(v[0], 10, 64)
	micros, err2 := strconv.ParseInt(v[1], 10, 64)
	return sec*1000 + micros/1000, errors.Join(err1, err2)
}

func (s *Store) sweepTenants(ctx context.Context, shard int, tenants []string, now int64) (int, error) {
	if len(tenants) == 0 {
		return 0, nil
	}
	pipe := s.client.Pipeline()
	due := make([]*redis.StringSliceCmd, len(tenants))
	for i, tenant := range tenants {
		due[i] = pipe.ZRangeByScore(ctx, s.shardKey(shard, "l:"+tenant), &redis.ZRangeBy{
			Min: "-inf", Max: strconv.FormatInt(now, 10), Count: sweepHolds,
		})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, s.outOfReach(ctx, err)
	}
	expired := 0
	for i, tenant := range tenants {
		n, err := s.expire(ctx, shard, tenant, due[i].Val())
		expired += n
		if err != nil {
			return expired, err
		}
	}
	return expired, nil
}

// expire sends an expiry for each hash, together, so that they share batches.
func (s *Store) expire(ctx context.Context, shard int, tenant string, hashes []string) (int, error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	expired := 0
	var failed error
	slots := make(chan struct{}, maxBatch)
	for _, hash := range hashes {
		if len(hash) != admission.HashLen || strings.ContainsAny(hash, "| ") {
			continue // not ours
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			o := newOp(ctx)
			o.kind, o.tenant = 'X', tenant
			o.argument(hash)
			err := s.target(shard).do(o)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				failed = err
				return
			case o.reply == "X|1":
				expired++
			case o.reply[0] != 'X':
				failed = verdictError(o.reply)
			}
			o.free()
		})
	}
	wg.Wait()
	return expired, failed
}
