package plainyaml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var limits = Limits{Bytes: 1 << 20, Tokens: 20_000}

func TestParse(t *testing.T) {
	got, mistakes := Parse([]byte("\ufeffa: 1_0\nb:\n  - x: 0x1F\n    y: |\n      two\n      lines\n  - ~\n\"c d\": [true, '', 1.50]\n"), limits)
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	text := func(line int, text string) *Node { return &Node{Line: line, Text: text} }
	want := &Node{Kind: Mapping, Line: 1, Fields: []Field{
		{"a", 1, text(1, "1_0")},
		{"b", 2, &Node{Kind: List, Line: 3, Items: []*Node{
			{Kind: Mapping, Line: 3, Fields: []Field{{"x", 3, text(3, "0x1F")}, {"y", 4, text(4, "two\nlines")}}},
			{Kind: Null, Line: 7},
		}}},
		{"c d", 8, &Node{Kind: List, Line: 8, Items: []*Node{text(8, "true"), text(8, ""), text(8, "1.50")}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, empty := range []string{"", "\n", "# nothing\n", "---\n"} {
		if got, mistakes := Parse([]byte(empty), limits); len(mistakes) > 0 || got.Kind != Null {
			t.Errorf("%q: %+v %v", empty, got, mistakes)
		}
	}
}

func TestMistakes(t *testing.T) {
	for _, test := range []struct {
		text string
		want Mistake
	}{
		{"a: 1\na: 2\n", Mistake{Line: 2, Problem: `mapping key "a" already defined at [1:1]`}},
		{"a: &x 1\n", Mistake{1, "anchors and aliases are not taken", "write the value out"}},
		{"a: 1\nb:\n  <<: {}\n", Mistake{3, "anchors and aliases are not taken", "write the value out"}},
		{"a: !!str 1\n", Mistake{1, "tags and directives are not taken", "write the value out"}},
		{"a: 1\n---\nb: 1\n", Mistake{3, "a second document begins here", "remove the --- line"}},
		{strings.Repeat("[", 17), Mistake{Line: 1, Problem: "is nested more than 16 deep"}},
		{strings.Repeat("- a\n", 20_001), Mistake{Problem: "has more than 20000 words and signs"}},
		{strings.Repeat("#", 1<<20+1), Mistake{Problem: "is larger than 1MiB"}},
		{"\xff", Mistake{Problem: "is not UTF-8 text"}},
	} {
		node, mistakes := Parse([]byte(test.text), limits)
		if node != nil || len(mistakes) != 1 || mistakes[0] != test.want {
			t.Errorf("%.20q: %+v %+v, want %+v", test.text, node, mistakes, test.want)
		}
	}
}

// The slowest file that the limits let through: about a second on a busy machine.
func BenchmarkWideMapping(b *testing.B) {
	var text strings.Builder
	for i := range 6600 {
		fmt.Fprintf(&text, "k%d: v\n", i)
	}
	for b.Loop() {
		if _, mistakes := Parse([]byte(text.String()), limits); len(mistakes) > 0 {
			b.Fatal(mistakes)
		}
	}
}
