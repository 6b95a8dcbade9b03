package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kfake"

	"tollgate/events"
	"tollgate/internal/testenv"
)

// onEach runs a test on the embedded stand-in and on a real Kafka.
func onEach(t *testing.T, test func(t *testing.T, c *Client)) {
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		test(t, newFakeClient(t))
	})
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		test(t, newRealClient(t))
	})
}

func newFakeClient(t testing.TB) *Client {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(1))
	if err != nil {
		t.Fatalf("start kfake: %v", err)
	}
	t.Cleanup(cluster.Close)
	return newTestClient(t, Config{Brokers: cluster.ListenAddrs()})
}

func newRealClient(t testing.TB) *Client {
	t.Helper()
	brokers, prefix := testenv.Kafka(t)
	return newTestClient(t, Config{Brokers: brokers, TopicPrefix: prefix})
}

func newTestClient(t testing.TB, config Config) *Client {
	t.Helper()
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func ensure(t testing.TB, c *Client, partitions int) {
	t.Helper()
	if err := c.EnsureTopics(testContext(t), TopicConfig{Partitions: partitions}); err != nil {
		t.Fatalf("EnsureTopics: %v", err)
	}
}

// at is a fixed time for events; nothing compares it with the clock.
var at = time.Date(2026, 8, 19, 16, 0, 0, 123e6, time.UTC)

func makeEvent(tenant string, n int) events.Event {
	r := events.Reservation{
		TenantID: tenant, ReservationID: fmt.Sprintf("rsv_%d", n), RequestID: fmt.Sprintf("req-%d", n),
		KeyID: "tgk_0000000000000000", Endpoint: "chat/completions", Model: "m", Seq: 1, State: events.StateHeld,
		WeightMilli: 1000, HeldMilliUnits: 1000, ExpiresAt: at.Add(time.Minute), Author: "client",
	}
	return events.Event{
		ID: events.NewID("e1-s01", at, int64(n), 0), Source: "tollgate/admission/e1/1", Type: events.TypeReserved,
		Subject: tenant, Time: at, Data: events.AppendReservation(nil, &r),
	}
}

func makeEvents(count, tenants int) []events.Event {
	evs := make([]events.Event, count)
	for i := range evs {
		evs[i] = makeEvent(fmt.Sprintf("tenant-%d", i%tenants), i)
	}
	return evs
}

// readTopic returns all records of a topic by partition.
func readTopic(t testing.TB, c *Client, topic string) map[int][]events.Record {
	t.Helper()
	var mu sync.Mutex
	got := map[int][]events.Record{}
	_, err := c.ReadAll(testContext(t), topic, nil, func(partition int, records []events.Record) error {
		mu.Lock()
		defer mu.Unlock()
		got[partition] = append(got[partition], records...)
		return nil
	})
	if err != nil {
		t.Fatalf("ReadAll: %v", err)
	}
	return got
}

// decodeAll gives events by id, and fails on a repeated id.
func decodeAll(t testing.TB, byPartition map[int][]events.Record) map[string]events.Event {
	t.Helper()
	got := map[string]events.Event{}
	for _, records := range byPartition {
		for _, r := range records {
			e, err := events.FromRecord(r)
			if err != nil {
				t.Fatalf("record at offset %d: %v", r.Offset, err)
			}
			if _, twice := got[e.ID]; twice {
				t.Fatalf("event %s is in the log twice", e.ID)
			}
			got[e.ID] = e
		}
	}
	return got
}

func TestEnsureTopicsIsIdempotent(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ctx := testContext(t)
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() { errs[i] = c.EnsureTopics(ctx, TopicConfig{Partitions: 3, Retention: 48 * time.Hour}) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("EnsureTopics from several callers: %v", err)
		}
		for topic, want := range map[string]int{events.TopicEvents: 3, events.TopicMeters: 3, events.TopicDeadLetter: 1} {
			got, err := c.partitions(ctx, topic)
			if err != nil || got != want {
				t.Errorf("partitions of %s = %d, %v; want %d", topic, got, err, want)
			}
		}
		if err := c.EnsureTopics(ctx, TopicConfig{Partitions: 3}); err != nil {
			t.Errorf("EnsureTopics again: %v", err)
		}
		err := c.EnsureTopics(ctx, TopicConfig{Partitions: 4})
		var mismatch *PartitionMismatchError
		if !errors.As(err, &mismatch) || mismatch.Have != 3 || mismatch.Want != 4 {
			t.Errorf("EnsureTopics with another count = %v; want *PartitionMismatchError 3, 4", err)
		}
	})
}

func TestPublishedEventsAreReadBackInOrder(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ensure(t, c, 4)
		evs := makeEvents(1000, 17)
		before := time.Now()
		p := c.NewProducer(ProducerOptions{MaxBatchBytes: 20_000})
		if err := p.Publish(testContext(t), events.TopicEvents, evs); err != nil {
			t.Fatal(err)
		}
		byPartition := readTopic(t, c, events.TopicEvents)
		if len(byPartition) < 2 {
			t.Fatalf("all events are in %d partition", len(byPartition))
		}
		want := map[string][]string{}
		for _, e := range evs {
			want[e.Subject] = append(want[e.Subject], e.ID)
		}
		got := map[string][]string{}
		home := map[string]int{}
		for partition, records := range byPartition {
			for i, r := range records {
				if r.Offset != int64(i) || r.Partition != partition || r.Topic != events.TopicEvents {
					t.Fatalf("record %d of partition %d says %s %d %d", i, partition, r.Topic, r.Partition, r.Offset)
				}
				if r.Time.Before(before.Add(-time.Minute)) || r.Time.After(time.Now().Add(time.Minute)) {
					t.Fatalf("record time %v is not the append time", r.Time)
				}
				tenant := string(r.Key)
				if p, ok := home[tenant]; ok && p != partition {
					t.Fatalf("tenant %s is in partitions %d and %d", tenant, p, partition)
				}
				home[tenant] = partition
				e, err := events.FromRecord(r)
				if err != nil {
					t.Fatal(err)
				}
				got[tenant] = append(got[tenant], e.ID)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events by tenant (-want +got):\n%s", diff)
		}
		byID := decodeAll(t, byPartition)
		for _, e := range evs {
			if diff := cmp.Diff(e, byID[e.ID]); diff != "" {
				t.Fatalf("event %s (-want +got):\n%s", e.ID, diff)
			}
		}
	})
}

func TestEveryCompressionIsRead(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ensure(t, c, 1)
		evs := makeEvents(50, 3)
		for codec := range 5 {
			p := c.NewProducer(ProducerOptions{Compression: compression(codec), NoCompression: codec == 0})
			if err := p.Publish(testContext(t), events.TopicEvents, evs[codec*10:codec*10+10]); err != nil {
				t.Fatalf("codec %d: %v", codec, err)
			}
		}
		if got := decodeAll(t, readTopic(t, c, events.TopicEvents)); len(got) != len(evs) {
			t.Errorf("read %d events, want %d", len(got), len(evs))
		}
	})
}

func TestPublishNamesWhatTheBrokerRefuses(t *testing.T) {
	// A topic of small messages stands for a broker whose limit is below ours.
	onEach(t, func(t *testing.T, c *Client) {
		ctx := testContext(t)
		createSmallTopic(t, c, events.TopicEvents, 2000)
		evs := makeEvents(9, 1)
		big := makeEvent("tenant-0", 100)
		big.Data = append(big.Data[:len(big.Data)-1], fmt.Sprintf(`,"reason":"%04000d"}`, 0)...)
		evs[4] = big
		evs[7].Type = "tollgate.unknown.v1" // malformed: never sent
		err := c.NewProducer(ProducerOptions{NoCompression: true}).Publish(ctx, events.TopicEvents, evs)
		var failed *events.PublishError
		if !errors.As(err, &failed) {
			t.Fatalf("Publish = %v, want *PublishError", err)
		}
		for i := range evs {
			refused := errors.Is(failed.Failed[i], events.ErrRefused)
			if want := i == 4 || i == 7; refused != want || (failed.Failed[i] != nil) != want {
				t.Errorf("event %d: %v; want refused %t", i, failed.Failed[i], want)
			}
		}
		if got := decodeAll(t, readTopic(t, c, events.TopicEvents)); len(got) != 7 {
			t.Errorf("the log holds %d events, want the 7 others", len(got))
		}
	})
}

func TestDeadLetterKeepsPositionReasonAndValue(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ctx := testContext(t)
		ensure(t, c, 1)
		p := c.NewProducer(ProducerOptions{})
		bad := events.Record{
			Topic: events.TopicEvents, Partition: 3, Offset: 42, Key: []byte("acme"), Value: []byte(`{"a":"\u0000"`),
			Headers: []events.Header{{Key: "ce_id", Value: []byte("x")}}, Time: at,
		}
		huge := bad
		huge.Offset, huge.Value = 43, make([]byte, 700<<10)
		for _, r := range []events.Record{bad, huge} {
			if err := p.DeadLetter(ctx, r, string(events.ReasonNUL)); err != nil {
				t.Fatal(err)
			}
		}
		got := readTopic(t, c, events.TopicDeadLetter)[0]
		if len(got) != 2 {
			t.Fatalf("dead-letter topic holds %d records, want 2", len(got))
		}
		for name, want := range map[string]string{
			HeaderTopic: events.TopicEvents, HeaderPartition: "3", HeaderOffset: "42",
			HeaderReason: "nul_in_string", HeaderBytes: "13", HeaderTime: "2026-08-19T16:00:00.123Z", "ce_id": "x",
		} {
			if have := string(got[0].HeaderValue(name)); have != want {
				t.Errorf("header %s = %q, want %q", name, have, want)
			}
		}
		if string(got[0].Value) != string(bad.Value) || string(got[0].Key) != "acme" {
			t.Errorf("key and value are %q %q", got[0].Key, got[0].Value)
		}
		if n := string(got[1].HeaderValue(HeaderBytes)); n != "716800" || len(got[1].Value) != maxDeadValueBytes {
			t.Errorf("huge value: %d bytes kept of %s", len(got[1].Value), n)
		}
	})
}

func TestOffsetOutOfRangeIsLoud(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ctx := testContext(t)
		ensure(t, c, 1)
		if err := c.NewProducer(ProducerOptions{}).Publish(ctx, events.TopicEvents, makeEvents(10, 1)); err != nil {
			t.Fatal(err)
		}
		var want *OffsetOutOfRangeError
		p := newTestPartition(c, 0)
		p.SeekTo(11) // behind the end: the topic was made anew
		if records, err := p.Fetch(ctx, 10, 10*time.Second); !errors.As(err, &want) || want.Last != 10 {
			t.Errorf("Fetch behind the end = %d records, %v; want *OffsetOutOfRangeError with last 10", len(records), err)
		}
		if _, err := c.ReadAll(ctx, events.TopicEvents, map[int]int64{0: 11}, nil); !errors.As(err, &want) {
			t.Errorf("ReadAll behind the end = %v; want *OffsetOutOfRangeError", err)
		}
		trim(t, c, events.TopicEvents, 0, 4)
		p.SeekTo(2) // before the beginning: trimmed before it was read
		if records, err := p.Fetch(ctx, 10, 10*time.Second); !errors.As(err, &want) || want.First != 4 || want.Offset != 2 {
			t.Errorf("Fetch of trimmed records = %d records, %v; want *OffsetOutOfRangeError with first 4", len(records), err)
		}
		p.SeekTo(4)
		if records, err := p.Fetch(ctx, 10, 10*time.Second); err != nil || len(records) != 6 || records[0].Offset != 4 {
			t.Errorf("Fetch of what is left = %d records, %v; want 6", len(records), err)
		}
	})
}

func newTestPartition(c *Client, id int) *Partition {
	return &Partition{Topic: events.TopicEvents, ID: id, client: c, maxBytes: 1 << 20, onError: func(error) {}}
}

func TestFetchHonoursMaxWaitAndContext(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ctx := testContext(t)
		ensure(t, c, 1)
		p := newTestPartition(c, 0)
		if records, err := p.Fetch(ctx, 10, 20*time.Millisecond); err != nil || len(records) != 0 {
			t.Fatalf("Fetch of an empty partition = %d records, %v", len(records), err)
		}
		if err := c.NewProducer(ProducerOptions{}).Publish(ctx, events.TopicEvents, makeEvents(25, 1)); err != nil {
			t.Fatal(err)
		}
		var sizes []int
		for p.Position() < 25 {
			records, err := p.Fetch(ctx, 10, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if records[0].Offset != p.Position()-int64(len(records)) {
				t.Fatalf("offset %d at position %d", records[0].Offset, p.Position())
			}
			sizes = append(sizes, len(records))
		}
		if diff := cmp.Diff([]int{10, 10, 5}, sizes); diff != "" {
			t.Errorf("sizes (-want +got):\n%s", diff)
		}
		if hw, err := p.HighWater(); err != nil || hw != 25 {
			t.Errorf("HighWater = %d, %v; want 25", hw, err)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := p.Fetch(ended, 10, time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("Fetch with an ended context = %v", err)
		}
	})
}

func TestReadAllStopsWhereTheLogEndedAtTheCall(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ctx := testContext(t)
		ensure(t, c, 2)
		producer := c.NewProducer(ProducerOptions{})
		if err := producer.Publish(ctx, events.TopicEvents, makeEvents(40, 8)); err != nil {
			t.Fatal(err)
		}
		more := makeEvents(80, 8)[40:]
		var once sync.Once
		var mu sync.Mutex
		total := 0
		marks, err := c.ReadAll(ctx, events.TopicEvents, nil, func(_ int, records []events.Record) error {
			var err error
			once.Do(func() { err = producer.Publish(ctx, events.TopicEvents, more) })
			mu.Lock()
			defer mu.Unlock()
			total += len(records)
			return err
		})
		if err != nil || total != 40 {
			t.Fatalf("ReadAll read %d, %v; want the 40 that were there", total, err)
		}
		total = 0
		if _, err = c.ReadAll(ctx, events.TopicEvents, marks, func(_ int, records []events.Record) error {
			mu.Lock()
			defer mu.Unlock()
			total += len(records)
			return nil
		}); err != nil || total != 40 {
			t.Errorf("ReadAll from the marks read %d, %v; want the 40 that came later", total, err)
		}
		// What one fetch brings beyond the mark is left out.
		read := 0
		if err := c.readPartition(ctx, events.TopicEvents, 0, 0, 3, func(_ int, records []events.Record) error {
			read += len(records)
			return nil
		}); err != nil || read != 3 {
			t.Errorf("reading to offset 3 gave %d records, %v", read, err)
		}
		failure := errors.New("sink is full")
		if _, err = c.ReadAll(ctx, events.TopicEvents, nil, func(int, []events.Record) error { return failure }); !errors.Is(err, failure) {
			t.Errorf("ReadAll = %v, want its function's error", err)
		}
	})
}
