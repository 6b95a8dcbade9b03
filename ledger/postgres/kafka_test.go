package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"tollgate/events"
	"tollgate/events/kafka"
	"tollgate/internal/testenv"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
	"tollgate/ledger/postgres"
)

// Three ledger processes share a topic's partitions on a real broker; one
// leaves and one joins while records arrive, some of them twice.
func TestCaseL5_ProcessesShareAndHandOverPartitionsOfKafka(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Kafka(t)
	s, _ := openStore(t)
	client, err := kafka.New(kafka.Config{Brokers: brokers, TopicPrefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := client.EnsureTopics(ctx, kafka.TopicConfig{Partitions: 4}); err != nil {
		t.Fatal(err)
	}

	var evs []events.Event
	var records []events.Record
	// The broker stamps arrival, so the log has to be of now.
	for _, p := range ledgerbench.Log(ledgerbench.LogOptions{Seed: 30, Events: 2000, Tenants: 12, Start: time.Now().UTC().Add(-time.Hour)}) {
		for _, r := range p {
			e, err := events.FromRecord(r)
			if err != nil {
				t.Fatal(err)
			}
			evs, records = append(evs, e), append(records, r)
		}
	}
	producer := client.NewProducer(kafka.ProducerOptions{})
	publish := func(part []events.Event) {
		t.Helper()
		if err := producer.Publish(ctx, events.TopicEvents, part); err != nil {
			t.Fatal(err)
		}
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	process := func(name string) (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		r := ledger.NewRunner(s, producer, ledger.Options{Owner: name, FlushEvents: 64, FlushInterval: 50 * time.Millisecond})
		consumer, err := client.NewConsumer(kafka.ConsumerOptions{Group: "ledger", Topics: []string{events.TopicEvents}})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			_ = consumer.Run(ctx, func(ctx context.Context, p *kafka.Partition) error { return r.RunPartition(ctx, p.ID, p) })
		})
		return func() { cancel(); r.Stop() }
	}
	consumed := func(n int) func() bool {
		return func() bool {
			progress, err := s.Progress(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var c ledger.Counts
			for _, p := range progress {
				c.Add(p.Counts)
			}
			return c.Consumed >= int64(n)
		}
	}

	stopA := process("a")
	defer process("b")()
	publish(evs[:1000])
	waitFor(t, "the first records", consumed(100))
	stopA()
	publish(evs[800:1500]) // 200 of them again
	defer process("c")()
	publish(evs[1500:])
	waitFor(t, "all records", consumed(len(evs)+200))

	check := mustAddUp(t, s)
	want := ledger.Counts{Consumed: int64(len(evs) + 200), Folded: int64(len(evs)), Duplicates: 200}
	if check.Counts != want {
		t.Errorf("counts are %+v, want %+v", check.Counts, want)
	}
	input, output, milli := wantTotals(t, records)
	if h := check.Hours; h.InputTokens != input || h.OutputTokens != output || h.MilliUnits != milli {
		t.Errorf("usage is %+v, want %d, %d, %d", h, input, output, milli)
	}

	// The same topic, read from its beginning, gives the same ledger.
	read := func(ctx context.Context, fn func(int, []events.Record) error) error {
		_, err := client.ReadAll(ctx, events.TopicEvents, nil, fn)
		return err
	}
	r, err := postgres.Replay(ctx, read, testenv.PostgresURL(t), postgres.ReplayOptions{Original: s}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil || r.Counts != want {
		t.Errorf("replay counts %+v, want %+v: %v", r.Counts, want, err)
	}
}
