package testenv

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Redis returns a client of the single Redis and a key prefix of the test's
// own. Keys under the prefix are deleted when the test ends.
func Redis(t testing.TB) (client redis.UniversalClient, prefix string) {
	t.Helper()
	single := redis.NewClient(&redis.Options{Addr: address(t, EnvRedis)})
	prefix = "test:" + unique() + ":"
	t.Cleanup(func() { _ = single.Close() })
	atEnd(t, "Redis keys "+prefix+"*", func(ctx context.Context) error {
		return deleteKeys(ctx, single, prefix)
	})
	return single, prefix
}

// RedisCluster returns a client of the Redis Cluster and a key prefix of the
// test's own. Keys under the prefix are deleted on every node when the test
// ends.
func RedisCluster(t testing.TB) (client redis.UniversalClient, prefix string) {
	t.Helper()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses(t, EnvRedisCluster)})
	prefix = "test:" + unique() + ":"
	t.Cleanup(func() { _ = cluster.Close() })
	atEnd(t, "Redis Cluster keys "+prefix+"*", func(ctx context.Context) error {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			return deleteKeys(ctx, node, prefix)
		})
	})
	return cluster, prefix
}

// deleteKeys deletes the keys of one node that begin with prefix, one command
// a key, since keys of one node may lie in different slots.
func deleteKeys(ctx context.Context, node *redis.Client, prefix string) error {
	var cursor uint64
	for {
		keys, next, err := node.Scan(ctx, cursor, prefix+"*", 1000).Result()
		if err != nil {
			return fmt.Errorf("scan: %w", err)
		}
		if len(keys) > 0 {
			_, err = node.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for _, key := range keys {
					pipe.Unlink(ctx, key)
				}
				return nil
			})
			if err != nil && !errors.Is(err, redis.Nil) {
				return fmt.Errorf("unlink: %w", err)
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}
