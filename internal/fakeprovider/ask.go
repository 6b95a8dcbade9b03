package fakeprovider

import (
	"strings"

	"github.com/tidwall/gjson"
)

// ask is a request as this server understands it, whatever the dialect.
type ask struct {
	model    string
	stream   bool
	usage    bool // usage is asked for in the stream
	max      int64
	choices  int
	stops    []string
	tools    []tool
	force    string // "" auto, "none", "any", or "=" and a tool's name
	parallel bool
	format   gjson.Result // JSON schema of the answer
	object   bool         // the answer shall be a JSON object
	logprobs bool
	top      int
	reason   int64 // reasoning tokens asked for
	prompt   string
	answered bool // the last message is a tool's result, not a user's
	reader
}

type tool struct {
	name   string
	schema gjson.Result
}

// reader counts a request's tokens and condenses what it asks to a number, from
// which the whole answer follows. Only what the model would see goes in: not
// whether it streams, not its caps, no header, and not how the JSON was spelled
// or ordered.
type reader struct {
	hash  uint64
	input int64
	marks []mark // where messages end, when prefixes are cached
	keep  bool
}

// mark is a prefix of a prompt.
type mark struct {
	hash  uint64
	input int64
}

// FNV-1a, 64 bits (RFC 9923).
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func (d *reader) tag(s string) {
	h := d.hash
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	d.hash = (h ^ 0xFF) * fnvPrime // a byte that no text has, so that neighbours do not run together
}

// text is text that the model reads.
func (d *reader) text(s string) {
	d.tag(s)
	d.input += CountTokens(s)
}

// What a picture and a second of sound cost. Fixed, so that a test can add up.
const (
	imageInputTokens   = 85
	fileInputTokens    = 100
	audioTokensASecond = 10
)

func (d *reader) picture(source string) {
	d.tag(source)
	d.input += imageInputTokens
}

func (d *reader) file(source string) {
	d.tag(source)
	d.input += fileInputTokens
}

func (d *reader) mark() {
	if d.keep {
		d.marks = append(d.marks, mark{d.hash, d.input})
	}
}

// seed is where an answer's randomness begins; choice tells answers to one
// request apart.
func (a *ask) seed(choice int) random {
	return random(a.hash + uint64(choice)*0x9E3779B97F4A7C15)
}

// badRequest is what a client is told about its mistake.
type badRequest struct{ field, detail string }

func bad(field, detail string) *badRequest { return &badRequest{field, detail} }

// flag is the value of a boolean field, or otherwise where there is none.
func flag(v gjson.Result, otherwise bool) bool {
	if !v.Exists() || v.Type == gjson.Null {
		return otherwise
	}
	return v.Bool()
}

// limit reads an optional count; −1 is none.
func limit(v gjson.Result, field string, low, high int64) (int64, *badRequest) {
	if !v.Exists() || v.Type == gjson.Null {
		return -1, nil
	}
	n := v.Int()
	if v.Type != gjson.Number || float64(n) != v.Num || n < low || n > high {
		return 0, bad(field, "must be a whole number in range")
	}
	return n, nil
}

func (a *ask) readStops(v gjson.Result) {
	if v.Type == gjson.String {
		a.stops = []string{v.Str}
		return
	}
	if v.IsArray() {
		for _, stop := range v.Array() {
			if stop.Type == gjson.String && stop.Str != "" {
				a.stops = append(a.stops, stop.Str)
			}
		}
	}
}

// addTool takes a function that the model may call. Its definition is part of
// the prompt.
func (a *ask) addTool(name, description string, schema gjson.Result) {
	a.tools = append(a.tools, tool{name, schema})
	a.text(name)
	a.text(description)
	a.input += CountTokens(schema.Raw)
}

// called are the tools that an answer calls: those forced, or those that the
// last user message speaks of, by a word of their name or by the word "tool".
func (a *ask) called(asked bool) []tool {
	if len(a.tools) == 0 || a.force == "none" {
		return nil
	}
	if name, one := strings.CutPrefix(a.force, "="); one {
		for i := range a.tools {
			if a.tools[i].name == name {
				return a.tools[i : i+1]
			}
		}
		return nil
	}
	var found []tool
	if !a.answered {
		prompt := strings.ToLower(a.prompt)
		for i := range a.tools {
			if mentions(prompt, a.tools[i].name) {
				found = append(found, a.tools[i])
			}
		}
		if len(found) == 0 && (asked || strings.Contains(prompt, "tool")) {
			found = a.tools[:1]
		}
	}
	if len(found) == 0 && a.force == "any" {
		found = a.tools[:1]
	}
	if len(found) > 1 && !a.parallel {
		found = found[:1]
	}
	return found
}

// mentions says whether a prompt, in lower case, has a word of a tool's name
// that is long enough to mean something.
func mentions(prompt, name string) bool {
	var word strings.Builder
	hit := func() bool {
		w := strings.ToLower(word.String())
		word.Reset()
		return len(w) >= 4 && strings.Contains(prompt, w)
	}
	for _, c := range name {
		if c == '_' || c == '-' || c == '.' || c >= 'A' && c <= 'Z' {
			if hit() {
				return true
			}
		}
		if c != '_' && c != '-' && c != '.' {
			word.WriteRune(c)
		}
	}
	return hit()
}
