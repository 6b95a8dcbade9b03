package proxy

import (
	"bytes"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// keptText bounds the text that a TextTally keeps.
const keptText = 8 << 10

// TextTally counts the tokens of one run of text that arrives in pieces: the
// answer of one choice, say, or its reasoning. Tokens reach over the borders of
// pieces, so the pieces must be counted together; but an answer must not be kept
// whole. So at most 8 KiB are kept: when they are full, all up to the last word
// is counted and dropped. A space after a character that is none always begins a
// token in the encodings known here, so counting in such parts gives what
// counting the whole gives. Text that has no such place for 4 KiB is cut between
// two characters, which may count one token more a cut.
type TextTally struct {
	counter Counter
	kept    []byte
	counted int64 // tokens of what was dropped
	bytes   int64
	pieces  int64
}

// NewTextTally gives a tally that counts with counter.
func NewTextTally(counter Counter) TextTally { return TextTally{counter: counter} }

// Add takes the next piece.
func (t *TextTally) Add(text []byte) {
	if len(text) == 0 {
		return
	}
	t.pieces++
	t.write(text)
}

// AddJSONString takes the next piece as a JSON string, with or without its
// quotes, and reads its escapes. Half a surrogate pair reads as U+FFFD, an escape
// that JSON does not have as what it is written like.
func (t *TextTally) AddJSONString(raw []byte) {
	if n := len(raw); n >= 2 && raw[0] == '"' && raw[n-1] == '"' {
		raw = raw[1 : n-1]
	}
	if len(raw) == 0 {
		return
	}
	t.pieces++
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			t.write(raw)
			return
		}
		t.write(raw[:i])
		var char [utf8.UTFMax]byte
		n, used := unescape(&char, raw[i:])
		t.write(char[:n])
		raw = raw[i+used:]
	}
}

// Rough is a cheap guess that never tokenises: what is kept counts a token for
// each four bytes, and the whole at least one for each piece, since servers send
// one or more tokens a piece. It may be off either way: before a stream is ended
// for its length, ask Exact.
func (t *TextTally) Rough() int64 {
	return max(t.pieces, t.counted+(int64(len(t.kept))+3)/4)
}

// Exact counts what is kept, up to 8 KiB, and adds what was counted before. It is
// as exact as the counter is.
func (t *TextTally) Exact() int64 {
	if len(t.kept) == 0 {
		return t.counted
	}
	return t.counted + t.counter.Count(t.kept)
}

// Bytes is how much text there was, in UTF-8.
func (t *TextTally) Bytes() int64 { return t.bytes }

func (t *TextTally) write(text []byte) {
	t.bytes += int64(len(text))
	for len(t.kept)+len(text) > keptText {
		room := keptText - len(t.kept)
		t.kept = append(t.kept, text[:room]...)
		text = text[room:]
		t.spill()
	}
	t.kept = append(t.kept, text...)
}

// spill counts and drops what is kept, up to where a token surely begins.
func (t *TextTally) spill() {
	at := TokenBorder(t.kept, len(t.kept)/2)
	t.counted += t.counter.Count(t.kept[:at])
	t.kept = t.kept[:copy(t.kept, t.kept[at:])]
}

// TokenBorder is the last place at or after least where a space follows a
// character that is none. Where there is no such place it is the last one between
// two characters.
func TokenBorder(text []byte, least int) int {
	for end := len(text); ; {
		at := bytes.LastIndexByte(text[least:end], ' ')
		if at < 0 {
			break
		}
		at += least
		if last, _ := utf8.DecodeLastRune(text[:at]); at > 0 && !unicode.IsSpace(last) {
			return at
		}
		end = at
	}
	// The last character may be the first bytes of one that is still coming.
	for at := len(text) - 1; at > len(text)-utf8.UTFMax && at > 0; at-- {
		if utf8.RuneStart(text[at]) {
			if utf8.FullRune(text[at:]) {
				break
			}
			return at
		}
	}
	return len(text)
}

// unescape reads the escape that raw begins with, writes its character to dst and
// says how many bytes it wrote and read.
func unescape(dst *[utf8.UTFMax]byte, raw []byte) (n, used int) {
	if len(raw) < 2 {
		return copy(dst[:], raw), len(raw)
	}
	switch c := raw[1]; c {
	case '"', '\\', '/':
		dst[0] = c
	case 'b':
		dst[0] = '\b'
	case 'f':
		dst[0] = '\f'
	case 'n':
		dst[0] = '\n'
	case 'r':
		dst[0] = '\r'
	case 't':
		dst[0] = '\t'
	case 'u':
		first, ok := hex4(raw[2:])
		if !ok {
			return copy(dst[:], raw[:2]), 2
		}
		if !utf16.IsSurrogate(first) {
			return utf8.EncodeRune(dst[:], first), 6
		}
		if len(raw) > 7 && raw[6] == '\\' && raw[7] == 'u' {
			if second, ok := hex4(raw[8:]); ok {
				if char := utf16.DecodeRune(first, second); char != unicode.ReplacementChar {
					return utf8.EncodeRune(dst[:], char), 12
				}
			}
		}
		return utf8.EncodeRune(dst[:], unicode.ReplacementChar), 6
	default:
		return copy(dst[:], raw[:2]), 2
	}
	return 1, 2
}

// hex4 reads four hexadecimal digits.
func hex4(raw []byte) (rune, bool) {
	if len(raw) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range raw[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
