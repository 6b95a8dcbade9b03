package trace

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	in := "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n" +
		"2023-11-16 18:17:03.9799600,4808,10\r\n" +
		"2023-11-16 18:17:04,0,0\n\n\n"
	got, err := Parse(strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{
		{time.Date(2023, 11, 16, 18, 17, 3, 979_960_000, time.UTC), 4808, 10},
		{time.Date(2023, 11, 16, 18, 17, 4, 0, time.UTC), 0, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Totals{2, 4808, 10}, Sum(got)); diff != "" {
		t.Error(diff)
	}
}

func TestParseNamesTheLineOfEachMistake(t *testing.T) {
	const h = header + "\n"
	const row = "2023-11-16 18:17:03.97,1,2\n"
	for name, tt := range map[string]struct {
		in   string
		line int
		msg  string
	}{
		"empty file":       {"", 1, "file is empty"},
		"other header":     {"a,b,c\n", 1, "header must be"},
		"too few fields":   {h + row + "2023-11-16 18:17:03.97,1\n", 3, "want 3 fields"},
		"too many fields":  {h + "2023-11-16 18:17:03.97,1,2,3\n", 2, "have 4"},
		"bad time":         {h + "yesterday,1,2\n", 2, "TIMESTAMP"},
		"negative":         {h + "2023-11-16 18:17:03.97,-1,2\n", 2, "ContextTokens"},
		"fraction":         {h + "2023-11-16 18:17:03.97,1,2.5\n", 2, "GeneratedTokens"},
		"exponent":         {h + "2023-11-16 18:17:03.97,1e3,2\n", 2, "ContextTokens"},
		"space":            {h + "2023-11-16 18:17:03.97, 1,2\n", 2, "ContextTokens"},
		"too large":        {h + "2023-11-16 18:17:03.97,1,2147483649\n", 2, "GeneratedTokens"},
		"overflow":         {h + "2023-11-16 18:17:03.97,99999999999999999999,2\n", 2, "ContextTokens"},
		"long line":        {h + row + strings.Repeat("9", 300) + "\n", 3, "longer than"},
		"empty line":       {h + row + "\n" + row, 3, "empty line"},
		"nul":              {h + "2023-11-16 18:17:03.97,1\x00,2\n", 2, "ContextTokens"},
		"header only once": {h + h, 2, "TIMESTAMP"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(tt.in))
			var syntax *SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("got %v, want a SyntaxError", err)
			}
			if syntax.Line != tt.line || !strings.Contains(syntax.Msg, tt.msg) {
				t.Errorf("got %v, want line %d and %q", syntax, tt.line, tt.msg)
			}
		})
	}
}

// The sums of the published traces, so that a changed copy is noticed.
func TestPublishedTraces(t *testing.T) {
	for _, tt := range []struct {
		path string
		want Totals
	}{
		{"../../deploy/demo/azure-llm-2023-code.csv", Totals{8_819, 18_059_974, 245_896}},
		{"../../../shared/traces/azure-llm-2023-conv.csv", Totals{19_366, 22_361_870, 4_088_665}},
	} {
		t.Run(filepath.Base(tt.path), func(t *testing.T) {
			f, err := os.Open(filepath.FromSlash(tt.path))
			if os.IsNotExist(err) {
				t.Skipf("%s is not here; the larger trace is read when it lies beside the project", tt.path)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			requests, err := Parse(f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, Sum(requests)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(header + "\n2023-11-16 18:17:03.9799600,4808,10\n")
	f.Add(header + "\r\n2023-11-16 18:17:03,0,2147483648\r\n\r\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, in string) {
		requests, err := Parse(strings.NewReader(in))
		if err != nil {
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || syntax.Line < 1 {
				t.Fatalf("error without a line: %v", err)
			}
			return
		}
		for _, r := range requests {
			if r.InputTokens < 0 || r.InputTokens > MaxTokens || r.OutputTokens < 0 || r.OutputTokens > MaxTokens {
				t.Fatalf("out of range: %+v", r)
			}
		}
	})
}
