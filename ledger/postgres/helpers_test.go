package postgres_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
	"tollgate/ledger/postgres"
)

// rounds scales the tests that look for a rare interleaving.
var rounds = flag.Int("rounds", 300, "rounds of the tests that look for rare interleavings")

func TestMain(m *testing.M) {
	// Each check folds into a database; -rapid.checks asks for more.
	if err := flag.Set("rapid.checks", "12"); err != nil {
		panic(err)
	}
	flag.Parse()
	if len(os.Args) > 1 && os.Getenv(envCrashChild) != "" {
		crashChild()
	}
	goleak.VerifyTestMain(m)
}

// empty removes everything that was folded.
func empty(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	run(t, pool, "TRUNCATE journal, event_conflicts, reservations, usage_hour, usage_30d, usage_window, fold_progress, batches")
}

// start is when test logs begin.
var start = time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC)

// openStore returns a store on a database of the test's own.
func openStore(t *testing.T) (*postgres.Store, *pgxpool.Pool) {
	t.Helper()
	pool := testenv.Postgres(t)
	return postgres.New(pool, postgres.Options{}), pool
}

func acquire(t *testing.T, s *postgres.Store, partition int, owner string) ledger.Lease {
	t.Helper()
	lease, err := s.Acquire(t.Context(), events.TopicEvents, partition, owner)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func newBatch(t *testing.T, partition int, records []events.Record) *ledger.Batch {
	t.Helper()
	b, err := ledger.NewBatch(events.TopicEvents, partition, records)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fold flushes records in batches of the given size.
func fold(t *testing.T, s *postgres.Store, lease ledger.Lease, records []events.Record, size int) (ledger.Lease, ledger.Counts) {
	t.Helper()
	var all ledger.Counts
	for len(records) > 0 {
		n := min(size, len(records))
		next, counts, err := s.Flush(t.Context(), lease, newBatch(t, lease.Partition, records[:n]))
		if err != nil {
			t.Fatal(err)
		}
		all.Add(counts)
		lease, records = next, records[n:]
	}
	return lease, all
}

// mustAddUp runs Check and Verify.
func mustAddUp(t *testing.T, s *postgres.Store) *postgres.CheckReport {
	t.Helper()
	r, err := s.Verify(t.Context(), postgres.VerifyOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	return r.Check
}

// wantTotals is what a log's events add up to, computed from their last totals
// alone and by other code than the ledger's.
func wantTotals(t *testing.T, records []events.Record) (input, output, milli int64) {
	t.Helper()
	last := make(map[string]events.Reservation)
	for _, r := range records {
		v, err := events.ParseReservation(r.Value)
		if err != nil {
			t.Fatal(err)
		}
		if v.Seq > last[v.ReservationID].Seq {
			last[v.ReservationID] = v
		}
	}
	for _, v := range last {
		input += v.Total.InputTokens
		output += v.Total.OutputTokens
		milli += v.TotalMilliUnits
	}
	return input, output, milli
}

// reservation is a short way to one event's record.
type reservation struct {
	tenant, id string
	seq        int64
	typ        events.Type
	at         time.Time
	total      int64 // output tokens after the event
	delta      int64
	eventID    string // default: made from id and seq
}

func (r reservation) record(offset int64) events.Record {
	state := map[events.Type]events.State{
		events.TypeReserved: events.StateHeld, events.TypeUsage: events.StateHeld, events.TypeSettled: events.StateSettled,
		events.TypeCancelled: events.StateCancelled, events.TypeExpired: events.StateExpired,
	}[r.typ]
	if r.eventID == "" {
		r.eventID = events.NewID("e1-"+r.id, start, r.seq, 0)
	}
	v := events.Reservation{
		TenantID: r.tenant, ReservationID: r.id, RequestID: "req-" + r.id, KeyID: "key", Endpoint: "chat", Model: "m",
		Seq: r.seq, State: state, WeightMilli: 1000, Author: "client", ExpiresAt: r.at.Add(time.Minute),
		Delta: events.Usage{OutputTokens: r.delta}, DeltaMilliUnits: r.delta * 1000,
		Total: events.Usage{OutputTokens: r.total}, TotalMilliUnits: r.total * 1000,
	}
	e := events.Event{ID: r.eventID, Source: "tollgate/admission/e1/s00", Type: r.typ, Subject: r.tenant, Time: r.at, Data: events.AppendReservation(nil, &v)}
	rec := events.ToRecord(events.TopicEvents, &e)
	rec.Offset, rec.Time = offset, r.at.Add(time.Second)
	return rec
}

// settled is a reservation told in one event.
func settled(tenant, id string, at time.Time, tokens int64) reservation {
	return reservation{tenant: tenant, id: id, seq: 1, typ: events.TypeSettled, at: at, total: tokens, delta: tokens}
}

// moved returns r at another offset.
func moved(r events.Record, offset int64) events.Record {
	r.Offset = offset
	return r
}

// dumpTables returns every table of the fold as text, for comparison. Rows that
// hold nothing but zeros are no rows.
func dumpTables(t *testing.T, pool *pgxpool.Pool, tables ...string) string {
	t.Helper()
	order := map[string]string{
		"journal":      "day, event_id",
		"reservations": "reservation_id",
		"usage_hour":   "tenant_id, hour, model, endpoint, key_id",
		"usage_30d":    "tenant_id",
	}
	var b strings.Builder
	for _, table := range tables {
		rows, err := pool.Query(t.Context(), "SELECT to_jsonb(x)::text FROM "+table+" x ORDER BY "+order[table])
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s: %d rows\n%s\n", table, len(lines), strings.Join(lines, "\n"))
	}
	return b.String()
}

func scalar[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func run(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// deadLetters keeps what a Runner could not fold.
type deadLetters struct {
	mu   sync.Mutex
	kept map[int64]string // reason by offset
}

func (d *deadLetters) DeadLetter(_ context.Context, r events.Record, reason string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept == nil {
		d.kept = make(map[int64]string)
	}
	d.kept[r.Offset] = reason
	return nil
}

// runUntil runs a partition until next is folded.
func runUntil(t *testing.T, r *ledger.Runner, partition int, src *ledgerbench.Source, next int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := r.RunPartition(ctx, partition, &stopAt{Source: src, next: next, stop: cancel})
	if err != nil || src.Committed() < next {
		t.Fatalf("partition %d stopped at %d of %d: %v", partition, src.Committed(), next, errors.Join(err, ctx.Err()))
	}
}

type stopAt struct {
	*ledgerbench.Source
	next int64
	stop context.CancelFunc
}

func (s *stopAt) Commit(offset int64) error {
	err := s.Source.Commit(offset)
	if offset >= s.next {
		s.stop()
	}
	return err
}
