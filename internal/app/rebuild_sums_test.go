package app

import (
	"testing"
	"time"

	"tollgate/admission"
	admissionredis "tollgate/admission/redis"
	ledgerpg "tollgate/ledger/postgres"
	"tollgate/tenancy"
)

// TestSumsOfARebuildEnd: what the ledger has of a tenant may be more than a
// counter tells; the sum must not turn over, nor come back when figures fall.
func TestSumsOfARebuildEnd(t *testing.T) {
	now := time.Date(2026, 8, 19, 12, 0, 0, 0, time.UTC)
	tenant := &tenancy.Tenant{ID: "acme", TimeZone: "UTC", Quota: tenancy.Quota{Limits: []tenancy.Limit{
		{
			Name: "budget", Layer: "L1", Kind: tenancy.KindCounter, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricTokens,
			Limit: 1_000_000, Period: tenancy.PeriodNone, Budget: true,
		},
	}}}
	s := &seedSums{
		tenant: tenant, platform: &tenancy.Platform{}, now: now, calendar: admission.CalendarAt(now, time.UTC),
		rings: map[string]*admissionredis.RingSeed{}, counters: map[string]*admissionredis.CounterSeed{},
	}
	for _, units := range []int64{1 << 62, 1 << 62, 1 << 62, -5} {
		s.add(&ledgerpg.UsageRow{At: now.Truncate(time.Hour), Endpoint: "chat", Model: "m", MilliUnits: units}, time.Hour)
	}
	if len(s.counters) != 1 {
		t.Fatalf("%d counters", len(s.counters))
	}
	for field, c := range s.counters {
		if c.Used != admission.MaxCount {
			t.Errorf("%s: used %d, want %d", field, c.Used, admission.MaxCount)
		}
	}
}
