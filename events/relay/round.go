package relay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"tollgate/events"
)

// round is what is published together: entries of several shards.
type round []part

// part is one shard's entries in a round.
type part struct {
	shard      *shard
	generation int
	entries    []events.OutboxEntry
}

// readLoop reads shards that are due and hands rounds over. The channel has no
// buffer: one round is read while another is published, and no more.
func (r *Relay) readLoop(ctx context.Context, rounds chan<- round) {
	defer close(rounds)
	for ctx.Err() == nil {
		due, next := r.due(time.Now())
		if len(due) == 0 {
			r.sleep(ctx, next)
			continue
		}
		if rd := r.read(ctx, due); len(rd) > 0 {
			select {
			case rounds <- rd:
			case <-ctx.Done():
			}
		}
	}
}

// due returns the shards to read now, longest waiting first, and how long to
// sleep where there are none.
func (r *Relay) due(now time.Time) ([]*shard, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.opts.PollMax
	var due []*shard
	if now.After(r.leaseUntil) {
		return nil, next // others may own them by now
	}
	soon := now.Add(r.opts.PollMin) // what is due so soon is read with the others
	for _, s := range r.shards {
		if wait := s.pollAt.Sub(now); wait > 0 && !(s.delay > 0 && s.pollAt.Before(soon)) {
			next = min(next, wait)
			continue
		}
		due = append(due, s)
	}
	slices.SortFunc(due, func(a, b *shard) int { return a.pollAt.Compare(b.pollAt) })
	return due, next
}

func (r *Relay) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-t.C:
	}
}

// read reads the shards, some in one exchange, until the round is full. Those
// that had nothing the last time are read all together, as little of each as
// comes to the same.
func (r *Relay) read(ctx context.Context, due []*shard) round {
	var rd round
	size := 0
	quiet, busy := r.divide(due)
	for len(quiet)+len(busy) > 0 && size < r.opts.RoundEvents {
		group, limit := quiet, r.opts.ReadMax
		if len(group) == 0 {
			group = busy[:min(r.opts.Readers, len(busy))]
			busy = busy[len(group):]
		} else if len(group) > r.opts.Readers {
			limit = max(limit*r.opts.Readers/len(group), 1)
		}
		quiet = nil
		for _, p := range r.readShards(ctx, group, limit) {
			rd = append(rd, p)
			for i := range p.entries {
				size += len(p.entries[i].Events)
			}
		}
	}
	return rd
}

// divide tells the shards that had no entries when they were read last.
func (r *Relay) divide(shards []*shard) (quiet, busy []*shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range shards {
		if s.delay > 0 {
			quiet = append(quiet, s)
		} else {
			busy = append(busy, s)
		}
	}
	return quiet, busy
}

// readShards reads what follows in each shard, and returns those that have
// entries.
func (r *Relay) readShards(ctx context.Context, group []*shard, limit int) round {
	ids, after, generations := make([]int, len(group)), make([]string, len(group)), make([]int, len(group))
	r.mu.Lock()
	for i, s := range group {
		ids[i], after[i], generations[i] = s.id, s.after, s.generation
	}
	r.mu.Unlock()
	entries, errs := r.opts.Outbox.ReadMany(ctx, ids, after, limit)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var rd round
	for i, s := range group {
		if s.generation != generations[i] {
			continue // started over while we read
		}
		r.noteRead(ctx, s, entries[i], errs[i], now, limit)
		if len(entries[i]) > 0 {
			rd = append(rd, part{shard: s, generation: generations[i], entries: entries[i]})
		}
	}
	return rd
}

// noteRead sets when the shard is read again, with r.mu held: soon while it has
// entries, ever later while it has none.
func (r *Relay) noteRead(ctx context.Context, s *shard, entries []events.OutboxEntry, err error, now time.Time, limit int) {
	switch {
	case err != nil:
		if ctx.Err() == nil {
			r.log.Warn("outbox cannot be read", "shard", s.id, "error", err)
			r.metrics.failures.WithLabelValues("read").Inc()
		}
		s.delay = min(max(2*s.delay, r.opts.PollMax), 50*r.opts.PollMax)
		s.pollAt = now.Add(s.delay)
	case len(entries) == 0:
		if s.after != "" && s.after == s.trimmed {
			// All that was read is trimmed, so the beginning says the same as the
			// cursor does, and also finds what a rebuilt outbox numbers lower.
			s.after, s.trimmed = "", ""
		}
		s.delay = min(max(2*s.delay, r.opts.PollMin), r.opts.PollMax)
		s.pollAt = now.Add(s.delay)
		if s.delay == r.opts.PollMax {
			s.pollAt = r.nextBeat(now)
		}
	default:
		s.after = entries[len(entries)-1].ID
		s.delay = 0
		s.pollAt = now.Add(r.opts.PollMin)
		if len(entries) == limit {
			s.pollAt = now
		}
	}
}

// nextBeat is at most PollMax from now, and the same for all shards: those that
// stay quiet come to be read together.
func (r *Relay) nextBeat(now time.Time) time.Time {
	return r.began.Add(now.Sub(r.began).Truncate(r.opts.PollMax) + r.opts.PollMax)
}

// stopGrace is how long a round that is under way may take after Stop.
const stopGrace = 5 * time.Second

func (r *Relay) publishLoop(ctx context.Context, rounds <-chan round) {
	for rd := range rounds {
		// Not the loop's context: what was read should still reach the log.
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.opts.PublishTimeout)
		stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
		r.publish(work, rd)
		stop()
		cancel()
	}
}

// publish writes a round to the log and trims, in each shard, the entries up to
// the first that is not acknowledged.
func (r *Relay) publish(ctx context.Context, rd round) {
	if rd = r.current(rd); len(rd) == 0 {
		return
	}
	topics, places := collect(rd)
	failed := map[*events.Event]error{}
	began, total := time.Now(), 0
	for topic, evs := range topics {
		err := r.opts.Publisher.Publish(ctx, topic, evs)
		var partial *events.PublishError
		switch {
		case err == nil:
		case errors.As(err, &partial):
			for i, cause := range partial.Failed {
				failed[places[topic][i].event] = cause
			}
		default:
			for _, p := range places[topic] {
				failed[p.event] = err
			}
		}
		r.buryRefused(ctx, places[topic], failed)
		r.metrics.events.WithLabelValues(topic).Add(float64(len(evs)))
		total += len(evs)
	}
	r.metrics.publishSeconds.Observe(time.Since(began).Seconds())
	r.noteFailure(failed, len(failed) < total, began)
	// Trimming has time of its own: publishing may have used up all of ctx.
	settleCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	r.settle(settleCtx, rd, failed)
}

// current leaves out parts of shards that were started over since.
func (r *Relay) current(rd round) round {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(rd, func(p part) bool { return p.shard.generation != p.generation })
}

// place is where a published event came from.
type place struct {
	shard int
	event *events.Event
}

func collect(rd round) (map[string][]events.Event, map[string][]place) {
	topics := map[string][]events.Event{}
	places := map[string][]place{}
	for _, p := range rd {
		for i := range p.entries {
			for j := range p.entries[i].Events {
				e := &p.entries[i].Events[j]
				topic := e.Type.Topic()
				if topic == "" {
					topic = events.TopicEvents // which will refuse it
				}
				topics[topic] = append(topics[topic], *e)
				places[topic] = append(places[topic], place{p.shard.id, e})
			}
		}
	}
	return topics, places
}

// outboxTopic is the topic that a dead letter names when its record never was
// in the log; the partition is the shard.
const outboxTopic = "outbox"

// buryRefused sends what the log will never take to the dead letters, so that
// it does not block its shard. What cannot be buried now stays failed.
func (r *Relay) buryRefused(ctx context.Context, places []place, failed map[*events.Event]error) {
	for _, p := range places {
		cause := failed[p.event]
		if !errors.Is(cause, events.ErrRefused) {
			continue
		}
		reason := events.ReasonRefusedByKafka
		var bad *events.InvalidError
		if errors.As(cause, &bad) {
			reason = bad.Reason
		}
		rec := events.ToRecord(outboxTopic, p.event)
		rec.Partition, rec.Offset, rec.Time = p.shard, -1, p.event.Time
		if err := r.opts.Publisher.DeadLetter(ctx, rec, string(reason)); err != nil {
			failed[p.event] = err
			continue
		}
		delete(failed, p.event)
		r.metrics.deadLetters.WithLabelValues(string(reason)).Inc()
		r.log.Error("event is refused by the log and kept as a dead letter",
			"shard", p.shard, "event_id", p.event.ID, "tenant", p.event.Subject, "reason", string(reason), "error", cause)
	}
}

// noteFailure keeps what Healthy tells, and logs when it changes.
func (r *Relay) noteFailure(failed map[*events.Event]error, someAcknowledged bool, began time.Time) {
	var cause error
	for _, err := range failed {
		cause = err
		break
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteAcknowledged(someAcknowledged, began)
	switch {
	case cause != nil && r.publishErr == nil:
		r.failedSince = time.Now()
		r.log.Error("log cannot be written; the outbox grows", "events", len(failed), "error", cause)
	case cause == nil && r.publishErr != nil:
		r.log.Info("log can be written again", "away", time.Since(r.failedSince).Round(time.Millisecond))
	}
	if cause != nil {
		r.metrics.failures.WithLabelValues("publish").Inc()
	}
	r.publishErr = cause
}

// settle trims each shard up to its first failed entry and starts reading over
// from there. It must not trim behind one: that would lose it.
func (r *Relay) settle(ctx context.Context, rd round, failed map[*events.Event]error) {
	limit := make(chan struct{}, r.opts.Readers)
	var wg sync.WaitGroup
	for _, p := range rd {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			good := acknowledged(p.entries, failed)
			if good > 0 {
				if err := r.trim(ctx, p.shard, p.entries[good-1]); err != nil {
					r.log.Warn("outbox cannot be trimmed; its entries will repeat", "shard", p.shard.id, "error", err)
					r.startOver(p.shard)
					return
				}
				r.metrics.entries.Add(float64(good))
			}
			if good < len(p.entries) {
				r.startOver(p.shard)
				return
			}
			r.mu.Lock()
			p.shard.failures = 0
			r.mu.Unlock()
		})
	}
	wg.Wait()
}

// acknowledged returns how many entries from the first on have no failed event.
func acknowledged(entries []events.OutboxEntry, failed map[*events.Event]error) int {
	if len(failed) == 0 {
		return len(entries)
	}
	for i := range entries {
		for j := range entries[i].Events {
			if failed[&entries[i].Events[j]] != nil {
				return i
			}
		}
	}
	return len(entries)
}

// trim tries a few times: the entries are in the log, and to trim them is
// cheaper than to repeat them.
func (r *Relay) trim(ctx context.Context, s *shard, last events.OutboxEntry) error {
	var err error
	for attempt := range 3 {
		if attempt > 0 {
			select {
			case <-ctx.Done():
				return err
			case <-time.After(time.Duration(attempt) * 20 * time.Millisecond):
			}
		}
		if err = r.opts.Outbox.Trim(ctx, s.id, last); err == nil {
			r.mu.Lock()
			s.trimmed = last.ID
			r.mu.Unlock()
			return nil
		}
		r.metrics.failures.WithLabelValues("trim").Inc()
	}
	return err
}

// startOver makes the shard read again from the first untrimmed entry, after a
// pause that doubles with each failure.
func (r *Relay) startOver(s *shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.generation++
	s.after, s.trimmed = "", ""
	s.failures = min(s.failures+1, 8)
	s.pollAt = time.Now().Add(min(r.opts.PollMin<<s.failures, 2*time.Second))
}
