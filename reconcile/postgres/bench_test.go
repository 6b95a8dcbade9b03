package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/events"
	"tollgate/internal/testenv"
)

// benchReconciler has a database of holds that ended hours ago, each with
// a final reading, and of tenants with an hour of settled use.
func benchReconciler(b *testing.B, holds, tenants int) (*Reconciler, *pgxpool.Pool) {
	b.Helper()
	pool := testenv.Postgres(b)
	r, err := New(pool, Options{
		Settler: newAdmission(), Publisher: &logFake{}, Policy: testPolicy(),
		Ledger: &foldedTo{at: farFuture}, Meters: &foldedTo{at: farFuture},
	})
	if err != nil {
		b.Fatal(err)
	}
	fill := func(sql string, args ...any) {
		if _, err := pool.Exec(b.Context(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	const rows = `INSERT INTO reservations (reservation_id, tenant_id, request_id, key_id, endpoint, model, seq, state, weight_milli,
	        held_milli_units, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images,
	        audio_ms, gpu_ms, milli_units, estimated, first_event_at, last_event_at, expires_at)
	    SELECT $4 || n, 'tenant-' || n % $5, 'req', 'key', 'chat', 'model-a', 2, $1, 1000, 0, 100, 50, 0, 0, 0, 0, 0, 0,
	        150000, false, $2, $2, $2 FROM generate_series(1, $3) n`
	const readings = `INSERT INTO meter_readings (event_id, kind, tenant_id, reservation_id, request_id, pool, model, from_time, to_time,
	        input_tokens, output_tokens, gpu_ms, final)
	    SELECT reservation_id, 'model', tenant_id, reservation_id, '', '', '', first_event_at, first_event_at, 100, 50, 0, true FROM reservations`
	fill(rows, string(events.StateExpired), hour0, holds, "hold-", 50)
	fill(rows, string(events.StateSettled), hour0.Add(time.Minute), 20*tenants, "used-", tenants)
	fill(readings)
	fill(`INSERT INTO usage_hour SELECT tenant_id, $1, model, endpoint, key_id, count(*), sum(input_tokens), sum(output_tokens), 0, 0, 0, 0, 0, 0,
	        sum(milli_units) FROM reservations WHERE state = 'settled' GROUP BY 1, 3, 4, 5`, hour0)
	fill(`ANALYZE`)
	return r, pool
}

// BenchmarkRun is one run over many due holds and many tenants' hour, with an
// admission that answers at once: what the reconciler itself costs.
func BenchmarkRun(b *testing.B) {
	const holds, tenants = 20_000, 1_000
	var elapsed time.Duration
	for range b.N {
		b.StopTimer()
		r, _ := benchReconciler(b, holds, tenants)
		b.StartTimer()
		start := time.Now()
		rep, err := r.RunOnce(context.Background(), hour0.Add(65*time.Minute))
		elapsed += time.Since(start)
		if err != nil || rep.Applied != holds || rep.WindowsJudged < tenants || rep.Failures != 0 {
			b.Fatalf("%+v, %v", rep, err)
		}
	}
	b.ReportMetric(float64(holds*b.N)/elapsed.Seconds(), "holds/s")
	b.ReportMetric(float64(tenants*b.N)/elapsed.Seconds(), "windows/s")
}
