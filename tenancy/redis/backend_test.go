package redis

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"tollgate/internal/testenv"
	"tollgate/tenancy"
	"tollgate/tenancy/postgres"
)

var why = tenancy.Change{Author: "alice", Reason: "ticket 7"}

// backends are the kinds of Redis that everything here must work on.
var backends = map[string]func(testing.TB) (redis.UniversalClient, string){
	"redis":   testenv.Redis,
	"cluster": testenv.RedisCluster,
	"miniredis": func(t testing.TB) (redis.UniversalClient, string) {
		server := miniredis.RunT(t)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		return client, "tg:"
	},
}

func onEveryBackend(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, prefix := backend(t)
			test(t, newWorld(t, client, prefix))
		})
	}
}

// world is a store, a Redis, and whoever publishes and follows.
type world struct {
	pool   *pgxpool.Pool
	store  *postgres.Store
	client redis.UniversalClient
	prefix string
}

func newWorld(t testing.TB, client redis.UniversalClient, prefix string) *world {
	pool := testenv.Postgres(t)
	return &world{pool: pool, store: postgres.New(pool), client: client, prefix: prefix}
}

func (w *world) publisher(t testing.TB, o PublisherOptions) *Publisher {
	t.Helper()
	o.Logger = logger()
	p := NewPublisher(postgres.NewFeed(w.pool), w.client, w.prefix, o)
	p.Start()
	t.Cleanup(p.Stop)
	return p
}

func (w *world) directory(t testing.TB, o DirectoryOptions) *Directory {
	t.Helper()
	if o.Logger == nil {
		o.Logger = logger()
	}
	d := NewDirectory(w.client, w.prefix, o)
	d.Start()
	t.Cleanup(d.Stop)
	return d
}

func (w *world) ready(t testing.TB, d *Directory) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := d.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	w.current(t, d)
}

// current waits until the directories have all that the store has now.
func (w *world) current(t testing.TB, directories ...*Directory) {
	t.Helper()
	version, err := w.store.Version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range directories {
		eventually(t, "the directory is current", func() bool { return d.Version() >= version && d.Err() == nil })
	}
}

func (w *world) tenant(t testing.TB, id string) *tenancy.Tenant {
	t.Helper()
	tenant, err := w.store.CreateTenant(t.Context(), why, tenancy.Tenant{ID: id, Name: id, TimeZone: "UTC", Currency: "EUR"})
	if err != nil {
		t.Fatal(err)
	}
	return tenant
}

func (w *world) key(t testing.TB, n postgres.NewKey) (*tenancy.Key, string) {
	t.Helper()
	n.Name = "test"
	key, presented, err := w.store.CreateKey(t.Context(), why, n)
	if err != nil {
		t.Fatal(err)
	}
	return key, presented
}

// empty removes what a FLUSHALL would, of this test alone.
func (w *world) empty(t testing.TB) {
	t.Helper()
	k := keysOf(w.prefix)
	if err := w.client.Del(t.Context(), k.documents, k.version, k.changes).Err(); err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for !condition() {
		if !pause(ctx, 2*time.Millisecond) {
			t.Fatalf("did not come about in 15 s: %s", what)
		}
	}
}

func logger() *slog.Logger {
	if os.Getenv("TOLLGATE_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

// logLines keeps what was logged.
type logLines struct {
	mu   sync.Mutex
	text []byte
}

func (l *logLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, line...)
	return len(line), nil
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
