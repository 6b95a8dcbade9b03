package postgres

import (
	"testing"
	"time"

	"tollgate/billing"
	"tollgate/internal/testenv"
)

// BenchmarkDraft drafts a month of 720 hours, 20 models and 5 keys, with two
// meters priced each and one change of price.
func BenchmarkDraft(b *testing.B) {
	pool := testenv.Postgres(b)
	store := New(pool, Options{})
	_, err := pool.Exec(b.Context(), `
		INSERT INTO usage_hour
		SELECT 'acme', '2026-11-01T00:00:00Z'::timestamptz + h * interval '1 hour', 'm' || m, '/v1/chat', 'key-' || k, 7, 1000 + h, 50 + m, 0, 0, 0, 0, 0, 0, 0
		FROM generate_series(0, 719) h, generate_series(1, 20) m, generate_series(1, 5) k`)
	if err != nil {
		b.Fatal(err)
	}
	for _, from := range []time.Time{newYear, at("2026-11-10T00:00:00Z")} {
		for _, meter := range []billing.Meter{billing.MeterInput, billing.MeterOutput} {
			if _, err := store.SetPrice(b.Context(), flat(billing.AnyModel, meter, "2."+from.Format("01"), 1_000_000, from)); err != nil {
				b.Fatal(err)
			}
		}
	}
	period := month(b, "2026-11", "UTC")
	for b.Loop() {
		bill, err := store.Draft(b.Context(), acme, period)
		if err != nil || len(bill.Lines) != 80 || bill.Unrated != 0 {
			b.Fatalf("%d lines, %d unrated, %v", len(bill.Lines), bill.Unrated, err)
		}
	}
}
