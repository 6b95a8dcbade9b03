package telemetry

import (
	"strings"
	"sync"
	"unicode/utf8"

	"tollgate/proxy"
)

// cache keeps a metric's children, so that they are looked up without building
// labels. Its keys are labels from bounded sets.
type cache[K comparable, V any] struct {
	create func(K) V
	mu     sync.RWMutex
	made   map[K]V
}

func newCache[K comparable, V any](create func(K) V) *cache[K, V] {
	return &cache[K, V]{create: create, made: map[K]V{}}
}

func (c *cache[K, V]) get(key K) V {
	c.mu.RLock()
	v, ok := c.made[key]
	c.mu.RUnlock()
	if ok {
		return v
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok = c.made[key]; !ok {
		v = c.create(key)
		c.made[key] = v
	}
	return v
}

// bounded lets a number of different values through, and makes "_other" of what
// comes after them.
type bounded struct {
	most int
	mu   sync.RWMutex
	seen map[string]string
}

const (
	otherLabel = "_other"
	longest    = 128 // bytes of a label that others make up
)

func newBounded(most int) *bounded { return &bounded{most: most, seen: map[string]string{}} }

func (b *bounded) label(value string) string {
	if value == "" {
		return ""
	}
	b.mu.RLock()
	known, ok := b.seen[value]
	full := len(b.seen) >= b.most
	b.mu.RUnlock()
	if ok {
		return known
	}
	if full || len(value) > longest || !utf8.ValidString(value) {
		return otherLabel
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if known, ok = b.seen[value]; ok {
		return known
	}
	if len(b.seen) >= b.most {
		return otherLabel
	}
	value = strings.Clone(value) // it may be a part of a whole answer
	b.seen[value] = value
	return value
}

// provider is a dialect's name in gen_ai.provider.name.
func provider(dialect string) string {
	if dialect == "gemini" {
		return "gcp.gemini"
	}
	return dialect
}

// operation is the kind of work, as gen_ai.operation.name has it.
func operation(ex *proxy.Exchange) string { return string(ex.Operation) }
