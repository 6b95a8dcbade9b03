package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"tollgate/events"
)

// TopicConfig is the shape of the log's topics.
type TopicConfig struct {
	// Partitions of the events and the meters topic. It cannot be changed once
	// the topics exist: a tenant's key would move to another partition, and the
	// ledger's chains are per partition.
	Partitions int
	// Replication of every topic; 0 takes the broker's default. From 3 on, an
	// acknowledgement needs two replicas.
	Replication int
	// Retention of every topic; 0 keeps records for ever, since the log is what
	// a replay rebuilds the ledger from.
	Retention time.Duration
}

// PartitionMismatchError says that a topic exists with another number of
// partitions than is configured.
type PartitionMismatchError struct {
	Topic      string
	Have, Want int
}

// Error implements error.
func (e *PartitionMismatchError) Error() string {
	return fmt.Sprintf("topic %s has %d partitions but %d are configured: configure %d, or move to new topics",
		e.Topic, e.Have, e.Want, e.Have)
}

// EnsureTopics creates the log's topics where they are missing and sets their
// retention and timestamp type where they exist. It may be called again and
// from several processes at once. A topic with another partition count gives a
// *PartitionMismatchError; nothing is changed then. A broker that is away is
// retried until the context ends.
//
// Topics get message.timestamp.type=LogAppendTime, so that a record's time is
// the broker's; where the broker refuses that, the producer's time stands and
// a warning is logged.
func (c *Client) EnsureTopics(ctx context.Context, config TopicConfig) error {
	if config.Partitions < 1 {
		return fmt.Errorf("kafka: %d partitions are configured; at least 1 is needed", config.Partitions)
	}
	retry := newBackoff(100*time.Millisecond, 2*time.Second)
	for {
		err := c.ensureTopics(ctx, config)
		var mismatch *PartitionMismatchError
		if err == nil || errors.As(err, &mismatch) || isConfigError(err) {
			return err
		}
		if !retry.wait(ctx) {
			return fmt.Errorf("create topics: %w (last error: %w)", ctx.Err(), err)
		}
	}
}

// isConfigError tells what no retry will mend.
func isConfigError(err error) bool {
	return errors.Is(err, kafkago.InvalidReplicationFactor) || errors.Is(err, kafkago.InvalidPartitionNumber) ||
		errors.Is(err, kafkago.InvalidConfiguration) || errors.Is(err, kafkago.PolicyViolation) ||
		errors.Is(err, kafkago.TopicAuthorizationFailed) || errors.Is(err, kafkago.InvalidTopic)
}

func (c *Client) ensureTopics(ctx context.Context, config TopicConfig) error {
	topics := []struct {
		name       string
		partitions int
	}{
		{events.TopicEvents, config.Partitions},
		{events.TopicMeters, config.Partitions},
		{events.TopicDeadLetter, 1},
	}
	var existing []string
	for _, t := range topics {
		have, err := c.partitions(ctx, t.name)
		switch {
		case errors.Is(err, kafkago.UnknownTopicOrPartition):
			continue
		case err != nil:
			return err
		case have != t.partitions:
			return &PartitionMismatchError{Topic: c.wire(t.name), Have: have, Want: t.partitions}
		}
		existing = append(existing, t.name)
	}
	for _, t := range topics {
		if contains(existing, t.name) {
			if err := c.configure(ctx, t.name, config); err != nil {
				return err
			}
			continue
		}
		if err := c.create(ctx, t.name, t.partitions, config); err != nil {
			return err
		}
	}
	return nil
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

const timestampType = "message.timestamp.type"

func (c *Client) create(ctx context.Context, topic string, partitions int, config TopicConfig) error {
	replication := config.Replication
	if replication == 0 {
		replication = -1
	}
	entries := []kafkago.ConfigEntry{
		{ConfigName: "cleanup.policy", ConfigValue: "delete"},
		{ConfigName: "retention.ms", ConfigValue: config.retentionMillis()},
		{ConfigName: timestampType, ConfigValue: "LogAppendTime"},
	}
	if config.Replication >= 3 {
		entries = append(entries, kafkago.ConfigEntry{ConfigName: "min.insync.replicas", ConfigValue: "2"})
	}
	err := c.createTopic(ctx, kafkago.TopicConfig{
		Topic: c.wire(topic), NumPartitions: partitions, ReplicationFactor: replication, ConfigEntries: entries,
	})
	if errors.Is(err, kafkago.InvalidConfiguration) || errors.Is(err, kafkago.PolicyViolation) {
		c.log.WarnContext(ctx, "broker refused LogAppendTime; records keep their producer's time", "topic", topic, "error", err)
		kept := entries[:0]
		for _, e := range entries {
			if e.ConfigName != timestampType {
				kept = append(kept, e)
			}
		}
		err = c.createTopic(ctx, kafkago.TopicConfig{
			Topic: c.wire(topic), NumPartitions: partitions, ReplicationFactor: replication, ConfigEntries: kept,
		})
	}
	if err != nil && !errors.Is(err, kafkago.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	// Another process may have created it with another partition count, and a
	// broker may learn of the topic later than it answers.
	retry := newBackoff(20*time.Millisecond, 500*time.Millisecond)
	for {
		have, err := c.partitions(ctx, topic)
		switch {
		case err == nil && have != partitions:
			return &PartitionMismatchError{Topic: c.wire(topic), Have: have, Want: partitions}
		case err == nil:
			return nil
		case !errors.Is(err, kafkago.UnknownTopicOrPartition):
			return err
		}
		if !retry.wait(ctx) {
			return fmt.Errorf("topic %s was created but does not show: %w", topic, ctx.Err())
		}
	}
}

func (c *Client) createTopic(ctx context.Context, topic kafkago.TopicConfig) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	res, err := c.raw.CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{topic}})
	if err != nil {
		return err
	}
	return res.Errors[topic.Topic]
}

func (t TopicConfig) retentionMillis() string {
	if t.Retention <= 0 {
		return "-1"
	}
	return strconv.FormatInt(t.Retention.Milliseconds(), 10)
}

// configure sets what EnsureTopics promises of a topic that was there before.
func (c *Client) configure(ctx context.Context, topic string, config TopicConfig) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, entry := range []kafkago.IncrementalAlterConfigsRequestConfig{
		{Name: "retention.ms", Value: config.retentionMillis(), ConfigOperation: kafkago.ConfigOperationSet},
		{Name: timestampType, Value: "LogAppendTime", ConfigOperation: kafkago.ConfigOperationSet},
	} {
		res, err := c.raw.IncrementalAlterConfigs(ctx, &kafkago.IncrementalAlterConfigsRequest{
			Resources: []kafkago.IncrementalAlterConfigsRequestResource{{
				ResourceType: kafkago.ResourceTypeTopic, ResourceName: c.wire(topic),
				Configs: []kafkago.IncrementalAlterConfigsRequestConfig{entry},
			}},
		})
		if err != nil {
			return fmt.Errorf("configure topic %s: %w", topic, err)
		}
		for _, r := range res.Resources {
			if r.Error == nil {
				continue
			}
			if entry.Name == timestampType {
				c.log.WarnContext(ctx, "broker refused LogAppendTime; records keep their producer's time", "topic", topic, "error", r.Error)
				continue
			}
			return fmt.Errorf("configure topic %s: %w", topic, r.Error)
		}
	}
	return nil
}
