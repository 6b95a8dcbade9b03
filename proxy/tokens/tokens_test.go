package tokens

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"github.com/tiktoken-go/tokenizer"
	"pgregory.net/rapid"
)

// Counts that OpenAI publishes, in its cookbook's comparison of encodings and in
// tiktoken's own tests.
func TestPublishedCounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text          string
		cl100k, o200k int64
	}{
		{"", 0, 0},
		{"hello world", 2, 2},
		{"tiktoken is great!", 6, 6},
		{"antidisestablishmentarianism", 6, 6},
		{"2 + 2 = 4", 7, 7},
		{"お誕生日おめでとう", 9, 8},
	} {
		if got := cl100k.Count([]byte(c.text)); got != c.cl100k {
			t.Errorf("cl100k_base: %q is %d tokens, want %d", c.text, got, c.cl100k)
		}
		if got := o200k.Count([]byte(c.text)); got != c.o200k {
			t.Errorf("o200k_base: %q is %d tokens, want %d", c.text, got, c.o200k)
		}
	}
}

// reference encodes by the published pattern, as the library's regular expression
// engine reads it, and by merging as slowly as the definition reads.
type reference struct {
	pattern *regexp2.Regexp
	ranks   map[string]int
}

var references = sync.OnceValue(func() map[*encoding]*reference {
	all := map[*encoding]*reference{}
	for e, r := range map[*encoding]struct {
		name    tokenizer.Encoding
		pattern string
	}{
		cl100k: {tokenizer.Cl100kBase, `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
		o200k:  {tokenizer.O200kBase, `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	} {
		codec, err := tokenizer.Get(r.name)
		if err != nil {
			panic(err)
		}
		// The group around it keeps the engine from taking the code that the library
		// generated for the bare pattern: that splits blank space otherwise.
		ref := &reference{pattern: regexp2.MustCompile("(?:"+r.pattern+")", regexp2.None), ranks: map[string]int{}}
		for id := uint(0); ; id++ {
			token, err := codec.Decode([]uint{id})
			if err != nil {
				break
			}
			ref.ranks[token] = int(id)
		}
		all[e] = ref
	}
	return all
})

func (r *reference) pieces(t interface{ Fatal(...any) }, text string) []string {
	var pieces []string
	m, err := r.pattern.FindStringMatch(text)
	for ; m != nil && err == nil; m, err = r.pattern.FindNextMatch(m) {
		pieces = append(pieces, m.String())
	}
	if err != nil {
		t.Fatal(err)
	}
	return pieces
}

func (r *reference) merge(piece string) int64 {
	if _, ok := r.ranks[piece]; ok {
		return 1
	}
	parts := strings.Split(piece, "")
	parts = parts[:0]
	for i := range len(piece) {
		parts = append(parts, piece[i:i+1])
	}
	for {
		best, rank := -1, 1<<62
		for i := range len(parts) - 1 {
			if n, ok := r.ranks[parts[i]+parts[i+1]]; ok && n < rank {
				best, rank = i, n
			}
		}
		if best < 0 {
			return int64(len(parts))
		}
		parts[best] += parts[best+1]
		parts = append(parts[:best+1], parts[best+2:]...)
	}
}

// morsels are what texts are made of: each class of character, and what patterns
// treat apart.
var morsels = []string{
	"a", "B", "the", "The", "HTTPServer", "camelCase", "I'll", "don't", "DON'T", "'s", "'S", "'re", "'", "s", "ǅ", "ʰ", "é", "É", "e\u0301", "\u0301", "ß",
	"字", "你好", "です", "ア", "한국어", "ไทย", "हिन्दी", "العربية", "Ⅷ", "²", "1", "42", "2026", "1234567", "٣",
	" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "  \n\n  \n", "\u00a0", "\u3000", "\u2028", "\v", "\u0085",
	"!", ".", "...", "//", "/", "\n/", ";\n", ");\n\n", "{", "\"", "😀", "👩‍👩‍👧", "\u200d", "—", "$", "_", "__init__", "==", "#",
}

func genText(t *rapid.T) string {
	return strings.Join(rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(morsels), rapid.Map(rapid.Rune(), func(r rune) string { return string(r) })), 0, 40).Draw(t, "text"), "")
}

// sameAsReference holds every split and every count of text against the pattern
// and the definition.
func sameAsReference(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, text string,
) {
	for e, ref := range references() {
		v, err := e.load()
		if err != nil {
			t.Fatal(err)
		}
		rest := []byte(text)
		for i, piece := range ref.pieces(t, text) {
			n := e.split(rest)
			if string(rest[:n]) != piece {
				t.Fatalf("piece %d of %q is %q, want %q", i, text, rest[:n], piece)
			}
			if got, want := v.count(rest[:n]), ref.merge(piece); got != want {
				t.Fatalf("%q is %d tokens, want %d", piece, got, want)
			}
			rest = rest[n:]
		}
		if len(rest) > 0 {
			t.Fatalf("%q is left of %q", rest, text)
		}
	}
}

func TestCountIsTheDefinitions(t *testing.T) {
	t.Parallel()
	for _, first := range morsels { // all pairs, and what stands before and after
		for _, second := range morsels {
			sameAsReference(t, first+second)
			sameAsReference(t, "x"+second+first+first)
		}
	}
	rapid.Check(t, func(t *rapid.T) { sameAsReference(t, genText(t)) })
}

// Pieces too long for the simple way of merging count alike.
func TestLongPieces(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for e, ref := range references() {
		for _, letters := range []string{"a", "abcdefghij", "AB", "字你好世界天气不错", "!", "!?-=", "éü"} {
			for range 8 {
				var b strings.Builder
				runes := []rune(letters)
				for range 100 + random.IntN(300) {
					b.WriteRune(runes[random.IntN(len(runes))])
				}
				text := b.String()
				var want int64
				for _, piece := range ref.pieces(t, text) {
					want += ref.merge(piece)
				}
				if got := e.Count([]byte(text)); got != want {
					t.Fatalf("%q is %d tokens, want %d", text, got, want)
				}
			}
		}
	}
}

// What no tokenizer should be given costs time in proportion to its length: no
// piece is merged by the slow way that is longer than its bound, and what the
// library is given is letters or signs, once, which it merges in n log n.
func TestWorkIsBounded(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"a", "A", " ", "\n", " \n", "\n ", "\t\n\u3000", "!", "1", "字", "aA", "a'", "\u0301", "A\u0301", "\xff", "'s", "/\n", " !", "\n\n "} {
		text := []byte(strings.Repeat(unit, (1<<20)/len(unit)))
		for _, e := range []*encoding{cl100k, o200k} {
			v, err := e.load()
			if err != nil {
				t.Fatal(err)
			}
			watched := *v
			seen := &watcher{Codec: v.codec}
			watched.codec = seen
			w := &encoding{split: e.split, load: func() (*vocabulary, error) { return &watched, nil }}
			if n := w.Count(text); n < 1 || n > int64(len(text)) {
				t.Errorf("1 MiB of %q is %d tokens", unit, n)
			}
			if seen.bytes > exactText+sampleText {
				t.Errorf("the library was given %d bytes for 1 MiB of %q", seen.bytes, unit)
			}
			if strings.TrimSpace(seen.last) == "" && seen.bytes > 0 {
				t.Errorf("the library was given blank space: %.20q", seen.last)
			}
		}
	}
}

type watcher struct {
	tokenizer.Codec
	bytes int
	last  string
}

func (w *watcher) Count(text string) (int, error) {
	w.bytes += len(text)
	w.last = strings.Clone(text)
	return w.Codec.Count(text)
}

// Up to 64 KiB the count is exact; beyond, samples stand for the rest.
func TestLongTextIsSampled(t *testing.T) {
	t.Parallel()
	sentence := "The quick brown fox jumps over the lazy dog near 12 bridges, doesn't it? "
	for _, e := range []*encoding{cl100k, o200k} {
		v, err := e.load()
		if err != nil {
			t.Fatal(err)
		}
		text := []byte(strings.Repeat(sentence, 1<<20/len(sentence)))
		if got, want := e.Count(text[:exactText]), e.count(v, text[:exactText]); got != want {
			t.Errorf("64 KiB are %d tokens, want %d", got, want)
		}
		got, want := e.Count(text), e.count(v, text)
		if got < want || got > want+want/50 {
			t.Errorf("1 MiB is guessed as %d tokens and is %d", got, want)
		}
		// A cheap beginning does not hide a dear rest.
		text = append([]byte(strings.Repeat(" ", exactText)), text...)
		if got := e.Count(text); got < want/2 {
			t.Errorf("blank space before it makes %d of %d tokens", got, want)
		}
	}
}

func TestFor(t *testing.T) {
	t.Parallel()
	for name, exact := range map[string]bool{O200kBase: true, Cl100kBase: true, Estimated: false} {
		counter, ok := For(name)
		if !ok || counter.Exact() != exact {
			t.Errorf("%s: %v, %v", name, counter, ok)
		}
	}
	for _, name := range []string{"", "O200K_BASE", "p50k_base", "gpt-4o"} {
		if _, ok := For(name); ok {
			t.Errorf("%q is a tokenizer", name)
		}
	}
}

func TestGuess(t *testing.T) {
	t.Parallel()
	for want, models := range map[string][]string{
		O200kBase:  {"gpt-4o", "gpt-4o-mini-2024-07-18", "gpt-4.1", "gpt-4.1-nano", "gpt-5", "gpt-5-mini", "o1", "o1-preview", "o3", "o4-mini", "openai/gpt-4o", "ft:gpt-4o-mini:acme::x", "openai/gpt-oss-20b", "gpt-5.1"},
		Cl100kBase: {"gpt-4", "gpt-4-turbo", "gpt-4-0613", "gpt-3.5-turbo", "gpt-35-turbo", "text-embedding-3-small", "text-embedding-ada-002"},
		Estimated:  {"", "claude-sonnet-4-5", "gemini-2.5-pro", "llama-3.1-8b", "o1x", "gpt-4x", "meta-llama/Llama-3", "gpt", "/"},
	} {
		counter, _ := For(want)
		for _, model := range models {
			if got := Guess(model); got != counter {
				t.Errorf("%q is counted by %T %v, want %s", model, got, got.Exact(), want)
			}
		}
	}
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(genText(t))
		n := estimate{}.Count(text)
		if (n == 0) != (len(text) == 0) {
			t.Fatalf("%q is %d", text, n)
		}
		if more := (estimate{}).Count(append(text, genText(t)...)); more < n {
			t.Fatalf("%q is %d, and %d with more", text, n, more)
		}
		if n > int64(len(text)) {
			t.Fatalf("%q is %d", text, n)
		}
	})
	// It holds a bit more than encodings that are known would need, for what people
	// write.
	for _, text := range []string{
		"The quick brown fox jumps over the lazy dog. It was a bright cold day in April, and the clocks were striking thirteen.",
		"Falsches Üben von Xylophonmusik quält jeden größeren Zwerg; heißt es in der Werbung für Übungsbücher.",
		"func main() {\n\tfor i := range 10 {\n\t\tfmt.Println(i, \"of\", 10)\n\t}\n}\n",
		"今天天气很好，我们一起去公园散步吧。你觉得怎么样？",
		"Съешь же ещё этих мягких французских булок, да выпей чаю.",
		`{"name":"get_weather","arguments":{"city":"Paris","unit":"celsius"}}`,
	} {
		got, known := estimate{}.Count([]byte(text)), o200k.Count([]byte(text))
		if got < known || got > 3*known {
			t.Errorf("%q is estimated as %d and is %d in o200k_base", text, got, known)
		}
	}
}

// Counters load and count from many goroutines.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	e := newEncoding(tokenizer.Cl100kBase, splitCl100k)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			text := fmt.Appendf(nil, "hello world %d", i)
			if got := e.Count(text); got != 4 {
				t.Errorf("%s is %d tokens", text, got)
			}
		})
	}
	wg.Wait()
}

// Whatever the bytes, they are at least one token, and at most one each.
func FuzzCount(f *testing.F) {
	for _, m := range morsels {
		f.Add([]byte(m))
	}
	f.Add([]byte("\xff\xc3 '\xe5\xad"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, c := range []interface{ Count([]byte) int64 }{o200k, cl100k, estimate{}} {
			if n := c.Count(text); n > int64(len(text)) || n < min(1, int64(len(text))) {
				t.Fatalf("%q is %d tokens", text, n)
			}
		}
		if utf8.Valid(text) && len(text) < 500 {
			sameAsReference(t, string(text))
		}
	})
}

func BenchmarkCount(b *testing.B) {
	texts := map[string]string{
		"English":      strings.Repeat("The quick brown fox jumps over the lazy dog. ", 23),
		"Chinese":      strings.Repeat("今天天气很好，我们一起去公园散步吧。", 19),
		"Code":         strings.Repeat("\tif err != nil {\n\t\treturn fmt.Errorf(\"%w\", err)\n\t}\n", 19),
		"OneLetter64K": strings.Repeat("a", exactText),
		"Blank64K":     strings.Repeat(" \n", exactText/2),
		"Base64Like1M": strings.Repeat("kJ8hB2vQ9xZ0pLmN4rT", 1<<20/19),
	}
	for _, e := range []struct {
		name string
		*encoding
	}{{O200kBase, o200k}, {Cl100kBase, cl100k}} {
		for name, text := range texts {
			b.Run(e.name+"/"+name, func(b *testing.B) {
				data := []byte(text)
				e.Count(data)
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				for b.Loop() {
					e.Count(data)
				}
			})
		}
	}
}
