package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"tollgate/events"
)

// OffsetOutOfRangeError says that the offset to read is not in the partition:
// records were trimmed before they were read, or the topic was made anew. The
// reader never moves by itself, since whatever lies between would be lost in
// silence.
type OffsetOutOfRangeError struct {
	Topic       string
	Partition   int
	Offset      int64 // that was asked for
	First, Last int64 // the partition holds [First, Last)
}

// Error implements error.
func (e *OffsetOutOfRangeError) Error() string {
	return fmt.Sprintf("offset %d of topic %s partition %d is out of range: the log holds offsets %d to %d; "+
		"records were trimmed or the topic was recreated, restore the topic or replay from an export",
		e.Offset, e.Topic, e.Partition, e.First, e.Last)
}

// Longest time that one fetch may keep a connection waiting for records.
const maxFetchWait = 500 * time.Millisecond

// Partition reads one partition of a topic, in order. It is used by one
// goroutine; HighWater and Commit may be called from another.
type Partition struct {
	Topic string
	ID    int

	client   *Client
	maxBytes int32
	commit   func(topic string, partition int, offset int64) error
	onError  func(error) // tells the consumer's health

	position int64 // next offset to hand out
	next     int64 // next offset to fetch
	buffer   []events.Record

	mu        sync.Mutex
	highWater int64
	seenAt    time.Time
}

// SeekTo sets the offset that the next Fetch starts at. A partition starts at 0,
// the beginning of a log that was never trimmed.
func (p *Partition) SeekTo(offset int64) {
	p.position, p.next, p.buffer = offset, offset, nil
}

// Position returns the offset of the next record that Fetch will return.
func (p *Partition) Position() int64 { return p.position }

// Fetch returns up to limit records from the current offset on, waiting up to
// wait for the first. No record within wait, also because Kafka is away, gives
// an empty slice and no error; the consumer's Healthy and HighWater tell the
// difference. An offset that is not in the log gives *OffsetOutOfRangeError, a
// damaged batch another error: both need a person. When the context ends its
// error is returned.
//
// Records stay valid after the next Fetch.
func (p *Partition) Fetch(ctx context.Context, limit int, wait time.Duration) ([]events.Record, error) {
	deadline := time.Now().Add(wait)
	retry := newBackoff(50*time.Millisecond, time.Second)
	outOfRange := 0
	for len(p.buffer) == 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		left := max1ms(time.Until(deadline))
		err := p.fill(ctx, min(left, maxFetchWait))
		switch {
		case err == nil:
			p.onError(nil)
			retry.reset()
		case errors.Is(err, kafkago.OffsetOutOfRange):
			// A new leader may answer so for a moment; the second look decides.
			if e := p.rangeError(ctx); e != nil {
				if outOfRange++; outOfRange > 1 {
					return nil, e
				}
			}
			if !retry.wait(ctx) {
				return nil, ctx.Err()
			}
			continue
		case isDamage(err):
			return nil, fmt.Errorf("topic %s partition %d after offset %d: %w", p.Topic, p.ID, p.next, err)
		default:
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			p.onError(err)
			waitCtx, cancel := context.WithDeadline(ctx, deadline)
			retry.wait(waitCtx)
			cancel()
		}
		if !time.Now().Before(deadline) {
			break
		}
	}
	n := min(limit, len(p.buffer))
	out := p.buffer[:n:n]
	p.buffer = p.buffer[n:]
	if n > 0 {
		p.position = out[n-1].Offset + 1
	}
	return out, nil
}

func max1ms(d time.Duration) time.Duration { return max(d, time.Millisecond) }

func isDamage(err error) bool {
	return errors.Is(err, errBatchCRC) || errors.Is(err, errBatchFormat) || errors.Is(err, errFetchFormat)
}

// fill fetches once.
func (p *Partition) fill(ctx context.Context, wait time.Duration) error {
	res, err := p.client.fetch(ctx, p.Topic, p.ID, p.next, p.maxBytes, wait)
	if err != nil {
		return err
	}
	records, next, err := decodeBatches(nil, p.Topic, p.ID, p.next, res.records)
	if err != nil && len(records) == 0 {
		return err
	}
	// A damaged batch behind good ones is met again by the next fetch.
	p.buffer, p.next = records, next
	p.mu.Lock()
	p.highWater, p.seenAt = res.highWater, time.Now()
	p.mu.Unlock()
	return nil
}

// rangeError returns nil where the offset is in the log after all.
func (p *Partition) rangeError(ctx context.Context) error {
	bounds, err := p.client.bounds(ctx, p.Topic, p.ID)
	if err != nil {
		p.onError(err)
		return nil
	}
	b := bounds[p.ID]
	if p.next >= b.first && p.next <= b.last {
		return nil
	}
	return &OffsetOutOfRangeError{Topic: p.Topic, Partition: p.ID, Offset: p.next, First: b.first, Last: b.last}
}

// HighWater returns the offset after the last record that is committed in
// Kafka; what the last fetch said if that is younger than a second.
func (p *Partition) HighWater() (int64, error) {
	p.mu.Lock()
	value, at := p.highWater, p.seenAt
	p.mu.Unlock()
	if time.Since(at) < time.Second {
		return value, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	bounds, err := p.client.bounds(ctx, p.Topic, p.ID)
	if err != nil {
		return 0, err
	}
	b := bounds[p.ID]
	p.mu.Lock()
	p.highWater, p.seenAt = b.last, time.Now()
	p.mu.Unlock()
	return b.last, nil
}

// Commit writes the offset to the consumer group, so that lag tools work. What
// counts is where the caller stored its offset; a failed Commit loses nothing.
func (p *Partition) Commit(offset int64) error {
	if p.commit == nil {
		return nil
	}
	if err := p.commit(p.Topic, p.ID, offset); err != nil {
		return fmt.Errorf("commit offset %d of topic %s partition %d: %w", offset, p.Topic, p.ID, err)
	}
	return nil
}
