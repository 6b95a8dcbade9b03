package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	kafkago "github.com/segmentio/kafka-go"
)

// ErrStop ends Consumer.Run when a partition's function returns an error that
// wraps it.
var ErrStop = errors.New("consumer is stopped by its reader")

// ConsumerOptions configure a group member. Zero values take the defaults.
type ConsumerOptions struct {
	Group  string // name of the consumer group, before the prefix
	Topics []string
	// SessionTimeout is how long the group waits for a member that went silent
	// before its partitions go to others. Default 10 s; brokers allow 6 s and
	// more.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long members may take to end their work when the
	// group changes. Default 30 s.
	RebalanceTimeout time.Duration
	// MaxFetchBytes bounds one fetch of one partition. Default 1 MiB.
	MaxFetchBytes int32
}

// Consumer is a member of a consumer group. The group only divides partitions
// among its members; offsets are the caller's.
type Consumer struct {
	client *Client
	opts   ConsumerOptions

	mu     sync.Mutex
	joined bool
	fault  error
}

// NewConsumer returns a consumer on the client's connections.
func (c *Client) NewConsumer(opts ConsumerOptions) (*Consumer, error) {
	if opts.Group == "" || len(opts.Topics) == 0 {
		return nil, errors.New("kafka: a consumer needs a group and topics")
	}
	if opts.SessionTimeout <= 0 {
		opts.SessionTimeout = 10 * time.Second
	}
	if opts.RebalanceTimeout <= 0 {
		opts.RebalanceTimeout = 30 * time.Second
	}
	if opts.MaxFetchBytes <= 0 {
		opts.MaxFetchBytes = 1 << 20
	}
	return &Consumer{client: c, opts: opts, fault: errNotJoined}, nil
}

var errNotJoined = errors.New("not in the consumer group")

// Healthy returns nil while the consumer is in its group and its last fetch
// succeeded.
func (c *Consumer) Healthy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.joined {
		return fmt.Errorf("kafka consumer: %w", c.fault)
	}
	if c.fault != nil {
		return fmt.Errorf("kafka consumer: %w", c.fault)
	}
	return nil
}

func (c *Consumer) setJoined(joined bool, fault error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joined, c.fault = joined, fault
}

func (c *Consumer) setFault(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
}

// Run joins the group and calls fn for every partition that it is given, each
// in a goroutine of its own, until the context ends; then it leaves the group
// and returns the context's error.
//
// fn's context ends when the partition is taken away (the group changed, the
// coordinator is gone, Run ends); fn must return soon then, within the
// rebalance timeout. If fn returns before that: nil keeps the partition
// without reading it; an error that wraps ErrStop or is an
// *OffsetOutOfRangeError ends Run with that error; any other is logged, and
// the consumer joins anew after a pause, which calls fn again.
//
// A broker or coordinator that is away, or a topic that does not exist yet, is
// waited for.
func (c *Consumer) Run(ctx context.Context, fn func(ctx context.Context, p *Partition) error) error {
	defer c.setJoined(false, errNotJoined)
	if err := c.awaitTopics(ctx); err != nil {
		return err
	}
	group, err := kafkago.NewConsumerGroup(kafkago.ConsumerGroupConfig{
		ID:      c.client.wire(c.opts.Group),
		Brokers: c.client.config.Brokers,
		Dialer: &kafkago.Dialer{
			ClientID: c.client.config.ClientID, Timeout: dialTimeout, DualStack: true,
			TLS: c.client.config.TLS, SASLMechanism: c.client.config.SASL,
		},
		Topics:                 c.wireTopics(),
		GroupBalancers:         []kafkago.GroupBalancer{kafkago.RoundRobinGroupBalancer{}},
		HeartbeatInterval:      c.opts.SessionTimeout / 6,
		SessionTimeout:         c.opts.SessionTimeout,
		RebalanceTimeout:       c.opts.RebalanceTimeout,
		JoinGroupBackoff:       500 * time.Millisecond,
		WatchPartitionChanges:  true,
		PartitionWatchInterval: 5 * time.Second,
		StartOffset:            kafkago.FirstOffset,
		Timeout:                5 * time.Second,
	})
	if err != nil {
		return fmt.Errorf("consumer group: %w", err)
	}
	// Close waits for the generation's functions, so fn has returned when Run
	// returns.
	defer func() { _ = group.Close() }()

	pause := newBackoff(100*time.Millisecond, 2*time.Second)
	for {
		generation, err := group.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, kafkago.ErrGroupClosed):
			return err
		case err != nil:
			// Coordinator not available, group load in progress, broker away: all
			// pass. The library pauses and tries again.
			c.setJoined(false, err)
			c.client.log.WarnContext(ctx, "consumer group is not joined yet", "group", c.opts.Group, "error", err)
			continue
		}
		err = c.runGeneration(ctx, generation, fn)
		var outOfRange *OffsetOutOfRangeError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			pause.reset()
		case errors.Is(err, ErrStop), errors.As(err, &outOfRange):
			return err
		default:
			c.client.log.ErrorContext(ctx, "partition reader failed; joining anew", "group", c.opts.Group, "error", err)
			if !pause.wait(ctx) {
				return ctx.Err()
			}
		}
	}
}

// runGeneration runs fn for each partition and returns when the generation has
// ended and every fn has returned.
func (c *Consumer) runGeneration(ctx context.Context, generation *kafkago.Generation, fn func(context.Context, *Partition) error) error {
	var commits sync.Mutex // the generation's connection carries one request at a time
	commit := func(topic string, partition int, offset int64) error {
		commits.Lock()
		defer commits.Unlock()
		return generation.CommitOffsets(map[string]map[int]int64{c.client.wire(topic): {partition: offset}})
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failure error
	ended := make(chan struct{})
	var topics []string
	for topic := range generation.Assignments {
		topics = append(topics, topic)
	}
	slices.Sort(topics)
	count := 0
	for _, wire := range topics {
		for _, assigned := range generation.Assignments[wire] {
			count++
			p := &Partition{
				Topic: c.client.logical(wire), ID: assigned.ID, client: c.client,
				maxBytes: c.opts.MaxFetchBytes, commit: commit, onError: c.setFault,
			}
			wg.Add(1)
			generation.Start(func(genCtx context.Context) {
				defer wg.Done()
				partitionCtx, cancel := context.WithCancel(ctx)
				defer cancel()
				defer context.AfterFunc(genCtx, cancel)()
				err := fn(partitionCtx, p)
				if partitionCtx.Err() != nil {
					return
				}
				if err != nil {
					mu.Lock()
					failure = errors.Join(failure, err)
					mu.Unlock()
					return // which ends the generation
				}
				<-partitionCtx.Done()
			})
		}
	}
	generation.Start(func(genCtx context.Context) {
		select {
		case <-genCtx.Done():
		case <-ctx.Done():
		}
		close(ended)
	})
	c.client.log.InfoContext(ctx, "joined consumer group", "group", c.opts.Group, "generation", generation.ID, "partitions", count)
	c.setJoined(true, nil)
	<-ended
	c.setJoined(false, errNotJoined)
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	return failure
}

func (c *Consumer) wireTopics() []string {
	names := make([]string, len(c.opts.Topics))
	for i, t := range c.opts.Topics {
		names[i] = c.client.wire(t)
	}
	return names
}

// awaitTopics waits until every topic exists. The library's group would else
// rejoin without a pause while its topic watcher finds none.
func (c *Consumer) awaitTopics(ctx context.Context) error {
	retry := newBackoff(100*time.Millisecond, 2*time.Second)
	for _, topic := range c.opts.Topics {
		for {
			callCtx, cancel := context.WithTimeout(ctx, requestTimeout)
			_, err := c.client.partitions(callCtx, topic)
			cancel()
			if err == nil {
				break
			}
			c.setJoined(false, err)
			c.client.log.WarnContext(ctx, "waiting for Kafka", "topic", topic, "error", err)
			if !retry.wait(ctx) {
				return ctx.Err()
			}
		}
	}
	return nil
}
