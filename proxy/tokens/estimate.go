package tokens

import "unicode/utf8"

// estimate counts tokens of encodings that are not known. Texts in the letters
// of Europe take 3.5 to 5 bytes a token in most vocabularies, signs, digits and
// line ends about 2, Chinese, Japanese and Korean one to one and a half tokens for
// two characters, rarer scripts and symbols up to one a character or more. So a
// third of a token is counted for each ASCII letter or space, a half for each
// other character of one or two bytes, and one for each of three or four: a bit
// high, since too small a hold is worse than one that is given back.
type estimate struct{}

// Count is never 0 for text that is not empty, and never falls when text is
// added.
func (estimate) Count(text []byte) int64 {
	var sixths int64
	for i := 0; i < len(text); {
		size := 1
		c := text[i]
		switch {
		case c == ' ' || 'a' <= c|0x20 && c|0x20 <= 'z':
			sixths += 2
		case c < utf8.RuneSelf:
			sixths += 3
		default:
			if _, size = utf8.DecodeRune(text[i:]); size > 2 {
				sixths += 6
			} else {
				sixths += 3
			}
		}
		i += size
	}
	return (sixths + 5) / 6
}

// Exact implements proxy.Counter.
func (estimate) Exact() bool { return false }
