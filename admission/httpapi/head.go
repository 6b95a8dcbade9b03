package httpapi

import (
	"bytes"
	"strings"
)

// maxHead is the longest head that readHead takes.
const maxHead = 4 << 10

// readHead reads a request's head if it is of the plain form that nearly all
// requests to the API have, and says no to everything else, which net/http then
// reads from the start. So it need not know what a strange request means, only
// which are not strange:
//
//   - GET or POST of a path under /v1/, in HTTP/1.1, unescaped but for the query
//   - lines that end in CRLF; values of printable ASCII, spaces and tabs
//   - one Host; for POST one Content-Length of digits, for GET none
//   - no Transfer-Encoding, Trailer, TE, Expect or Upgrade; Connection only as
//     keep-alive
//
// Head ends with its empty line. A test holds this reading against net/http's.
func readHead(head string) (asked, bool) {
	var a asked
	target, rest := "", ""
	switch {
	case strings.HasPrefix(head, "POST /v1/"):
		a.method, rest, a.length = "POST", head[len("POST "):], -1
	case strings.HasPrefix(head, "GET /v1/"):
		a.method, rest = "GET", head[len("GET "):]
	default:
		return a, false
	}
	end := strings.IndexByte(rest, ' ')
	if end < 0 {
		return a, false
	}
	target, rest = rest[:end], rest[end:]
	const version = " HTTP/1.1\r\n"
	if !strings.HasPrefix(rest, version) {
		return a, false
	}
	rest = rest[len(version):]
	a.urlBytes = len(target)
	if !a.takeTarget(target) {
		return a, false
	}
	hosts, lengths := 0, 0
	for {
		end := strings.IndexByte(rest, '\r')
		if end < 0 || end+1 >= len(rest) || rest[end+1] != '\n' {
			return a, false
		}
		line := rest[:end]
		rest = rest[end+2:]
		if line == "" {
			return a, rest == "" && hosts == 1 && (lengths == 1) == (a.method == "POST")
		}
		colon := strings.IndexByte(line, ':')
		if colon <= 0 || !allIn(line[:colon], &tokenBytes) || !allIn(line[colon+1:], &valueBytes) {
			return a, false
		}
		name, value := line[:colon], strings.Trim(line[colon+1:], " \t")
		switch len(name) { // most names are told by their length
		case len("TE"):
			if strings.EqualFold(name, "TE") {
				return a, false
			}
		case len("Host"):
			if strings.EqualFold(name, "Host") {
				if value == "" || !allIn(value, &hostBytes) {
					return a, false
				}
				hosts++
			}
		case len("Expect"):
			if strings.EqualFold(name, "Expect") {
				return a, false
			}
		case len("Trailer"): // and Upgrade
			if strings.EqualFold(name, "Trailer") || strings.EqualFold(name, "Upgrade") {
				return a, false
			}
		case len("X-Api-Key"):
			if strings.EqualFold(name, "X-Api-Key") {
				a.apiKey.add(value)
			}
		case len("Connection"):
			if strings.EqualFold(name, "Connection") && !strings.EqualFold(value, "keep-alive") {
				return a, false
			}
		case len("Content-Type"):
			if strings.EqualFold(name, "Content-Type") {
				a.contentType.add(value)
			}
		case len("Authorization"):
			if strings.EqualFold(name, "Authorization") {
				a.authorization.add(value)
			}
		case len("Content-Length"):
			if strings.EqualFold(name, "Content-Length") {
				if lengths++; !a.takeLength(value) {
					return a, false
				}
			}
		case len("Transfer-Encoding"):
			if strings.EqualFold(name, "Transfer-Encoding") {
				return a, false
			}
		}
	}
}

// apiBeginnings are how the paths begin that are read here.
var apiBeginnings = [...]string{"/v1/reservations", "/v1/requests/", "/v1/quota/", "/v1/meters"}

// beginsLikeAPI says whether a request's first bytes may be the API's. Where
// there is a front door, most requests are not, and nothing more is read of them.
func beginsLikeAPI(request []byte) bool {
	_, target, _ := bytes.Cut(request[:min(len(request), 64)], []byte(" "))
	for _, beginning := range apiBeginnings {
		if len(target) >= len(beginning) && string(target[:len(beginning)]) == beginning {
			return true
		}
	}
	return false
}

func (a *asked) takeTarget(target string) bool {
	path, query, asks := strings.Cut(target, "?")
	if !allIn(path, &pathBytes) || asks && !allIn(query, &queryBytes) {
		return false
	}
	a.path, a.rawQuery = path, query
	return true
}

// takeLength takes up to nine digits: more is larger than any limit.
func (a *asked) takeLength(value string) bool {
	if value == "" || len(value) > 9 {
		return false
	}
	a.length = 0
	for i := range len(value) {
		if value[i]-'0' > 9 {
			return false
		}
		a.length = a.length*10 + int64(value[i]-'0')
	}
	return true
}

const lettersAndDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

var (
	tokenBytes = bytesOf(lettersAndDigits + "-_")
	hostBytes  = bytesOf(lettersAndDigits + "-._:[]")
	pathBytes  = bytesOf(lettersAndDigits + "-._~/:@+=")
	queryBytes = bytesOf(lettersAndDigits + "-._~/:@+=&%")
	valueBytes = func() (table [256]bool) {
		table['\t'] = true
		for b := ' '; b <= '~'; b++ {
			table[b] = true
		}
		return table
	}()
)

func bytesOf(set string) (table [256]bool) {
	for i := range len(set) {
		table[set[i]] = true
	}
	return table
}

func allIn(s string, table *[256]bool) bool {
	for i := range len(s) {
		if !table[s[i]] {
			return false
		}
	}
	return true
}
