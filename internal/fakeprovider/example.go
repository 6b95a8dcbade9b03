package fakeprovider

import (
	"math"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// example makes a value that is valid for a JSON schema: tool arguments and
// structured output. It knows what people write in such schemas: types, enum,
// const, properties, items, references within the document, anyOf, oneOf, allOf,
// bounds, patterns and the usual formats. Below leanDepth it leaves out whatever
// is optional, so that recursive schemas end.
type example struct {
	root  gjson.Result
	r     *random
	nodes int
}

const (
	leanDepth     = 4
	deepest       = 32
	maxNodes      = 2000
	maxTextLength = 4096
)

// appendExample appends a value that is valid for schema.
func appendExample(b []byte, schema gjson.Result, r *random) []byte {
	e := example{root: schema, r: r}
	if !schema.IsObject() {
		return append(b, `{}`...)
	}
	return e.value(b, schema, 0)
}

func (e *example) value(b []byte, s gjson.Result, depth int) []byte {
	e.nodes++
	if depth > deepest || e.nodes > maxNodes {
		return append(b, "null"...)
	}
	if ref := s.Get("$ref").Str; ref != "" {
		return e.value(b, e.resolve(ref), depth+1)
	}
	if v := s.Get("const"); v.Exists() {
		return append(b, v.Raw...)
	}
	if all := s.Get("enum").Array(); len(all) > 0 {
		return append(b, all[e.r.below(len(all))].Raw...)
	}
	for _, word := range []string{"anyOf", "oneOf"} {
		if all := s.Get(word).Array(); len(all) > 0 && !s.Get("properties").Exists() {
			return e.value(b, e.choose(all, depth), depth+1)
		}
	}
	all := s.Get("allOf").Array()
	switch kind := typeOf(s); {
	case kind == "object" || len(all) > 1 && kind == "":
		return e.object(b, s, all, depth)
	case len(all) > 0 && kind == "":
		return e.value(b, all[0], depth+1)
	case kind == "array":
		return e.array(b, s, depth)
	case kind == "integer" || kind == "number":
		return e.number(b, s, kind == "integer")
	case kind == "boolean":
		return strconv.AppendBool(b, e.r.below(2) == 1)
	case kind == "null":
		return append(b, "null"...)
	}
	return appendString(b, e.text(s))
}

// typeOf is a schema's type; the first that is not null where it has several.
// Gemini writes types in capitals.
func typeOf(s gjson.Result) string {
	t := s.Get("type")
	if t.IsArray() {
		for _, one := range t.Array() {
			if t = one; one.Str != "null" {
				break
			}
		}
	}
	switch {
	case t.Str != "":
		return strings.ToLower(t.Str)
	case s.Get("properties").Exists():
		return "object"
	case s.Get("items").Exists() || s.Get("prefixItems").Exists():
		return "array"
	}
	return ""
}

// resolve follows a reference within the document (RFC 6901).
func (e *example) resolve(ref string) gjson.Result {
	at := e.root
	for part := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(ref, "#"), "/"), "/") {
		if part == "" {
			continue
		}
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		found := gjson.Result{}
		at.ForEach(func(key, v gjson.Result) bool {
			if key.Str == part {
				found = v
			}
			return !found.Exists()
		})
		at = found
	}
	return at
}

// choose picks an alternative: the first that is not null, and once it is deep
// the one that ends soonest.
func (e *example) choose(all []gjson.Result, depth int) gjson.Result {
	if depth > leanDepth {
		for _, s := range all {
			if typeOf(s) != "" && typeOf(s) != "object" && typeOf(s) != "array" {
				return s
			}
		}
	}
	for _, s := range all {
		if typeOf(s) != "null" {
			return s
		}
	}
	return all[0]
}

func (e *example) object(b []byte, s gjson.Result, also []gjson.Result, depth int) []byte {
	b = append(b, '{')
	var done []string
	put := func(name string, schema gjson.Result) {
		if slices.Contains(done, name) {
			return
		}
		if len(done) > 0 {
			b = append(b, ", "...)
		}
		done = append(done, name)
		b = append(appendString(b, name), ": "...)
		b = e.value(b, schema, depth+1)
	}
	for _, s := range append([]gjson.Result{s}, also...) {
		if ref := s.Get("$ref").Str; ref != "" {
			s = e.resolve(ref)
		}
		var required []string
		for _, name := range s.Get("required").Array() {
			required = append(required, name.Str)
		}
		s.Get("properties").ForEach(func(key, schema gjson.Result) bool {
			if depth <= leanDepth || slices.Contains(required, key.Str) {
				put(key.Str, schema)
			}
			return true
		})
		for _, name := range required {
			put(name, gjson.Result{})
		}
	}
	return append(b, '}')
}

func (e *example) array(b []byte, s gjson.Result, depth int) []byte {
	n := int64(1)
	if least := s.Get("minItems"); least.Exists() || depth > leanDepth {
		n = least.Int()
	}
	if most := s.Get("maxItems"); most.Exists() {
		n = min(n, most.Int())
	}
	fixed, items := s.Get("prefixItems").Array(), s.Get("items")
	n = max(n, int64(len(fixed)))
	b = append(b, '[')
	for i := range min(n, 100) {
		if i > 0 {
			b = append(b, ", "...)
		}
		if i < int64(len(fixed)) {
			b = e.value(b, fixed[i], depth+1)
		} else {
			b = e.value(b, items, depth+1)
		}
	}
	return append(b, ']')
}

// number takes a small number within the bounds.
func (e *example) number(b []byte, s gjson.Result, whole bool) []byte {
	low, high := math.Inf(-1), math.Inf(1)
	step := 1.0
	if v := s.Get("multipleOf"); v.Num > 0 {
		step = v.Num
	}
	if v := s.Get("minimum"); v.Exists() {
		low = v.Num
	}
	if v := s.Get("exclusiveMinimum"); v.Type == gjson.Number {
		low = max(low, v.Num+step/2)
	}
	if v := s.Get("maximum"); v.Exists() {
		high = v.Num
	}
	if v := s.Get("exclusiveMaximum"); v.Type == gjson.Number {
		high = min(high, v.Num-step/2)
	}
	n := float64(1 + e.r.below(9))
	if !math.IsInf(low, 0) {
		n = low + float64(e.r.below(10))
	}
	n = math.Ceil(n/step) * step
	if n > high {
		n = math.Floor(high/step) * step
	}
	if n < low && !whole { // no multiple of one in between
		n = low + (high-low)/2
	}
	if math.IsNaN(n) || math.IsInf(n, 0) {
		n = 0 // bounds that no number keeps
	}
	return strconv.AppendFloat(b, n, 'f', -1, 64)
}

func (e *example) text(s gjson.Result) string {
	if pattern := s.Get("pattern").Str; pattern != "" {
		if re, err := syntax.Parse(pattern, syntax.Perl); err == nil {
			var b strings.Builder
			e.matching(&b, re.Simplify())
			return b.String()
		}
	}
	word := words[e.r.below(len(words))]
	switch s.Get("format").Str {
	case "date":
		return "2026-03-14"
	case "date-time":
		return "2026-03-14T15:09:26Z"
	case "time":
		return "15:09:26Z"
	case "duration":
		return "PT1H"
	case "email":
		return word + "@example.com"
	case "hostname":
		return word + ".example.com"
	case "uri", "url", "iri":
		return "https://example.com/" + word
	case "ipv4":
		return "192.0.2.1"
	case "ipv6":
		return "2001:db8::1"
	case "uuid":
		return "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	}
	for int64(len(word)) < min(s.Get("minLength").Int(), maxTextLength) {
		word += " " + words[e.r.below(len(words))]
	}
	if most := s.Get("maxLength"); most.Exists() {
		word = word[:min(int64(len(word)), max(0, most.Int()))]
	}
	return word
}

// matching writes a text that a regular expression matches.
func (e *example) matching(b *strings.Builder, re *syntax.Regexp) {
	if b.Len() > maxTextLength {
		return
	}
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		if len(re.Rune) > 0 {
			low, high := re.Rune[0], re.Rune[1]
			for i := 0; i < len(re.Rune); i += 2 { // rather a letter or digit
				if re.Rune[i] >= '0' && re.Rune[i] <= 'z' {
					low, high = re.Rune[i], re.Rune[i+1]
				}
			}
			b.WriteRune(low + rune(e.r.below(int(min(high-low, 25))+1)))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte("abcdefgh"[e.r.below(8)])
	case syntax.OpPlus, syntax.OpCapture:
		e.matching(b, re.Sub[0])
	case syntax.OpRepeat:
		for range re.Min {
			e.matching(b, re.Sub[0])
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			e.matching(b, sub)
		}
	case syntax.OpAlternate:
		e.matching(b, re.Sub[e.r.below(len(re.Sub))])
	}
}
