package billing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"unicode/utf8"
)

// FileError is a mistake in a price file, with its place.
type FileError struct {
	Offset int64 // bytes from the file's start
	Line   int   // from 1
	What   string
}

// Error says what is wrong and where.
func (e *FileError) Error() string {
	return fmt.Sprintf("price file, line %d (byte %d): %s", e.Line, e.Offset, e.What)
}

// Unwrap makes a FileError an ErrInvalid.
func (e *FileError) Unwrap() error { return ErrInvalid }

const (
	maxDepth      = 32
	maxNumberSize = 64
	maxExponent   = 400
)

// jsonKind is the kind of a JSON value, by its first byte.
type jsonKind byte

const (
	kindObject jsonKind = '{'
	kindArray  jsonKind = '['
	kindString jsonKind = '"'
	kindNumber jsonKind = '0'
	kindWord   jsonKind = 't' // true, false, null
)

// scanner reads JSON by hand, because encoding/json takes what a price file
// must not have (a name twice, bytes that are not UTF-8) and does not tell
// where a wrong value is. It accepts a subset of what json.Valid accepts.
type scanner struct {
	data  []byte
	at    int
	depth int
}

func (s *scanner) fail(at int, format string, args ...any) error {
	at = min(at, len(s.data))
	return &FileError{Offset: int64(at), Line: 1 + bytes.Count(s.data[:at], []byte("\n")), What: fmt.Sprintf(format, args...)}
}

func (s *scanner) space() {
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// peek returns the next byte after spaces, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.at == len(s.data) {
		return 0
	}
	return s.data[s.at]
}

func (s *scanner) unexpected(wanted string) error {
	if s.peek() == 0 && s.at == len(s.data) {
		return s.fail(s.at, "the file ends where %s should be", wanted)
	}
	return s.fail(s.at, "%q where %s should be", rune(s.data[s.at]), wanted)
}

// object reads an object and calls member at the start of each value; member
// must read the value. A name that comes twice is an error.
func (s *scanner) object(member func(name string, at int) error) error {
	if s.peek() != '{' {
		return s.unexpected("an object")
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer func() { s.depth-- }()
	seen := map[string]bool{}
	for first := true; ; first = false {
		if s.peek() == '}' && first {
			s.at++
			return nil
		}
		if s.peek() != '"' {
			return s.unexpected("a name in quotes")
		}
		at := s.at
		name, err := s.text()
		if err != nil {
			return err
		}
		if len(name) > maxNameLength {
			return s.fail(at, "a name is longer than %d bytes", maxNameLength)
		}
		if seen[name] {
			return s.fail(at, "the name %q comes twice", name)
		}
		seen[name] = true
		if s.peek() != ':' {
			return s.unexpected("a colon")
		}
		s.at++
		s.space()
		if err := member(name, at); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.at++
		case '}':
			s.at++
			return nil
		default:
			return s.unexpected("a comma or the object's end")
		}
	}
}

func (s *scanner) enter() error {
	if s.depth++; s.depth > maxDepth {
		return s.fail(s.at, "values are nested deeper than %d", maxDepth)
	}
	s.at++
	return nil
}

// value reads any value and returns its kind and text.
func (s *scanner) value() (jsonKind, []byte, error) {
	start := s.at
	var kind jsonKind
	var err error
	switch c := s.peek(); {
	case c == '{':
		kind = kindObject
		err = s.object(func(string, int) error {
			_, _, err := s.value()
			return err
		})
	case c == '[':
		kind, err = kindArray, s.array()
	case c == '"':
		kind = kindString
		_, err = s.text()
	case c == '-' || (c >= '0' && c <= '9'):
		kind, err = kindNumber, s.number()
	default:
		kind, err = kindWord, s.word()
	}
	if err != nil {
		return 0, nil, err
	}
	return kind, bytes.TrimSpace(s.data[start:s.at]), nil
}

func (s *scanner) array() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer func() { s.depth-- }()
	if s.peek() == ']' {
		s.at++
		return nil
	}
	for {
		if _, _, err := s.value(); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.at++
		case ']':
			s.at++
			return nil
		default:
			return s.unexpected("a comma or the list's end")
		}
	}
}

// text reads a string. Escapes are left to encoding/json, which knows them.
func (s *scanner) text() (string, error) {
	start := s.at
	s.at++
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; {
		case c == '"':
			s.at++
			quoted := s.data[start:s.at]
			if !utf8.Valid(quoted) {
				return "", s.fail(start, "a string is not UTF-8")
			}
			var text string
			if err := json.Unmarshal(quoted, &text); err != nil {
				return "", s.fail(start, "a string has an unknown escape")
			}
			return text, nil
		case c == '\\':
			s.at++
		case c < ' ':
			return "", s.fail(s.at, "a control character in a string")
		}
	}
	return "", s.fail(start, "a string does not end")
}

func (s *scanner) number() error {
	start := s.at
	digits := func() bool {
		from := s.at
		for s.at < len(s.data) && s.data[s.at] >= '0' && s.data[s.at] <= '9' {
			s.at++
		}
		return s.at > from
	}
	is := func(set string) bool {
		if s.at < len(s.data) && bytes.IndexByte([]byte(set), s.data[s.at]) >= 0 {
			s.at++
			return true
		}
		return false
	}
	bad := func() error { return s.fail(start, "a number is malformed") }
	is("-")
	if !is("0") && !digits() {
		return bad()
	}
	if is(".") && !digits() {
		return bad()
	}
	if is("eE") {
		is("+-")
		if !digits() {
			return bad()
		}
	}
	if s.at < len(s.data) && s.data[s.at] >= '0' && s.data[s.at] <= '9' {
		return bad() // a leading zero
	}
	return nil
}

func (s *scanner) word() error {
	for _, w := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(s.data[s.at:], []byte(w)) {
			s.at += len(w)
			return nil
		}
	}
	return s.unexpected("a value")
}

// errTooLong is a number that no price can be.
var errTooLong = errors.New("a number is too long or its exponent too large")

// parseNumber reads a JSON number exactly. Its size is bounded first, so that
// a short text such as 1e999999999 cannot become a huge number.
func parseNumber(text string) (*big.Rat, error) {
	s := scanner{data: []byte(text)}
	if len(text) > maxNumberSize {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, errTooLong)
	}
	if err := s.number(); err != nil || s.at != len(text) {
		return nil, fmt.Errorf("%w: %q is not a decimal number", ErrInvalid, text)
	}
	if i := bytes.IndexAny(s.data, "eE"); i >= 0 {
		exponent, err := strconv.Atoi(text[i+1:])
		if err != nil || exponent > maxExponent || exponent < -maxExponent {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, errTooLong)
		}
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, fmt.Errorf("%w: %q is not a decimal number", ErrInvalid, text)
	}
	return r, nil
}
