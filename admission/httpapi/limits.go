package httpapi

import (
	"sync"

	"tollgate/admission"
	"tollgate/tenancy"
)

// limitCache remembers the constraints of the requests that come again and
// again. Documents are immutable, so what was derived from them stays true for
// as long as they are the same pointers; a change brings new ones.
type limitCache struct {
	mu   sync.RWMutex
	made map[limitKey][]admission.Constraint
}

type limitKey struct {
	tenant   *tenancy.Tenant
	key      *tenancy.Key
	platform *tenancy.Platform
	endpoint string
	model    string
}

// maxCachedLimits bounds the cache: callers choose model names. It is emptied
// when full, which also lets go of documents that were replaced.
const maxCachedLimits = 4096

// of returns the constraints, which callers share and must not change.
func (c *limitCache) of(k limitKey) []admission.Constraint {
	c.mu.RLock()
	limits, ok := c.made[k]
	c.mu.RUnlock()
	if ok {
		return limits
	}
	limits = admission.Constraints(k.tenant, k.key, k.endpoint, k.model, k.platform)
	limits = limits[:len(limits):len(limits)] // an append must copy
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil || len(c.made) >= maxCachedLimits {
		c.made = make(map[limitKey][]admission.Constraint)
	}
	c.made[k] = limits
	return limits
}
