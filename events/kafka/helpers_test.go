package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"testing"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

func compression(codec int) kafkago.Compression { return kafkago.Compression(codec) }

func createSmallTopic(t testing.TB, c *Client, topic string, maxBytes int) {
	t.Helper()
	err := c.createTopic(testContext(t), kafkago.TopicConfig{
		Topic: c.wire(topic), NumPartitions: 1, ReplicationFactor: 1,
		ConfigEntries: []kafkago.ConfigEntry{{ConfigName: "max.message.bytes", ConfigValue: strconv.Itoa(maxBytes)}},
	})
	if err != nil {
		t.Fatalf("create topic: %v", err)
	}
}

// trim deletes the records before offset, as retention does.
func trim(t testing.TB, c *Client, topic string, partition int, offset int64) {
	t.Helper()
	if err := deleteRecords(testContext(t), c, topic, partition, offset); err != nil {
		t.Fatalf("delete records: %v", err)
	}
}

// deleteRecordsRequest is an API that the library lacks.
type deleteRecordsRequest struct {
	fetchRequest
}

//nolint:revive // the name is the library's interface's
func (*deleteRecordsRequest) ApiKey() protocol.ApiKey { return protocol.DeleteRecords }

func (d *deleteRecordsRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	be := binary.BigEndian
	b := make([]byte, 4)
	b = be.AppendUint16(b, uint16(protocol.DeleteRecords))
	b = be.AppendUint16(b, 0)
	b = be.AppendUint32(b, correlationID)
	b = be.AppendUint16(b, 0)
	b = be.AppendUint32(b, 1)
	b = be.AppendUint16(b, uint16(len(d.topic)))
	b = append(b, d.topic...)
	b = be.AppendUint32(b, 1)
	b = be.AppendUint32(b, uint32(d.partition))
	b = be.AppendUint64(b, uint64(d.offset))
	b = be.AppendUint32(b, 5000)
	be.PutUint32(b, uint32(len(b)-4))
	if _, err := rw.Write(b); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, err
	}
	body := make([]byte, be.Uint32(size[:]))
	if _, err := io.ReadFull(rw, body); err != nil {
		return nil, err
	}
	if code := int16(be.Uint16(body[len(body)-2:])); code != 0 {
		return nil, kafkago.Error(code)
	}
	return d, nil
}

func deleteRecords(ctx context.Context, c *Client, topic string, partition int, offset int64) error {
	_, err := c.transport.RoundTrip(ctx, c.addr, &deleteRecordsRequest{fetchRequest{topic: c.wire(topic), partition: partition, offset: offset}})
	if err != nil {
		return fmt.Errorf("delete records: %w", err)
	}
	return nil
}
