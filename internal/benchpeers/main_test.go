package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
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
