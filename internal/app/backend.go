package app

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	admissionredis "tollgate/admission/redis"
	"tollgate/events"
	"tollgate/events/kafka"
	reconcilepg "tollgate/reconcile/postgres"
)

// Postgres returns the app's pool.
func (a *App) Postgres() (*pgxpool.Pool, error) { return a.postgres() }

// Backend answers what a whole installation has still to do.
type Backend struct {
	store      *admissionredis.Store
	kafka      *kafka.Client
	pool       *pgxpool.Pool
	reconciler *reconcilepg.Reconciler
}

// Backend returns the app's own.
func (a *App) Backend() (*Backend, error) {
	reconciler, err := a.Reconciler(nil)
	if err != nil {
		return nil, err
	}
	return &Backend{a.store, a.kafkaClient, a.pool, reconciler}, nil
}

// Backlog returns how many events wait in the outbox.
func (b *Backend) Backlog(ctx context.Context) (int64, error) { return b.store.Backlog(ctx) }

// Lag returns how many records of both topics are not folded.
func (b *Backend) Lag(ctx context.Context) (int64, error) {
	var lag int64
	for _, topic := range []string{events.TopicEvents, events.TopicMeters} {
		ends, err := b.kafka.HighWaters(ctx, topic)
		if err != nil {
			return 0, err
		}
		rows, err := b.pool.Query(ctx, `SELECT topic_partition, next_offset FROM fold_progress WHERE topic = $1`, topic)
		if err != nil {
			return 0, fmt.Errorf("read fold progress: %w", err)
		}
		var partition int
		var next int64
		for rows.Next() {
			if err := rows.Scan(&partition, &next); err != nil {
				rows.Close()
				return 0, fmt.Errorf("read fold progress: %w", err)
			}
			ends[partition] -= next
		}
		if err := rows.Err(); err != nil {
			return 0, fmt.Errorf("read fold progress: %w", err)
		}
		for _, n := range ends {
			lag += n
		}
	}
	return lag, nil
}

// Reconcile looks at the open holds once.
func (b *Backend) Reconcile(ctx context.Context) error {
	_, err := b.reconciler.RunOnce(ctx, time.Now())
	return err
}
