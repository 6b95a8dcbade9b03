package httpapi

import (
	"context"
	"sync"
	"time"
)

// decision is the context of one decision. It costs less than context's own:
// it has no timer, as the watch of its connection ends it, and no channel until
// somebody waits.
type decision struct {
	deadline time.Time
	stays    bool // it goes on though the client leaves
	looks    int  // the watch's own

	mu   sync.Mutex
	done chan struct{}
	err  error
}

// closed is the channel of decisions that ended before anybody waited.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Deadline implements context.Context.
func (d *decision) Deadline() (time.Time, bool) { return d.deadline, true }

// Value implements context.Context.
func (d *decision) Value(any) any { return nil }

// Done implements context.Context.
func (d *decision) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done == nil {
		if d.err != nil {
			return closed
		}
		d.done = make(chan struct{})
	}
	return d.done
}

// Err implements context.Context.
func (d *decision) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func (d *decision) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return
	}
	d.err = err
	if d.done != nil {
		close(d.done)
	}
}

var _ context.Context = (*decision)(nil)
