package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime/pprof"
	"strconv"
	"strings"
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

// BenchmarkHTTPReserve measures reserves over real connections to a server in
// a process of its own, with a store that does nothing. What each side costs is
// its process's CPU time, which a busy machine disturbs less than rates.
func BenchmarkHTTPReserve(b *testing.B) {
	for _, c := range []struct{ conns, rate int }{{1, 0}, {16, 0}, {64, 0}, {64, 2000}} {
		conns := c.conns
		b.Run(fmt.Sprintf("conns=%d,rate=%d", conns, c.rate), func(b *testing.B) {
			server := startBenchServer(b)
			bodies := make([][]byte, conns)
			counts := make([]int64, conns)
			opts := loadclient.Options{
				Addr: server.addr, Conns: conns, Rate: c.rate, Requests: int64(b.N),
				Next: func(conn int, buf []byte) []byte {
					counts[conn]++
					body := append(bodies[conn][:0], `{"request_id":"req-`...)
					body = strconv.AppendInt(body, int64(conn), 10)
					body = append(body, '-')
					body = strconv.AppendInt(body, counts[conn], 10)
					body = append(body, `","endpoint":"chat","model":"small","input_tokens":1200,"max_output_tokens":400}`...)
					bodies[conn] = body
					return loadclient.AppendRequest(buf, "POST", "/v1/reservations", server.addr, "Bearer "+keyAcme, body)
				},
			}
			b.ReportAllocs()
			b.ResetTimer()
			ours, theirs := cpuTime(), server.cpuTime(b)
			res, err := loadclient.Run(context.Background(), opts)
			ours, theirs = cpuTime()-ours, server.cpuTime(b)-theirs
			b.StopTimer()
			if err != nil || res.ByStatus[201] != int64(b.N) {
				b.Fatalf("answers %v, %d errors, %v %v", res.ByStatus, res.Errors, res.LastErr, err)
			}
			perOp := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(b.N) }
			b.ReportMetric(res.PerSecond(), "req/s")
			b.ReportMetric(perOp(ours), "client-µs/op")
			b.ReportMetric(perOp(theirs), "server-µs/op")
			b.ReportMetric(float64(res.Latency.Quantile(0.5).Nanoseconds())/1000, "p50-µs")
			b.ReportMetric(float64(res.Latency.Quantile(0.99).Nanoseconds())/1000, "p99-µs")
		})
	}
}

// benchServerVar, when set, makes the test binary the server of a benchmark.
const benchServerVar = "TOLLGATE_HTTPAPI_BENCH_SERVER"

// runBenchServer serves until its standard input ends. The variable may name a
// file for a CPU profile.
func runBenchServer() {
	if file := os.Getenv(benchServerVar); file != "1" {
		f, err := os.Create(file)
		if err != nil {
			panic(err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			panic(err)
		}
		defer pprof.StopCPUProfile()
	}
	directory := newFakeDirectory()
	s, err := New(Options{
		Store: fastStore{newFakeStore()}, Directory: directory,
		Listen: "127.0.0.1:0", AdminListen: "-", Now: func() time.Time { return testNow },
	})
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		panic(err)
	}
	fmt.Println(s.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = s.Stop(context.Background())
}

type benchServer struct {
	addr string
	cmd  *exec.Cmd
}

func startBenchServer(b *testing.B) *benchServer {
	b.Helper()
	profile := os.Getenv("TOLLGATE_HTTPAPI_BENCH_PROFILE")
	if profile == "" {
		profile = "1"
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServerVar+"="+profile)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return &benchServer{strings.TrimSpace(addr), cmd}
}

// cpuTime is what the server's process has used, from /proc; its unit is 10 ms.
func (s *benchServer) cpuTime(b *testing.B) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		b.Skip(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
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

// memoryConn brings the same request again and again, without a system call.
type memoryConn struct {
	net.Conn // nil: nothing else is asked of it
	request  []byte
	left     int
	answered int
}

func (c *memoryConn) Read(dst []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	c.left--
	return copy(dst, c.request), nil
}

func (c *memoryConn) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("HTTP/1.1 201 Created\r\n")) {
		c.answered++
	}
	return len(p), nil
}

func (c *memoryConn) Close() error { return nil }

// serveInMemory answers n reserves.
func serveInMemory(t testing.TB, f *fixture, n int) {
	c := &memoryConn{request: []byte(reserveRaw("r1")), left: n}
	owner := newConns(f.Server, nil)
	one := &conn{Conn: c, owner: owner}
	one.state.Store(uint64(phaseNew))
	one.serve()
	if c.answered != n {
		t.Fatalf("%d answers, want %d", c.answered, n)
	}
}

// BenchmarkPlainReserve measures a reserve without the kernel.
func BenchmarkPlainReserve(b *testing.B) {
	f := newFixture(b, func(o *Options) { o.Store = fastStore{newFakeStore()} })
	b.ReportAllocs()
	serveInMemory(b, f, b.N)
}

// raceEnabled says that the race detector watches.
var raceEnabled bool

// TestReservesAllocateLittle: garbage is a visible part of what a reserve
// costs, so more of it must be meant.
func TestReservesAllocateLittle(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	f := newFixture(t, func(o *Options) { o.Store = fastStore{newFakeStore()} })
	const reserves, most = 1000, 9.5
	allocs := testing.AllocsPerRun(5, func() { serveInMemory(t, f, reserves) }) / reserves
	if allocs > most {
		t.Errorf("a reserve makes %.1f allocations, want at most %v", allocs, most)
	}
}
