package app

import (
	"context"
	"errors"
	"fmt"

	"tollgate/events"
	"tollgate/events/kafka"
	"tollgate/ledger"
	ledgerpg "tollgate/ledger/postgres"
	reconcilepg "tollgate/reconcile/postgres"
)

// Ledger adds the ledger role: it folds events and meter readings into
// PostgreSQL, and closes hours.
func (a *App) Ledger() error {
	pool, err := a.postgres()
	if err != nil {
		return err
	}
	client, err := a.kafka()
	if err != nil {
		return err
	}
	producer := client.NewProducer(kafka.ProducerOptions{})
	runner := ledger.NewRunner(ledgerpg.New(pool, ledgerpg.Options{Log: a.log}), producer, ledger.Options{
		Owner:         processName(),
		FlushInterval: a.cfg.Ledger.FlushInterval,
		FlushEvents:   a.cfg.Ledger.FlushEvents,
		MaxBatch:      a.cfg.Ledger.MaxBatch,
		StallAfter:    a.cfg.Ledger.StallAfter,
		Log:           a.log,
		Metrics:       a.metrics,
	})
	meters, err := reconcilepg.NewIntake(reconcilepg.NewMeterFolder(pool, producer), reconcilepg.IntakeOptions{
		Owner:      processName(),
		StallAfter: a.cfg.Ledger.StallAfter,
		Logger:     a.log,
		Registerer: a.metrics,
	})
	if err != nil {
		return err
	}
	consumer, err := client.NewConsumer(kafka.ConsumerOptions{
		Group:  a.cfg.Ledger.Group,
		Topics: []string{events.TopicEvents, events.TopicMeters},
	})
	if err != nil {
		return err
	}
	// The runner stops before the consumer, so that its last flush still has
	// its partitions; parts stop in reverse order.
	a.background("consumer", func(ctx context.Context) error {
		err := consumer.Run(ctx, func(ctx context.Context, p *kafka.Partition) error {
			switch p.Topic {
			case events.TopicEvents:
				return runner.RunPartition(ctx, p.ID, p)
			case events.TopicMeters:
				return meters.RunPartition(ctx, p.Topic, p.ID, p)
			}
			return fmt.Errorf("topic %s has no fold", p.Topic)
		})
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
	a.add(part{
		name:  "ledger",
		start: func(context.Context) error { runner.Start(); return nil },
		stop:  func(context.Context) error { runner.Stop(); return nil },
	})
	a.check("kafka", func(context.Context) error { return consumer.Healthy() })
	a.check("meters", func(context.Context) error { return meters.Healthy() })
	a.check("ledger", func(context.Context) error { return runner.Ready() })
	a.check("postgres", func(ctx context.Context) error { return pool.Ping(ctx) })
	return nil
}
