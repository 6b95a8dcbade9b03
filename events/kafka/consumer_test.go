package kafka

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"tollgate/events"
)

// tally is a reader that stores offsets itself, as the ledger does: it counts
// every record and notes a gap or a repeat.
type tally struct {
	mu     sync.Mutex
	next   map[int]int64 // stored offsets
	owner  map[int]string
	counts map[int]int
	faults []string
}

func newTally() *tally {
	return &tally{next: map[int]int64{}, owner: map[int]string{}, counts: map[int]int{}}
}

func (s *tally) read(name string) func(context.Context, *Partition) error {
	return func(ctx context.Context, p *Partition) error {
		s.mu.Lock()
		p.SeekTo(s.next[p.ID])
		s.owner[p.ID] = name
		s.mu.Unlock()
		for {
			records, err := p.Fetch(ctx, 7, 50*time.Millisecond)
			if err != nil {
				return err
			}
			s.mu.Lock()
			for _, r := range records {
				if s.owner[p.ID] != name {
					break // fenced: another member owns the partition now
				}
				if r.Offset != s.next[p.ID] {
					s.faults = append(s.faults, "gap or repeat")
				}
				s.next[p.ID]++
				s.counts[p.ID]++
			}
			next := s.next[p.ID]
			s.mu.Unlock()
			if len(records) > 0 {
				if err := p.Commit(next); err != nil && ctx.Err() == nil {
					s.mu.Lock()
					s.faults = append(s.faults, err.Error())
					s.mu.Unlock()
				}
			}
		}
	}
}

func (s *tally) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.counts {
		n += c
	}
	return n
}

func (s *tally) owners() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := map[string]bool{}
	for _, o := range s.owner {
		set[o] = true
	}
	return slices.Sorted(maps.Keys(set))
}

func (s *tally) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		t.Error(f)
	}
}

// member runs a consumer until stopped.
type member struct {
	consumer *Consumer
	stop     func() error
}

func startMember(t *testing.T, c *Client, fn func(context.Context, *Partition) error) member {
	t.Helper()
	consumer, err := c.NewConsumer(ConsumerOptions{Group: "ledger", Topics: []string{events.TopicEvents}, SessionTimeout: 6 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx, fn) }()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return member{consumer, stop}
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx := testContext(t)
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestCaseL5_PartitionsLostAndRegainedResume(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ctx := testContext(t)
		ensure(t, c, 4)
		producer := c.NewProducer(ProducerOptions{})
		evs := makeEvents(300, 40)
		publish := func(from, to int) {
			t.Helper()
			if err := producer.Publish(ctx, events.TopicEvents, evs[from:to]); err != nil {
				t.Fatal(err)
			}
		}
		s := newTally()
		publish(0, 100)
		a := startMember(t, c, s.read("a"))
		waitFor(t, "a reads all partitions", func() bool { return s.total() == 100 })
		if err := a.consumer.Healthy(); err != nil {
			t.Errorf("a is not healthy: %v", err)
		}
		// A second member takes partitions away, then leaves: they come back.
		b := startMember(t, c, s.read("b"))
		waitFor(t, "both own partitions", func() bool { return len(s.owners()) == 2 })
		publish(100, 200)
		waitFor(t, "both read on", func() bool { return s.total() == 200 })
		if err := b.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("b ended with %v", err)
		}
		if err := b.consumer.Healthy(); err == nil {
			t.Error("b is healthy after it left")
		}
		publish(200, 300)
		waitFor(t, "a reads what b had", func() bool { return s.total() == 300 })
		if got := s.owners(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("owners are %v, want a alone", got)
		}
		s.check(t)
	})
}

func TestConsumerWaitsForItsTopic(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		s := newTally()
		a := startMember(t, c, s.read("a"))
		waitFor(t, "the fault shows", func() bool { err := a.consumer.Healthy(); return err != nil })
		ensure(t, c, 1)
		if err := c.NewProducer(ProducerOptions{}).Publish(testContext(t), events.TopicEvents, makeEvents(5, 1)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the topic is read", func() bool { return s.total() == 5 })
		s.check(t)
	})
}

func TestConsumerEndsLoudlyOnTrimmedRecords(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ensure(t, c, 1)
		if err := c.NewProducer(ProducerOptions{}).Publish(testContext(t), events.TopicEvents, makeEvents(5, 1)); err != nil {
			t.Fatal(err)
		}
		trim(t, c, events.TopicEvents, 0, 3)
		consumer, err := c.NewConsumer(ConsumerOptions{Group: "ledger", Topics: []string{events.TopicEvents}})
		if err != nil {
			t.Fatal(err)
		}
		var want *OffsetOutOfRangeError
		if err := consumer.Run(testContext(t), newTally().read("a")); !errors.As(err, &want) || want.Offset != 0 || want.First != 3 {
			t.Errorf("Run = %v, want *OffsetOutOfRangeError", err)
		}
	})
}

func TestConsumerRejoinsAfterAReaderFailed(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ensure(t, c, 2)
		if err := c.NewProducer(ProducerOptions{}).Publish(testContext(t), events.TopicEvents, makeEvents(20, 9)); err != nil {
			t.Fatal(err)
		}
		s := newTally()
		var mu sync.Mutex
		failures := 0
		startMember(t, c, func(ctx context.Context, p *Partition) error {
			mu.Lock()
			failures++
			n := failures
			mu.Unlock()
			if n == 1 {
				return errors.New("the database is away")
			}
			return s.read("a")(ctx, p)
		})
		waitFor(t, "everything is read after the failure", func() bool { return s.total() == 20 })
		s.check(t)
	})
}

func TestRunReturnsTheReadersStop(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ensure(t, c, 3)
		consumer, err := c.NewConsumer(ConsumerOptions{Group: "ledger", Topics: []string{events.TopicEvents}})
		if err != nil {
			t.Fatal(err)
		}
		if err := consumer.Run(testContext(t), func(context.Context, *Partition) error { return ErrStop }); !errors.Is(err, ErrStop) {
			t.Errorf("Run = %v, want ErrStop", err)
		}
	})
}
