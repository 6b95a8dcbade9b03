package admission

import (
	"sync"
	"time"

	"tollgate/tenancy"
)

// LimitCache remembers the constraints of the requests that come again and
// again. Documents are immutable, so what was derived from them stays true for
// as long as they are the same pointers; a change brings new ones.
type LimitCache struct {
	mu   sync.RWMutex
	made map[LimitKey][]Constraint
}

// LimitKey is what constraints are derived from.
type LimitKey struct {
	Tenant   *tenancy.Tenant
	Key      *tenancy.Key
	Platform *tenancy.Platform
	Endpoint string
	Model    string
}

// maxCachedLimits bounds the cache: callers choose model names. It is emptied
// when full, which also lets go of documents that were replaced.
const maxCachedLimits = 4096

// Of returns the constraints, which callers share and must not change.
func (c *LimitCache) Of(k LimitKey) []Constraint {
	c.mu.RLock()
	limits, ok := c.made[k]
	c.mu.RUnlock()
	if ok {
		return limits
	}
	limits = Constraints(k.Tenant, k.Key, k.Endpoint, k.Model, k.Platform)
	limits = limits[:len(limits):len(limits)] // an append must copy
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil || len(c.made) >= maxCachedLimits {
		c.made = make(map[LimitKey][]Constraint)
	}
	c.made[k] = limits
	return limits
}

// HoldTTL is how long a hold lives without a report: the caller's wish, else
// the tenant's default, else the platform's; never longer than a reservation
// may live at all.
func HoldTTL(wish time.Duration, tenant *tenancy.Tenant, platform *tenancy.Platform) time.Duration {
	ttl := wish
	if ttl <= 0 {
		ttl = time.Duration(tenant.Quota.HoldTTL)
	}
	if ttl <= 0 {
		ttl = time.Duration(platform.HoldTTL)
	}
	if most := time.Duration(platform.MaxHold); most > 0 {
		ttl = min(ttl, most)
	}
	return ttl
}
