package fakeprovider

// The tokenizer is this server's own, and simple enough to count by hand: a run
// of ASCII letters, digits and underscores is one token, every other visible
// character is one, and white space is none. "It's 3.5 m" has seven: It ' s 3
// . 5 m.

// CountTokens is the number of tokens of text.
func CountTokens(text string) int64 {
	n := int64(0)
	for at := 0; at < len(text); {
		next := tokenEnd(text, at)
		if !blank(text[at:next]) {
			n++
		}
		at = next
	}
	return n
}

// blank says whether text is white space alone.
func blank(text string) bool {
	for i := range len(text) {
		if !isSpace(text[i]) {
			return false
		}
	}
	return true
}

// tokenEnd is where the token that begins at position at ends. White space
// belongs to the token that it precedes, so that the pieces of a text joined
// are the text; what is left at the end of a text is a piece without a token.
func tokenEnd(text string, at int) int {
	for at < len(text) && isSpace(text[at]) {
		at++
	}
	if at == len(text) {
		return at
	}
	if isWord(text[at]) {
		for at < len(text) && isWord(text[at]) {
			at++
		}
		return at
	}
	at++
	for at < len(text) && text[at]&0xC0 == 0x80 { // the rest of a character of several bytes
		at++
	}
	return at
}

// firstTokens is the part of text that holds its first n tokens, and how many
// there are: fewer than n when the text has fewer.
func firstTokens(text string, n int64) (string, int64) {
	have := int64(0)
	for at := 0; at < len(text); {
		if have == n {
			return text[:at], have
		}
		next := tokenEnd(text, at)
		if !blank(text[at:next]) {
			have++
		}
		at = next
	}
	return text, have
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func isWord(c byte) bool {
	return c-'a' < 26 || c-'A' < 26 || c-'0' < 10 || c == '_'
}
