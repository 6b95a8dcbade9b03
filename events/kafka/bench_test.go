package kafka

import (
	"flag"
	"sync/atomic"
	"testing"

	kafkago "github.com/segmentio/kafka-go"

	"tollgate/events"
)

var benchEvents = flag.Int("bench-events", 200_000, "events in the topic that benchmarks read")

// BenchmarkLog publishes a topic full of events and reads it back with ReadAll,
// with and without decoding, by codec.
func BenchmarkLog(b *testing.B) {
	for name, codec := range map[string]kafkago.Compression{"none": 0, "lz4": kafkago.Lz4, "snappy": kafkago.Snappy, "zstd": kafkago.Zstd} {
		b.Run(name, func(b *testing.B) {
			c := newRealClient(b)
			ensure(b, c, 8)
			p := c.NewProducer(ProducerOptions{Compression: codec, NoCompression: codec == 0})
			const chunk = 5000
			evs := makeEvents(chunk, 200)
			b.Run("publish", func(b *testing.B) {
				for b.Loop() {
					if err := p.Publish(b.Context(), events.TopicMeters, evs); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N)*chunk/b.Elapsed().Seconds(), "events/s")
			})
			for n := 0; n < *benchEvents; n += chunk {
				if err := p.Publish(b.Context(), events.TopicEvents, evs); err != nil {
					b.Fatal(err)
				}
			}
			read := func(b *testing.B, use func(events.Record) error) {
				var n atomic.Int64
				for b.Loop() {
					if _, err := c.ReadAll(b.Context(), events.TopicEvents, nil, func(_ int, records []events.Record) error {
						n.Add(int64(len(records)))
						for _, r := range records {
							if err := use(r); err != nil {
								return err
							}
						}
						return nil
					}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "events/s")
			}
			b.Run("read", func(b *testing.B) { read(b, func(events.Record) error { return nil }) })
			b.Run("read-and-parse", func(b *testing.B) {
				read(b, func(r events.Record) error {
					e, err := events.FromRecord(r)
					if err == nil {
						_, err = e.Reservation()
					}
					return err
				})
			})
		})
	}
}
