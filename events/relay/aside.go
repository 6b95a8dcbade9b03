package relay

import (
	"context"
	"time"
)

// asideMax bounds the pause before a relay tries for its share again.
const asideMax = 5 * time.Second

// aside is what a relay knows of its own trouble with the log. A relay that
// cannot write the log holds up the shards it has leased while another could
// copy them, so it gives them up until it may hope to write again.
type aside struct {
	silentSince time.Time // since when nothing was acknowledged, though tried; else zero
	pause       time.Duration
	until       time.Time // the next try; zero while the relay claims
	shards      []int     // what it held: their holds go on being expired
}

// noteAcknowledged keeps, with r.mu held, for how long no event of any round
// has been acknowledged. A log that takes some events is not out of reach.
func (r *Relay) noteAcknowledged(some bool, began time.Time) {
	switch a := &r.aside; {
	case some:
		a.silentSince, a.pause = time.Time{}, 0
	case a.silentSince.IsZero():
		a.silentSince = began
	}
}

// standsAside tells whether the relay must leave the shards to others now. It
// gives its leases up when the log took nothing for as long as a lease lasts;
// after a pause, and only where the log answers the probe, it claims again. Then
// one round in vain is enough to give up once more, for longer.
func (r *Relay) standsAside(ctx context.Context) bool {
	r.mu.Lock()
	now, until := time.Now(), r.aside.until
	if until.IsZero() {
		leave := r.leave(now)
		r.mu.Unlock()
		if leave {
			r.giveUp(ctx)
		}
		return leave
	}
	r.mu.Unlock()
	if now.Before(until) {
		return true
	}
	var err error
	if r.opts.Probe != nil {
		probing, cancel := context.WithTimeout(ctx, min(r.opts.PublishTimeout, asideMax))
		err = r.opts.Probe(probing)
		cancel()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.publishErr = err
		r.aside.until = time.Now().Add(r.longer())
		return true
	}
	if r.opts.Probe != nil {
		r.publishErr = nil // others may have copied all there was: no round would tell
	}
	r.aside.until, r.aside.silentSince, r.aside.shards = time.Time{}, time.Time{}, nil
	r.log.Info("claims shards again after trouble with the log")
	return false
}

// leave drops the shards, with r.mu held, where the log is out of reach.
func (r *Relay) leave(now time.Time) bool {
	a := &r.aside
	onTrial := a.pause > 0
	if a.silentSince.IsZero() || !onTrial && now.Sub(a.silentSince) <= r.opts.LeaseTTL {
		return false
	}
	a.shards = a.shards[:0]
	for id, s := range r.shards {
		a.shards = append(a.shards, id)
		s.generation++ // rounds that wait are void
	}
	a.until = now.Add(r.longer())
	r.shards, r.leaseUntil = map[int]*shard{}, time.Time{}
	r.metrics.owned.Set(0)
	r.log.Error("log is out of reach; shards are left to other relays",
		"shards", len(a.shards), "since", a.silentSince, "next_try", a.until)
	return true
}

// longer doubles the pause, with r.mu held.
func (r *Relay) longer() time.Duration {
	r.aside.pause = min(max(2*r.aside.pause, r.opts.LeaseTTL/3), asideMax)
	return r.aside.pause
}

// giveUp releases the relay's leases, where the outbox can.
func (r *Relay) giveUp(ctx context.Context) {
	releaser, ok := r.opts.Outbox.(Releaser)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := releaser.Release(ctx, r.opts.Owner); err != nil {
		r.log.Warn("leases are not released; they end by themselves", "error", err)
	}
}

// sweepable returns the shards whose holds this relay expires: those it owns,
// and while it stands aside those it had, since it may be that no relay can
// write the log. To expire twice does no harm.
func (r *Relay) sweepable() []int {
	r.mu.Lock()
	left := append([]int(nil), r.aside.shards...)
	r.mu.Unlock()
	return append(r.ownedNow(), left...)
}
