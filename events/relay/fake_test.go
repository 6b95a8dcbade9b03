package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"tollgate/events"
)

// memOutbox is an outbox in memory. It fails the test when an entry is trimmed
// that the log does not have.
type memOutbox struct {
	t      *testing.T
	logged func(id string) bool // whether the log or the dead letters have it

	mu        sync.Mutex
	shards    [][]events.OutboxEntry
	added     []int64
	leases    map[int]lease
	owners    map[string]time.Time
	claimErr  error
	readErr   func(shard int) error
	trimErr   func(shard int) error
	holds     map[int]int
	mostReads int // entries read and not trimmed, at most
	reading   map[string]bool
}

type lease struct {
	owner string
	until time.Time
}

func newMemOutbox(t *testing.T, shards int) *memOutbox {
	return &memOutbox{
		t: t, shards: make([][]events.OutboxEntry, shards), added: make([]int64, shards),
		leases: map[int]lease{}, owners: map[string]time.Time{}, holds: map[int]int{}, reading: map[string]bool{},
		logged: func(string) bool { return true },
	}
}

// add appends one entry of n events to a shard.
func (o *memOutbox) add(shard, n int) []events.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	seq := o.added[shard]
	evs := make([]events.Event, n)
	for i := range evs {
		evs[i] = makeEvent(fmt.Sprintf("tenant-%d-%d", shard, i), fmt.Sprintf("e1-s%02d-%d-%d.%d", shard, at.UnixMilli(), seq, i))
	}
	o.append(shard, evs)
	return evs
}

func (o *memOutbox) append(shard int, evs []events.Event) {
	o.added[shard] += int64(len(evs))
	o.shards[shard] = append(o.shards[shard], events.OutboxEntry{
		ID: fmt.Sprintf("%d-%08d", shard, o.added[shard]), Cumulative: o.added[shard], Events: evs,
	})
}

func (o *memOutbox) Claim(_ context.Context, owner string, ttl time.Duration) ([]int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.claimErr != nil {
		return nil, o.claimErr
	}
	now := time.Now()
	o.owners[owner] = now.Add(ttl)
	live := 0
	for _, until := range o.owners {
		if until.After(now) {
			live++
		}
	}
	fair := (len(o.shards) + live - 1) / live
	var mine []int
	for id := range o.shards {
		if l := o.leases[id]; l.owner == owner && l.until.After(now) {
			mine = append(mine, id)
		}
	}
	for len(mine) > fair {
		delete(o.leases, mine[len(mine)-1])
		mine = mine[:len(mine)-1]
	}
	for id := range o.shards {
		if l := o.leases[id]; len(mine) < fair && !l.until.After(now) && !slices.Contains(mine, id) {
			mine = append(mine, id)
		}
	}
	for _, id := range mine {
		o.leases[id] = lease{owner, now.Add(ttl)}
	}
	return mine, nil
}

func (o *memOutbox) Release(_ context.Context, owner string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, l := range o.leases {
		if l.owner == owner {
			delete(o.leases, id)
		}
	}
	delete(o.owners, owner)
	return nil
}

func (o *memOutbox) ReadMany(_ context.Context, shards []int, after []string, limit int) (entries [][]events.OutboxEntry, errs []error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, shard := range shards {
		var err error
		if o.readErr != nil {
			err = o.readErr(shard)
		}
		errs = append(errs, err)
		if err != nil {
			entries = append(entries, nil)
			continue
		}
		entries = append(entries, o.read(shard, after[i], limit))
	}
	o.mostReads = max(o.mostReads, len(o.reading))
	return entries, errs
}

func (o *memOutbox) read(shard int, after string, limit int) []events.OutboxEntry {
	var out []events.OutboxEntry
	for _, e := range o.shards[shard] {
		if e.ID > after && len(out) < limit {
			out = append(out, e)
			o.reading[e.ID] = true
		}
	}
	return out
}

func (o *memOutbox) Trim(_ context.Context, shard int, last events.OutboxEntry) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.trimErr != nil {
		if err := o.trimErr(shard); err != nil {
			return err
		}
	}
	o.shards[shard] = slices.DeleteFunc(o.shards[shard], func(e events.OutboxEntry) bool {
		if e.ID > last.ID {
			return false
		}
		for _, ev := range e.Events {
			if !o.logged(ev.ID) {
				o.t.Errorf("event %s is trimmed but not in the log", ev.ID)
			}
		}
		delete(o.reading, e.ID)
		return true
	})
	return nil
}

func (o *memOutbox) Backlog(context.Context) (int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, s := range o.shards {
		for _, e := range s {
			n += len(e.Events)
		}
	}
	return int64(n), nil
}

func (o *memOutbox) Sweep(_ context.Context, shard int) (int, error) {
	o.mu.Lock()
	n := o.holds[shard]
	o.holds[shard] = 0
	o.mu.Unlock()
	for range n {
		o.add(shard, 1)
	}
	return n, nil
}

// memLog is a log in memory that fails as its function says.
type memLog struct {
	mu    sync.Mutex
	fail  func(e *events.Event) error
	block bool // until the context ends
	seen  map[string]int
	dead  map[string]string
}

func newMemLog() *memLog {
	return &memLog{seen: map[string]int{}, dead: map[string]string{}}
}

var errAway = errors.New("the log is away")

func (l *memLog) Publish(ctx context.Context, _ string, evs []events.Event) error {
	l.mu.Lock()
	block := l.block
	l.mu.Unlock()
	if block {
		<-ctx.Done()
		return ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	failed := map[int]error{}
	for i := range evs {
		if l.fail != nil {
			if err := l.fail(&evs[i]); err != nil {
				failed[i] = err
				continue
			}
		}
		l.seen[evs[i].ID]++
	}
	if len(failed) > 0 {
		return &events.PublishError{Failed: failed}
	}
	return nil
}

func (l *memLog) DeadLetter(_ context.Context, r events.Record, reason string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead[string(r.HeaderValue("ce_id"))] = reason
	return nil
}

func (l *memLog) setBlock(block bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.block = block
}

func (l *memLog) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, dead := l.dead[id]
	return l.seen[id] > 0 || dead
}

func (l *memLog) distinct() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

var at = time.Date(2026, 8, 19, 16, 0, 0, 123e6, time.UTC)

func makeEvent(tenant, id string) events.Event {
	r := events.Reservation{
		TenantID: tenant, ReservationID: "rsv_" + id, RequestID: "req-" + id, KeyID: "tgk_0000000000000000",
		Endpoint: "chat/completions", Model: "m", Seq: 1, State: events.StateHeld,
		WeightMilli: 1000, HeldMilliUnits: 1000, ExpiresAt: at.Add(time.Minute), Author: "client",
	}
	return events.Event{
		ID: id, Source: "tollgate/admission/e1/1", Type: events.TypeReserved,
		Subject: tenant, Time: at, Data: events.AppendReservation(nil, &r),
	}
}
