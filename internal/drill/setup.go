// Package drill runs a trace through a whole installation and then asks every
// part what it counted: the trace file, the gateway, the journal, the hour
// buckets, the 30-day bucket and the bill must agree to the token. The demo and
// the chaos run are drills.
package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/billing"
	billingpg "tollgate/billing/postgres"
	"tollgate/tenancy"
	tenancypg "tollgate/tenancy/postgres"
)

// Names of the counters that tell the gateway's own totals. They have no
// period, so that a drill may run over midnight.
const (
	inputLimit    = "input-total"
	outputLimit   = "output-total"
	requestsLimit = "requests-total"
)

// concurrencyLimit counts what is in flight.
const concurrencyLimit = "concurrency"

// Model and Endpoint of every request of a drill; ClaudeModel is the other model
// that has prices, for clients of Anthropic's dialect.
const (
	Model       = "demo-model"
	ClaudeModel = "demo-claude"
	Endpoint    = "chat"
)

// Tenant is a tenant of the drill with its key.
type Tenant struct {
	ID     string
	Secret string
}

// Fleet is who takes part in a drill.
type Fleet struct {
	Tenants     []Tenant
	MeterKey    string
	OperatorKey string
	// PricedFrom is the hour from which the drill's prices hold: bills start
	// there.
	PricedFrom time.Time
}

// quota is the standard layers, wide enough for a trace at full speed, and the
// counters of totals. A limit is a line of data, so a total is one as well.
func quota() tenancy.Quota {
	total := func(name string, metric tenancy.Metric) tenancy.Limit {
		return tenancy.Limit{
			Name: name, Layer: "L1", Kind: tenancy.KindCounter, Scope: tenancy.ScopeTenant,
			Metric: metric, Limit: 1_000_000_000_000, Period: tenancy.PeriodNone,
		}
	}
	return tenancy.Quota{Limits: []tenancy.Limit{
		{
			Name: "tokens-60s", Layer: "L1", Kind: tenancy.KindRing, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricTokens,
			Limit: 1_000_000_000, Window: tenancy.Duration(time.Minute), Slots: 60,
		},
		{
			Name: "tokens-30d", Layer: "L1", Kind: tenancy.KindRing, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricTokens,
			Limit: 100_000_000_000, Window: tenancy.Duration(720 * time.Hour), Slots: 720, Budget: true,
		},
		total(inputLimit, tenancy.MetricInputTokens),
		total(outputLimit, tenancy.MetricOutputTokens),
		total(requestsLimit, tenancy.MetricRequests),
		{
			Name: "requests", Layer: "L2", Kind: tenancy.KindRate, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricRequests,
			Limit: 5_000, Window: tenancy.Duration(time.Second), Burst: 5_000,
		},
		{Name: concurrencyLimit, Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeTenant, Limit: 5_000},
	}}
}

// Setup creates n tenants with a key each, a meter key, an operator key, and
// prices of the drill's models.
func Setup(ctx context.Context, pool *pgxpool.Pool, n int) (*Fleet, error) {
	return setup(ctx, pool, "demo", n, quota())
}

func setup(ctx context.Context, pool *pgxpool.Pool, prefix string, n int, limits tenancy.Quota) (*Fleet, error) {
	change := tenancy.Change{Author: "drill", Reason: "set up a drill"}
	store := tenancypg.New(pool)
	fleet := &Fleet{PricedFrom: time.Now().UTC().Truncate(time.Hour)}
	for i := range n {
		id := fmt.Sprintf("%s-%d", prefix, i+1)
		t := tenancy.Tenant{ID: id, Name: fmt.Sprintf("Demo customer %d", i+1), TimeZone: "UTC", Currency: "USD", Quota: limits}
		if _, err := store.CreateTenant(ctx, change, t); err != nil && !errors.Is(err, tenancy.ErrAlreadyThere) {
			return nil, fmt.Errorf("create tenant %s: %w", id, err)
		}
		_, secret, err := store.CreateKey(ctx, change, tenancypg.NewKey{TenantID: id, Name: "drill", Role: tenancy.RoleTenant})
		if err != nil {
			return nil, fmt.Errorf("create a key of %s: %w", id, err)
		}
		fleet.Tenants = append(fleet.Tenants, Tenant{id, secret})
	}
	for role, secret := range map[tenancy.Role]*string{tenancy.RoleMeter: &fleet.MeterKey, tenancy.RoleOperator: &fleet.OperatorKey} {
		var err error
		if _, *secret, err = store.CreateKey(ctx, change, tenancypg.NewKey{Name: "drill", Role: role}); err != nil {
			return nil, fmt.Errorf("create a %s key: %w", role, err)
		}
	}
	return fleet, setPrices(ctx, pool, fleet.PricedFrom)
}

func setPrices(ctx context.Context, pool *pgxpool.Pool, from time.Time) error {
	store := billingpg.New(pool, billingpg.Options{})
	for _, p := range []struct {
		model string
		meter billing.Meter
		price string
		per   int64
	}{
		{Model, billing.MeterInput, "0.60", 1_000_000},
		{Model, billing.MeterOutput, "2.40", 1_000_000},
		{Model, billing.MeterGPUMillis, "2.50", 3_600_000},
		{Model, billing.MeterRequests, "0.0001", 1},
		{ClaudeModel, billing.MeterInput, "3.00", 1_000_000},
		{ClaudeModel, billing.MeterOutput, "15.00", 1_000_000},
		{ClaudeModel, billing.MeterGPUMillis, "2.50", 3_600_000},
		{ClaudeModel, billing.MeterRequests, "0.0001", 1},
	} {
		price := billing.Price{
			Model: p.model, Meter: p.meter, Currency: "USD", From: from, Pricing: billing.PricingFlat,
			UnitSize: p.per, Amount: decimal.MustParse(p.price), Source: "drill", Author: "drill",
		}
		if _, err := store.SetPrice(ctx, price); err != nil {
			return fmt.Errorf("set the price of %s: %w", p.meter, err)
		}
	}
	return nil
}
