package relay

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"tollgate/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startRelay(t *testing.T, o Outbox, p Publisher, change func(*Options)) *Relay {
	t.Helper()
	opts := Options{
		Outbox: o, Publisher: p, Owner: t.Name(), LeaseTTL: 300 * time.Millisecond, PollMin: time.Millisecond,
		PollMax: 5 * time.Millisecond, PublishTimeout: 10 * time.Second, SweepInterval: 10 * time.Millisecond,
	}
	if change != nil {
		change(&opts)
	}
	r, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	r.Start()
	t.Cleanup(r.Stop)
	return r
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func empty(o *memOutbox) func() bool {
	return func() bool { n, _ := o.Backlog(nil); return n == 0 } //nolint:staticcheck // the fake ignores it
}

func TestRelayCopiesEverythingAndTrimsIt(t *testing.T) {
	log := newMemLog()
	o := newMemOutbox(t, 8)
	o.logged = log.has
	for i := range 400 {
		o.add(i%8, 1+i%3)
	}
	r := startRelay(t, o, log, nil)
	waitFor(t, "the outbox is empty", empty(o))
	want := 0
	for _, n := range o.added {
		want += int(n)
	}
	if log.distinct() != want {
		t.Errorf("the log has %d events, want %d", log.distinct(), want)
	}
	for id, n := range log.seen {
		if n != 1 {
			t.Errorf("event %s was published %d times without any failure", id, n)
		}
	}
	waitFor(t, "healthy", func() bool { return r.Healthy() == nil })
	r.Stop()
	r.Stop()
	if r.Healthy() == nil {
		t.Error("a stopped relay is healthy")
	}
}

// Whatever events fail, in whatever rounds, nothing is trimmed that the log
// does not have, and everything arrives once the failures end. memOutbox.Trim
// holds the first half.
func TestNothingIsTrimmedBeforeItIsAcknowledged(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		log := newMemLog()
		o := newMemOutbox(t, 3)
		o.logged = log.has
		percent := rapid.IntRange(1, 60).Draw(rt, "failing percent")
		seed := rapid.Uint32().Draw(rt, "seed")
		failures := 0
		log.fail = func(*events.Event) error {
			if failures > 200 {
				return nil
			}
			seed = seed*1664525 + 1013904223
			if int(seed>>16)%100 < percent {
				failures++
				return errAway
			}
			return nil
		}
		trims := 0
		o.trimErr = func(int) error {
			if trims++; trims%5 == 4 && trims < 100 {
				return errors.New("redis is away")
			}
			return nil
		}
		for range rapid.IntRange(1, 60).Draw(rt, "entries") {
			o.add(rapid.IntRange(0, 2).Draw(rt, "shard"), rapid.IntRange(1, 4).Draw(rt, "events"))
		}
		r, err := New(Options{
			Outbox: o, Publisher: log, Owner: "a", ReadMax: rapid.IntRange(1, 20).Draw(rt, "read max"),
			RoundEvents: rapid.IntRange(1, 30).Draw(rt, "round"), PollMin: 50 * time.Microsecond, PollMax: time.Millisecond,
		})
		if err != nil {
			rt.Fatal(err)
		}
		r.Start()
		defer r.Stop()
		waitFor(t, "the outbox is empty", empty(o))
		want := o.added[0] + o.added[1] + o.added[2]
		if got := int64(log.distinct()); got != want {
			rt.Fatalf("the log has %d events, want %d", got, want)
		}
	})
}

// A shard that cannot be read does not keep the others, with which it is read,
// and is read again.
func TestAShardThatCannotBeReadKeepsNoOther(t *testing.T) {
	log := newMemLog()
	o := newMemOutbox(t, 3)
	o.logged = log.has
	tries := 0
	o.readErr = func(shard int) error {
		if shard != 1 {
			return nil
		}
		tries++
		return errors.New("redis is away")
	}
	for shard := range 3 {
		o.add(shard, 5)
	}
	startRelay(t, o, log, nil)
	waitFor(t, "the others are in the log", func() bool { return log.distinct() == 10 })
	waitFor(t, "it is tried again", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return tries > 1
	})
	if n := log.distinct(); n != 10 {
		t.Errorf("%d events in the log, want 10", n)
	}
	o.mu.Lock()
	o.readErr = nil
	o.mu.Unlock()
	waitFor(t, "the outbox is empty", empty(o))
}

func TestCrashBetweenAcknowledgementAndTrimOnlyRepeats(t *testing.T) {
	log := newMemLog()
	o := newMemOutbox(t, 2)
	o.logged = log.has
	for i := range 50 {
		o.add(i%2, 2)
	}
	o.trimErr = func(int) error { return errors.New("the process died") }
	a := startRelay(t, o, log, nil)
	waitFor(t, "everything is in the log", func() bool { return log.distinct() == 100 })
	a.Stop()
	if n, _ := o.Backlog(t.Context()); n != 100 {
		t.Fatalf("backlog is %d, want all 100", n)
	}
	o.mu.Lock()
	o.trimErr = nil
	o.mu.Unlock()
	startRelay(t, o, log, func(o *Options) { o.Owner = "b" })
	waitFor(t, "the outbox is empty", empty(o))
	repeats := 0
	for _, n := range log.seen {
		repeats += n - 1
	}
	if log.distinct() != 100 || repeats < 100 {
		t.Errorf("the log has %d events and %d repeats; want 100 and at least 100", log.distinct(), repeats)
	}
}

func TestTwoRelaysShareShardsAndHandOver(t *testing.T) {
	log := newMemLog()
	o := newMemOutbox(t, 6)
	o.logged = log.has
	owned := func(r *Relay) int { return len(r.ownedNow()) }
	a := startRelay(t, o, log, func(o *Options) { o.Owner = "a" })
	waitFor(t, "a owns all", func() bool { return owned(a) == 6 })
	b := startRelay(t, o, log, func(o *Options) { o.Owner = "b" })
	waitFor(t, "each owns half", func() bool { return owned(a) == 3 && owned(b) == 3 })
	for i := range 60 {
		o.add(i%6, 1)
	}
	waitFor(t, "both copy", empty(o))
	a.Stop()
	for i := range 60 {
		o.add(i%6, 1)
	}
	waitFor(t, "b copies all shards", empty(o))
	if log.distinct() != 120 || owned(b) != 6 {
		t.Errorf("the log has %d events, b owns %d; want 120 and 6", log.distinct(), owned(b))
	}
	// Without a release the lease must run out.
	o.mu.Lock()
	o.leases[0], o.owners["gone"] = lease{"gone", time.Now().Add(200 * time.Millisecond)}, time.Now().Add(200*time.Millisecond)
	o.mu.Unlock()
	o.add(0, 1)
	waitFor(t, "b takes over what a dead relay held", empty(o))
}

func TestRefusedEventIsBuriedAndTheShardGoesOn(t *testing.T) {
	log := newMemLog()
	o := newMemOutbox(t, 1)
	o.logged = log.has
	first := o.add(0, 3)
	o.add(0, 1)
	log.fail = func(e *events.Event) error {
		switch e.ID {
		case first[0].ID:
			return fmt.Errorf("%w: %w", events.ErrRefused, e.Validate()) // as the log says it of a valid one
		case first[2].ID:
			return fmt.Errorf("%w: %w", events.ErrRefused, &events.InvalidError{Reason: events.ReasonUnknownType})
		}
		return nil
	}
	registry := prometheus.NewRegistry()
	startRelay(t, o, log, func(o *Options) { o.Registerer = registry })
	waitFor(t, "the outbox is empty", empty(o))
	if got := log.dead[first[0].ID]; got != string(events.ReasonRefusedByKafka) {
		t.Errorf("first dead letter's reason = %q", got)
	}
	if got := log.dead[first[2].ID]; got != string(events.ReasonUnknownType) {
		t.Errorf("second dead letter's reason = %q", got)
	}
	if log.distinct() != 2 {
		t.Errorf("the log has %d events, want the 2 others", log.distinct())
	}
	if n := metric(t, registry, "tollgate_relay_dead_letters_total"); n != 2 {
		t.Errorf("dead_letters_total = %v, want 2", n)
	}
}

func TestLogAwayKeepsMemoryBoundedAndRaisesTheAlarm(t *testing.T) {
	log := newMemLog()
	o := newMemOutbox(t, 4)
	o.logged = log.has
	for i := range 2000 {
		o.add(i%4, 1)
	}
	log.setBlock(true)
	var out lockedBuffer
	registry := prometheus.NewRegistry()
	r := startRelay(t, o, log, func(o *Options) {
		o.PublishTimeout, o.ReadMax, o.RoundEvents, o.BacklogAlarm = 20*time.Millisecond, 10, 40, 1000
		o.Registerer = registry
		o.Logger = slog.New(slog.NewTextHandler(&out, nil))
	})
	waitFor(t, "the alarm is raised", func() bool {
		return strings.Contains(out.String(), "backlog is over the alarm") && strings.Contains(out.String(), "log cannot be written")
	})
	waitFor(t, "it tries again", func() bool { return metric(t, registry, "tollgate_relay_failures_total") >= 3 })
	if r.Healthy() == nil {
		t.Error("healthy while the log is away")
	}
	if n := metric(t, registry, "tollgate_relay_backlog_records"); n != 2000 {
		t.Errorf("backlog_records = %v, want 2000", n)
	}
	o.mu.Lock()
	most := o.mostReads
	o.mu.Unlock()
	// Two rounds of four shards with ten entries each.
	if most > 80 {
		t.Errorf("%d entries were held at once, want at most 80", most)
	}
	log.setBlock(false)
	waitFor(t, "the outbox is empty", empty(o))
	waitFor(t, "healthy again", func() bool { return r.Healthy() == nil })
	if log.distinct() != 2000 {
		t.Errorf("the log has %d events, want 2000", log.distinct())
	}
	if !strings.Contains(out.String(), "log can be written again") {
		t.Error("the end of the outage is not logged")
	}
}

func TestRelayExpiresHoldsAndPublishesTheirEvents(t *testing.T) {
	log := newMemLog()
	o := newMemOutbox(t, 2)
	o.holds[0], o.holds[1] = 3, 2
	startRelay(t, o, log, nil)
	waitFor(t, "expiry events are in the log", func() bool { return log.distinct() == 5 })
}

func TestRelayWithoutLeasesCopiesNothing(t *testing.T) {
	log := newMemLog()
	o := newMemOutbox(t, 1)
	r := startRelay(t, o, log, nil)
	o.add(0, 1)
	waitFor(t, "it copies", func() bool { return log.distinct() == 1 })
	o.mu.Lock()
	o.claimErr = errors.New("redis is away")
	o.mu.Unlock()
	waitFor(t, "the lease is not believed any more", func() bool { return len(r.ownedNow()) == 0 })
	if r.Healthy() == nil {
		t.Error("healthy without a renewed lease")
	}
	waitFor(t, "no round is under way", empty(o))
	o.add(0, 1)
	time.Sleep(20 * time.Millisecond) // several polls
	if log.distinct() != 1 {
		t.Error("a shard was copied after its lease had ended")
	}
	o.mu.Lock()
	o.claimErr = nil
	o.mu.Unlock()
	waitFor(t, "it copies again", func() bool { return log.distinct() == 2 })
}

func metric(t *testing.T, g prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
