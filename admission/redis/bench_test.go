package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/tenancy"
)

// BenchmarkReserve measures reserves on a real Redis with every layer: tokens
// per minute and per 30 days, request rate, and leases of the tenant, the
// endpoint and the platform, each with its record and its event.
func BenchmarkReserve(b *testing.B) {
	for _, tenants := range []int{1, 64} {
		for _, callers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("tenants=%d/callers=%d", tenants, callers), func(b *testing.B) {
				bench(b, tenants, callers, false)
			})
		}
	}
}

// BenchmarkReserveAndSettle ends each reservation at once: the sets of leases
// stay as small as what is open. Its rate is in reservations; each is two
// operations.
func BenchmarkReserveAndSettle(b *testing.B) {
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("tenants=1/callers=%d", callers), func(b *testing.B) {
			bench(b, 1, callers, true)
		})
	}
}

func bench(b *testing.B, tenants, callers int, settle bool) {
	b.Helper()
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
	redisBefore, ownBefore := redisCPU(b, client), ownCPU(b)
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	done := make(chan error, callers)
	for range callers {
		go func() {
			figures := admission.Figures{InputTokens: 50, MaxOutputTokens: 50}
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					done <- nil
					return
				}
				i := int(n) % tenants
				req := &admission.ReserveRequest{
					Tenant: list[i], RequestID: "req-" + strconv.FormatInt(n, 10), Endpoint: "chat", Model: "m", Author: "client",
					Hold: events.Usage{InputTokens: 50, OutputTokens: 50}, WeightMilli: 1000,
					BodyHash: admission.BodyHash("chat", "m", figures), TTL: 2 * time.Minute, MaxHold: time.Hour, Limits: limits[i],
				}
				r, err := s.Reserve(b.Context(), req)
				if err == nil && settle {
					_, err = s.Settle(b.Context(), used(list[i], r.ID, 50, 20))
				}
				if err != nil {
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
	// On a machine that does other work, too, CPU time tells more than rate.
	b.ReportMetric((redisCPU(b, client)-redisBefore)*1e6/float64(b.N), "redis-cpu-µs/op")
	b.ReportMetric((ownCPU(b)-ownBefore)*1e6/float64(b.N), "go-cpu-µs/op")
}

// redisCPU is the CPU time that the server has used, in seconds.
func redisCPU(b *testing.B, client goredis.UniversalClient) float64 {
	b.Helper()
	info, err := client.Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	var sum float64
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

// ownCPU is the CPU time that this process has used, in seconds.
func ownCPU(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}
