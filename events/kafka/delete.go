package kafka

import (
	"context"
	"errors"
	"fmt"

	kafkago "github.com/segmentio/kafka-go"

	"tollgate/events"
)

// DeleteTopics deletes the log's topics and everything in them. Nothing but
// tests and measurements, which have topics of their own, has a use for it; a
// client without a topic prefix is refused.
func (c *Client) DeleteTopics(ctx context.Context) error {
	if c.config.TopicPrefix == "" {
		return errors.New("kafka: topics without a prefix are somebody's log and are not deleted")
	}
	names := []string{c.wire(events.TopicEvents), c.wire(events.TopicMeters), c.wire(events.TopicDeadLetter)}
	res, err := c.raw.DeleteTopics(ctx, &kafkago.DeleteTopicsRequest{Topics: names})
	if err != nil {
		return fmt.Errorf("delete topics: %w", err)
	}
	for name, err := range res.Errors {
		if err != nil && !errors.Is(err, kafkago.UnknownTopicOrPartition) {
			return fmt.Errorf("delete topic %s: %w", name, err)
		}
	}
	return nil
}
