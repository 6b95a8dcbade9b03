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
	key      string // of the comment before it: which key it is run with
	code     string
}

var fence = regexp.MustCompile("(?m)^(?:<!-- key: ([a-z]+) -->\n)?```([a-z]+)\n((?s:.*?)\n)```$")

func blocksOf(page string) []block {
	var all []block
	for _, at := range fence.FindAllStringSubmatchIndex(page, -1) {
		b := block{line: strings.Count(page[:at[0]], "\n") + 1, language: page[at[4]:at[5]], code: page[at[6]:at[7]]}
		if at[2] >= 0 {
			b.key = page[at[2]:at[3]]
		}
		all = append(all, b)
	}
	return all
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
	keys := map[string]string{}
	for _, language := range []string{"python", "javascript", "sh"} {
		// Blocks that use up something by name do not meet.
		s.tenant(t, language)
		keys[language] = s.key(t, language)
		keys[language+"spent"] = s.key(t, language, tenancy.Limit{
			Name: "budget", Layer: "L1", Kind: tenancy.KindCounter, Scope: tenancy.ScopeKey,
			Metric: tenancy.MetricTokens, Limit: 1, Budget: true, Period: tenancy.PeriodNone,
		})
		keys[language+"own"] = keys[language]
	}
	for _, key := range keys {
		s.untilKnown(t, key)
	}
	for _, b := range blocks {
		t.Run(fmt.Sprintf("line %d", b.line), func(t *testing.T) {
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
			output := string(finish(t, cmd, door{s.url, keys[b.language+b.key]}.at("page")))
			switch want := map[string]string{"spent": "the budget is spent: ", "own": "key"}[b.key]; {
			case strings.TrimSpace(output) == "":
				t.Error("printed nothing")
			case !strings.Contains(output, want):
				t.Errorf("want %q in:\n%s", want, output)
			}
		})
	}
	t.Cleanup(func() {
		for _, language := range []string{"python", "javascript", "sh"} {
			reached := slices.ContainsFunc(s.provider.Records(), func(r fakeprovider.Record) bool { return r.Tenant == language })
			if !reached {
				t.Errorf("nothing of the %s blocks reached the provider through the gateway", language)
			}
		}
	})
}
