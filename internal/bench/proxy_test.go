package bench

import (
	"os"
	"path/filepath"
	"testing"

	"tollgate/internal/hop"
	"tollgate/proxy/route"
)

// The gateway's table is one that it reads, with a model for each pace.
func TestUpstreamTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "upstreams.yaml")
	if err := os.WriteFile(file, upstreamTable("127.0.0.1:1234"), 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := route.Open(file, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range hop.Paces {
		if p.Word() == "" {
			t.Errorf("pace %q has no name", p)
		}
		var base string
		for _, u := range table.Upstreams {
			if u.Name == p.Word() {
				base = u.Server.Base
			}
		}
		if want := "http://127.0.0.1:1234" + string(p) + "/v1"; base != want {
			t.Errorf("the upstream of pace %q is at %q, want %q", p, base, want)
		}
	}
	if len(table.Models) != len(hop.Paces) {
		t.Errorf("%d models, want %d", len(table.Models), len(hop.Paces))
	}
}
