package postgres

import (
	"context"
	"fmt"
	"math/big"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"tollgate/billing"
	"tollgate/events"
	"tollgate/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var acme = billing.Account{TenantID: "acme", Name: "Acme", Currency: "USD", TimeZone: "UTC"}

// fixture is a store on a database of its own, at a time after the periods
// that tests close.
type fixture struct {
	*Store
	t    *testing.T
	pool *pgxpool.Pool
	seq  int
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	pool := testenv.Postgres(t)
	now := func() time.Time { return time.Date(2027, 6, 1, 0, 0, 0, 0, time.UTC) }
	return &fixture{Store: New(pool, Options{Now: now}), t: t, pool: pool}
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// use adds to an hour's bucket, and to the journal an event at that time.
func (f *fixture) use(tenant string, at time.Time, model string, u events.Usage) {
	f.t.Helper()
	f.seq++
	f.exec(`INSERT INTO usage_hour AS h VALUES ($1, date_trunc('hour', $2::timestamptz), $3, '/v1/chat', 'key', 1, $4, $5, $6, $7, $8, $9, $10, $11, 0)
		ON CONFLICT (tenant_id, hour, model, endpoint, key_id) DO UPDATE SET requests = h.requests + 1, input_tokens = h.input_tokens + $4,
			output_tokens = h.output_tokens + $5, cached_input_tokens = h.cached_input_tokens + $6, reasoning_tokens = h.reasoning_tokens + $7,
			tool_calls = h.tool_calls + $8, images = h.images + $9, audio_ms = h.audio_ms + $10, gpu_ms = h.gpu_ms + $11`,
		tenant, at, model, u.InputTokens, u.OutputTokens, u.CachedInputTokens, u.ReasoningTokens, u.ToolCalls, u.Images, u.AudioMillis, u.GPUMillis)
	f.exec(`INSERT INTO journal (day, event_id, topic_partition, topic_offset, type, tenant_id, reservation_id, request_id, key_id, endpoint, model, seq, state,
			event_time, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units,
			held_milli_units, weight_milli, expires_at, estimated, tombstone, author, reason, leaf)
		VALUES ($2::timestamptz::date, $12, 0, $13, 'tollgate.reservation.settled.v1', $1, $12, $12, 'key', '/v1/chat', $3, 2, 'settled',
			$2, $4, $5, $6, $7, $8, $9, $10, $11, 0, 0, 1000, $2, false, false, 'client', '', '')`,
		tenant, at, model, u.InputTokens, u.OutputTokens, u.CachedInputTokens, u.ReasoningTokens, u.ToolCalls, u.Images, u.AudioMillis, u.GPUMillis,
		fmt.Sprintf("e-%d", f.seq), f.seq)
}

func (f *fixture) price(model string, meter billing.Meter, amount string, unit int64, from time.Time) billing.Price {
	f.t.Helper()
	p, err := f.SetPrice(f.t.Context(), flat(model, meter, amount, unit, from))
	if err != nil {
		f.t.Fatalf("SetPrice: %v", err)
	}
	return p
}

func flat(model string, meter billing.Meter, amount string, unit int64, from time.Time) billing.Price {
	return billing.Price{
		Model: model, Meter: meter, Currency: "USD", From: from, Pricing: billing.PricingFlat, UnitSize: unit,
		Amount: decimal.MustParse(amount), Author: "operator",
	}
}

func (f *fixture) draft(account billing.Account, period billing.Period) billing.Bill {
	f.t.Helper()
	bill, err := f.Draft(f.t.Context(), account, period)
	if err != nil {
		f.t.Fatalf("Draft: %v", err)
	}
	return bill
}

func (f *fixture) close(account billing.Account, period billing.Period) billing.Bill {
	f.t.Helper()
	bill, err := f.Close(f.t.Context(), account, period, CloseOptions{By: "operator"})
	if err != nil {
		f.t.Fatalf("Close: %v", err)
	}
	return bill
}

func month(t testing.TB, text, zone string) billing.Period {
	t.Helper()
	p, err := billing.ParsePeriod(text, zone)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return t
}

var newYear = at("2026-01-01T00:00:00Z")

// brief shows lines as "model meter quantity = amount".
func brief(bill billing.Bill) []string {
	var out []string
	for _, l := range bill.Lines {
		s := fmt.Sprintf("%s %s %d = %v", l.Model, l.Meter, l.Quantity, l.Amount)
		if l.Category == billing.CategoryCredit {
			s = fmt.Sprintf("credit = %v", l.Amount)
		}
		if l.Correction {
			s = "correction " + s
		}
		if !l.Rated {
			s += " unrated"
		}
		out = append(out, s)
	}
	return out
}

func wantBill(t *testing.T, bill billing.Bill, total string, lines ...string) {
	t.Helper()
	if diff := cmp.Diff(lines, brief(bill)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if bill.Total.String() != total {
		t.Errorf("total %v, want %s", bill.Total, total)
	}
	sum := new(big.Rat)
	for _, l := range bill.Lines {
		r, _ := new(big.Rat).SetString(l.Amount.String())
		sum.Add(sum, r)
	}
	if r, _ := new(big.Rat).SetString(bill.Total.String()); sum.Cmp(r) != 0 {
		t.Errorf("lines add up to %s, total %v", sum.FloatString(4), bill.Total)
	}
}

// equalBills compares bills by their JSON meaning: decimals by value and text.
func equalBills(a, b billing.Bill) bool {
	return cmp.Equal(a, b, cmp.Comparer(func(x, y decimal.Decimal) bool { return x.String() == y.String() }))
}

// together runs do n times at once and returns the errors.
func together(n int, do func(i int) error) []error {
	errs := make([]error, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() { errs[i] = do(i) })
	}
	wait.Wait()
	return errs
}

func count(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
