// Package redis copies tenants, keys and the platform's document from their
// store to Redis, and keeps every gateway's copy in memory.
//
// One Publisher at a time writes; every gateway has a Directory. What they
// share are four keys in one slot:
//
//	<prefix>{cfg}          hash: field ("tenant:<id>", "key:<id>", "platform") → JSON
//	<prefix>{cfg}:version  hash: version, epoch, fence
//	<prefix>{cfg}:changes  sorted set: field → version of its last change
//	<prefix>{cfg}:alive    there while a publisher is at work, for 30 s after
//
// The version grows with each publication and is at least the store's. It is
// written last, so a set of documents without version is not yet whole. The
// epoch is made when Redis is found empty: a directory that meets another
// epoch loads everything. The fence is a publisher's right to write: one that
// was replaced without noticing cannot overwrite newer documents with older.
//
// A version is announced on the channel <prefix>{cfg}. Messages may be lost,
// so directories also look every 400 ms, and so does the publisher at its source:
// where both messages are lost a change still arrives within a second.
package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// PollInterval is how often a publisher and a directory look for changes of
// which no message told them.
const PollInterval = 400 * time.Millisecond

var (
	//go:embed publish.lua
	publishSource string
	//go:embed take.lua
	takeSource string

	publishScript = redis.NewScript(publishSource)
	takeScript    = redis.NewScript(takeSource)
)

// callTimeout bounds each exchange with Redis.
const callTimeout = 5 * time.Second

// aliveFor is how long directories go without a publisher before they say so.
const aliveFor = 30 * time.Second

type keys struct {
	documents, version, changes, alive, channel string
}

func keysOf(prefix string) keys {
	base := prefix + "{cfg}"
	return keys{documents: base, version: base + ":version", changes: base + ":changes", alive: base + ":alive", channel: base}
}

// scan reads all documents, in parts: it does not block Redis for long.
func scan(ctx context.Context, client redis.UniversalClient, k keys) (map[string]string, error) {
	documents := map[string]string{}
	var cursor uint64
	for {
		pairs, next, err := client.HScan(ctx, k.documents, cursor, "*", 500).Result()
		if err != nil {
			return nil, fmt.Errorf("read published documents: %w", err)
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			documents[pairs[i]] = pairs[i+1]
		}
		if cursor = next; cursor == 0 {
			return documents, nil
		}
	}
}

// pause waits, and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// stopped reports whether err only says that ctx ended.
func stopped(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}
