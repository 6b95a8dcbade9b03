package postgres_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/events"
	"tollgate/ledger/postgres"
)

func TestCheckNamesEveryDifference(t *testing.T) {
	t.Parallel()
	s, pool, _ := folded(t)
	for _, c := range []struct{ name, sql, table, figure string }{
		{"hour", "UPDATE usage_hour SET output_tokens = output_tokens + 1 WHERE ctid = (SELECT min(ctid) FROM usage_hour)", "usage_hour", "output_tokens"},
		{"hour removed", "DELETE FROM usage_hour WHERE ctid = (SELECT min(ctid) FROM usage_hour)", "usage_hour", "milli_units"},
		{"hour added", "INSERT INTO usage_hour SELECT 'nobody', hour, model, endpoint, key_id, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM usage_hour LIMIT 1", "usage_hour", "requests"},
		{"window", "UPDATE usage_30d SET requests = requests - 1", "usage_30d", "requests"},
		{"window removed", "DELETE FROM usage_30d", "usage_30d", "milli_units"},
		{"reservation", "UPDATE reservations SET gpu_ms = gpu_ms + 1 WHERE ctid = (SELECT min(ctid) FROM reservations)", "reservations", "gpu_ms"},
		{"reservation's state", "UPDATE reservations SET state = 'held' WHERE ctid = (SELECT min(ctid) FROM reservations)", "reservations", "state"},
		{"reservation removed", "DELETE FROM reservations WHERE ctid = (SELECT min(ctid) FROM reservations)", "reservations", "state"},
		{"consumed", "UPDATE fold_progress SET consumed = consumed + 1 WHERE topic_partition = 1", "fold_progress", "consumed (sum of its kinds)"},
		{"journal", "DELETE FROM journal WHERE topic_partition = 1 AND topic_offset = 40", "fold_progress", "folded (journal rows)"},
		{"conflict", "INSERT INTO event_conflicts SELECT 1, 9, '', '', '', '', '{}'", "fold_progress", "conflicts (event_conflicts rows)"},
		{"reservation's head", "UPDATE reservations SET head_event_id = head_event_id || 'x' WHERE ctid = (SELECT min(ctid) FROM reservations)", "reservations", "head_event_id"},
		{"reservation's hold", "UPDATE reservations SET held_milli_units = held_milli_units + 1 WHERE ctid = (SELECT min(ctid) FROM reservations)", "reservations", "held_milli_units"},
		{"reservation's first event", "UPDATE reservations SET first_event_at = first_event_at - interval '1 second' WHERE ctid = (SELECT min(ctid) FROM reservations)", "reservations", "first_event_at"},
		{"reservation's last event", "UPDATE reservations SET last_event_at = last_event_at + interval '1 second' WHERE ctid = (SELECT min(ctid) FROM reservations)", "reservations", "last_event_at"},
		{"reservation's events", "UPDATE reservations SET events = events + 1 WHERE ctid = (SELECT min(ctid) FROM reservations)", "reservations", "events"},
		{"reservation renamed", "UPDATE reservations SET reservation_id = 'x' WHERE ctid = (SELECT min(ctid) FROM reservations)", "reservations", "state"},
		{"hour moved", "UPDATE usage_hour SET key_id = 'x' WHERE ctid = (SELECT min(ctid) FROM usage_hour)", "usage_hour", "requests"},
		{"journal of a partition without standing", "INSERT INTO journal SELECT (jsonb_populate_record(j, '{\"event_id\": \"x\", \"topic_partition\": 77}')).* FROM journal j WHERE topic_partition = 1 AND topic_offset = 40", "fold_progress", "folded (journal rows)"},
		{"journal of a partition below zero", "INSERT INTO journal SELECT (jsonb_populate_record(j, '{\"event_id\": \"x\", \"topic_partition\": -77}')).* FROM journal j WHERE topic_partition = 1 AND topic_offset = 40", "fold_progress", "folded (journal rows)"},
		{"total", "UPDATE journal SET total_milli_units = total_milli_units + 1; UPDATE reservations SET total_milli_units = total_milli_units + 1", "reservations", "milli_units (last event's total)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			restore := savepoint(t, pool)
			defer restore()
			run(t, pool, c.sql)
			r, err := s.Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(r.Differences, func(d postgres.Difference) bool { return d.Table == c.table && d.Figure == c.figure && d.Want != d.Got }) {
				t.Errorf("no difference names %s.%s: %v", c.table, c.figure, r.Differences)
			}
			for _, inMemory := range []int64{0, 1, -1} { // the whole; no room for all; not at all
				v, err := s.Verify(t.Context(), postgres.VerifyOptions{SumInMemory: inMemory}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(r, v.Check); diff != "" {
					t.Errorf("Verify with %d sums in memory (-Check +Verify):\n%s", inMemory, diff)
				}
			}
			if r.OK() || r.Err() == nil || !strings.Contains(r.Err().Error(), "does not add up") {
				t.Errorf("report is %v", r.Err())
			}
		})
	}
	mustAddUp(t, s) // restore works, so no case saw another's damage
}

// queries notes the statements of a pool.
type queries struct {
	mu  sync.Mutex
	all []string
}

// TraceQueryStart implements pgx.QueryTracer.
func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all = append(q.all, d.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take returns how many statements grouped the journal, and forgets them.
func (q *queries) take() (grouped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, sql := range q.all {
		if strings.Contains(sql, "FROM journal") && strings.Contains(sql, "GROUP BY") {
			grouped++
		}
	}
	q.all = nil
	return grouped
}

// A ledger that adds up is read once: what Verify sums while it reads is what
// the database sums. A reservation whose events are in two partitions, or of
// which two events have one seq, adds up as well.
func TestVerifySumsTheRowsThatItReads(t *testing.T) {
	t.Parallel()
	_, pool, log := folded(t)
	config := pool.Config()
	traced := new(queries)
	config.ConnConfig.Tracer = traced
	own, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	s := postgres.New(own, postgres.Options{})

	from := []int64{int64(len(log[0])), log[1][len(log[1])-1].Offset + 1}
	at := start.Add(-time.Hour)
	twice := func(seq int64, typ events.Type, total, delta int64, id string) reservation {
		return reservation{tenant: "both", id: "both", seq: seq, typ: typ, at: at, total: total, delta: delta, eventID: id}
	}
	fold(t, s, acquire(t, s, 0, "b"), []events.Record{
		twice(1, events.TypeReserved, 0, 0, "").record(from[0]),
		twice(3, events.TypeSettled, 9, 2, events.NewID("a", start, 3, 0)).record(from[0] + 1),
	}, 10)
	second := []events.Record{
		twice(2, events.TypeUsage, 7, 7, "").record(from[1]),
		twice(3, events.TypeCancelled, 8, 1, events.NewID("z", start, 3, 0)).record(from[1] + 1),
		twice(3, events.TypeSettled, 6, -1, events.NewID("m", start, 3, 0)).record(from[1] + 2),
	}
	for i := range second {
		second[i].Partition = 1
	}
	fold(t, s, acquire(t, s, 1, "b"), second, 10)

	traced.take()
	want, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if traced.take() == 0 {
		t.Fatal("this test does not recognise the database's sums")
	}
	if !want.OK() || want.Incomplete == 0 || want.Journal.Requests == 0 {
		t.Fatalf("the ledger should add up: %+v", want)
	}
	for _, workers := range []int{1, 2} {
		r, err := s.Verify(t.Context(), postgres.VerifyOptions{Workers: workers}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, r.Check); diff != "" || !r.OK() {
			t.Errorf("%v (-Check +Verify):\n%s", r.Err(), diff)
		}
		if n := traced.take(); n != 0 {
			t.Errorf("the database grouped the journal %d times", n)
		}
	}
	if _, err := s.Verify(t.Context(), postgres.VerifyOptions{SumInMemory: -1}, nil); err != nil {
		t.Fatal(err)
	}
	if traced.take() == 0 {
		t.Error("nothing was summed by the database when asked to")
	}
}
