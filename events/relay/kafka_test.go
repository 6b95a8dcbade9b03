package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tollgate/events"
	"tollgate/events/kafka"
	"tollgate/internal/testenv"
)

func newClient(t *testing.T, config kafka.Config) *kafka.Client {
	t.Helper()
	c, err := kafka.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := c.EnsureTopics(ctx, kafka.TopicConfig{Partitions: 4}); err != nil {
		t.Fatal(err)
	}
	return c
}

func newFakeCluster(t *testing.T) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SleepOutOfOrder())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

// contents returns how often each event id is in the log.
func contents(t *testing.T, c *kafka.Client, topic string) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var mu sync.Mutex
	got := map[string]int{}
	_, err := c.ReadAll(ctx, topic, nil, func(_ int, records []events.Record) error {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range records {
			got[string(r.HeaderValue("ce_id"))]++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestRelayFillsKafka(t *testing.T) {
	for _, name := range []string{"kfake", "kafka"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := kafka.Config{}
			if name == "kfake" {
				config.Brokers = newFakeCluster(t).ListenAddrs()
			} else {
				config.Brokers, config.TopicPrefix = testenv.Kafka(t)
			}
			c := newClient(t, config)
			o := newMemOutbox(t, 8)
			want := map[string]bool{}
			for i := range 2000 {
				for _, e := range o.add(i%8, 1+i%3) {
					want[e.ID] = true
				}
			}
			// What no one can decode goes to the dead letters and blocks nothing.
			o.mu.Lock()
			o.append(3, []events.Event{{ID: "e1-s03-1787155200123-999999.0", Data: []byte("n=1\x00")}})
			o.mu.Unlock()
			for i := range 100 {
				for _, e := range o.add(i%8, 1) {
					want[e.ID] = true
				}
			}
			startRelay(t, o, c.NewProducer(kafka.ProducerOptions{}), nil)
			waitFor(t, "the outbox is empty", empty(o))
			got := contents(t, c, events.TopicEvents)
			for id := range want {
				if got[id] != 1 {
					t.Errorf("event %s is in the log %d times", id, got[id])
				}
			}
			if len(got) != len(want) {
				t.Errorf("the log has %d events, want %d", len(got), len(want))
			}
			if dead := contents(t, c, events.TopicDeadLetter); dead["e1-s03-1787155200123-999999.0"] != 1 || len(dead) != 1 {
				t.Errorf("dead letters: %v", dead)
			}
		})
	}
}

// A produce request is done by the broker but its answer comes too late, others
// fail outright, then the broker recovers: repeats are in the log, with the
// same ids, and counting by id gives every event once.
func TestCaseL8_LateAnswersAndRetriesCountOnce(t *testing.T) {
	cluster := newFakeCluster(t)
	c := newClient(t, kafka.Config{Brokers: cluster.ListenAddrs()})
	var produced, late atomic.Int64
	cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		n := produced.Add(1)
		switch {
		case n > 12:
			return nil, nil, false
		case n%3 == 0:
			// The connection breaks before the request is handled.
			return nil, errors.New("broken pipe"), false
		case n%3 == 1:
			late.Add(1)
			// Handled, but only after the caller has given up.
			cluster.SleepControl(func() { time.Sleep(150 * time.Millisecond) })
			return nil, nil, false
		}
		return notEnoughReplicas(req), nil, true
	})
	o := newMemOutbox(t, 4)
	want := map[string]bool{}
	for i := range 400 {
		for _, e := range o.add(i%4, 1) {
			want[e.ID] = true
		}
	}
	r := startRelay(t, o, c.NewProducer(kafka.ProducerOptions{AttemptTimeout: 80 * time.Millisecond}), func(o *Options) {
		o.ReadMax, o.RoundEvents, o.PublishTimeout = 10, 40, 300*time.Millisecond
	})
	waitFor(t, "the outbox is empty", empty(o))
	r.Stop()
	if late.Load() == 0 {
		t.Fatal("no answer was late; the test tests nothing")
	}
	got := contents(t, c, events.TopicEvents)
	repeats := 0
	for id := range want {
		if got[id] < 1 {
			t.Errorf("event %s is lost", id)
		}
		repeats += got[id] - 1
	}
	if len(got) != len(want) {
		t.Errorf("counted by id the log has %d events, want %d", len(got), len(want))
	}
	if repeats == 0 {
		t.Error("nothing was repeated; the late answers were not retried")
	}
	if o.mostReads > 80 {
		t.Errorf("%d entries were held at once, want at most two rounds of 40", o.mostReads)
	}
}

func notEnoughReplicas(req kmsg.Request) kmsg.Response {
	produce := req.(*kmsg.ProduceRequest)
	res := produce.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range produce.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, 19
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res
}

func TestKafkaAwayAtStartIsWaitedFor(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	addresses := cluster.ListenAddrs()
	cluster.Close()
	c, err := kafka.New(kafka.Config{Brokers: addresses})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	o := newMemOutbox(t, 2)
	o.add(0, 5)
	r := startRelay(t, o, c.NewProducer(kafka.ProducerOptions{}), func(o *Options) { o.PublishTimeout = 200 * time.Millisecond })
	waitFor(t, "the relay says so", func() bool { return r.Healthy() != nil && r.Backlog() == 5 && r.publishFailed() })
	var port int
	if _, err := fmt.Sscanf(addresses[0], "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	cluster, err = kfake.NewCluster(kfake.Ports(port), kfake.DataDir(dir), kfake.SeedTopics(2, events.TopicEvents))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	waitFor(t, "the outbox is empty", empty(o))
	waitFor(t, "healthy", func() bool { return r.Healthy() == nil })
	if got := contents(t, c, events.TopicEvents); len(got) != 5 {
		t.Errorf("the log has %d events, want 5", len(got))
	}
}

func (r *Relay) publishFailed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.publishErr != nil
}
