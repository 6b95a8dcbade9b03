package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"tollgate/events"
)

// replayFetchBytes is how much one fetch of a replay asks for.
const replayFetchBytes = 4 << 20

// ReadAll reads a topic from the given offsets (0 for a partition that is not
// in from) to the high-water marks at the moment of the call, all partitions at
// once, and returns the marks: by partition, the offset after the last record
// that was read. fn gets a partition's records in order and without overlap,
// but several partitions call it at the same time; records stay valid after it
// returns. An error of fn ends the reading and is returned.
//
// A log that does not hold the first offset asked for gives
// *OffsetOutOfRangeError. Kafka being away is waited out until the context
// ends.
func (c *Client) ReadAll(ctx context.Context, topic string, from map[int]int64, fn func(partition int, records []events.Record) error) (map[int]int64, error) {
	marks, err := c.highWaters(ctx, topic)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for partition, end := range marks {
		wg.Go(func() {
			if err := c.readPartition(ctx, topic, partition, from[partition], end, fn); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return marks, nil
}

// highWaters waits until Kafka tells where every partition ends.
func (c *Client) highWaters(ctx context.Context, topic string) (map[int]int64, error) {
	retry := newBackoff(100*time.Millisecond, 2*time.Second)
	for {
		marks, err := c.HighWaters(ctx, topic)
		if err == nil {
			return marks, nil
		}
		if !retry.wait(ctx) {
			return nil, fmt.Errorf("%w (last error: %w)", ctx.Err(), err)
		}
	}
}

// HighWaters returns, by partition, the offset after the topic's last record.
func (c *Client) HighWaters(ctx context.Context, topic string) (map[int]int64, error) {
	n, err := c.partitions(ctx, topic)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("topic %s: %w", topic, kafkago.UnknownTopicOrPartition)
	}
	ids := make([]int, n)
	for i := range ids {
		ids[i] = i
	}
	bounds, err := c.bounds(ctx, topic, ids...)
	if err != nil {
		return nil, err
	}
	marks := make(map[int]int64, n)
	for id, b := range bounds {
		marks[id] = b.last
	}
	return marks, nil
}

// readPartition reads [from, end).
func (c *Client) readPartition(ctx context.Context, topic string, partition int, from, end int64, fn func(int, []events.Record) error) error {
	if from > end {
		bounds, err := c.bounds(ctx, topic, partition)
		if err != nil {
			return err
		}
		b := bounds[partition]
		return &OffsetOutOfRangeError{Topic: topic, Partition: partition, Offset: from, First: b.first, Last: b.last}
	}
	p := &Partition{Topic: topic, ID: partition, client: c, maxBytes: replayFetchBytes, onError: func(error) {}}
	p.SeekTo(from)
	for p.next < end {
		records, err := p.Fetch(ctx, 1<<30, maxFetchWait)
		if err != nil {
			return err
		}
		for len(records) > 0 && records[len(records)-1].Offset >= end {
			records = records[:len(records)-1]
		}
		if len(records) == 0 {
			continue
		}
		if err := fn(partition, records); err != nil {
			return err
		}
	}
	return nil
}
