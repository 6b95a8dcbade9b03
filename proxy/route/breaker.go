package route

import (
	"sync"
	"time"
)

// Bounds of a breaker.
const (
	badInARow  = 5                // so many, and the deployment is put aside
	asideFirst = 10 * time.Second // doubled each time that it fails again
	asideMost  = 5 * time.Minute  // also where an upstream asks for longer
	probeEvery = 10 * time.Second // of a deployment that may be back
)

// breaker remembers how a deployment does. Closed, it counts failures in a row;
// after some it is open for a while; then half open: one request at a time finds
// out.
type breaker struct {
	changed func(aside bool) // called under mu: must be quick and not call back

	mu     sync.Mutex
	bad    int           // in a row
	aside  bool          // open or half open
	until  time.Time     // open
	step   time.Duration // of the last time
	probed time.Time     // half open: when the last one was let through; zero: none is under way
}

// Try asks for leave to try the deployment now. False: it was put aside after the
// plan was made, or another request is finding out whether it is back; the next
// one of the plan is due. Each Try that gave true is followed by one Done.
func (d *Deployment) Try(now time.Time) bool { return d.breaker.try(now) }

// Done tells what a try came to. retryAfter is what an Overload's answer asked
// for, or 0.
func (d *Deployment) Done(outcome Outcome, retryAfter time.Duration, now time.Time) {
	d.breaker.done(outcome, retryAfter, now)
}

// Well tells, before Done, that the answer has begun as it should: others need not
// wait for its end.
func (d *Deployment) Well(now time.Time) { d.breaker.well(now) }

func (b *breaker) well(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.aside || now.Before(b.until) {
		return // failures in a row are counted by their ends
	}
	b.bad, b.step, b.probed, b.aside = 0, 0, time.Time{}, false
	b.changed(false)
}

// left is how long the deployment is left alone still; 0: it may be tried.
func (b *breaker) left(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.aside {
		return 0
	}
	if left := b.until.Sub(now); left > 0 {
		return left
	}
	if b.probed.IsZero() {
		return 0
	}
	return max(b.probed.Add(probeEvery).Sub(now), 0)
}

func (b *breaker) try(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.aside {
		return true
	}
	if now.Before(b.until) || !b.probed.IsZero() && now.Before(b.probed.Add(probeEvery)) {
		return false
	}
	b.probed = now
	return true
}

func (b *breaker) done(outcome Outcome, retryAfter time.Duration, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.aside && now.Before(b.until) {
		return // a request that began before: it is known already, or no longer true
	}
	switch outcome {
	case Good:
		b.bad, b.step, b.probed = 0, 0, time.Time{}
		if b.aside {
			b.aside = false
			b.changed(false)
		}
	case Overload, Bad:
		// One that names no time to come back is a failure like others: clients come
		// back by themselves within half a second, and may well be served.
		if b.bad++; b.aside || b.bad >= badInARow || outcome == Overload && retryAfter > 0 {
			b.putAside(retryAfter, now)
		}
	case Abandoned:
		b.probed = time.Time{}
	}
}

// putAside opens the breaker for as long as was asked for, else for longer each
// time.
func (b *breaker) putAside(asked time.Duration, now time.Time) {
	b.step = min(max(2*b.step, asideFirst), asideMost)
	length := b.step
	if asked > 0 {
		length = min(asked, asideMost)
	}
	b.until, b.bad, b.probed = now.Add(length), 0, time.Time{}
	if !b.aside {
		b.aside = true
		b.changed(true)
	}
}
