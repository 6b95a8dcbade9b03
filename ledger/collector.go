package ledger

import (
	"context"
	"fmt"
	"time"

	"tollgate/events"
)

// lookEvery is how often a collector looks how far behind it is.
const lookEvery = time.Second

// collector cuts a partition of the log into batches.
type collector struct {
	opts      *Options
	src       Source
	partition int
	next      int64
	state     *partitionHealth
	out       chan *Batch

	records []events.Record
	bytes   int
	since   time.Time // of the first record
	want    int
	looked  time.Time
}

// run fetches, cuts and decodes until ctx ends or the source fails, hands on
// what it holds and closes out.
func (c *collector) run(ctx context.Context) error {
	defer close(c.out)
	c.want = c.opts.FlushEvents
	for {
		c.look()
		if c.full() { // what is wanted became less than what is in hand
			if err := c.emit(); err != nil {
				return err
			}
		}
		got, err := c.src.Fetch(ctx, c.want-len(c.records), c.wait())
		c.take(got)
		if ctx.Err() != nil || err != nil || c.full() {
			if err := c.emit(); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("fetch partition %d from %d: %w", c.partition, c.next, err)
		}
	}
}

// wait is how long a fetch may wait.
func (c *collector) wait() time.Duration {
	if len(c.records) == 0 {
		return min(c.opts.FlushInterval, lookEvery)
	}
	return max(0, min(c.opts.FlushInterval-time.Since(c.since), lookEvery))
}

// take adds records; a source that starts at a chunk's beginning may give some
// that are folded already.
func (c *collector) take(got []events.Record) {
	for i := range got {
		if got[i].Offset < c.next {
			continue
		}
		if len(c.records) == 0 {
			c.since = time.Now()
		}
		c.records = append(c.records, got[i])
		c.bytes += len(got[i].Value)
		c.next = got[i].Offset + 1
	}
}

func (c *collector) full() bool {
	return len(c.records) > 0 && (len(c.records) >= c.want || c.bytes >= c.opts.MaxBatchBytes ||
		time.Since(c.since) >= c.opts.FlushInterval)
}

// emit decodes the batch and hands it on. The receiver drains the channel also
// when it gives up, so this does not block for good, and what is in hand at the
// end still reaches the last flush.
func (c *collector) emit() error {
	if len(c.records) == 0 {
		return nil
	}
	b, err := NewBatch(c.opts.Topic, c.partition, c.records)
	if err != nil {
		return fmt.Errorf("batch of partition %d: %w", c.partition, err)
	}
	c.records, c.bytes = nil, 0
	c.out <- b
	return nil
}

// look tells health how far behind the partition is, and takes larger batches
// while it is far behind.
func (c *collector) look() {
	if time.Since(c.looked) < lookEvery {
		return
	}
	c.looked = time.Now()
	high, err := c.src.HighWater()
	c.state.looked(high, err)
	c.want = c.opts.FlushEvents
	if err == nil && high-c.next > 2*int64(c.opts.FlushEvents) {
		c.want = c.opts.MaxBatch
	}
}
