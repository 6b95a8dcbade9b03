package testenv_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
	"go.uber.org/goleak"

	"tollgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPostgresIsMigratedAndAlone(t *testing.T) {
	t.Parallel()
	first, second := testenv.Postgres(t), testenv.Postgres(t)
	ctx := t.Context()
	if _, err := first.Exec(ctx, "INSERT INTO usage_30d VALUES ('only-here', 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)"); err != nil {
		t.Fatal(err)
	}
	for name, pool := range map[string]interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}{"first": first, "second": second} {
		var rows int
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM usage_30d").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		if want := map[string]int{"first": 1, "second": 0}[name]; rows != want {
			t.Errorf("%s database has %d rows, want %d", name, rows, want)
		}
	}
}

func TestPostgresIsDroppedAtTheEnd(t *testing.T) {
	t.Parallel()
	var url string
	t.Run("user", func(t *testing.T) {
		url = testenv.PostgresURL(t)
		conn, err := pgx.Connect(t.Context(), url) // left open on purpose
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if url == "" {
		testenv.Missing(t, testenv.EnvPostgres)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		_ = conn.Close(t.Context())
		t.Fatal("the database is still there after its test")
	}
	if !strings.Contains(err.Error(), "does not exist") {
		t.Fatalf("connecting afterwards: %v, want: does not exist", err)
	}
}

func TestRedisKeysAreDeletedAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) (redis.UniversalClient, string){
		"single": testenv.Redis, "cluster": testenv.RedisCluster,
	} {
		t.Run(name, func(t *testing.T) {
			observer, other := open(t)
			ctx := t.Context()
			if err := observer.Set(ctx, other+"kept", 1, 0).Err(); err != nil {
				t.Fatal(err)
			}
			var keys []string
			t.Run("user", func(t *testing.T) {
				client, prefix := open(t)
				for _, key := range []string{"a", "{s01}:b", "{s02}:c", "{s03}:d"} {
					keys = append(keys, prefix+key)
					if err := client.Set(t.Context(), prefix+key, 1, 0).Err(); err != nil {
						t.Fatal(err)
					}
				}
			})
			for _, key := range keys {
				if n, err := observer.Exists(ctx, key).Result(); err != nil || n != 0 {
					t.Errorf("key %q after its test: exists=%d err=%v", key, n, err)
				}
			}
			if n, err := observer.Exists(ctx, other+"kept").Result(); err != nil || n != 1 {
				t.Errorf("another test's key: exists=%d err=%v, want 1", n, err)
			}
		})
	}
}

func TestKafkaTopicsAreDeletedAtTheEnd(t *testing.T) {
	t.Parallel()
	brokers, _ := testenv.Kafka(t)
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}
	var topic string
	t.Run("user", func(t *testing.T) {
		_, prefix := testenv.Kafka(t)
		topic = prefix + "events"
		created, err := client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{
			Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}},
		})
		if err != nil || created.Errors[topic] != nil {
			t.Fatalf("create: %v, %v", err, created)
		}
	})
	// Deleting again says whether the topic was still there; metadata may lag.
	deleted, err := client.DeleteTopics(t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	if got := deleted.Errors[topic]; got == nil {
		t.Error("the topic was still there after its test")
	}
}
