package relay

import (
	"context"
	"sync"
	"time"
)

// claimLoop keeps the leases. A lease counts from before the call that took it,
// so that it is never believed longer than the outbox grants it.
func (r *Relay) claimLoop(ctx context.Context) {
	every(ctx, r.opts.LeaseTTL/3, func() {
		if r.standsAside(ctx) {
			return
		}
		began := time.Now()
		callCtx, cancel := context.WithTimeout(ctx, r.opts.LeaseTTL/2)
		shards, err := r.opts.Outbox.Claim(callCtx, r.opts.Owner, r.opts.LeaseTTL)
		cancel()
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			r.log.Warn("leases cannot be renewed", "error", err)
			r.metrics.failures.WithLabelValues("claim").Inc()
			r.claimErr = err
			return
		}
		r.claimErr = nil
		r.leaseUntil = began.Add(r.opts.LeaseTTL)
		r.own(shards)
	})
}

// own takes over the set of shards, with r.mu held.
func (r *Relay) own(ids []int) {
	kept := make(map[int]*shard, len(ids))
	gained := 0
	for _, id := range ids {
		s := r.shards[id]
		if s == nil {
			s = &shard{id: id}
			gained++
		}
		kept[id] = s
	}
	if lost := len(r.shards) + gained - len(kept); gained > 0 || lost > 0 {
		r.log.Info("shards changed", "owned", len(kept), "gained", gained, "lost", lost)
	}
	r.shards = kept
	r.metrics.owned.Set(float64(len(kept)))
	if gained > 0 {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// sweepLoop lets the outbox expire holds.
func (r *Relay) sweepLoop(ctx context.Context) {
	every(ctx, r.opts.SweepInterval, func() {
		limit := make(chan struct{}, r.opts.Readers)
		var wg sync.WaitGroup
		for _, id := range r.sweepable() {
			limit <- struct{}{}
			wg.Go(func() {
				defer func() { <-limit }()
				n, err := r.opts.Outbox.Sweep(ctx, id)
				r.metrics.expired.Add(float64(n))
				if err != nil && ctx.Err() == nil {
					r.log.Warn("holds cannot be expired", "shard", id, "error", err)
					r.metrics.failures.WithLabelValues("sweep").Inc()
				}
			})
		}
		wg.Wait()
	})
}

func (r *Relay) ownedNow() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().After(r.leaseUntil) {
		return nil
	}
	ids := make([]int, 0, len(r.shards))
	for id := range r.shards {
		ids = append(ids, id)
	}
	return ids
}

// alarmInterval is how often a standing alarm is logged again.
const alarmInterval = 30 * time.Second

// backlogLoop watches how much waits in the outbox.
func (r *Relay) backlogLoop(ctx context.Context) {
	var alarmed time.Time
	every(ctx, r.opts.SweepInterval, func() {
		callCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		n, err := r.opts.Outbox.Backlog(callCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.backlogErr = err
		if err == nil {
			r.backlog = n
		}
		r.mu.Unlock()
		if err != nil {
			r.metrics.failures.WithLabelValues("backlog").Inc()
			return
		}
		r.metrics.backlog.Set(float64(n))
		switch over := n >= r.opts.BacklogAlarm; {
		case over && time.Since(alarmed) >= alarmInterval:
			r.log.Error("outbox backlog is over the alarm", "records", n, "alarm", r.opts.BacklogAlarm)
			alarmed = time.Now()
		case !over && !alarmed.IsZero():
			r.log.Info("outbox backlog is below the alarm again", "records", n)
			alarmed = time.Time{}
		}
	})
}

// every calls fn now and then at the interval, until the context ends.
func every(ctx context.Context, interval time.Duration, fn func()) {
	t := time.NewTicker(max(interval, time.Millisecond))
	defer t.Stop()
	for {
		fn()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
