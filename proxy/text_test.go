package proxy_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"tollgate/proxy"
	"tollgate/proxy/tokens"
)

// words counts words and what stands between them as tokens that carry the space
// before them, like the encodings do, and remembers how much it was given.
type words struct{ most *int }

func (w words) Count(text []byte) int64 {
	*w.most = max(*w.most, len(text))
	n := int64(len(bytes.Fields(text)))
	if last := bytes.TrimRight(text, " "); len(last) < len(text) {
		n++
	}
	return n
}

func (words) Exact() bool { return true }

func exactCounter(t testing.TB) proxy.Counter {
	t.Helper()
	counter, ok := tokens.For(tokens.O200kBase)
	if !ok {
		t.Fatal("no counter")
	}
	return counter
}

// However text is cut, its count is that of the whole, with 8 KiB kept.
func TestTextTallyIsCountOfWhole(t *testing.T) {
	t.Parallel()
	counter := exactCounter(t)
	rapid.Check(t, func(t *rapid.T) {
		morsel := rapid.SampledFrom([]string{" word", " Ünïcode", "\n", "  ", "字 ", ", ", "1", " x", "';", "é", "don't ", "\n\n  ", " \u3000 a"})
		text := strings.Repeat(strings.Join(rapid.SliceOfN(morsel, 1, 50).Draw(t, "text"), "")+" end", rapid.IntRange(1, 400).Draw(t, "times"))
		tally := proxy.NewTextTally(counter)
		step := rapid.IntRange(1, 9000).Draw(t, "step")
		for rest := []byte(text); len(rest) > 0; {
			n := min(step, len(rest))
			tally.Add(rest[:n])
			rest = rest[n:]
			if tally.Rough() < 1 {
				t.Fatal("no tokens, roughly")
			}
		}
		var want int64 // in parts that the counter counts exactly
		for rest := []byte(text); len(rest) > 0; {
			n := len(rest)
			if n > 60<<10 {
				n = proxy.TokenBorder(rest[:60<<10], 1)
			}
			want += counter.Count(rest[:n])
			rest = rest[n:]
		}
		if got := tally.Exact(); got != want {
			t.Fatalf("%d tokens, want %d", got, want)
		}
		if tally.Bytes() != int64(len(text)) {
			t.Fatalf("%d bytes of %d", tally.Bytes(), len(text))
		}
	})
}

func TestTextTallyKeepsLittle(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"x", " ", "字", "word ", "\xff", "😀"} {
		most := 0
		tally := proxy.NewTextTally(words{&most})
		text := []byte(strings.Repeat(unit, 100_000))
		for len(text) > 0 {
			n := min(1000, len(text))
			tally.Add(text[:n])
			text = text[n:]
		}
		tally.Exact()
		if most > 8<<10 {
			t.Errorf("%q: %d bytes were kept", unit, most)
		}
		if unit == "word " && tally.Exact() < 100_000 {
			t.Errorf("%d words of 100000", tally.Exact())
		}
	}
}

// Characters are not torn where there is no space.
func TestTextTallyCutsBetweenCharacters(t *testing.T) {
	t.Parallel()
	counter := exactCounter(t)
	for _, unit := range []string{"字", "😀", "é"} {
		text := strings.Repeat(unit, 20_000/len(unit))
		tally := proxy.NewTextTally(counter)
		tally.Add([]byte(text))
		want := counter.Count([]byte(text))
		if got := tally.Exact(); got < want || got > want+5 {
			t.Errorf("%q: %d tokens, want %d and a few", unit, got, want)
		}
	}
}

func TestTokenBorder(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"one two three":  7,
		"one two  ":      7,
		"one":            3,
		"one\u3000 two":  10, // the space follows another blank: no border for sure
		"ab\xe5\xad":     2,  // half a character waits
		"ab\xe5\xad\x97": 5,
		"\xff\xff\xff":   3,
	} {
		if got := proxy.TokenBorder([]byte(text), 1); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestRough(t *testing.T) {
	t.Parallel()
	tally := proxy.NewTextTally(exactCounter(t))
	if tally.Rough() != 0 || tally.Exact() != 0 {
		t.Error("nothing is something")
	}
	tally.Add(nil)
	tally.AddJSONString([]byte(`""`))
	if tally.Rough() != 0 {
		t.Error("empty pieces count")
	}
	tally.Add([]byte("a"))
	tally.AddJSONString([]byte(`"b"`))
	tally.Add([]byte("c"))
	if got := tally.Rough(); got != 3 {
		t.Errorf("three pieces are %d", got)
	}
	tally.Add([]byte(strings.Repeat("word", 100)))
	if got := tally.Rough(); got != 101 {
		t.Errorf("403 bytes are %d", got)
	}
}

// caught is a counter that gives back what it is asked to count.
type caught struct{ text *[]byte }

func (c caught) Count(text []byte) int64 { *c.text = bytes.Clone(text); return 0 }
func (caught) Exact() bool               { return true }

func unquoted(raw []byte) string {
	var text []byte
	tally := proxy.NewTextTally(caught{&text})
	tally.AddJSONString(raw)
	tally.Exact()
	return string(text)
}

func TestAddJSONString(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`"plain"`:                       "plain",
		`plain`:                         "plain",
		`"\"\\\/\b\f\n\r\t"`:            "\"\\/\b\f\n\r\t",
		`"\u00e9\u5B57"`:                "é字",
		`"\ud83d\ude00!"`:               "😀!",
		`"\uD83D"`:                      "\uFFFD",
		`"\uDE00\uD83D"`:                "\uFFFD\uFFFD",
		`"\ud83d\u0041"`:                "\uFFFDA",
		`"\ud83dx"`:                     "\uFFFDx",
		`"a\u0000b"`:                    "a\x00b",
		`"\x\u12"`:                      `\x\u12`,
		`"\`:                            `"\`,
		`"`:                             `"`,
		``:                              "",
		`""`:                            "",
		`"` + "\\n" + ` half \u12g4 x"`: "\n half \\u12g4 x",
	} {
		if got := unquoted([]byte(raw)); got != want {
			t.Errorf("%s reads as %q, want %q", raw, got, want)
		}
	}
}

func TestAddJSONStringAllocatesNothing(t *testing.T) {
	tally := proxy.NewTextTally(exactCounter(t))
	raw := []byte(`"some text \u00e9\ud83d\ude00\n with \"escapes\""`)
	tally.AddJSONString(bytes.Repeat([]byte("word "), 1600)) // grows what is kept to its bound
	tally.Exact()                                            // loads the vocabulary
	if got := testing.AllocsPerRun(500, func() { tally.AddJSONString(raw) }); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// What is a JSON string reads as the standard library reads it.
func FuzzAddJSONString(f *testing.F) {
	for _, raw := range []string{`"plain"`, `"\"\\\/\b\f\n\r\t"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d\ude00"`, `"\u12"`, `"\`, `"é字"`} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 2000 {
			return
		}
		got := unquoted(raw)
		var want string
		if len(raw) == 0 || raw[0] != '"' || !utf8.Valid(raw) || json.Unmarshal(raw, &want) != nil {
			return // it only must not panic
		}
		if trimmed := bytes.TrimSpace(raw); len(trimmed) == len(raw) && got != want {
			t.Fatalf("%s reads as %q, want %q", raw, got, want)
		}
	})
}
