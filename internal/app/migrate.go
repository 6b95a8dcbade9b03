package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/events/kafka"
	"tollgate/internal/config"
	"tollgate/migrations"
)

// Migrate brings the database up to date and creates the topics. It waits for
// services that are still starting, until ctx ends.
func Migrate(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	if err := waitForPostgres(ctx, cfg.Postgres.URL.Reveal()); err != nil {
		return err
	}
	if err := migrations.Up(ctx, cfg.Postgres.URL.Reveal()); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	client, err := NewKafka(cfg, log)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.EnsureTopics(ctx, kafka.TopicConfig{
		Partitions: cfg.Kafka.Partitions, Replication: cfg.Kafka.Replication, Retention: cfg.Kafka.Retention,
	})
}

func waitForPostgres(ctx context.Context, url string) error {
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("connect to PostgreSQL: %w", err)
		}
	}
}
