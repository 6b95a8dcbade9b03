package fakeprovider

import (
	"bytes"
	"sync"
)

// prefixCache remembers what prompts began with, message by message, as servers
// of models keep the attention of a prefix. It forgets the older half when it is
// full.
type prefixCache struct {
	mu       sync.Mutex
	now, old map[uint64]struct{}
}

const (
	cacheGeneration = 1 << 16
	leastCached     = 16 // tokens; shorter prefixes are not kept
)

func newPrefixCache() *prefixCache { return &prefixCache{now: map[uint64]struct{}{}} }

// longest is the length of the longest prefix that was seen before; all are
// remembered from now on.
func (c *prefixCache) longest(marks []mark) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached := int64(0)
	for _, m := range marks {
		if m.input < leastCached {
			continue
		}
		_, isNew := c.now[m.hash]
		_, isOld := c.old[m.hash]
		if isNew || isOld {
			cached = max(cached, m.input)
		}
		if len(c.now) >= cacheGeneration {
			c.now, c.old = map[uint64]struct{}{}, c.now
		}
		c.now[m.hash] = struct{}{}
	}
	return cached
}

// readCache finds how much of the input need not be read again. Anthropic caches
// only what a request asks for, and counts what is written to the cache, too.
func (x *exchange) readCache(a *ask) {
	u := &x.usage
	if c := x.server.cache; c != nil && (x.dialect != anthropic || bytes.Contains(x.body, []byte(`"cache_control"`))) {
		// The last token is always read: the answer begins with it.
		u.Cached = min(c.longest(a.marks), u.Input-1)
		if x.dialect == anthropic && u.Cached < u.Input-1 && u.Input >= leastCached {
			u.Written = u.Input - u.Cached
		}
	}
	if x.orders.cached >= 0 {
		u.Cached, u.Written = min(x.orders.cached, u.Input), 0
	}
}
