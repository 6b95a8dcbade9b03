package loadclient

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// openLoop writes each request when it is due, on whichever connection is
// idle. One goroutine writes for all connections; each connection has one that
// reads. When no connection is idle the request waits, and its wait counts.
func (r *run) openLoop(ctx context.Context, conns []*conn, start time.Time) {
	idle := make(chan *conn, len(conns))
	var readers sync.WaitGroup
	for _, c := range conns {
		c.due = make(chan exchange, 1)
		idle <- c
		readers.Go(func() {
			for e := range c.due {
				c.receive(e.dueAt, e.sentAt)
				idle <- c
			}
		})
	}
	live := len(conns)

	// The runtime's timers round a short sleep up to a millisecond, which would
	// be charged to the server; a thread of its own sleeps precisely.
	runtime.LockOSThread()
	for n := int64(0); live > 0 && r.take(); n++ {
		dueAt := start.Add(time.Duration(n * int64(time.Second) / int64(r.opts.Rate)))
		if !r.deadline.IsZero() && !dueAt.Before(r.deadline) {
			break
		}
		sleepUntil(dueAt)
		var c *conn
		select {
		case c = <-idle:
		case <-ctx.Done():
		}
		if c == nil || ctx.Err() != nil {
			if c != nil {
				idle <- c
			}
			break
		}
		if !c.ready(ctx) {
			idle <- c
			continue
		}
		sentAt, ok := c.send()
		if !ok {
			live--
			close(c.due)
			c.due = nil
			continue
		}
		c.due <- exchange{dueAt, sentAt}
	}
	runtime.UnlockOSThread()

	for _, c := range conns {
		if c.due != nil {
			close(c.due)
		}
	}
	readers.Wait()
	for _, c := range conns {
		c.close()
	}
}

// sleepUntil blocks its thread; it may be 50 µs late, the kernel's timer slack.
func sleepUntil(t time.Time) {
	for {
		d := time.Until(t)
		if d <= 0 {
			return
		}
		ts := unix.NsecToTimespec(int64(d))
		// A signal may end the sleep early: look at the clock again.
		_ = unix.Nanosleep(&ts, nil)
	}
}
