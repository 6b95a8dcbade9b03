package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/billing"
	billingpg "tollgate/billing/postgres"
	"tollgate/internal/trace"
)

// Count is what one part counted.
type Count struct {
	Part string `json:"part"`
	trace.Totals
}

// Totals asks every part.
type Totals struct {
	Pool  *pgxpool.Pool
	Fleet *Fleet
	// Gateway is the base URL of one gateway.
	Gateway string
	Client  *http.Client
}

// Counts returns what gateway, journal, hour buckets, 30-day bucket, model
// meter and bills say, summed over the fleet's tenants, in that order.
func (t *Totals) Counts(ctx context.Context) ([]Count, error) {
	gateway, err := t.gateway(ctx)
	if err != nil {
		return nil, err
	}
	counts := []Count{{"gateway (usage query)", gateway}}
	for _, q := range ledgerQueries {
		var got trace.Totals
		if err := t.Pool.QueryRow(ctx, q.sql, t.ids()).Scan(&got.Requests, &got.InputTokens, &got.OutputTokens); err != nil {
			return nil, fmt.Errorf("sum the %s: %w", q.part, err)
		}
		counts = append(counts, Count{q.part, got})
	}
	bills, err := t.bills(ctx)
	if err != nil {
		return nil, err
	}
	return append(counts, Count{"bill (lines)", bills}), nil
}

func (t *Totals) ids() []string {
	ids := make([]string, len(t.Fleet.Tenants))
	for i, tenant := range t.Fleet.Tenants {
		ids[i] = tenant.ID
	}
	return ids
}

// modelMeter is what the model servers said.
const modelMeter = "model meter"

var ledgerQueries = []struct{ part, sql string }{
	{"journal (events)", `
		SELECT count(*) FILTER (WHERE state IN ('settled', 'cancelled') AND NOT tombstone
		                          AND type IN ('tollgate.reservation.settled.v1', 'tollgate.reservation.cancelled.v1')),
		       coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint
		FROM journal WHERE tenant_id = ANY($1)`},
	{"hour buckets", `
		SELECT coalesce(sum(requests), 0)::bigint, coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint
		FROM usage_hour WHERE tenant_id = ANY($1)`},
	{"30-day bucket + open hour", `
		SELECT coalesce(sum(requests), 0)::bigint, coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint
		FROM (SELECT requests, input_tokens, output_tokens FROM usage_30d WHERE tenant_id = ANY($1)
		      UNION ALL
		      SELECT requests, input_tokens, output_tokens FROM usage_hour
		      WHERE tenant_id = ANY($1) AND hour >= (SELECT closed_through FROM usage_window)) parts`},
	{modelMeter, `
		SELECT count(DISTINCT reservation_id), coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint
		FROM meter_readings WHERE kind = 'model' AND tenant_id = ANY($1)`},
}

// usage is the part of the usage query's answer that a drill reads.
type usage struct {
	Limits []struct {
		Name string `json:"name"`
		Used int64  `json:"used"`
		Held int64  `json:"held"`
	} `json:"limits"`
}

// open says how many of a tenant's requests are in flight, and the most that any
// limit holds for them.
func (u usage) open() (inFlight, held int64) {
	for _, l := range u.Limits {
		held = max(held, l.Held)
		if l.Name == concurrencyLimit {
			inFlight = l.Used
		}
	}
	return inFlight, held
}

// gateway sums the counters of all tenants, each asked with its own key.
func (t *Totals) gateway(ctx context.Context) (trace.Totals, error) {
	var sum trace.Totals
	for _, tenant := range t.Fleet.Tenants {
		u, err := t.usage(ctx, tenant.Secret)
		if err != nil {
			return sum, fmt.Errorf("usage of %s: %w", tenant.ID, err)
		}
		for _, l := range u.Limits {
			switch l.Name {
			case inputLimit:
				sum.InputTokens += l.Used
			case outputLimit:
				sum.OutputTokens += l.Used
			case requestsLimit:
				sum.Requests += l.Used
			}
		}
	}
	return sum, nil
}

func (t *Totals) usage(ctx context.Context, secret string) (usage, error) {
	var u usage
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.Gateway+"/v1/quota/usage", nil)
	if err != nil {
		return u, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	res, err := t.Client.Do(req)
	if err != nil {
		return u, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return u, fmt.Errorf("gateway answered %s", res.Status)
	}
	return u, json.NewDecoder(res.Body).Decode(&u)
}

// Period is what the drill's bills are for: whole hours from when the prices
// hold, far enough for any drill.
func (f *Fleet) Period() (billing.Period, error) {
	text := f.PricedFrom.Format(time.RFC3339) + "/" + f.PricedFrom.Add(24*time.Hour).Format(time.RFC3339)
	return billing.ParsePeriod(text, "UTC")
}

// Bills drafts every tenant's bill.
func (t *Totals) Bills(ctx context.Context) ([]billing.Bill, error) {
	period, err := t.Fleet.Period()
	if err != nil {
		return nil, err
	}
	store := billingpg.New(t.Pool, billingpg.Options{})
	var bills []billing.Bill
	for i, tenant := range t.Fleet.Tenants {
		account := billing.Account{TenantID: tenant.ID, Name: fmt.Sprintf("Demo customer %d", i+1), Currency: "USD", TimeZone: "UTC"}
		bill, err := store.Draft(ctx, account, period)
		if err != nil {
			return nil, fmt.Errorf("draft the bill of %s: %w", tenant.ID, err)
		}
		bills = append(bills, bill)
	}
	return bills, nil
}

func (t *Totals) bills(ctx context.Context) (trace.Totals, error) {
	var sum trace.Totals
	bills, err := t.Bills(ctx)
	if err != nil {
		return sum, err
	}
	for _, b := range bills {
		for _, l := range b.Lines {
			switch l.Meter {
			case billing.MeterInput:
				sum.InputTokens += l.Quantity
			case billing.MeterOutput:
				sum.OutputTokens += l.Quantity
			case billing.MeterRequests:
				sum.Requests += l.Quantity
			}
		}
	}
	return sum, nil
}
