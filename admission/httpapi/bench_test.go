package httpapi

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/internal/loadclient"
)

// fastStore admits at once and keeps nothing: what remains is the API's cost.
type fastStore struct{ *fakeStore }

func (s fastStore) Reserve(_ context.Context, req *admission.ReserveRequest) (*admission.Reservation, error) {
	left := make([]admission.Left, len(req.Limits))
	for i := range left {
		left[i] = admission.Left{Constraint: req.Limits[i], Used: 12345, Held: 678, Remaining: 1000000, Reset: time.Minute}
	}
	return &admission.Reservation{
		ID: "rsv_0123456789abcdefghijklmn1772600767008", RequestID: req.RequestID, State: events.StateHeld,
		AdmittedUnits: 75000, CreatedAt: testNow, ExpiresAt: testNow.Add(req.TTL), Left: left,
	}, nil
}

// BenchmarkHTTPReserve measures reserves over real connections, the load
// client's own work included; cpu-µs/op is the whole process's.
func BenchmarkHTTPReserve(b *testing.B) {
	for _, conns := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("conns=%d", conns), func(b *testing.B) {
			f := newFixture(b, func(o *Options) { o.Store = fastStore{newFakeStore()} })
			if err := f.Start(); err != nil {
				b.Fatal(err)
			}
			defer func() { _ = f.Stop(context.Background()) }()
			addr := f.Addr().String()
			bodies := make([][]byte, conns)
			counts := make([]int64, conns)
			b.ReportAllocs()
			b.ResetTimer()
			cpu := cpuTime()
			res, err := loadclient.Run(context.Background(), loadclient.Options{
				Addr: addr, Conns: conns, Requests: int64(b.N),
				Next: func(conn int, buf []byte) []byte {
					counts[conn]++
					body := append(bodies[conn][:0], `{"request_id":"req-`...)
					body = strconv.AppendInt(body, int64(conn), 10)
					body = append(body, '-')
					body = strconv.AppendInt(body, counts[conn], 10)
					body = append(body, `","endpoint":"chat","model":"small","input_tokens":1200,"max_output_tokens":400}`...)
					bodies[conn] = body
					return loadclient.AppendRequest(buf, "POST", "/v1/reservations", addr, "Bearer "+keyAcme, body)
				},
			})
			cpu = cpuTime() - cpu
			b.StopTimer()
			if err != nil || res.ByStatus[201] != int64(b.N) {
				b.Fatalf("answers %v, %d errors, %v %v", res.ByStatus, res.Errors, res.LastErr, err)
			}
			b.ReportMetric(res.PerSecond(), "req/s")
			b.ReportMetric(float64(cpu.Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(res.Latency.Quantile(0.5).Nanoseconds())/1000, "p50-µs")
			b.ReportMetric(float64(res.Latency.Quantile(0.99).Nanoseconds())/1000, "p99-µs")
		})
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDecodeReserve measures the strict scanner alone.
func BenchmarkDecodeReserve(b *testing.B) {
	body := []byte(`{"request_id":"req-12-34567","endpoint":"chat","model":"small","input_tokens":1200,"max_output_tokens":400}`)
	var s scanner
	var dst ReserveBody
	b.ReportAllocs()
	for b.Loop() {
		if bad := s.decode(body, &dst); bad != nil {
			b.Fatal(bad.detail)
		}
	}
}
