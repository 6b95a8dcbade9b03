package postgres

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/reconcile"
)

func TestMain(m *testing.M) {
	// Each check of a property takes a database's time; -rapid.checks asks for more.
	if err := flag.Set("rapid.checks", "10"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// hour0 is a closed hour in which test data lies.
var hour0 = time.Date(2026, 3, 10, 9, 0, 0, 0, time.UTC)

// admissionFake is a Settler that behaves as admission does: it ends a
// reservation once, answers a repeat as before, and refuses other figures.
type admissionFake struct {
	mu    sync.Mutex
	ended map[string]ending
	calls int
	// before is asked first, with the number of this call from 1; its error is
	// the answer.
	before func(call int, tenant, reservation string) error
}

type ending struct {
	tenant    string
	cancelled bool
	total     events.Usage
	estimated bool
	author    string
	reason    string
}

func newAdmission() *admissionFake { return &admissionFake{ended: make(map[string]ending)} }

func (a *admissionFake) Settle(_ context.Context, tenant, id string, total events.Usage, estimated bool, author, reason string) error {
	return a.end(id, ending{tenant, false, total, estimated, author, reason})
}

func (a *admissionFake) Cancel(_ context.Context, tenant, id string, total events.Usage, estimated bool, author, reason string) error {
	return a.end(id, ending{tenant, true, total, estimated, author, reason})
}

func (a *admissionFake) end(id string, e ending) error {
	a.mu.Lock()
	a.calls++
	call, before := a.calls, a.before
	a.mu.Unlock()
	if before != nil {
		if err := before(call, e.tenant, id); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if was, ok := a.ended[id]; ok {
		if was.total == e.total && was.cancelled == e.cancelled {
			return nil
		}
		return reconcile.ErrAlreadyFinal
	}
	a.ended[id] = e
	return nil
}

func (a *admissionFake) ending(t *testing.T, id string) ending {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	e, ok := a.ended[id]
	if !ok {
		t.Fatalf("%s has not ended", id)
	}
	return e
}

func (a *admissionFake) count() (ended, calls int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ended), a.calls
}

// logFake is a Publisher that keeps what it is given.
type logFake struct {
	mu   sync.Mutex
	got  []events.Event
	fail error
}

func (l *logFake) Publish(_ context.Context, _ string, batch []events.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, batch...)
	return l.fail
}

func (l *logFake) events() []events.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]events.Event(nil), l.got...)
}

// foldedTo is a LagChecker with a fixed answer.
type foldedTo struct {
	at  time.Time
	err error
}

func (f *foldedTo) FoldedThrough(context.Context) (time.Time, error) { return f.at, f.err }

var farFuture = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// fixture is a reconciler on a database of the test's own.
type fixture struct {
	*Reconciler
	t         *testing.T
	pool      *pgxpool.Pool
	admission *admissionFake
	log       *logFake
	ledger    *foldedTo
	clock     *time.Time
}

func setUp(t *testing.T, change ...func(*Options)) *fixture {
	t.Helper()
	return setUpOn(t, testenv.Postgres(t), newAdmission(), change...)
}

func setUpOn(t *testing.T, pool *pgxpool.Pool, admission *admissionFake, change ...func(*Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, pool: pool, admission: admission, log: &logFake{}, ledger: &foldedTo{at: farFuture}}
	clock := hour0.Add(3 * time.Hour)
	f.clock = &clock
	opts := Options{
		Settler: f.admission, Publisher: f.log, Ledger: f.ledger, Meters: &foldedTo{at: farFuture},
		Policy: testPolicy(), Now: func() time.Time { return *f.clock },
	}
	for _, c := range change {
		c(&opts)
	}
	r, err := New(pool, opts)
	if err != nil {
		t.Fatal(err)
	}
	f.Reconciler = r
	return f
}

// testPolicy freezes at the first sight of drift.
func testPolicy() reconcile.Policy {
	p := reconcile.DefaultPolicy()
	p.MinTokens, p.ConfirmAfter, p.Lookback = 10, 0, 24*time.Hour
	return p
}

func (f *fixture) run(now time.Time) Report {
	f.t.Helper()
	*f.clock = now
	rep, err := f.RunOnce(f.t.Context(), now)
	if err != nil {
		f.t.Fatalf("run: %v", err)
	}
	return rep
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatal(err)
	}
}

func scan[T any](f *fixture, sql string, args ...any) T {
	f.t.Helper()
	var v T
	if err := f.pool.QueryRow(f.t.Context(), sql, args...).Scan(&v); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// reservation adds a row as the fold would leave it.
func (f *fixture) reservation(tenant, id string, state events.State, total events.Usage, at, expires time.Time) {
	f.t.Helper()
	held := int64(1000)
	if state == events.StateSettled || state == events.StateCancelled {
		held = 0
	}
	f.exec(`INSERT INTO reservations (reservation_id, tenant_id, request_id, key_id, endpoint, model, seq, state, weight_milli,
	            held_milli_units, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images,
	            audio_ms, gpu_ms, milli_units, estimated, first_event_at, last_event_at, expires_at)
	        VALUES ($1, $2, 'req-' || $1, 'key', 'chat', 'model-a', 2, $3, 1000, $4, $5, $6, 0, 0, 0, 0, 0, $7, $8, false, $9, $9, $10)`,
		id, tenant, string(state), held, total.InputTokens, total.OutputTokens, total.GPUMillis,
		(total.InputTokens+total.OutputTokens)*1000, at, expires)
}

// used adds a settled reservation and its hour bucket.
func (f *fixture) used(tenant, id string, total events.Usage, at time.Time) {
	f.t.Helper()
	f.reservation(tenant, id, events.StateSettled, total, at, at.Add(time.Minute))
	f.exec(`INSERT INTO usage_hour AS h (tenant_id, hour, model, endpoint, key_id, requests, input_tokens, output_tokens,
	            cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units)
	        VALUES ($1, $2, 'model-a', 'chat', 'key', 1, $3, $4, 0, 0, 0, 0, 0, $5, $6)
	        ON CONFLICT (tenant_id, hour, model, endpoint, key_id) DO UPDATE SET requests = h.requests + 1,
	            input_tokens = h.input_tokens + excluded.input_tokens, output_tokens = h.output_tokens + excluded.output_tokens,
	            gpu_ms = h.gpu_ms + excluded.gpu_ms, milli_units = h.milli_units + excluded.milli_units`,
		tenant, at.Truncate(time.Hour), total.InputTokens, total.OutputTokens, total.GPUMillis,
		(total.InputTokens+total.OutputTokens)*1000)
}

func (f *fixture) reading(kind string, m events.Meter) {
	f.t.Helper()
	f.exec(`INSERT INTO meter_readings (event_id, kind, tenant_id, reservation_id, request_id, pool, model, from_time, to_time,
	            input_tokens, output_tokens, gpu_ms, final)
	        VALUES (gen_random_uuid()::text, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		kind, m.TenantID, m.ReservationID, m.RequestID, m.Pool, m.Model, m.From, m.To, m.InputTokens, m.OutputTokens, m.GPUMillis, m.Final)
}

// read adds a final reading of the model meter.
func (f *fixture) read(tenant, id string, in, out int64, at time.Time) {
	f.t.Helper()
	f.reading("model", events.Meter{
		TenantID: tenant, ReservationID: id, Model: "model-a", From: at.Add(-time.Second), To: at,
		InputTokens: in, OutputTokens: out, Final: true,
	})
}

func (f *fixture) reports() map[string]DriftReport {
	f.t.Helper()
	list, err := f.DriftReports(f.t.Context(), ReportFilter{})
	if err != nil {
		f.t.Fatal(err)
	}
	byKey := make(map[string]DriftReport)
	for _, d := range list {
		byKey[fmt.Sprintf("%s %s %s", d.TenantID, d.Kind, d.Start.Format("02T15"))] = d
	}
	return byKey
}

// balances is everything that a freeze must not touch.
func (f *fixture) balances() string {
	f.t.Helper()
	return scan[string](f, `
		SELECT coalesce((SELECT string_agg(r::text, E'\n' ORDER BY reservation_id) FROM reservations r), '') ||
		       coalesce((SELECT string_agg(h::text, E'\n' ORDER BY tenant_id, hour) FROM usage_hour h), '')`)
}

var errBoom = errors.New("boom")
