package embedded

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
)

func TestServicesKeepTheirDataBetweenRuns(t *testing.T) {
	if _, err := postgresBin(); err != nil {
		t.Skip(err)
	}
	ctx := t.Context()
	dir := t.TempDir()
	// Another user must pass through the test's directory to reach its own.
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	opts := Options{Dir: filepath.Join(dir, "dev"), Log: slog.New(slog.DiscardHandler)}

	first, err := Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, first, `CREATE TABLE kept AS SELECT 42 AS n`)
	client := redis.NewClient(&redis.Options{Addr: first.RedisAddr, Password: first.RedisPassword})
	if err := client.Set(ctx, "kept", "42", 0).Err(); err != nil {
		t.Fatal(err)
	}
	client.Close()
	conn, err := kafka.DialContext(ctx, "tcp", first.Brokers[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.CreateTopics(kafka.TopicConfig{Topic: "kept", NumPartitions: 1, ReplicationFactor: 1}); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatalf("second Stop: %v", err)
	}

	second, err := Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := second.Stop(); err != nil {
			t.Error(err)
		}
	}()
	mustExec(t, second, `SELECT 1 / (n - 41) FROM kept`)
	conn, err = kafka.DialContext(ctx, "tcp", second.Brokers[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	partitions, err := conn.ReadPartitions("kept")
	if err != nil || len(partitions) != 1 {
		t.Errorf("topic was not kept: %v, %v", partitions, err)
	}
}

func mustExec(t *testing.T, s *Services, sql string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), s.PostgresURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
