// Package kafka keeps the log in Kafka: topics, a producer that acknowledges
// only what every in-sync replica has, a consumer that starts where its caller
// stored its offset, and a fast reader for replays.
//
// It is built on segmentio/kafka-go and avoids these parts of it on purpose:
//
//   - Writer: its zero values do not wait for acknowledgements, its batches
//     outlive the caller's context, and their number is not bounded. Producer
//     sends produce requests itself and holds at most a configured number of
//     bytes.
//   - Reader: it moves an offset that is out of range by itself, and its group
//     mode cannot start at a stored offset. Partition fetches itself and makes
//     an offset that is out of range an error.
//   - Its record decoder ignores the broker's append time. Batches are decoded
//     here.
//
// Topic names carry an optional prefix in Kafka only: callers and records use
// the names of package events.
package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
)

// Config says how to reach Kafka.
type Config struct {
	Brokers     []string // host:port; one that answers is enough
	ClientID    string   // default "tollgate"
	TopicPrefix string   // put before every topic and group name in Kafka
	TLS         *tls.Config
	SASL        sasl.Mechanism
	Logger      *slog.Logger // default: discard
}

// Client is a connection pool to a Kafka cluster. It is safe for concurrent
// use. Nothing is dialled until it is used; a broker that is away shows as an
// error of the call that needs it.
type Client struct {
	config    Config
	log       *slog.Logger
	transport *kafkago.Transport
	raw       *kafkago.Client
	addr      net.Addr
	closeOnce sync.Once
}

// How long single requests may take. A request that waits for records adds
// its waiting time.
const (
	requestTimeout = 10 * time.Second
	dialTimeout    = 5 * time.Second
	// The transport learns of new topics and leaders at this pace; it does not
	// refresh by itself when a broker says that it is not the leader.
	metadataTTL = 2 * time.Second
)

// New returns a client. It fails only on a configuration without brokers.
func New(config Config) (*Client, error) {
	if len(config.Brokers) == 0 {
		return nil, errors.New("kafka: no broker address is configured")
	}
	for _, b := range config.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			return nil, fmt.Errorf("kafka: broker address %q is not host:port: %w", b, err)
		}
	}
	if config.ClientID == "" {
		config.ClientID = "tollgate"
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		config: config,
		log:    config.Logger,
		addr:   kafkago.TCP(config.Brokers...),
		transport: &kafkago.Transport{
			ClientID:    config.ClientID,
			TLS:         config.TLS,
			SASL:        config.SASL,
			DialTimeout: dialTimeout,
			MetadataTTL: metadataTTL,
		},
	}
	c.raw = &kafkago.Client{Addr: c.addr, Transport: c.transport, Timeout: requestTimeout}
	return c, nil
}

// Close closes the connections. Requests that are under way end first. It may
// be called twice.
func (c *Client) Close() {
	c.closeOnce.Do(c.transport.CloseIdleConnections)
}

// Ping returns nil when a broker answers.
func (c *Client) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := c.raw.ApiVersions(ctx, &kafkago.ApiVersionsRequest{}); err != nil {
		return fmt.Errorf("kafka is out of reach: %w", err)
	}
	return nil
}

// wire returns the topic's name in Kafka.
func (c *Client) wire(topic string) string { return c.config.TopicPrefix + topic }

// logical returns the topic's name without the prefix.
func (c *Client) logical(topic string) string {
	return strings.TrimPrefix(topic, c.config.TopicPrefix)
}

// partitions returns the number of partitions of a topic. The answer comes
// from the transport's cache, at most metadataTTL old.
func (c *Client) partitions(ctx context.Context, topic string) (int, error) {
	res, err := c.raw.Metadata(ctx, &kafkago.MetadataRequest{Topics: []string{c.wire(topic)}})
	if err != nil {
		return 0, fmt.Errorf("metadata of topic %s: %w", topic, err)
	}
	for _, t := range res.Topics {
		if t.Name != c.wire(topic) {
			continue
		}
		if t.Error != nil {
			return 0, fmt.Errorf("metadata of topic %s: %w", topic, t.Error)
		}
		return len(t.Partitions), nil
	}
	return 0, fmt.Errorf("metadata of topic %s: %w", topic, kafkago.UnknownTopicOrPartition)
}

// bounds returns the first offset and the high-water mark of the partitions.
func (c *Client) bounds(ctx context.Context, topic string, partitions ...int) (map[int]bound, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	name := c.wire(topic)
	result := make(map[int]bound, len(partitions))
	// One request for each end: kafka-go merges both answers of a partition
	// into one entry, and would leave an end that is missing at -1.
	for _, at := range []int64{kafkago.FirstOffset, kafkago.LastOffset} {
		requests := make([]kafkago.OffsetRequest, len(partitions))
		for i, p := range partitions {
			requests[i] = kafkago.OffsetRequest{Partition: p, Timestamp: at}
		}
		res, err := c.raw.ListOffsets(ctx, &kafkago.ListOffsetsRequest{Topics: map[string][]kafkago.OffsetRequest{name: requests}})
		if err != nil {
			return nil, fmt.Errorf("offsets of topic %s: %w", topic, err)
		}
		for _, p := range res.Topics[name] {
			if p.Error != nil {
				return nil, fmt.Errorf("offsets of topic %s partition %d: %w", topic, p.Partition, p.Error)
			}
			b := result[p.Partition]
			if at == kafkago.FirstOffset {
				b.first, b.seen = p.FirstOffset, b.seen|1
			} else {
				b.last, b.seen = p.LastOffset, b.seen|2
			}
			result[p.Partition] = b
		}
	}
	for _, p := range partitions {
		if b := result[p]; b.seen != 3 || b.first < 0 || b.last < 0 {
			return nil, fmt.Errorf("offsets of topic %s partition %d are not known", topic, p)
		}
	}
	return result, nil
}

// bound is what a partition holds: offsets in [first, last).
type bound struct {
	first, last int64
	seen        uint8
}

// backoff doubles from low to high.
type backoff struct{ low, high, next time.Duration }

func newBackoff(low, high time.Duration) backoff { return backoff{low: low, high: high} }

func (b *backoff) reset() { b.next = 0 }

// wait sleeps; false when the context ended first.
func (b *backoff) wait(ctx context.Context) bool {
	b.next = min(max(b.low, 2*b.next), b.high)
	t := time.NewTimer(b.next)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
