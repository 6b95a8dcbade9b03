package httpapi

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"tollgate/admission/answer"
)

// scanner reads one request body: a JSON object of known fields, in the strict
// profile of RFC 7493 (I-JSON). It is stricter than encoding/json where that
// matters for money: a field that is unknown, given twice, in other letter
// case, or null is refused rather than dropped, and integers are read exactly.
//
// Values nest only where a body type says so, so depth is bounded by the types
// and no input makes it recurse.
type scanner struct {
	data    []byte
	pos     int
	scratch []byte // a string whose escapes had to be resolved
	seen    uint64 // after decode: bit i says that the body's field i was there
}

// invalid says what is wrong with a body. Malformed JSON is 400; JSON that says
// something we cannot accept is 422, with the field's path.
type invalid struct {
	status int
	reason string
	field  string
	detail string
}

// Reasons of refused bodies, shown to clients.
const (
	reasonMalformed = "malformed_json"
	reasonUnknown   = "unknown_field"
	reasonDuplicate = "duplicate_field"
	reasonMissing   = "missing_field"
	reasonType      = "wrong_type"
	reasonRange     = answer.ReasonRange
	reasonFormat    = "wrong_format"
)

func unacceptable(reason, field, detail string) *invalid {
	return &invalid{status: 422, reason: reason, field: field, detail: detail}
}

func (s *scanner) malformed(what string) *invalid {
	return &invalid{status: 400, reason: reasonMalformed, detail: what + " at byte " + strconv.Itoa(s.pos) + "; send one JSON object in UTF-8"}
}

// decode reads the whole body into o.
func (s *scanner) decode(body []byte, o object) *invalid {
	s.data, s.pos = body, 0
	if !utf8.Valid(body) {
		return &invalid{status: 400, reason: reasonMalformed, detail: "the body is not valid UTF-8"}
	}
	s.space()
	if bad := s.object(o, ""); bad != nil {
		return bad
	}
	s.space()
	if s.pos != len(s.data) {
		return s.malformed("something follows the object")
	}
	return nil
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek returns 0 at the end; a NUL byte is nowhere valid outside a string.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) eat(b byte) bool {
	if s.peek() != b || s.pos >= len(s.data) {
		return false
	}
	s.pos++
	return true
}

// wrongType tells a value of another JSON type from something that is no JSON.
func (s *scanner) wrongType(field, want string) *invalid {
	switch b := s.peek(); {
	case b == '{', b == '[', b == '"', b == '-', b >= '0' && b <= '9':
		return unacceptable(reasonType, field, want)
	}
	if s.literal("null") || s.literal("true") || s.literal("false") {
		return unacceptable(reasonType, field, want)
	}
	return s.malformed("no JSON value")
}

// literal eats the word if it comes next.
func (s *scanner) literal(word string) bool {
	end := s.pos + len(word)
	if end > len(s.data) || string(s.data[s.pos:end]) != word {
		return false
	}
	s.pos = end
	return true
}

func (s *scanner) object(o object, path string) *invalid {
	if !s.eat('{') {
		return s.wrongType(strings.TrimSuffix(path, "."), "must be a JSON object")
	}
	rules := o.rules()
	var seen uint64
	s.space()
	if !s.eat('}') {
		for {
			s.space()
			if s.peek() != '"' {
				return s.malformed("no field name")
			}
			name, bad := s.text()
			if bad != nil {
				return bad
			}
			i, dst := o.slot(name)
			if dst == nil {
				return unacceptable(reasonUnknown, path+clip(name), "is not a field of this request; remove it")
			}
			field := &rules.fields[i]
			if seen&(1<<i) != 0 {
				return &invalid{status: 400, reason: reasonDuplicate, field: path + field.name, detail: "is given twice; give it once"}
			}
			seen |= 1 << i
			s.space()
			if !s.eat(':') {
				return s.malformed("no colon after a field name")
			}
			s.space()
			if bad := s.value(dst, field, path); bad != nil {
				return bad
			}
			s.space()
			if s.eat(',') {
				continue
			}
			if s.eat('}') {
				break
			}
			return s.malformed("no comma or end after a field")
		}
	}
	if missing := rules.required &^ seen; missing != 0 {
		for i := range rules.fields {
			if missing&(1<<i) != 0 {
				return unacceptable(reasonMissing, path+rules.fields[i].name, "is required")
			}
		}
	}
	s.seen = seen
	return nil
}

// clip keeps a stranger's field name short in our answer.
func clip(name []byte) string {
	const most = 64
	if len(name) <= most {
		return string(name)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(name[cut]) {
		cut--
	}
	return string(name[:cut]) + "…"
}

func (s *scanner) value(dst any, field *field, path string) *invalid {
	switch dst := dst.(type) {
	case *int64:
		n, bad := s.integer(field, path)
		*dst = n
		return bad
	case *string:
		text, bad := s.checkedText(field, path)
		if bad != nil {
			return bad
		}
		*dst = string(text)
		return nil
	case *bool:
		switch {
		case s.literal("true"):
			*dst = true
		case s.literal("false"):
			*dst = false
		default:
			return s.wrongType(path+field.name, "must be true or false")
		}
		return nil
	case *time.Time:
		text, bad := s.checkedText(field, path)
		if bad != nil {
			return bad
		}
		t, err := time.Parse(time.RFC3339Nano, string(text))
		if err != nil || t.Year() < 2000 || t.Year() > 9999 {
			return unacceptable(reasonFormat, path+field.name, "must be an RFC 3339 time such as 2026-01-02T03:04:05Z")
		}
		*dst = t.UTC()
		return nil
	case list:
		return s.list(dst, field, path)
	}
	panic("httpapi: a body field of a kind the scanner does not know")
}

func (s *scanner) list(dst list, field *field, path string) *invalid {
	name := path + field.name
	if !s.eat('[') {
		return s.wrongType(name, "must be an array")
	}
	s.space()
	for n := int64(0); ; n++ {
		if n == 0 && s.eat(']') {
			break
		}
		if n >= field.max {
			return unacceptable(reasonRange, name, "has more than "+strconv.FormatInt(field.max, 10)+" items; send several requests")
		}
		s.space()
		if bad := s.object(dst.grow(), name+"["+strconv.FormatInt(n, 10)+"]."); bad != nil {
			return bad
		}
		s.space()
		if s.eat(',') {
			continue
		}
		if s.eat(']') {
			return nil
		}
		return s.malformed("no comma or end after an item")
	}
	if field.min > 0 {
		return unacceptable(reasonRange, name, "must not be empty")
	}
	return nil
}

func (s *scanner) integer(field *field, path string) (int64, *invalid) {
	start := s.pos
	negative := s.eat('-')
	digits := s.pos
	var n uint64
	for s.pos < len(s.data) && s.data[s.pos]-'0' <= 9 {
		// Nineteen digits fit; more are out of any range, and only counted.
		if s.pos-digits < 19 {
			n = n*10 + uint64(s.data[s.pos]-'0')
		}
		s.pos++
	}
	length := s.pos - digits
	if length == 0 {
		if negative {
			return 0, s.malformed("no digits after a minus")
		}
		s.pos = start
		return 0, s.wrongType(path+field.name, "must be an integer")
	}
	if s.data[digits] == '0' && length > 1 {
		return 0, s.malformed("a number with a leading zero")
	}
	switch s.peek() {
	case '.', 'e', 'E':
		return 0, unacceptable(reasonType, path+field.name, "must be an integer without fraction or exponent")
	}
	if negative || length > 19 || n < uint64(field.min) || n > uint64(field.max) {
		return 0, unacceptable(reasonRange, path+field.name,
			"must be between "+strconv.FormatInt(field.min, 10)+" and "+strconv.FormatInt(field.max, 10))
	}
	return int64(n), nil
}

// checkedText reads a string and applies the field's rules to it. The result
// is valid until the next string is read.
func (s *scanner) checkedText(field *field, path string) ([]byte, *invalid) {
	if s.peek() != '"' {
		return nil, s.wrongType(path+field.name, "must be a string")
	}
	text, bad := s.text()
	if bad != nil {
		return nil, bad
	}
	length := len(text)
	if length > int(field.max) { // only then can the number of characters matter
		length = utf8.RuneCount(text)
	}
	if length < int(field.min) || length > int(field.max) {
		return nil, unacceptable(reasonRange, path+field.name,
			"must have "+strconv.FormatInt(field.min, 10)+" to "+strconv.FormatInt(field.max, 10)+" characters")
	}
	if field.charset != nil {
		for _, b := range text {
			if !field.charset[b] {
				return nil, unacceptable(reasonFormat, path+field.name, "must match "+field.pattern)
			}
		}
	}
	return text, nil
}

// text reads a string and resolves its escapes.
func (s *scanner) text() ([]byte, *invalid) {
	s.pos++ // the opening quote
	start := s.pos
	for ; s.pos < len(s.data); s.pos++ {
		switch b := s.data[s.pos]; {
		case b == '"':
			s.pos++
			return s.data[start : s.pos-1], nil
		case b == '\\':
			return s.escapedText(start)
		case b < ' ':
			return nil, s.malformed("a control character in a string")
		}
	}
	return nil, s.malformed("a string without end")
}

// simpleEscapes maps the letter after a backslash to what it stands for.
var simpleEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (s *scanner) escapedText(start int) ([]byte, *invalid) {
	out := append(s.scratch[:0], s.data[start:s.pos]...)
	defer func() { s.scratch = out }()
	for s.pos < len(s.data) {
		b := s.data[s.pos]
		switch {
		case b == '"':
			s.pos++
			return out, nil
		case b < ' ':
			return nil, s.malformed("a control character in a string")
		case b != '\\':
			out = append(out, b)
			s.pos++
			continue
		}
		s.pos++
		switch letter := s.peek(); {
		case letter == 'u':
			r, bad := s.unicodeEscape()
			if bad != nil {
				return nil, bad
			}
			out = utf8.AppendRune(out, r)
		case simpleEscapes[letter] != 0:
			out = append(out, simpleEscapes[letter])
			s.pos++
		default:
			return nil, s.malformed("an unknown escape in a string")
		}
	}
	return nil, s.malformed("a string without end")
}

// unicodeEscape reads uXXXX, and the second half of a surrogate pair.
func (s *scanner) unicodeEscape() (rune, *invalid) {
	first, ok := s.hex4()
	if !ok {
		return 0, s.malformed("a broken \\u escape")
	}
	if !utf16.IsSurrogate(first) {
		return first, nil
	}
	if s.eat('\\') && s.peek() == 'u' {
		if second, ok := s.hex4(); ok {
			if r := utf16.DecodeRune(first, second); r != utf8.RuneError {
				return r, nil
			}
		}
	}
	return 0, s.malformed("half a surrogate pair")
}

func (s *scanner) hex4() (rune, bool) {
	if s.pos+5 > len(s.data) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s.data[s.pos+1:s.pos+5]), 16, 32)
	if err != nil {
		return 0, false
	}
	s.pos += 5
	return rune(n), true
}
