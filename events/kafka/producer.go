package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"golang.org/x/sync/semaphore"

	"tollgate/events"
)

// ProducerOptions bound a producer. Zero values take the defaults.
type ProducerOptions struct {
	// MaxInFlightBytes bounds the payload bytes that all publishes under way
	// hold together; more wait. Default 32 MiB.
	MaxInFlightBytes int64
	// MaxBatchBytes bounds one produce request. It must stay below the broker's
	// message.max.bytes. Default 900,000.
	MaxBatchBytes int
	// AttemptTimeout bounds one produce request. Default 10 s.
	AttemptTimeout time.Duration
	// Compression of batches; default LZ4.
	Compression kafkago.Compression
	// NoCompression turns it off.
	NoCompression bool
}

// Producer publishes events with acks=all. It is safe for concurrent use and
// keeps nothing between calls: what Publish does not return is in the log or in
// its error.
type Producer struct {
	client   *Client
	opts     ProducerOptions
	inFlight *semaphore.Weighted
	balancer kafkago.Hash
}

// NewProducer returns a producer on the client's connections.
func (c *Client) NewProducer(opts ProducerOptions) *Producer {
	if opts.MaxInFlightBytes <= 0 {
		opts.MaxInFlightBytes = 32 << 20
	}
	if opts.MaxBatchBytes <= 0 {
		opts.MaxBatchBytes = 900_000
	}
	if opts.AttemptTimeout <= 0 {
		opts.AttemptTimeout = requestTimeout
	}
	if opts.Compression == 0 {
		opts.Compression = kafkago.Lz4
	}
	if opts.NoCompression {
		opts.Compression = 0
	}
	return &Producer{client: c, opts: opts, inFlight: semaphore.NewWeighted(opts.MaxInFlightBytes)}
}

// Publish writes the events to the topic and returns when every in-sync replica
// has them. Events of one subject go to one partition in the given order.
// Whatever may pass is retried until the context ends, so callers give a
// deadline or expect to wait. The error is a *events.PublishError that names
// the events which are not known to be written; it wraps events.ErrRefused
// for those that never will be. A retry after an answer that was lost writes an
// event twice, with the same id.
func (p *Producer) Publish(ctx context.Context, topic string, evs []events.Event) error {
	if len(evs) == 0 {
		return nil
	}
	var size int64
	failed := map[int]error{}
	msgs := make([]message, 0, len(evs))
	for i := range evs {
		if err := evs[i].Validate(); err != nil {
			failed[i] = fmt.Errorf("%w: %w", events.ErrRefused, err)
			continue
		}
		m := message{index: i, record: events.ToRecord(topic, &evs[i])}
		m.size = recordSize(&m.record)
		size += int64(m.size)
		msgs = append(msgs, m)
	}
	size = min(size, p.opts.MaxInFlightBytes) // a larger publish goes alone
	if err := p.inFlight.Acquire(ctx, size); err != nil {
		for i := range evs {
			failed[i] = err
		}
		return &events.PublishError{Failed: failed}
	}
	defer p.inFlight.Release(size)
	p.send(ctx, topic, msgs, failed)
	if len(failed) > 0 {
		return &events.PublishError{Failed: failed}
	}
	return nil
}

// message is a record to be written, with its place in the caller's slice.
type message struct {
	index  int
	size   int
	record events.Record
}

// recordSize is an upper bound of what the record takes in a batch.
func recordSize(r *events.Record) int {
	n := 32 + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 10 + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// send writes the messages, each partition's in order and all partitions at
// once, and notes in failed what was not written.
func (p *Producer) send(ctx context.Context, topic string, msgs []message, failed map[int]error) {
	n, err := p.partitionsOf(ctx, topic)
	if err != nil {
		for _, m := range msgs {
			failed[m.index] = err
		}
		return
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	byPartition := make(map[int][]message)
	for _, m := range msgs {
		i := p.balancer.Balance(kafkago.Message{Key: m.record.Key}, all...)
		byPartition[i] = append(byPartition[i], m)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	fail := func(ms []message, err error) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range ms {
			failed[m.index] = err
		}
	}
	for partition, ms := range byPartition {
		wg.Go(func() { p.sendPartition(ctx, topic, partition, ms, fail) })
	}
	wg.Wait()
}

func (p *Producer) partitionsOf(ctx context.Context, topic string) (int, error) {
	retry := newBackoff(50*time.Millisecond, 2*time.Second)
	for {
		n, err := p.client.partitions(ctx, topic)
		if err == nil && n > 0 {
			return n, nil
		}
		if !retry.wait(ctx) {
			return 0, fmt.Errorf("%w (last error: %w)", ctx.Err(), err)
		}
	}
}

func (p *Producer) sendPartition(ctx context.Context, topic string, partition int, ms []message, fail func([]message, error)) {
	for len(ms) > 0 {
		n, size := 1, ms[0].size
		for n < len(ms) && size+ms[n].size <= p.opts.MaxBatchBytes {
			size += ms[n].size
			n++
		}
		if !p.sendBatch(ctx, topic, partition, ms[:n], fail) {
			fail(ms[n:], ctx.Err())
			return
		}
		ms = ms[n:]
	}
}

// sendBatch writes one batch, trying until the context ends (false). A batch
// that the broker refuses is halved until the record at fault stands alone.
func (p *Producer) sendBatch(ctx context.Context, topic string, partition int, ms []message, fail func([]message, error)) bool {
	retry := newBackoff(50*time.Millisecond, 2*time.Second)
	for {
		err := p.produce(ctx, topic, partition, ms)
		switch {
		case err == nil:
			return true
		case isRefusal(err) && len(ms) == 1:
			fail(ms, fmt.Errorf("%w: %w", events.ErrRefused, err))
			return true
		case isRefusal(err):
			half := len(ms) / 2
			if !p.sendBatch(ctx, topic, partition, ms[:half], fail) {
				fail(ms[half:], ctx.Err())
				return false
			}
			return p.sendBatch(ctx, topic, partition, ms[half:], fail)
		}
		p.client.log.DebugContext(ctx, "produce failed", "topic", topic, "partition", partition, "records", len(ms), "error", err)
		if !retry.wait(ctx) {
			fail(ms, fmt.Errorf("%w (last error: %w)", ctx.Err(), err))
			return false
		}
	}
}

// isRefusal tells the answers that are about a record, not about the cluster.
func isRefusal(err error) bool {
	return errors.Is(err, kafkago.MessageSizeTooLarge) || errors.Is(err, kafkago.RecordListTooLarge) ||
		errors.Is(err, kafkago.InvalidRecord) || errors.Is(err, kafkago.InvalidTimestamp)
}

func (p *Producer) produce(ctx context.Context, topic string, partition int, ms []message) error {
	ctx, cancel := context.WithTimeout(ctx, p.opts.AttemptTimeout)
	defer cancel()
	res, err := p.client.raw.Produce(ctx, &kafkago.ProduceRequest{
		Topic: p.client.wire(topic), Partition: partition,
		RequiredAcks: kafkago.RequireAll, Compression: p.opts.Compression,
		Records: &recordReader{ms: ms, now: time.Now()},
	})
	if err != nil {
		return err
	}
	return res.Error
}

// recordReader gives the messages to the library's encoder.
type recordReader struct {
	ms      []message
	now     time.Time
	record  protocol.Record
	headers []protocol.Header
}

// ReadRecord implements protocol.RecordReader.
func (r *recordReader) ReadRecord() (*protocol.Record, error) {
	if len(r.ms) == 0 {
		return nil, io.EOF
	}
	rec := &r.ms[0].record
	r.ms = r.ms[1:]
	r.headers = r.headers[:0]
	for _, h := range rec.Headers {
		r.headers = append(r.headers, protocol.Header{Key: h.Key, Value: h.Value})
	}
	r.record = protocol.Record{Time: r.now, Key: protocol.NewBytes(rec.Key), Value: protocol.NewBytes(rec.Value), Headers: r.headers}
	return &r.record, nil
}

// Headers of a dead letter, besides those of the record itself.
const (
	HeaderTopic     = "tollgate_topic"       // where the record was
	HeaderPartition = "tollgate_partition"   // decimal
	HeaderOffset    = "tollgate_offset"      // decimal
	HeaderReason    = "tollgate_reason"      // an events.Reason
	HeaderTime      = "tollgate_time"        // when it was appended, RFC 3339
	HeaderBytes     = "tollgate_value_bytes" // size of the whole value
)

// Bounds of a dead letter: what is longer is cut, and HeaderBytes tells.
const (
	maxDeadValueBytes  = 512 << 10
	maxDeadKeyBytes    = 1 << 10
	maxDeadHeaderBytes = 16 << 10
)

// DeadLetter writes a record that could not be used to the dead-letter topic,
// with its position and the reason, and returns when it is acknowledged. It
// retries until the context ends. Writing the same record again is harmless:
// readers know it by topic, partition and offset.
func (p *Producer) DeadLetter(ctx context.Context, r events.Record, reason string) error {
	dead := events.Record{
		Key:   truncate(r.Key, maxDeadKeyBytes),
		Value: truncate(r.Value, maxDeadValueBytes),
		Headers: []events.Header{
			{Key: HeaderTopic, Value: []byte(r.Topic)},
			{Key: HeaderPartition, Value: strconv.AppendInt(nil, int64(r.Partition), 10)},
			{Key: HeaderOffset, Value: strconv.AppendInt(nil, r.Offset, 10)},
			{Key: HeaderReason, Value: []byte(reason)},
			{Key: HeaderTime, Value: r.Time.UTC().AppendFormat(nil, time.RFC3339Nano)},
			{Key: HeaderBytes, Value: strconv.AppendInt(nil, int64(len(r.Value)), 10)},
		},
	}
	budget := maxDeadHeaderBytes
	for _, h := range r.Headers {
		if budget -= len(h.Key) + len(h.Value); budget < 0 {
			break
		}
		dead.Headers = append(dead.Headers, h)
	}
	m := message{record: dead, size: recordSize(&dead)}
	if err := p.inFlight.Acquire(ctx, min(int64(m.size), p.opts.MaxInFlightBytes)); err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	defer p.inFlight.Release(min(int64(m.size), p.opts.MaxInFlightBytes))
	failed := map[int]error{}
	p.send(ctx, events.TopicDeadLetter, []message{m}, failed)
	if err := failed[0]; err != nil {
		return fmt.Errorf("dead letter of %s partition %d offset %d: %w", r.Topic, r.Partition, r.Offset, err)
	}
	return nil
}

func truncate(b []byte, limit int) []byte {
	if len(b) > limit {
		return b[:limit]
	}
	return b
}
