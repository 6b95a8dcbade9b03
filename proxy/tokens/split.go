package tokens

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// The published patterns by which text is split into pieces before each is
// encoded, alternatives in order:
//
//	cl100k_base
//	  (?i:'s|'t|'re|'ve|'m|'ll|'d)
//	  [^\r\n\p{L}\p{N}]?\p{L}+
//	  \p{N}{1,3}
//	   ?[^\s\p{L}\p{N}]+[\r\n]*
//	  \s*[\r\n]+
//	  \s+(?!\S)
//	  \s+
//	o200k_base: words are split where lower case turns to upper, and keep an
//	ending like 's
//	  [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	  [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	  \p{N}{1,3}
//	   ?[^\s\p{L}\p{N}]+[\r\n/]*
//	  \s*[\r\n]+
//	  \s+(?!\S)
//	  \s+

// class is what the patterns tell apart.
type class uint8

const (
	upper   class = iota // Lu, Lt
	lower                // Ll
	other                // Lm, Lo: letters without case
	mark                 // M: goes with letters in o200k_base, with signs in cl100k_base
	number               // N
	newline              // \r \n
	space                // the rest of \s
	sign                 // everything else
)

func (c class) letter() bool { return c <= other }
func (c class) blank() bool  { return c == newline || c == space }

// ascii holds the classes of single bytes.
var ascii = func() (table [utf8.RuneSelf]class) {
	for i := range table {
		table[i] = classify(rune(i))
	}
	return table
}()

func classify(r rune) class {
	switch {
	case r == '\n' || r == '\r':
		return newline
	case 0x4E00 <= r && r <= 0x9FFF, 0x3041 <= r && r <= 0x3096, 0xAC00 <= r && r <= 0xD7A3:
		return other // most of Chinese, Japanese and Korean
	case unicode.Is(unicode.Ll, r):
		return lower
	case unicode.Is(unicode.Lu, r) || unicode.Is(unicode.Lt, r):
		return upper
	case unicode.Is(unicode.Lo, r) || unicode.Is(unicode.Lm, r):
		return other
	case unicode.IsSpace(r):
		return space
	case unicode.IsNumber(r):
		return number
	case unicode.IsMark(r):
		return mark
	}
	return sign
}

// at is the class of the character that text begins with, and its length; 0 at
// the end.
func at(text []byte) (class, int) {
	if len(text) == 0 {
		return sign, 0
	}
	if c := text[0]; c < utf8.RuneSelf {
		return ascii[c], 1
	}
	r, size := utf8.DecodeRune(text)
	if r == utf8.RuneError && size == 1 {
		return sign, 1
	}
	return classify(r), size
}

// splitCl100k is the length of the piece that text begins with; text is not
// empty.
func splitCl100k(text []byte) int {
	if n := ending(text); n > 0 {
		return n
	}
	c, size := at(text)
	from := size
	if c.letter() {
		from = 0
	}
	if c != newline && c != number {
		if end := from + run(text[from:], class.letter); end > from {
			return end
		}
	}
	return splitRest(text, c, size, "\r\n", func(c class) bool { return c == sign || c == mark })
}

// splitO200k is the length of the piece that text begins with; text is not
// empty.
func splitO200k(text []byte) int {
	c, size := at(text)
	switch {
	case c.letter():
		if end := word(text); end > 0 {
			return end + ending(text[end:])
		}
		end := run(text, func(c class) bool { return c == upper })
		return end + ending(text[end:])
	case c != newline && c != number:
		if end := word(text[size:]); end > 0 {
			end += size
			return end + ending(text[end:])
		}
		if c == mark {
			end := word(text)
			return end + ending(text[end:])
		}
		if capitals := run(text[size:], func(c class) bool { return c == upper }); capitals > 0 {
			end := size + capitals
			return end + ending(text[end:])
		}
	}
	return splitRest(text, c, size, "\r\n/", func(c class) bool { return c == sign || c == mark })
}

// word is the longest [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
// that text begins with. Where only capitals follow the last letter without case,
// it ends with that letter.
func word(text []byte) int {
	end, last := 0, 0
	for {
		c, size := at(text[end:])
		if size == 0 || c != upper && c != other && c != mark {
			break
		}
		end += size
		if c != upper {
			last = end
		}
	}
	if n := run(text[end:], func(c class) bool { return c == lower || c == other || c == mark }); n > 0 {
		return end + n
	}
	return last
}

// splitRest is what both patterns have in common: numbers, signs and blank space.
func splitRest(text []byte, c class, size int, after string, isSign func(class) bool) int {
	if c == number {
		end := size
		for range 2 {
			c, size := at(text[end:])
			if size == 0 || c != number {
				break
			}
			end += size
		}
		return end
	}
	from := 0
	if text[0] == ' ' {
		from = 1
	}
	if n := run(text[from:], isSign); n > 0 {
		end := from + n
		for end < len(text) && bytes.IndexByte([]byte(after), text[end]) >= 0 {
			end++
		}
		return end
	}
	// Blank space up to its last line end; else all of it but the last character,
	// which goes with what follows.
	end, last, lines := 0, 0, 0
	for {
		c, size := at(text[end:])
		if size == 0 || !c.blank() {
			break
		}
		last = end
		end += size
		if c == newline {
			lines = end
		}
	}
	switch {
	case lines > 0:
		return lines
	case end == len(text) || last == 0:
		return end
	}
	return last
}

// run is the length of the characters of a class that text begins with.
func run(text []byte, in func(class) bool) int {
	end := 0
	for {
		c, size := at(text[end:])
		if size == 0 || !in(c) {
			return end
		}
		end += size
	}
}

// ending is the length of an English ending that text begins with, or 0.
func ending(text []byte) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	switch text[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(text) > 2 && text[2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if len(text) > 2 && text[2]|0x20 == 'l' {
			return 3
		}
	}
	return 0
}

func isSpace(text []byte) bool { return run(text, class.blank) == len(text) }
