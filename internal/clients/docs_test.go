package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tollgate/internal/fakeprovider"
	"tollgate/tenancy"
)

// block is a block of code of a page.
type block struct {
	line     int
	language string
	quota    string // of the comment before it: what its key may do
	code     string
}

var fence = regexp.MustCompile("(?m)^(?:<!-- quota: ([a-z]+) -->\n)?```([a-z]+)\n((?s:.*?)\n)```$")

func blocksOf(page string) []block {
	var all []block
	for _, at := range fence.FindAllStringSubmatchIndex(page, -1) {
		b := block{line: strings.Count(page[:at[0]], "\n") + 1, language: page[at[4]:at[5]], code: page[at[6]:at[7]]}
		if at[2] >= 0 {
			b.quota = page[at[2]:at[3]]
		}
		all = append(all, b)
	}
	return all
}

func (b block) tenant() string { return fmt.Sprintf("line-%d", b.line) }

// quotas are those that a block may ask for.
var quotas = map[string][]tenancy.Limit{
	"": nil,
	"spent": {{
		Name: "budget", Layer: "L1", Kind: tenancy.KindCounter, Scope: tenancy.ScopeKey,
		Metric: tenancy.MetricTokens, Limit: 1, Budget: true, Period: tenancy.PeriodNone,
	}},
}

var endings = map[string]string{"python": ".py", "javascript": ".mjs", "sh": ".sh"}

// Every block of docs/clients.md runs as it stands, prints something, and its
// requests reach the provider through the gateway, or are refused where they
// should be.
func TestPageOfClientsIsTrue(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "clients.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := blocksOf(string(page))
	if len(blocks) < 15 || strings.Count(string(page), "\n```") != 2*len(blocks) {
		t.Fatalf("found %d blocks of %d fences", len(blocks), strings.Count(string(page), "\n```"))
	}
	s := newSite(t, []string{"gpt-4o-mini", "claude-sonnet-4-5", "gemini-2.5-flash"})
	doors := make([]door, len(blocks))
	for i, b := range blocks {
		// Each block's tenant is its own, so that it is known what the block did.
		s.tenant(t, b.tenant())
		doors[i] = door{s.url, s.key(t, b.tenant(), quotas[b.quota]...)}
	}
	for i := range doors {
		s.untilKnown(t, doors[i].key)
	}
	for i, b := range blocks {
		t.Run(b.tenant(), func(t *testing.T) {
			t.Parallel()
			ending, known := endings[b.language]
			if !known {
				t.Fatalf("no way to run %s", b.language)
			}
			script := filepath.Join(t.TempDir(), "block"+ending)
			if err := os.WriteFile(script, []byte(b.code), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), scriptTimeout)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bash", "-eu", script)
			if b.language != "sh" {
				cmd = command(ctx, t, script)
			}
			output := string(finish(t, cmd, doors[i].at("page")))
			if strings.TrimSpace(output) == "" {
				t.Error("printed nothing")
			}
			if b.quota == "spent" {
				if !strings.Contains(output, "the budget is spent: ") {
					t.Errorf("printed %q", output)
				}
				return
			}
			until(t, func() string { // the provider notes a request once it has ended
				mine := func(r fakeprovider.Record) bool { return r.Tenant == b.tenant() }
				if !slices.ContainsFunc(s.provider.Records(), mine) {
					return "nothing reached the provider through the gateway"
				}
				return ""
			})
		})
	}
}
