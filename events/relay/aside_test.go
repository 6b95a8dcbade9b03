package relay

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"tollgate/events"
)

// wayTo is one relay's way to the log, which may be cut for it alone.
type wayTo struct {
	*memLog
	cut atomic.Bool
}

func (w *wayTo) Publish(ctx context.Context, topic string, evs []events.Event) error {
	if w.cut.Load() {
		return errAway
	}
	return w.memLog.Publish(ctx, topic, evs)
}

func (w *wayTo) probe(context.Context) error {
	if w.cut.Load() {
		return errAway
	}
	return nil
}

func TestRelayThatCannotReachTheLogLeavesItsShards(t *testing.T) {
	for name, probes := range map[string]bool{"with a probe": true, "without a probe": false} {
		t.Run(name, func(t *testing.T) {
			log := newMemLog()
			o := newMemOutbox(t, 6)
			o.logged = log.has
			way := &wayTo{memLog: log}
			bad := startRelay(t, o, way, func(o *Options) {
				o.Owner = "bad"
				if probes {
					o.Probe = way.probe
				}
			})
			good := startRelay(t, o, log, func(o *Options) { o.Owner = "good" })
			owned := func(r *Relay) int { return len(r.ownedNow()) }
			waitFor(t, "each owns half", func() bool { return owned(bad) == 3 && owned(good) == 3 })

			way.cut.Store(true)
			for i := range 60 {
				o.add(i%6, 1)
			}
			waitFor(t, "the healthy relay owns all shards", func() bool { return owned(good) == 6 && owned(bad) == 0 })
			waitFor(t, "the outbox is empty", empty(o))
			if probes {
				// With nothing to copy there is no round that could fail.
				if err := bad.Healthy(); !errors.Is(err, errAway) {
					t.Errorf("the relay without a log says %v, want its trouble", err)
				}
			}
			o.add(0, 1)
			o.add(5, 1)
			waitFor(t, "new entries of all shards are copied", empty(o))

			way.cut.Store(false)
			waitFor(t, "the healed relay has its share back", func() bool { return owned(bad) == 3 && owned(good) == 3 })
			for i := range 6 {
				o.add(i, 1)
			}
			waitFor(t, "both copy", empty(o))
			waitFor(t, "both are healthy", func() bool { return bad.Healthy() == nil && good.Healthy() == nil })
			if log.distinct() != 68 {
				t.Errorf("the log has %d events, want 68", log.distinct())
			}
		})
	}
}

// A log that takes some events is not out of reach: others would fare no better.
func TestRelayLeavesItsShardsOnlyWhenNothingIsAcknowledged(t *testing.T) {
	r, err := New(Options{Outbox: newMemOutbox(t, 1), Publisher: newMemLog(), Owner: "a"})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	failed := map[*events.Event]error{{}: errAway}
	for i, step := range []struct {
		after time.Duration // of the round, since began
		some  bool          // events of it are acknowledged
		want  bool
	}{
		{0, false, false},
		{r.opts.LeaseTTL, false, false},
		{r.opts.LeaseTTL, true, false},
		{r.opts.LeaseTTL + time.Second, false, false}, // its silence begins anew
		{2 * r.opts.LeaseTTL, false, false},
		{2*r.opts.LeaseTTL + 2*time.Second, false, true},
	} {
		at := began.Add(step.after)
		r.noteFailure(failed, step.some, at)
		if got := r.leave(at); got != step.want {
			t.Errorf("step %d: leaves %t, want %t", i, got, step.want)
		}
	}
	// On trial one round in vain is enough.
	r.aside.until, r.aside.silentSince = time.Time{}, time.Time{}
	if r.leave(time.Now()) {
		t.Error("leaves before it tried")
	}
	pause := r.aside.pause
	r.noteFailure(failed, false, time.Now())
	if !r.leave(time.Now()) || r.aside.pause < pause || r.aside.pause > asideMax {
		t.Errorf("after a round in vain the pause is %s, was %s", r.aside.pause, pause)
	}
}

// Where no relay reaches the log, holds must end all the same.
func TestRelayThatStandsAsideStillExpiresHolds(t *testing.T) {
	log := newMemLog()
	o := newMemOutbox(t, 2)
	way := &wayTo{memLog: log}
	way.cut.Store(true)
	r := startRelay(t, o, way, func(o *Options) { o.Probe, o.LeaseTTL = way.probe, 60*time.Millisecond })
	o.add(0, 1)
	waitFor(t, "it stands aside", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !r.aside.until.IsZero()
	})
	o.mu.Lock()
	o.holds[1] = 3
	o.mu.Unlock()
	waitFor(t, "holds are expired", func() bool { n, _ := o.Backlog(t.Context()); return n == 4 })
	way.cut.Store(false)
	waitFor(t, "all is copied", empty(o))
}
