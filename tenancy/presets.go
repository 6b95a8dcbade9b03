package tenancy

import "time"

// DefaultQuota is the standard document of a new tenant: L1 tokens per 60 s
// and per rolling 30 days, L2 requests per second with burst, L3 concurrency.
func DefaultQuota() Quota {
	return Quota{
		Limits: []Limit{
			{
				Name: "tokens-60s", Layer: "L1", Kind: KindRing, Scope: ScopeTenant,
				Metric: MetricTokens, Limit: 1_000_000,
				Window: Duration(60 * time.Second), Slots: 60,
			},
			{
				Name: "tokens-30d", Layer: "L1", Kind: KindRing, Scope: ScopeTenant,
				Metric: MetricTokens, Limit: 1_000_000_000,
				Window: Duration(720 * time.Hour), Slots: 720, Budget: true,
			},
			{
				Name: "requests", Layer: "L2", Kind: KindRate, Scope: ScopeTenant,
				Metric: MetricRequests, Limit: 100, Window: Duration(time.Second), Burst: 200,
			},
			{
				Name: "concurrency", Layer: "L3", Kind: KindLease, Scope: ScopeTenant, Limit: 100,
			},
		},
	}
}

// DefaultPlatform is the platform's document of a new installation: L3
// concurrency of each endpoint and of everything, both capped at 1.2 × the
// limit, and no models (an unknown model weighs 1).
func DefaultPlatform() Platform {
	return Platform{
		Limits: []Limit{
			{
				Name: "endpoint-concurrency", Layer: "L3", Kind: KindLease, Scope: ScopeEndpoint,
				Match: "*", Limit: 5_000, BurstPercent: 120,
			},
			{
				Name: "global-concurrency", Layer: "L3", Kind: KindLease, Scope: ScopeGlobal,
				Limit: 10_000, BurstPercent: 120,
			},
		},
		Models:                 []Model{},
		DefaultMaxOutputTokens: 4096,
		HoldTTL:                Duration(120 * time.Second),
		MaxHold:                Duration(time.Hour),
	}
}
