package redis

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/internal/testenv"
	"tollgate/tenancy"
)

// BenchmarkReserve measures reserves on a real Redis with every layer: tokens
// per minute and per 30 days, request rate, and leases of the tenant, the
// endpoint and the platform, each with its record and its event.
func BenchmarkReserve(b *testing.B) {
	for _, tenants := range []int{1, 16} {
		for _, callers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("tenants=%d/callers=%d", tenants, callers), func(b *testing.B) {
				benchReserve(b, tenants, callers)
			})
		}
	}
}

func benchReserve(b *testing.B, tenants, callers int) {
	client, prefix := testenv.Redis(b)
	s, err := New(Options{Client: client, Prefix: prefix, MaxBacklog: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Stop(context.Background()) }()
	for shard := range 64 {
		if _, err := s.Seed(b.Context(), shard, "e1", nil); err != nil {
			b.Fatal(err)
		}
	}
	platform := &tenancy.Platform{Limits: []tenancy.Limit{
		{Name: "endpoint", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeEndpoint, Match: "*", Limit: 1e9, BurstPercent: 120},
		{Name: "global", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 1e9, BurstPercent: 120},
	}}
	var list []*tenancy.Tenant
	var limits [][]admission.Constraint
	for i := range tenants {
		t := tenant("bench-"+strconv.Itoa(i), perMinute(1e12), ring("tokens-30d", 1e12, 720*time.Hour, 720), rate(1e6, time.Second, 1e6), concurrency(1e9))
		list = append(list, t)
		limits = append(limits, admission.Constraints(t, nil, "chat", "m", platform))
	}
	var next atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	done := make(chan error, callers)
	for range callers {
		go func() {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					done <- nil
					return
				}
				i := int(n) % tenants
				req := ask(list[i], "req-"+strconv.FormatInt(n, 10), 100)
				req.Limits = limits[i]
				if _, err := s.Reserve(b.Context(), req); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "reserves/s")
}
