package forward

import (
	"context"
	"sync"
	"time"
)

// patience gives contexts that bound calls of the store. Calls that begin at
// nearly the same time share one, because a context with a timer for each is a
// visible part of what a request costs. It goes on though the client leaves: what
// came of a call must be known.
type patience struct {
	least time.Duration // a context lasts so long, or a sixteenth longer

	mu   sync.Mutex
	ctx  context.Context
	end  context.CancelFunc
	made time.Time
}

func (p *patience) get() context.Context {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil || now.Sub(p.made) > p.least/16 {
		// The one before ends by its time, when those who have it are done.
		p.ctx, p.end = context.WithTimeout(context.Background(), p.least+p.least/16)
		p.made = now
	}
	return p.ctx
}
