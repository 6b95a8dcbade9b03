package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"tollgate/internal/loadclient"
)

// envoyRules limits two descriptors of each request: a tenant's and a route's.
// The limits are out of reach, so that every request is admitted and counted.
const envoyRules = `domain: peers
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 1000000000}
  - key: route
    rate_limit: {unit: second, requests_per_unit: 1000000000}
`

// tenants is the number of different keys that requests spread over.
const tenants = 100

// measureEnvoy starts the peer, measures its /json route and stops it.
func measureEnvoy(ctx context.Context, o options) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "tollgate-peer-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.MkdirAll(filepath.Join(dir, "peers", "config"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "peers", "config", "rules.yaml"), []byte(envoyRules), 0o600); err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	var id [4]byte
	_, _ = rand.Read(id[:]) // never fails

	var log bytes.Buffer
	server := exec.CommandContext(ctx, o.envoy) //nolint:gosec // the operator names the program
	server.Stdout, server.Stderr = &log, &log
	server.Cancel = func() error { return server.Process.Signal(syscall.SIGTERM) }
	server.WaitDelay = 5 * time.Second
	server.Env = append(os.Environ(),
		"HOST=127.0.0.1", "PORT="+strconv.Itoa(ports[0]),
		"GRPC_HOST=127.0.0.1", "GRPC_PORT="+strconv.Itoa(ports[1]),
		"DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+strconv.Itoa(ports[2]),
		"RUNTIME_ROOT="+dir, "RUNTIME_SUBDIRECTORY=peers", "RUNTIME_WATCH_ROOT=false",
		"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+o.redis,
		"CACHE_KEY_PREFIX=peers-"+hex.EncodeToString(id[:])+"-",
		"USE_STATSD=false", "LOG_LEVEL=error",
	)
	if err := server.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = server.Wait() // how it ended does not matter, what it printed does
		close(ended)
	}()
	defer func() {
		_ = server.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			_ = server.Process.Kill()
			<-ended
		}
	}()

	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
	if err := awaitHealthy(ctx, addr, ended); err != nil {
		return nil, fmt.Errorf("%w; its output:\n%s", err, log.String())
	}
	return measure(ctx, "peer_envoy", addr, o.each, envoyRequest(addr))
}

// envoyRequest returns what appends one call of /json.
func envoyRequest(addr string) func(conn int, buf []byte) []byte {
	requests := make([][]byte, tenants)
	for i := range requests {
		body := fmt.Sprintf(`{"domain":"peers","descriptors":[`+
			`{"entries":[{"key":"tenant","value":"tenant-%03d"}]},`+
			`{"entries":[{"key":"route","value":"chat-%03d"}]}]}`, i, i)
		requests[i] = fmt.Appendf(nil, "POST /json HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			addr, len(body), body)
	}
	next := make([]int, connections[len(connections)-1])
	for i := range next {
		next[i] = i // each connection walks through the tenants from its own start
	}
	return func(conn int, buf []byte) []byte {
		next[conn]++
		return append(buf, requests[next[conn]%tenants]...)
	}
}

// awaitHealthy waits until the server says that it serves.
func awaitHealthy(ctx context.Context, addr string, ended <-chan struct{}) error {
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/healthcheck", http.NoBody)
		if err != nil {
			return err
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("it did not become healthy on %s", addr)
}

// freePorts returns ports that nothing listens on at this moment.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = listener.Close() }()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// measure drives one server with each number of connections, after a warm-up
// that is not counted. An answer other than 200 fails the measurement: a fast
// refusal is not the work that is compared.
func measure(ctx context.Context, name, addr string, each time.Duration, next func(int, []byte) []byte) ([]row, error) {
	var rows []row
	for _, n := range connections {
		for _, phase := range []time.Duration{each / 5, each} {
			result, err := loadclient.Run(ctx, loadclient.Options{Addr: addr, Conns: n, Duration: phase, Next: next})
			if err != nil {
				return nil, err
			}
			if ok := result.ByStatus[http.StatusOK]; ok == 0 || ok != result.Answers() || result.Errors > 0 {
				return nil, errors.Join(
					fmt.Errorf("%d connections: answers by status %v, %d errors", n, result.ByStatus, result.Errors), result.LastErr,
				)
			}
			if phase != each {
				continue
			}
			prefix := fmt.Sprintf("%s_%d", name, n)
			rows = append(rows,
				row{Name: prefix + "_rps", Value: result.PerSecond(), Unit: "requests/s"},
				row{Name: prefix + "_p50_ms", Value: milliseconds(result.Latency.Quantile(0.5)), Unit: "ms"},
				row{Name: prefix + "_p99_ms", Value: milliseconds(result.Latency.Quantile(0.99)), Unit: "ms"},
			)
		}
	}
	return rows, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
