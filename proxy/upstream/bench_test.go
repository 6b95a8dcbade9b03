package upstream

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// BenchmarkRoundTrip is one request after another of 1 KiB with an answer of the
// same size, from a server that costs next to nothing, and the same with
// net/http's Transport. cpu-ns/op is the whole process's, the server's included.
func BenchmarkRoundTrip(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	answer := append([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1024\r\n\r\n"), make([]byte, 1024)...)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				buf := make([]byte, 8<<10)
				for {
					n, err := c.Read(buf)
					if err != nil {
						_ = c.Close()
						return
					}
					if n < 1024 { // the head alone: net/http writes it first
						_, _ = io.ReadFull(c, buf[:1024])
					}
					_, _ = c.Write(answer)
				}
			}()
		}
	}()
	url := "http://" + l.Addr().String()
	ours, err := New(url, Options{ResponseTimeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	defer ours.CloseIdleConnections()
	theirs := &http.Transport{DisableCompression: true, ResponseHeaderTimeout: time.Minute, MaxIdleConnsPerHost: 512}
	defer theirs.CloseIdleConnections()
	for name, rt := range map[string]http.RoundTripper{"upstream": ours, "net_http": theirs} {
		b.Run(name, func(b *testing.B) {
			body := make([]byte, 1024)
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				req := request(b, http.MethodPost, url+"/v1/chat/completions", "")
				req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), 1024
				req.Header["Content-Type"] = []string{"application/json"}
				resp, err := rt.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, resp.Body); n != 1024 || err != nil {
					b.Fatal(n, err)
				}
				_ = resp.Body.Close()
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func cpu(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
