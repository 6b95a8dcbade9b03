package fakeprovider

import (
	"bufio"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkPlain is a plain answer over one kept connection, client included.
func BenchmarkPlain(b *testing.B) { benchmark(b, chatPlain) }

// BenchmarkStream is a stream of 40 chunks, client included.
func BenchmarkStream(b *testing.B) {
	benchmark(b, strings.Replace(chatStreamed, "20", "40", 1))
}

func benchmark(b *testing.B, body string) {
	s := start(b, Options{})
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	request := []byte("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	reader := bufio.NewReaderSize(conn, 64<<10)
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conn.Write(request); err != nil {
			b.Fatal(err)
		}
		res, err := http.ReadResponse(reader, nil)
		if err != nil {
			b.Fatal(err)
		}
		for buf := make([]byte, 4096); ; {
			if _, err := res.Body.Read(buf); err != nil {
				break
			}
		}
		res.Body.Close()
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs/op")
}

// BenchmarkHandler is a plain answer without HTTP.
func BenchmarkHandler(b *testing.B) {
	s := New(Options{})
	w := &discard{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		r, _ := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://x"+chatPath, strings.NewReader(chatPlain))
		s.ServeHTTP(w, r)
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// A thousand open streams fit in 64 MiB, their connections' buffers included.
func TestMemoryOfOpenStreams(t *testing.T) {
	s := start(t, Options{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const n = 1000
	body := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nX-Fake-Fault: hang=5\r\nContent-Length: " + strconv.Itoa(len(chatStreamed)) + "\r\n\r\n" + chatStreamed
	conns := make([]net.Conn, n)
	for i := range conns {
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
	}
	eventually(t, "all streams", func() bool { return s.Running() == n })
	read := make([]byte, 100)
	for _, conn := range conns { // all have begun
		if _, err := conn.Read(read); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)
	t.Logf("%d bytes a stream", used/n)
	if used > 64<<20 {
		t.Errorf("%d streams hold %d bytes", n, used)
	}
	for _, conn := range conns {
		conn.Close()
	}
	eventually(t, "the end", func() bool { return s.Running() == 0 })
	for _, r := range s.Records() {
		if r.AbortedAt == nil || r.Output != 5 {
			t.Fatalf("logged: %+v", r)
		}
	}
}
