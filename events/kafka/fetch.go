package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// fetchVersion is the fetch API's version that is spoken: the oldest that
// brokers of today know and the newest that has no sessions.
const fetchVersion = 4

// maxResponseBytes bounds a fetch response. A broker sends one whole batch even
// where it is larger than was asked for.
const maxResponseBytes = 256 << 20

// fetchRequest asks one partition's leader for record batches. It travels over
// the transport's connections (routing, TLS, SASL) but writes and reads itself,
// because the library's decoder drops the broker's append time and is slow.
type fetchRequest struct {
	clientID  string
	topic     string // as Kafka names it
	partition int
	offset    int64
	maxBytes  int32
	maxWait   time.Duration
}

// fetchResponse is the answer for the one partition.
type fetchResponse struct {
	code      kafkago.Error
	highWater int64
	records   []byte
}

// ApiKey implements protocol.Message.
func (*fetchRequest) ApiKey() protocol.ApiKey { return protocol.Fetch } //nolint:revive // the interface's name

// ApiKey implements protocol.Message.
func (*fetchResponse) ApiKey() protocol.ApiKey { return protocol.Fetch } //nolint:revive // the interface's name

// Broker implements protocol.BrokerMessage: the partition's leader.
func (f *fetchRequest) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	topic, ok := cluster.Topics[f.topic]
	if !ok {
		return protocol.Broker{}, kafkago.UnknownTopicOrPartition
	}
	partition, ok := topic.Partitions[int32(f.partition)]
	if !ok {
		return protocol.Broker{}, kafkago.UnknownTopicOrPartition
	}
	broker, ok := cluster.Brokers[partition.Leader]
	if !ok {
		return protocol.Broker{}, kafkago.LeaderNotAvailable
	}
	return broker, nil
}

// Required implements protocol.RawExchanger.
func (*fetchRequest) Required(map[protocol.ApiKey]int16) bool { return true }

// correlationID is constant: a connection carries one request at a time.
const correlationID = 1

// RawExchange implements protocol.RawExchanger.
func (f *fetchRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if _, err := rw.Write(f.encode()); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, unexpectedEOF(err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxResponseBytes {
		return nil, fmt.Errorf("fetch response of %d bytes is too large", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(rw, body); err != nil {
		return nil, unexpectedEOF(err)
	}
	return decodeFetch(body)
}

func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (f *fetchRequest) encode() []byte {
	be := binary.BigEndian
	b := make([]byte, 4, 80+len(f.clientID)+len(f.topic))
	b = be.AppendUint16(b, uint16(protocol.Fetch))
	b = be.AppendUint16(b, fetchVersion)
	b = be.AppendUint32(b, correlationID)
	b = be.AppendUint16(b, uint16(len(f.clientID)))
	b = append(b, f.clientID...)
	b = be.AppendUint32(b, 0xffffffff) // replica: a consumer
	b = be.AppendUint32(b, uint32(f.maxWait.Milliseconds()))
	b = be.AppendUint32(b, 1) // answer as soon as there is one byte
	b = be.AppendUint32(b, uint32(f.maxBytes))
	b = append(b, 0)          // read uncommitted: the log has no transactions
	b = be.AppendUint32(b, 1) // topics
	b = be.AppendUint16(b, uint16(len(f.topic)))
	b = append(b, f.topic...)
	b = be.AppendUint32(b, 1) // partitions
	b = be.AppendUint32(b, uint32(f.partition))
	b = be.AppendUint64(b, uint64(f.offset))
	b = be.AppendUint32(b, uint32(f.maxBytes))
	be.PutUint32(b, uint32(len(b)-4))
	return b
}

var errFetchFormat = errors.New("fetch response is malformed")

func decodeFetch(body []byte) (*fetchResponse, error) {
	r := fixedReader{b: body}
	if id := r.uint32(); id != correlationID {
		return nil, fmt.Errorf("%w: correlation id %d", errFetchFormat, id)
	}
	r.uint32() // throttle time
	if n := r.uint32(); n != 1 {
		return nil, fmt.Errorf("%w: %d topics", errFetchFormat, n)
	}
	r.take(int(r.uint16())) // topic
	if n := r.uint32(); n != 1 {
		return nil, fmt.Errorf("%w: %d partitions", errFetchFormat, n)
	}
	r.uint32() // partition
	res := &fetchResponse{}
	res.code = kafkago.Error(int16(r.uint16()))
	res.highWater = int64(r.uint64())
	r.uint64() // last stable offset
	if aborted := int32(r.uint32()); aborted > 0 {
		r.take(int(aborted) * 16)
	}
	if size := int32(r.uint32()); size > 0 {
		res.records = r.take(int(size))
	}
	if r.bad {
		return nil, errFetchFormat
	}
	return res, nil
}

// fixedReader reads big-endian numbers.
type fixedReader struct {
	b   []byte
	bad bool
}

func (r *fixedReader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad = true
		r.b = nil
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *fixedReader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *fixedReader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *fixedReader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// fetch asks once. A Kafka error code comes back as an error.
func (c *Client) fetch(ctx context.Context, topic string, partition int, offset int64, maxBytes int32, wait time.Duration) (*fetchResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+requestTimeout)
	defer cancel()
	m, err := c.transport.RoundTrip(ctx, c.addr, &fetchRequest{
		clientID: c.config.ClientID, topic: c.wire(topic), partition: partition,
		offset: offset, maxBytes: maxBytes, maxWait: wait,
	})
	if err != nil {
		return nil, fmt.Errorf("fetch %s partition %d: %w", topic, partition, err)
	}
	res, ok := m.(*fetchResponse)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errFetchFormat, m)
	}
	if res.code != 0 {
		return nil, fmt.Errorf("fetch %s partition %d: %w", topic, partition, res.code)
	}
	return res, nil
}
