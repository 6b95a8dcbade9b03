package testenv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
)

// Kafka returns the brokers' addresses and a prefix for the names of topics
// and groups. Topics under the prefix are deleted when the test ends; topics
// are not created by being used.
func Kafka(t testing.TB) (brokers []string, topicPrefix string) {
	t.Helper()
	brokers = addresses(t, EnvKafka)
	topicPrefix = "test-" + unique() + "-"
	atEnd(t, "Kafka topics "+topicPrefix+"*", func(ctx context.Context) error {
		return deleteTopics(ctx, brokers, topicPrefix)
	})
	return brokers, topicPrefix
}

func deleteTopics(ctx context.Context, brokers []string, prefix string) error {
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}

	metadata, err := client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	var names []string
	for _, topic := range metadata.Topics {
		if strings.HasPrefix(topic.Name, prefix) {
			names = append(names, topic.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	response, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: names})
	if err != nil {
		return fmt.Errorf("delete topics: %w", err)
	}
	var failed []error
	for name, err := range response.Errors {
		// The broker's metadata may still show what the test itself deleted.
		if err != nil && !errors.Is(err, kafka.UnknownTopicOrPartition) {
			failed = append(failed, fmt.Errorf("delete topic %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}
