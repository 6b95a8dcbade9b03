package jsonbody

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// Walk goes over the members of the object, or the elements of the array, that
// data is. It decodes nothing, allocates nothing and does not recurse; what is
// inside a value is only looked at as far as finding its end takes.
type Walk struct {
	data   []byte
	at     int
	end    byte // '}' or ']'; 0 before the first
	done   bool // the end was seen, and nothing came after it
	broken bool
}

// Over starts a walk over data.
func Over(data []byte) Walk {
	return Walk{data: data}
}

// Next is the next member's key, without its quotes and still escaped, and its
// value as it stands. In an array the key is nil. False: there is none.
func (w *Walk) Next() (key, value []byte, ok bool) {
	if w.broken || w.done || !w.begin() {
		return nil, nil, false
	}
	if w.end == '}' {
		if w.peek() != '"' {
			return nil, nil, w.fail()
		}
		from := w.at
		if !w.skipString() {
			return nil, nil, w.fail()
		}
		key = w.data[from+1 : w.at-1]
		if w.peek() != ':' {
			return nil, nil, w.fail()
		}
		w.at++
		w.peek()
	}
	from := w.at
	if !w.skipValue() {
		return nil, nil, w.fail()
	}
	return key, w.data[from:w.at], true
}

// Whole says, after Next was false, that the walk came to the end of a value
// after which nothing follows.
func (w *Walk) Whole() bool {
	return w.done
}

// begin goes to the next element's first byte; false when there is none.
func (w *Walk) begin() bool {
	c := w.peek()
	if w.end == 0 {
		switch c {
		case '{':
			w.end = '}'
		case '[':
			w.end = ']'
		default:
			return w.fail()
		}
		w.at++
		if w.peek() != w.end {
			return true
		}
	} else if c == ',' {
		w.at++
		w.peek()
		return true
	} else if c != w.end {
		return w.fail()
	}
	w.at++
	if w.peek() != 0 || w.at < len(w.data) {
		return w.fail()
	}
	w.done = true
	return false
}

func (w *Walk) fail() bool {
	w.broken = true
	return false
}

// peek skips white space and is the byte there, 0 at the end.
func (w *Walk) peek() byte {
	for ; w.at < len(w.data); w.at++ {
		switch c := w.data[w.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (w *Walk) skipValue() bool {
	if w.at >= len(w.data) {
		return false
	}
	switch c := w.data[w.at]; {
	case c == '"':
		return w.skipString()
	case c == '{', c == '[':
		return w.skipNested()
	case c == '-', c >= '0' && c <= '9', c == 't', c == 'f', c == 'n':
		for w.at < len(w.data) && !delimiter[w.data[w.at]] {
			w.at++
		}
		return true
	}
	return false
}

var delimiter = [256]bool{' ': true, '\t': true, '\n': true, '\r': true, ',': true, '}': true, ']': true}

// skipString goes behind the string that begins here.
func (w *Walk) skipString() bool {
	for at := w.at + 1; ; {
		i := bytes.IndexByte(w.data[at:], '"')
		if i < 0 {
			return false
		}
		at += i
		slashes := 0
		for w.data[at-1-slashes] == '\\' {
			slashes++
		}
		at++
		if slashes%2 == 0 {
			w.at = at
			return true
		}
	}
}

func (w *Walk) skipNested() bool {
	for depth := 0; w.at < len(w.data); {
		switch w.data[w.at] {
		case '"':
			if !w.skipString() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		w.at++
		if depth == 0 {
			return true
		}
	}
	return false
}

// deeperThan says whether arrays and objects in data are nested deeper than
// limit, whether or not it is valid.
func deeperThan(data []byte, limit int) bool {
	w, depth := Walk{data: data}, 0
	for w.at < len(data) {
		switch data[w.at] {
		case '"':
			if !w.skipString() {
				return false // it is not valid either, and nothing is nested in it
			}
			continue
		case '{', '[':
			if depth++; depth > limit {
				return true
			}
		case '}', ']':
			depth--
		}
		w.at++
	}
	return false
}

// Valid says whether data is valid JSON nested no deeper than MaxDepth.
func Valid(data []byte) bool {
	return !deeperThan(data, MaxDepth) && gjson.ValidBytes(data)
}
