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
			verifyFindsTheSame(t, s, r)
			if r.OK() || r.Err() == nil || !strings.Contains(r.Err().Error(), "does not add up") {
				t.Errorf("report is %v", r.Err())
			}
		})
	}
	mustAddUp(t, s) // restore works, so no case saw another's damage
}

// verifyFindsTheSame holds Verify's check against Check's, wherever the sums are
// computed: in memory; by the database, as there are more events than may be
// summed in memory; always by the database.
func verifyFindsTheSame(t *testing.T, s *postgres.Store, want *postgres.CheckReport) {
	t.Helper()
	for _, inMemory := range []int64{0, 1, -1} {
		v, err := s.Verify(t.Context(), postgres.VerifyOptions{SumInMemory: inMemory}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, v.Check); diff != "" {
			t.Errorf("Verify with SumInMemory %d (-Check +Verify):\n%s", inMemory, diff)
		}
	}
}

// usage_30d knows only the sums of closed hours of the last 30 days. What
// leaves these sums as they were is found by comparing the buckets.
func TestVerifyComparesBucketsThatTheWindowDoesNotTell(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	nothing := reservation{tenant: "acme", id: "nothing", seq: 2, typ: events.TypeUsage, at: start.Add(2 * time.Hour), total: 5, delta: 5}
	undone := nothing
	undone.seq, undone.total, undone.delta = 3, 0, -5
	fold(t, s, acquire(t, s, 0, "a"), []events.Record{
		settled("acme", "before", start.Add(-40*24*time.Hour), 100).record(0),
		settled("acme", "closed", start, 20).record(1),
		settled("acme", "closed too", start.Add(time.Hour), 30).record(2),
		nothing.record(3), undone.record(4),
		settled("acme", "open", start.Add(10*time.Hour), 4).record(5),
	}, 10)
	if _, err := s.CloseHours(t.Context(), start.Add(10*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if r := mustAddUp(t, s); r.BeforeWindow.OutputTokens != 100 || r.Closed30d.OutputTokens != 50 || r.Open.OutputTokens != 4 {
		t.Fatalf("the window is not where this test needs it: %+v", r)
	}

	type damage struct{ name, sql, figure string }
	var cases []damage
	for _, figure := range []string{
		"requests", "input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens",
		"tool_calls", "images", "audio_ms", "gpu_ms", "milli_units",
	} {
		change := "UPDATE usage_hour SET " + figure + " = " + figure + " + 1 WHERE hour "
		cases = append(cases,
			damage{"before the window: " + figure, change + "< (SELECT window_start FROM usage_window)", figure},
			damage{"open: " + figure, change + ">= (SELECT closed_through FROM usage_window)", figure},
			damage{
				"moved from hour to hour: " + figure,
				"UPDATE usage_hour SET " + figure + " = " + figure + " + CASE output_tokens WHEN 20 THEN 1 ELSE -1 END WHERE output_tokens IN (20, 30)", figure,
			})
	}
	for _, hours := range []string{"window_start - interval '1 hour'", "window_start", "closed_through"} {
		cases = append(cases, damage{
			"added, of nothing: " + hours,
			"INSERT INTO usage_hour SELECT 'acme', " + hours + ", 'm', 'chat', 'x', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM usage_window", "requests",
		})
	}
	cases = append(cases,
		damage{"removed, of nothing", "DELETE FROM usage_hour WHERE output_tokens = 0", "requests"},
		damage{"one of nothing in another's place", "UPDATE usage_hour SET key_id = 'x' WHERE output_tokens = 0", "requests"})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			restore := savepoint(t, pool)
			defer restore()
			run(t, pool, c.sql)
			want, err := s.Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(want.Differences, func(d postgres.Difference) bool { return d.Figure == c.figure }) {
				t.Errorf("no difference names %s: %v", c.figure, want.Differences)
			}
			if slices.ContainsFunc(want.Differences, func(d postgres.Difference) bool { return d.Table != "usage_hour" }) {
				t.Errorf("more tells of it than the buckets: %v", want.Differences)
			}
			verifyFindsTheSame(t, s, want)
		})
	}
	mustAddUp(t, s)
}

// queries notes the statements of a pool.
type queries struct {
	mu   sync.Mutex
	all  []string
	meet *meeting // of workers, if not nil
}

// TraceQueryStart implements pgx.QueryTracer.
func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	q.mu.Lock()
	q.all = append(q.all, d.SQL)
	meet := q.meet
	q.mu.Unlock()
	// A worker's first statement of a partition.
	if meet != nil && strings.Contains(d.SQL, "FROM batches") && len(d.Args) == 4 && d.Args[2] == int64(0) {
		meet.arrive(ctx)
	}
	return ctx
}

// expect makes the next n partitions be read by one worker each: a worker that
// has begun with one waits until the others are begun as well.
func (q *queries) expect(n int) *meeting {
	m := &meeting{missing: n, all: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.meet = m
	return m
}

// meeting is over when all have arrived.
type meeting struct {
	mu      sync.Mutex
	missing int
	all     chan struct{}
}

func (m *meeting) arrive(ctx context.Context) {
	m.mu.Lock()
	m.missing--
	if m.missing == 0 {
		close(m.all)
	}
	m.mu.Unlock()
	select {
	case <-m.all:
	case <-ctx.Done():
	}
}

func (m *meeting) over() bool {
	select {
	case <-m.all:
		return true
	default:
		return false
	}
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

// headID is the id of one of a reservation's events of the last seq; the
// greatest is the head.
func headID(reservation string, i int) string {
	return events.NewID([]string{"a", "m", "z"}[i]+reservation, start, 3, 0)
}

// traced is folded with some reservations more, and with a store whose
// statements are noted. A reservation is named after the partitions, of three,
// that have its events of the last seq, in order of the events' ids.
func traced(t *testing.T, reservations ...string) (*postgres.Store, *pgxpool.Pool, *queries) {
	t.Helper()
	_, pool, log := folded(t)
	config := pool.Config()
	noted := new(queries)
	config.ConnConfig.Tracer = noted
	config.MaxConns = 5 // for Verify with as many workers as partitions
	own, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	s := postgres.New(own, postgres.Options{})

	from := []int64{int64(len(log[0])), log[1][len(log[1])-1].Offset + 1, 0}
	added := make([][]events.Record, len(from))
	for _, id := range reservations {
		add := func(place byte, r reservation) {
			p := int(place - '0')
			r.tenant, r.id, r.at = "everywhere", id, start.Add(-time.Hour)
			rec := r.record(from[p] + int64(len(added[p])))
			rec.Partition = p
			added[p] = append(added[p], rec)
		}
		add(id[0], reservation{seq: 1, typ: events.TypeReserved})
		add(id[1], reservation{seq: 2, typ: events.TypeUsage, total: 7, delta: 7})
		for i := len(id) - 1; i >= 0; i-- {
			typ := []events.Type{events.TypeSettled, events.TypeCancelled, events.TypeSettled}[i]
			add(id[i], reservation{seq: 3, typ: typ, total: 7 + int64(i), eventID: headID(id, i)})
		}
	}
	for p := range added {
		if len(added[p]) == 0 {
			continue
		}
		fold(t, s, acquire(t, s, p, "b"), added[p], 10)
	}
	return s, pool, noted
}

// A ledger that adds up is read once: what Verify sums while it reads is what
// the database sums. A reservation whose events are in several partitions, or of
// which several events have one seq, adds up as well, in whatever order what the
// workers summed is put together.
func TestVerifySumsTheRowsThatItReads(t *testing.T) {
	t.Parallel()
	s, _, noted := traced(t, "012", "021", "102", "120", "201", "210")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	want, err := s.Check(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if noted.take() == 0 {
		t.Fatal("this test does not recognise the database's sums")
	}
	if !want.OK() || want.Incomplete == 0 || want.Journal.Requests == 0 {
		t.Fatalf("the ledger should add up: %+v", want)
	}
	for _, workers := range []int{1, 2, 3} {
		met := noted.expect(workers)
		r, err := s.Verify(ctx, postgres.VerifyOptions{Workers: workers}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !met.over() {
			t.Fatal("this test does not recognise how workers begin")
		}
		if diff := cmp.Diff(want, r.Check); diff != "" || !r.OK() {
			t.Errorf("%v (-Check +Verify):\n%s", r.Err(), diff)
		}
		if n := noted.take(); n != 0 {
			t.Errorf("%d workers: the database grouped the journal %d times", workers, n)
		}
	}
	for _, inMemory := range []int64{1, -1} {
		if _, err := s.Verify(ctx, postgres.VerifyOptions{SumInMemory: inMemory}, nil); err != nil {
			t.Fatal(err)
		}
		if noted.take() == 0 {
			t.Errorf("SumInMemory %d: nothing was summed by the database", inMemory)
		}
	}
}

// A reservation must not pass that has, of two events of its last seq, what the
// one with the lesser id says, whichever worker read it.
func TestVerifyFindsALesserHead(t *testing.T) {
	t.Parallel()
	reservations := []string{"01", "10"}
	s, pool, noted := traced(t, reservations...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, id := range reservations {
		restore := savepoint(t, pool)
		run(t, pool, `UPDATE reservations r SET head_event_id = j.event_id, tenant_id = j.tenant_id, request_id = j.request_id,
			key_id = j.key_id, endpoint = j.endpoint, model = j.model, state = j.state, weight_milli = j.weight_milli,
			held_milli_units = j.held_milli_units, total_milli_units = j.total_milli_units, estimated = j.estimated, expires_at = j.expires_at
			FROM journal j WHERE r.reservation_id = $1 AND j.event_id = $2`, id, headID(id, 0))
		want, err := s.Check(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if want.OK() {
			t.Fatalf("reservation %s: Check does not find the lesser head", id)
		}
		for _, inMemory := range []int64{0, 1, -1} {
			met := noted.expect(2)
			v, err := s.Verify(ctx, postgres.VerifyOptions{Workers: 2, SumInMemory: inMemory}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !met.over() {
				t.Fatal("this test does not recognise how workers begin")
			}
			if diff := cmp.Diff(want, v.Check); diff != "" {
				t.Errorf("reservation %s, SumInMemory %d (-Check +Verify):\n%s", id, inMemory, diff)
			}
		}
		restore()
	}
	mustAddUp(t, s)
}
