package forward

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tollgate/tenancy"
)

// benchGatewayVar, when set, makes the test binary a gateway in front of the
// upstream that it names. TOLLGATE_PROXY_BENCH_PROFILE names a file for a CPU
// profile of it.
const benchGatewayVar = "TOLLGATE_PROXY_BENCH_GATEWAY"

// benchGateway serves until its standard input ends. For each line it answers
// with its live memory, in bytes.
func benchGateway(upstream string) {
	if file := os.Getenv("TOLLGATE_PROXY_BENCH_PROFILE"); file != "" {
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
	if os.Getenv("TOLLGATE_PROXY_BENCH_HEAP") != "" {
		runtime.MemProfileRate = 512
	}
	w := &world{}
	w.buildHandler(setup{
		limits: tenancy.DefaultQuota().Limits, platform: tenancy.DefaultPlatform(), base: upstream,
		change: func(o *Options) { o.Observer, o.Counters = nil, nil },
	}, memory{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := &http.Server{Handler: w.handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second}
	go func() { _ = server.Serve(listener) }()
	fmt.Println(listener.Addr(), w.key)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if file := os.Getenv("TOLLGATE_PROXY_BENCH_HEAP"); file != "" {
			f, _ := os.Create(file)
			_ = pprof.Lookup("heap").WriteTo(f, 0)
			f.Close()
			fmt.Fprintln(os.Stderr, "heap", m.HeapAlloc, "stack", m.StackInuse, "goroutines", runtime.NumGoroutine())
		}
		fmt.Println(m.HeapAlloc + m.StackInuse)
	}
	_ = server.Close()
	_ = w.handler.Stop(context.Background())
}

// gateway is one in a process of its own.
type gateway struct {
	addr, key string
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Reader
}

func startGateway(b testing.TB, upstream string) *gateway {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchGatewayVar+"="+upstream)
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
	g := &gateway{cmd: cmd, in: in, out: bufio.NewReader(out)}
	b.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	line, err := g.out.ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	g.addr, g.key, _ = strings.Cut(strings.TrimSpace(line), " ")
	return g
}

// memory is what the gateway holds, in bytes.
func (g *gateway) memory(b testing.TB) int64 {
	b.Helper()
	_, _ = io.WriteString(g.in, "\n")
	line, err := g.out.ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// cpu is what the gateway's process has used, from /proc; its unit is 10 ms.
func (g *gateway) cpu(b testing.TB) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.cmd.Process.Pid))
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

func (g *gateway) request(ctx context.Context, extra string) *http.Request {
	body := `{"model":"alias","messages":[{"role":"system","content":"You are helpful."},{"role":"user","content":"` +
		strings.Repeat("What is the answer? ", 50) + `"}],"temperature":0.7,"max_tokens":200` + extra + `}`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.addr+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Authorization", "Bearer "+g.key)
	r.Header.Set("Content-Type", "application/json")
	return r
}

// overSockets measures a gateway's CPU time a request, over real connections on
// both sides, with a store that does nothing.
func overSockets(b *testing.B, extra string, script http.HandlerFunc) {
	upstream := httptest.NewServer(script)
	defer upstream.Close()
	g := startGateway(b, upstream.URL)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	defer client.CloseIdleConnections()
	b.ResetTimer()
	before := g.cpu(b)
	work := make(chan struct{})
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for range work {
				resp, err := client.Do(g.request(context.Background(), extra))
				if err != nil {
					b.Error(err)
					continue
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
					b.Errorf("status %d, %v", resp.StatusCode, err)
				}
				resp.Body.Close()
			}
		})
	}
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	workers.Wait()
	b.ReportMetric(float64((g.cpu(b)-before).Microseconds())/float64(b.N), "gateway-µs/op")
}

func BenchmarkSocketsWhole(b *testing.B) {
	text := chatAnswer(strings.Repeat("word ", 200), usageText)
	overSockets(b, "", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	})
}

func BenchmarkSocketsStream40(b *testing.B) {
	overSockets(b, `,"stream":true`, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for range 40 {
			writeStream(w, delta("word "))
			time.Sleep(2 * time.Millisecond) // the pace of the model
		}
		writeStream(w, stopEvent, usageEvent(usageText), doneEvent)
	})
}

// maxPerStream is the goal for the memory of an open stream.
const maxPerStream = 64 << 10

// An open stream holds little memory: live heap and stacks of a gateway in a
// process of its own, with its connections on both sides.
func TestMemoryOfOpenStreams(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	const streams = 300
	var open sync.WaitGroup
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for range 20 {
			writeStream(w, delta("word "))
		}
		open.Done()
		<-r.Context().Done()
	}))
	defer upstream.Close()
	g := startGateway(t, upstream.URL)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	before := g.memory(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open.Add(streams)
	for range streams {
		resp, err := client.Do(g.request(ctx, `,"stream":true`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.ReadFull(resp.Body, make([]byte, 20*len(delta("word ")))); err != nil {
			t.Fatal(err)
		}
	}
	open.Wait()
	each := (g.memory(t) - before) / streams
	t.Logf("%d bytes an open stream", each)
	if each > maxPerStream {
		t.Errorf("an open stream holds %d bytes, want at most %d", each, maxPerStream)
	}
}
