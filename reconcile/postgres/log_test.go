package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"tollgate/events"
	"tollgate/events/kafka"
	"tollgate/internal/testenv"
	"tollgate/ledger"
	ledgerpg "tollgate/ledger/postgres"
	"tollgate/reconcile"
)

// What the reconciler writes to the log folds into the ledger as it means: a
// closing event ends the reservation at its figures, a freeze changes no sum,
// and a repeat of either changes nothing.
func TestEventsFoldIntoTheLedger(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	store := ledgerpg.New(f.pool, ledgerpg.Options{})
	lease, err := store.Acquire(t.Context(), events.TopicEvents, 0, "test")
	if err != nil {
		t.Fatal(err)
	}
	fold := func(list ...events.Event) ledger.Counts {
		t.Helper()
		records := make([]events.Record, len(list))
		for i := range list {
			records[i] = events.ToRecord(events.TopicEvents, &list[i])
			records[i].Offset, records[i].Time = lease.Next+int64(i), list[i].Time
		}
		batch, err := ledger.NewBatch(events.TopicEvents, 0, records)
		if err != nil {
			t.Fatal(err)
		}
		var counts ledger.Counts
		if lease, counts, err = store.Flush(t.Context(), lease, batch); err != nil {
			t.Fatal(err)
		}
		return counts
	}
	reserved := events.Reservation{
		TenantID: "acme", ReservationID: "rsv_1", RequestID: "req", KeyID: "key", Endpoint: "chat", Model: "model-a",
		Seq: 1, State: events.StateHeld, WeightMilli: 1500, HeldMilliUnits: 150_000, ExpiresAt: hour0.Add(time.Minute), Author: "client",
	}
	fold(events.Event{
		ID: events.NewID("e1-s00", hour0, 7, 0), Source: "tollgate/admission/e1/0", Type: events.TypeReserved,
		Subject: "acme", Time: hour0, Data: events.AppendReservation(nil, &reserved),
	})
	f.read("acme", "rsv_1", 40, 2, hour0)
	f.admission.before = func(int, string, string) error { return reconcile.ErrGone }
	f.run(hour0.Add(30 * time.Minute))
	if _, err := f.Freeze(t.Context(), "acme", "ops", "a look"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Unfreeze(t.Context(), "acme", "ops", "had a look"); err != nil {
		t.Fatal(err)
	}
	sent := f.log.events()
	if len(sent) != 3 {
		t.Fatalf("%d events; want the close, the freeze and the unfreeze", len(sent))
	}
	if counts := fold(sent...); counts.Folded != 3 {
		t.Fatalf("folded %+v; want 3", counts)
	}
	if counts := fold(sent...); counts.Duplicates != 3 {
		t.Fatalf("repeat %+v; want 3 duplicates", counts)
	}
	got := scan[string](f, `SELECT concat_ws(' ', state, seq, held_milli_units, input_tokens, output_tokens, milli_units) FROM reservations`)
	if want := "settled 2 0 40 2 63000"; got != want {
		t.Errorf("reservation %q; want %q", got, want)
	}
	if used := scan[string](f, `SELECT concat_ws(' ', sum(requests), sum(input_tokens + output_tokens), sum(milli_units)) FROM usage_hour`); used != "1 42 63000" {
		t.Errorf("hour %q; want 1 request of 42 tokens", used)
	}
	if rep := f.run(hour0.Add(60 * 24 * time.Hour)); rep.Queued+rep.Pending != 0 {
		t.Errorf("the hold is still looked at: %+v", rep)
	}
	check, err := store.Check(t.Context())
	if err != nil || len(check.Differences) != 0 {
		t.Errorf("ledger check: %+v, %v", check, err)
	}
}

// Meters through a real broker: produced, taken in by partition, caught up
// with, settled at; and the freeze's event goes out on the same broker.
func TestMetersThroughKafka(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Kafka(t)
	client, err := kafka.New(kafka.Config{Brokers: brokers, TopicPrefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.EnsureTopics(t.Context(), kafka.TopicConfig{Partitions: 2, Replication: 1}); err != nil {
		t.Fatal(err)
	}
	producer := client.NewProducer(kafka.ProducerOptions{})
	f := setUp(t, func(o *Options) { o.Publisher = producer })

	now := time.Now().UTC().Truncate(time.Second)
	var list []events.Event
	for i := range 40 {
		tenant, id := fmt.Sprintf("tenant-%d", i%4), fmt.Sprintf("rsv_%d", i)
		f.reservation(tenant, id, events.StateExpired, events.Usage{}, now.Add(-time.Hour), now.Add(-30*time.Minute))
		m := events.Meter{TenantID: tenant, ReservationID: id, From: now.Add(-time.Hour), To: now, InputTokens: int64(i), OutputTokens: 1, Final: true}
		e := events.Event{
			ID: fmt.Sprint("reading-", i), Source: "model-server", Type: events.TypeModelMeter, Subject: tenant, Time: now,
			Data: events.AppendMeter(nil, &m),
		}
		list = append(list, e, e) // each twice
	}
	list = append(list, events.Event{ID: "bad", Source: "model-server", Type: events.TypeModelMeter, Subject: "tenant-0", Time: now, Data: []byte("{}")})
	if err := producer.Publish(t.Context(), events.TopicMeters, list); err != nil {
		t.Fatal(err)
	}

	intake, err := NewIntake(NewMeterFolder(f.pool, producer), IntakeOptions{Owner: "test"})
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := client.NewConsumer(kafka.ConsumerOptions{Group: "meters", Topics: []string{events.TopicMeters}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, func(ctx context.Context, p *kafka.Partition) error {
			return intake.RunPartition(ctx, p.Topic, p.ID, p)
		})
	}()
	lag := &OffsetLag{Pool: f.pool, Topic: events.TopicMeters, Wait: 30 * time.Second, HighWater: func(ctx context.Context) (map[int]int64, error) {
		return client.HighWaters(ctx, events.TopicMeters)
	}}
	if _, err := lag.FoldedThrough(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("consumer: %v", err)
	}
	got := scan[string](f, `SELECT concat_ws(' ', sum(consumed), sum(folded), sum(duplicates), sum(dead_lettered), sum(conflicts)) FROM fold_progress`)
	if want := "81 40 40 1 0"; got != want {
		t.Errorf("consumed, folded, duplicates, dead, conflicts: %q; want %q", got, want)
	}
	if rep := f.run(now); rep.Applied != 40 || rep.Failures != 0 {
		t.Errorf("run %+v; want all 40 settled", rep)
	}
	if e := f.admission.ending(t, "rsv_7"); e.total != (events.Usage{InputTokens: 7, OutputTokens: 1}) {
		t.Errorf("rsv_7 ended at %+v", e.total)
	}
	if _, err := f.Freeze(t.Context(), "tenant-1", "ops", "a look"); err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]int64{events.TopicEvents: 1, events.TopicDeadLetter: 1} {
		marks, err := client.HighWaters(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		for _, mark := range marks {
			n += mark
		}
		if n != want {
			t.Errorf("%d records in %s; want %d", n, topic, want)
		}
	}
}
