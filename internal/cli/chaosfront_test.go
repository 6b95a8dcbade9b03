package cli

import (
	"bytes"
	"strings"
	"testing"

	"tollgate/internal/drill"
	"tollgate/internal/trace"
	"tollgate/proxy/route"
)

func TestTheTableOfADrillsModelsIsOne(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"", "o200k_base"} {
		table, err := route.Parse([]byte(modelTable("127.0.0.1:1", encoding)), "upstreams.yaml", func(string) string { return "" }, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(table.Models) != 2 {
			t.Fatalf("%d models", len(table.Models))
		}
		for _, m := range table.Models {
			if m.Tokenizer != encoding {
				t.Errorf("%s: tokenizer %q, want %q", m.Name, m.Tokenizer, encoding)
			}
		}
	}
}

func TestTheSiegesTableMarksWhatDiffers(t *testing.T) {
	t.Parallel()
	var out, notes bytes.Buffer
	e := &env{printer: &printer{out: &out, err: &notes}}
	result := &drill.Result{Siege: &drill.SiegeResult{
		Generated: trace.Totals{Requests: 3, InputTokens: 60, OutputTokens: 1900},
		Unreached: trace.Totals{Requests: 1},
		Estimated: trace.Totals{Requests: 1, InputTokens: 31, OutputTokens: 38}, EstimatedBound: 90_000,
		EstimatedWhy: map[string]int64{"quota_unknown": 1},
		Expected:     trace.Totals{Requests: 4, InputTokens: 61, OutputTokens: 1880},
		Counts: []drill.Count{
			{Part: "journal (events)", Totals: trace.Totals{Requests: 4, InputTokens: 61, OutputTokens: 1880}},
			{Part: "model meter", Totals: trace.Totals{Requests: 3, InputTokens: 60, OutputTokens: 1900}},
			{Part: "bill (lines)", Totals: trace.Totals{Requests: 4, InputTokens: 61, OutputTokens: 1879}},
		},
		Held: 7,
	}}
	if err := e.drill(result); err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(out.String(), "THROUGH THE FRONT DOOR")
	var lines []string
	for line := range strings.Lines(table) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	got := strings.Join(lines[1:], "\n")
	want := `model server (its own log) 3 60 1,900
never reached it 1 - -
of it estimated: generated - - -
of it estimated: charged 1 31 38 at most 90 units
expected 4 61 1,880
by the reconciler, gateway gone - - -
journal (events) 4 61 1,880 equal
model meter 3 60 1,900 equal
bill (lines) 4 61 1,879 DIFFERS`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, said := range []string{"Estimated: 1, quota_unknown.", "0 requests are in flight, and 7 is held"} {
		if !strings.Contains(notes.String(), said) {
			t.Errorf("notes %q lack %q", notes.String(), said)
		}
	}
}
