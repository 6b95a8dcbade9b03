package events

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// maxCount bounds every number in a payload. The scripts that make them count
// in doubles, which are exact up to here.
const maxCount = int64(1) << 53

// scanner reads the flat JSON objects of this package's payloads, strictly:
// every field known, none twice, none null, whole numbers only. It exists
// because the ledger reads every event of the log on its critical path; it is
// held to encoding/json by differential fuzzing.
//
// Strings without escapes are substrings of the input, so a payload costs one
// allocation. The first error sticks and ends the loops.
type scanner struct {
	src   string
	i     int
	first bool // before an object's first field
	nul   bool // NUL is taken in strings
	field string
	err   *InvalidError
}

func newScanner(data []byte) scanner {
	s := scanner{}
	if len(data) > MaxDataBytes {
		s.err = invalid(ReasonOversize, "", "payload is larger than 64 KiB")
		return s
	}
	if !utf8.Valid(data) {
		s.err = invalid(ReasonBadUTF8, "", "payload is not UTF-8")
		return s
	}
	s.src = string(data)
	return s
}

func (s *scanner) fail(r Reason, detail string) {
	if s.err == nil {
		s.err = invalid(r, strings.Clone(s.field), detail)
	}
}

func (s *scanner) space() {
	for s.i < len(s.src) {
		switch s.src[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// open enters an object.
func (s *scanner) open() {
	if s.err != nil {
		return
	}
	s.space()
	if s.i >= len(s.src) || s.src[s.i] != '{' {
		s.typeError("is not an object")
		return
	}
	s.i++
	s.first = true
}

// next moves to the value of the next field and returns its name; false at the
// object's end and after an error.
func (s *scanner) next() (string, bool) {
	if s.err != nil {
		return "", false
	}
	s.space()
	if s.i >= len(s.src) {
		s.fail(ReasonBadJSON, "ends too early")
		return "", false
	}
	if s.src[s.i] == '}' {
		s.i++
		s.first = false
		return "", false
	}
	if !s.first {
		if s.src[s.i] != ',' {
			s.fail(ReasonBadJSON, "has no comma between fields")
			return "", false
		}
		s.i++
		s.space()
	}
	s.first = false
	if s.i >= len(s.src) || s.src[s.i] != '"' {
		s.fail(ReasonBadJSON, "has a field without a name")
		return "", false
	}
	name := s.text()
	s.space()
	if s.err != nil || s.i >= len(s.src) || s.src[s.i] != ':' {
		s.fail(ReasonBadJSON, "has a field without a value")
		return "", false
	}
	s.i++
	s.space()
	return name, true
}

// end requires that nothing follows the value.
func (s *scanner) end() {
	if s.err != nil {
		return
	}
	s.space()
	if s.i != len(s.src) {
		s.fail(ReasonBadJSON, "has more after the object")
	}
}

// typeError tells a value of another type from what is no JSON at all.
func (s *scanner) typeError(detail string) {
	if s.i < len(s.src) {
		switch c := s.src[s.i]; {
		case c == '"', c == '{', c == '[', c == 't', c == 'f', c == 'n', c == '-', c >= '0' && c <= '9':
			s.fail(ReasonWrongType, detail)
			return
		}
	}
	s.fail(ReasonBadJSON, detail)
}

// str reads a string value of at most limit bytes.
func (s *scanner) str(limit int) string {
	if s.err != nil {
		return ""
	}
	if s.i >= len(s.src) || s.src[s.i] != '"' {
		s.typeError("is not a string")
		return ""
	}
	v := s.text()
	if len(v) > limit {
		s.fail(ReasonOversize, "is too long")
		return ""
	}
	return v
}

// text reads a string literal that begins at the cursor.
func (s *scanner) text() string {
	start := s.i + 1
	src := s.src
	for i := start; i < len(src); i++ {
		switch c := src[i]; {
		case c == '"':
			s.i = i + 1
			return src[start:i]
		case c == '\\':
			return s.escaped(start, i)
		case c < 0x20:
			s.fail(ReasonBadJSON, "has a control character in a string")
			return ""
		}
	}
	s.fail(ReasonBadJSON, "ends inside a string")
	return ""
}

// escaped reads the rest of a string literal whose first escape is at i.
func (s *scanner) escaped(start, i int) string {
	src := s.src
	buf := make([]byte, 0, 64)
	buf = append(buf, src[start:i]...)
	for i < len(src) {
		c := src[i]
		switch {
		case c == '"':
			s.i = i + 1
			return string(buf)
		case c < 0x20:
			s.fail(ReasonBadJSON, "has a control character in a string")
			return ""
		case c != '\\':
			buf = append(buf, c)
			i++
			continue
		}
		if i+1 >= len(src) {
			break
		}
		i += 2
		switch e := src[i-1]; e {
		case '"', '\\', '/':
			buf = append(buf, e)
		case 'b':
			buf = append(buf, '\b')
		case 'f':
			buf = append(buf, '\f')
		case 'n':
			buf = append(buf, '\n')
		case 'r':
			buf = append(buf, '\r')
		case 't':
			buf = append(buf, '\t')
		case 'u':
			r, n := s.unicode(i)
			if s.err != nil {
				return ""
			}
			buf = utf8.AppendRune(buf, r)
			i += n
		default:
			s.fail(ReasonBadJSON, "has an unknown escape")
			return ""
		}
	}
	s.fail(ReasonBadJSON, "ends inside a string")
	return ""
}

// unicode reads the digits of a \u escape at i, and the second half of a
// surrogate pair. It returns the rune and how many bytes it took.
func (s *scanner) unicode(i int) (rune, int) {
	r, ok := hex4(s.src, i)
	switch {
	case !ok:
		s.fail(ReasonBadJSON, "has a broken \\u escape")
		return 0, 0
	case r == 0 && !s.nul:
		s.fail(ReasonNUL, "contains NUL")
		return 0, 0
	case !utf16.IsSurrogate(r):
		return r, 4
	}
	if strings.HasPrefix(s.src[i+4:], `\u`) {
		if low, ok := hex4(s.src, i+6); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, 10
			}
		}
	}
	s.fail(ReasonBadUTF8, "has a lone surrogate")
	return 0, 0
}

func hex4(src string, i int) (rune, bool) {
	if i+4 > len(src) {
		return 0, false
	}
	var r rune
	for _, c := range []byte(src[i : i+4]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// integer reads a whole number in [low, maxCount].
func (s *scanner) integer(low int64) int64 {
	if s.err != nil {
		return 0
	}
	src, i := s.src, s.i
	negative := i < len(src) && src[i] == '-'
	if negative {
		i++
	}
	start := i
	var v int64
	for i < len(src) && src[i] >= '0' && src[i] <= '9' {
		if i-start > 17 {
			s.fail(ReasonOutOfRange, "is out of range")
			return 0
		}
		v = v*10 + int64(src[i]-'0')
		i++
	}
	switch {
	case i == start && negative:
		s.fail(ReasonBadJSON, "is not a number")
		return 0
	case i == start:
		s.typeError("is not a number")
		return 0
	case src[start] == '0' && i-start > 1:
		s.fail(ReasonBadJSON, "has a leading zero")
		return 0
	case i < len(src) && (src[i] == '.' || src[i] == 'e' || src[i] == 'E'):
		s.fail(ReasonWrongType, "is not a whole number")
		return 0
	}
	if negative {
		v = -v
	}
	if v < low || v > maxCount {
		s.fail(ReasonOutOfRange, "is out of range")
		return 0
	}
	s.i = i
	return v
}

func (s *scanner) boolean() bool {
	if s.err != nil {
		return false
	}
	switch rest := s.src[s.i:]; {
	case strings.HasPrefix(rest, "true"):
		s.i += 4
		return true
	case strings.HasPrefix(rest, "false"):
		s.i += 5
	default:
		s.typeError("is not true or false")
	}
	return false
}

// time reads an RFC 3339 string, cut to milliseconds.
func (s *scanner) time() time.Time {
	v := s.str(64)
	if s.err != nil {
		return time.Time{}
	}
	t, ok := parseTime(v)
	if !ok {
		s.fail(ReasonBadTime, "is not an RFC 3339 time")
	}
	return t
}

// mark notes that a field was met; a second time is an error.
func (s *scanner) mark(seen *uint32, bit uint) {
	if *seen&(1<<bit) != 0 {
		s.fail(ReasonDuplicateField, "comes twice")
	}
	*seen |= 1 << bit
}

// timeLayout is how times are written: UTC, milliseconds.
const timeLayout = "2006-01-02T15:04:05.000Z"

func appendTime(dst []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(dst, timeLayout)
	}
	hour, minute, second := t.Clock()
	ms := t.Nanosecond() / 1e6
	return append(dst,
		'0'+byte(year/1000), '0'+byte(year/100%10), '0'+byte(year/10%10), '0'+byte(year%10), '-',
		'0'+byte(month/10), '0'+byte(month%10), '-', '0'+byte(day/10), '0'+byte(day%10), 'T',
		'0'+byte(hour/10), '0'+byte(hour%10), ':', '0'+byte(minute/10), '0'+byte(minute%10), ':',
		'0'+byte(second/10), '0'+byte(second%10), '.',
		'0'+byte(ms/100), '0'+byte(ms/10%10), '0'+byte(ms%10), 'Z')
}

// parseTime reads RFC 3339, cut to milliseconds and in UTC. The form that this
// package writes is read without time.Parse.
func parseTime(v string) (time.Time, bool) {
	if len(v) == len(timeLayout) && v[4] == '-' && v[7] == '-' && v[10] == 'T' &&
		v[13] == ':' && v[16] == ':' && v[19] == '.' && v[23] == 'Z' {
		year, ok1 := digits(v, 0, 4)
		month, ok2 := digits(v, 5, 2)
		day, ok3 := digits(v, 8, 2)
		hour, ok4 := digits(v, 11, 2)
		minute, ok5 := digits(v, 14, 2)
		second, ok6 := digits(v, 17, 2)
		ms, ok7 := digits(v, 20, 3)
		// Days up to 28 exist in every month; others take the slow path.
		if ok1 && ok2 && ok3 && ok4 && ok5 && ok6 && ok7 && year >= 1 &&
			month >= 1 && month <= 12 && day >= 1 && day <= 28 && hour < 24 && minute < 60 && second < 60 {
			return time.Date(year, time.Month(month), day, hour, minute, second, ms*1e6, time.UTC), true
		}
	}
	var t time.Time
	// UnmarshalText is strict where time.Parse is lenient.
	if err := t.UnmarshalText([]byte(v)); err != nil {
		return time.Time{}, false
	}
	t = t.UTC().Truncate(time.Millisecond)
	if t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}, false
	}
	return t, true
}

func digits(v string, at, n int) (int, bool) {
	r := 0
	for i := at; i < at+n; i++ {
		c := v[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		r = r*10 + int(c-'0')
	}
	return r, true
}

// appendString writes a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendString(dst []byte, v string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(v); {
		c := v[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, v[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				const hex = "0123456789abcdef"
				dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(v[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(dst, v[start:i]...)
			dst = append(dst, `\ufffd`...)
			i++
			start = i
			continue
		}
		i += size
	}
	dst = append(dst, v[start:]...)
	return append(dst, '"')
}

func appendInt(dst []byte, name string, v int64) []byte {
	dst = append(dst, name...)
	return strconv.AppendInt(dst, v, 10)
}
