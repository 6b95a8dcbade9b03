package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tollgate/internal/hop"
)

func TestMeasureRefusesRefusals(t *testing.T) {
	t.Parallel()
	for status, wantErr := range map[int]string{
		http.StatusOK:              "",
		http.StatusTooManyRequests: "answers by status map[429:",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
		}))
		addr := strings.TrimPrefix(server.URL, "http://")
		rows, err := measure(t.Context(), "peer", addr, 50*time.Millisecond, envoyRequest(addr))
		server.Close()
		if wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), wantErr) {
				t.Errorf("status %d: error %v, want %q in it", status, err, wantErr)
			}
			continue
		}
		if err != nil {
			t.Fatalf("status %d: %v", status, err)
		}
		var names []string
		for _, r := range rows {
			names = append(names, r.Name)
			if r.Value <= 0 {
				t.Errorf("%s = %v, want more than 0", r.Name, r.Value)
			}
		}
		want := "peer_1_rps peer_1_p50_ms peer_1_p99_ms peer_16_rps peer_16_p50_ms peer_16_p99_ms peer_64_rps peer_64_p50_ms peer_64_p99_ms"
		if got := strings.Join(names, " "); got != want {
			t.Errorf("figures %q, want %q", got, want)
		}
	}
}

func TestCompareAndTable(t *testing.T) {
	t.Parallel()
	rows := []row{{Name: "reserve_http_64_rps", Value: 30, Unit: "requests/s"}, {Name: "reserve_http_2000rps_p50_ms", Value: 1, Unit: "ms"}}
	compare(rows, reservePrefix, []row{{Name: "peer_envoy_64_rps", Value: 12, Unit: "requests/s"}}, "peer_envoy_")
	if rows[0].Ratio == nil || *rows[0].Ratio != 2.5 || *rows[0].Baseline != 12 {
		t.Errorf("64 connections: %+v, want a baseline of 12 and a ratio of 2.5", rows[0])
	}
	if rows[1].Ratio != nil || rows[1].Baseline != nil {
		t.Errorf("a figure without a peer got %+v", rows[1])
	}
	noisy := []row{{Name: "reserve_http_a", Value: 3}, {Name: "reserve_http_b", Value: -1}}
	compare(noisy, reservePrefix, []row{{Name: "peer_envoy_a", Value: -2}, {Name: "peer_envoy_b", Value: 2}}, "peer_envoy_")
	if noisy[0].Ratio != nil || noisy[1].Ratio != nil {
		t.Errorf("a ratio of what is below zero: %+v", noisy)
	}
	var out strings.Builder
	if err := table(&out, rows, []notMeasured{{Name: "peer_bifrost_", Reason: "no way"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"reserve_http_64_rps", "12.00", "2.50", "Envoy's ratelimit\n", "not measured: peer_bifrost: no way\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
}

// The gateway is asked for one part by its name, as long as each load lasts.
func TestMeasureGateway(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "gateway")
	script := `#!/bin/sh
[ "$*" = "bench --only proxy --each 2s --json" ] || exit 2
echo '[{"name":"proxy_32_rps","value":7,"unit":"requests/s"},{"name":"fold","value":1}]'
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	rows, err := measureGateway(t.Context(), options{gateway: program, each: 2 * time.Second}, proxyPrefix, io.Discard)
	if err != nil || len(rows) != 1 || rows[0].Name != "proxy_32_rps" || rows[0].Value != 7 {
		t.Errorf("%+v, %v", rows, err)
	}
	if _, err := measureGateway(t.Context(), options{gateway: program, each: time.Second}, proxyPrefix, io.Discard); err == nil {
		t.Error("a gateway that fails is taken for measured")
	}
}

// A peer that cannot be had is named with the reason, and so is a load that one
// does not bear.
func TestPeersThatCannotBeMeasured(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "bifrost.reason"), []byte("out of reach\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{peers: dir, each: 50 * time.Millisecond, rounds: 1}
	rows, without := measureProxy(t.Context(), o, proxyPeer{name: "bifrost"}, "127.0.0.1:1")
	if len(rows) != 0 || len(without) != 1 || without[0] != (notMeasured{Name: "peer_bifrost_", Reason: "out of reach"}) {
		t.Errorf("%+v, %+v", rows, without)
	}
	ends := proxyPeer{name: "ends", start: func(context.Context, stage) (*hop.Process, hop.Target, error) {
		p, err := hop.Start("sh", []string{"-c", "echo no such option; exit 1"}, nil)
		return p, hop.Target{Requests: passing("127.0.0.1:1")}, err
	}}
	rows, without = measureProxy(t.Context(), o, ends, "127.0.0.1:1")
	if len(rows) != 0 || len(without) != 1 || !strings.Contains(without[0].Reason, "it ended") || !strings.Contains(without[0].Reason, "no such option") {
		t.Errorf("%+v, %+v", rows, without)
	}
}
