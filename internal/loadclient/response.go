package loadclient

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// maxBody bounds what is kept of one answer.
const maxBody = 16 << 20

var (
	errFraming = errors.New("answer is not HTTP/1.1 as expected")
	// errMore: the answer is not whole yet.
	errMore = errors.New("answer ends early")
)

// answer is one answer at the start of what a connection has received.
type answer struct {
	status int
	body   []byte // part of the input, or of scratch
	size   int    // bytes of the input that it takes up, interim answers included
	keep   bool   // the connection may carry another request
}

// parse finds the answer that in begins with. Ended says that nothing follows
// in; without it an answer that is not whole is errMore. Bodies in chunks are
// joined in scratch.
func parse(in []byte, ended bool, scratch *[]byte) (answer, error) {
	a := answer{}
	for {
		head, err := parseHead(in[a.size:])
		if err != nil {
			return answer{}, err
		}
		a.size += head.size
		a.status, a.keep = head.status, head.keep
		rest := in[a.size:]
		switch {
		case a.status < 200: // an interim answer; the final one follows
			continue
		case a.status == 204 || a.status == 304:
			return a, nil
		case head.chunked:
			size, err := joinChunks(rest, scratch)
			a.size += size
			a.body = *scratch
			return a, err
		case head.length >= 0:
			if len(rest) < head.length {
				return answer{}, errMore
			}
			a.body = rest[:head.length]
			a.size += head.length
			return a, nil
		case len(rest) > maxBody:
			return answer{}, fmt.Errorf("%w: a body without end", errFraming)
		case !ended:
			return answer{}, errMore
		}
		a.body, a.size, a.keep = rest, len(in), false
		return a, nil
	}
}

// head is an answer's status line and fields, as far as they frame it.
type head struct {
	status, size, length int
	chunked, keep        bool
}

// maxHead bounds an answer's head.
const maxHead = 64 << 10

var (
	contentLength    = []byte("content-length")
	transferEncoding = []byte("transfer-encoding")
	connection       = []byte("connection")
)

func parseHead(in []byte) (head, error) {
	h := head{length: -1, keep: true}
	line, err := h.line(in)
	if err != nil {
		return h, err
	}
	if len(line) < 12 || string(line[:7]) != "HTTP/1." {
		return h, fmt.Errorf("%w: status line %q", errFraming, line)
	}
	h.status = int(line[9]-'0')*100 + int(line[10]-'0')*10 + int(line[11]-'0')
	if h.status < 100 || h.status >= maxStatus {
		return h, fmt.Errorf("%w: status line %q", errFraming, line)
	}
	for {
		line, err := h.line(in)
		if err != nil {
			return h, err
		}
		if len(line) == 0 {
			return h, nil
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 0 {
			return h, fmt.Errorf("%w: header %q", errFraming, line)
		}
		// Only names of these three lengths are looked at.
		name, value := line[:colon], line[colon+1:]
		switch colon {
		case len(contentLength):
			if bytes.EqualFold(name, contentLength) {
				h.length, err = strconv.Atoi(string(bytes.TrimSpace(value)))
				if err != nil || h.length < 0 || h.length > maxBody {
					return h, fmt.Errorf("%w: content length %q", errFraming, bytes.TrimSpace(value))
				}
			}
		case len(transferEncoding):
			if bytes.EqualFold(name, transferEncoding) {
				h.chunked = bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked"))
			}
		case len(connection):
			if bytes.EqualFold(name, connection) {
				h.keep = !bytes.EqualFold(bytes.TrimSpace(value), []byte("close"))
			}
		}
	}
}

// line takes the next line, without its end.
func (h *head) line(in []byte) ([]byte, error) {
	end := bytes.IndexByte(in[h.size:], '\n')
	if end < 0 {
		if len(in) > maxHead {
			return nil, fmt.Errorf("%w: a head without end", errFraming)
		}
		return nil, errMore
	}
	line := in[h.size : h.size+end]
	h.size += end + 1
	return bytes.TrimSuffix(line, []byte("\r")), nil
}

// joinChunks appends the chunks' contents to an emptied dst, and returns how
// many bytes of in they and their trailers take up.
func joinChunks(in []byte, dst *[]byte) (int, error) {
	*dst = (*dst)[:0]
	h := head{}
	for {
		line, err := h.line(in)
		if err != nil {
			return 0, err
		}
		size, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(";"))
		n, err := strconv.ParseUint(string(size), 16, 32)
		if err != nil || len(*dst)+int(n) > maxBody {
			return 0, fmt.Errorf("%w: chunk size %q", errFraming, size)
		}
		if n == 0 {
			break
		}
		if len(in)-h.size < int(n)+2 {
			return 0, errMore
		}
		*dst = append(*dst, in[h.size:h.size+int(n)]...)
		h.size += int(n) + 2
	}
	for { // trailers, up to the empty line
		line, err := h.line(in)
		if err != nil || len(line) == 0 {
			return h.size, err
		}
	}
}

// AppendRequest appends a request with a JSON body, or without one when body
// is nil. Authorization is the whole header value; empty leaves it out.
func AppendRequest(dst []byte, method, path, host, authorization string, body []byte) []byte {
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, path...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, host...)
	if authorization != "" {
		dst = append(dst, "\r\nAuthorization: "...)
		dst = append(dst, authorization...)
	}
	if body != nil {
		dst = append(dst, "\r\nContent-Type: application/json\r\nContent-Length: "...)
		dst = strconv.AppendInt(dst, int64(len(body)), 10)
	}
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...)
}
