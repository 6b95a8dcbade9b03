package cli

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"tollgate/internal/drill"
	"tollgate/internal/trace"
)

func TestTableLinesUp(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &printer{out: &out}
	err := p.table([]string{"NAME", "N", "SHARE", "NOTE"}, [][]string{
		{"Zürich", "1,234", "-", "first"},
		{"a", "7", "-2.5%", ""},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "" +
		"NAME        N  SHARE  NOTE\n" +
		"Zürich  1,234      -  first\n" +
		"a           7  -2.5%\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	out.Reset()
	if err := p.table([]string{"NAME", "N"}, nil); err != nil || out.String() != "NAME  N\n" {
		t.Errorf("empty table: %q, %v", out.String(), err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestOutputThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	p := &printer{out: brokenPipe{}}
	if err := p.table([]string{"A"}, nil); err == nil {
		t.Error("table: no error")
	}
	p.json = true
	if err := p.value(1, nil); err == nil {
		t.Error("JSON: no error")
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0", 7: "7", 999: "999", 1000: "1,000", -1: "-1", -999: "-999", -1000: "-1,000", 12_345_678: "12,345,678",
		100_000: "100,000", math.MaxInt64: "9,223,372,036,854,775,807", math.MinInt64: "-9,223,372,036,854,775,808",
	} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for f, want := range map[float64]string{0: "0.000", 0.1234: "0.123", 12.5: "12.500", 1000: "1,000", 123456.7: "123,457"} {
		if got := number(&f); got != want {
			t.Errorf("number(%v) = %q, want %q", f, got, want)
		}
	}
	if got := number(nil); got != "-" {
		t.Errorf("no number: %q", got)
	}
}

func TestInstant(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("", 8*3600)
	if got := instant(time.Date(2026, 8, 20, 0, 0, 0, 5, zone)); got != "2026-08-19T16:00:00Z" {
		t.Errorf("got %q", got)
	}
	if got := instant(time.Time{}); got != "-" {
		t.Errorf("zero: %q", got)
	}
}

// Where there is no terminal, a bar writes nothing: output may be piped.
func TestProgressIsSilentWithoutTerminal(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	p := &printer{out: &out, err: &errs}
	bar := p.progress(10, "requests")
	if err := errors.Join(bar.Add(5), bar.Finish()); err != nil {
		t.Fatal(err)
	}
	if out.Len()+errs.Len() > 0 {
		t.Errorf("it wrote %q and %q", out.String(), errs.String())
	}
}

func TestADrillThatDiffersEndsWithStatus1(t *testing.T) {
	t.Parallel()
	if err := differing(&drill.Result{}); err != nil {
		t.Errorf("nothing differs: %v", err)
	}
	err := differing(&drill.Result{Differences: []string{"bill (lines) has 1, expected 2"}})
	if got := exitStatus(err); err == nil || got != ExitDiffers {
		t.Errorf("%v, status %d, want %d", err, got, ExitDiffers)
	}
}

func TestDrillTableMarksWhatDiffers(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	e := &env{printer: &printer{out: &out}}
	expected := trace.Totals{Requests: 1000, InputTokens: 20, OutputTokens: 30}
	wrong := expected
	wrong.OutputTokens++
	err := e.drill(&drill.Result{
		Trace: trace.Totals{Requests: 1000, InputTokens: 20, OutputTokens: 35}, NotGenerated: trace.Totals{OutputTokens: 5}, Expected: expected,
		Counts: []drill.Count{{Part: "gateway", Totals: expected}, {Part: "bill", Totals: wrong}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"COUNTED BY                  REQUESTS  INPUT TOKENS  OUTPUT TOKENS",
		"trace (CSV file)               1,000            20             35",
		"  not generated: cancelled         -             -             -5",
		"expected                       1,000            20             30",
		"gateway                        1,000            20             30  equal",
		"bill                           1,000            20             31  DIFFERS",
	}
	if got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", out.String(), strings.Join(want, "\n"))
	}
}
