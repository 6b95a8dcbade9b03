package forward

import (
	"sync"
	"time"
)

// What a tenant may ask of endpoints that reserve nothing: so many at once, and
// then one each so often.
const (
	paceEvery = 50 * time.Millisecond
	paceBurst = 40
)

// maxPaced is how many tenants are remembered before those at rest are forgotten.
const maxPaced = 10_000

// pace bounds the rate of what no limit counts, for each tenant and in this
// gateway alone, by the generic cell rate algorithm (ITU-T I.371, in its virtual
// scheduling form).
type pace struct {
	mu  sync.Mutex
	due map[string]time.Time // when the tenant's burst is whole again
}

func (p *pace) allow(tenant string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.due[tenant]
	if due.Before(now) {
		due = now
	}
	if due = due.Add(paceEvery); due.Sub(now) > paceBurst*paceEvery {
		return false
	}
	if p.due == nil {
		p.due = map[string]time.Time{}
	}
	if _, known := p.due[tenant]; !known && len(p.due) >= maxPaced {
		for t, at := range p.due {
			if !at.After(now) {
				delete(p.due, t)
			}
		}
	}
	p.due[tenant] = due
	return true
}
