package loadclient

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxBody bounds what is kept of one answer.
const maxBody = 16 << 20

var errFraming = errors.New("answer is not HTTP/1.1 as expected")

// readResponse reads one answer into c.body. Keep says that the connection
// may carry another request.
func (c *conn) readResponse() (status int, keep bool, err error) {
	for {
		status, err = c.readStatus()
		if err != nil {
			return 0, false, err
		}
		length, chunked, keepAlive, err := c.readHeader()
		if err != nil {
			return 0, false, err
		}
		switch {
		case status < 200: // an interim answer; the final one follows
			continue
		case status == 204 || status == 304:
			c.body = c.body[:0]
			return status, keepAlive, nil
		case chunked:
			return status, keepAlive, c.readChunks()
		case length >= 0:
			return status, keepAlive, c.readBody(c.body[:0], length)
		}
		c.body, err = io.ReadAll(io.LimitReader(c.in, maxBody))
		return status, false, err
	}
}

func (c *conn) readStatus() (int, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 13 || string(line[:7]) != "HTTP/1." {
		return 0, fmt.Errorf("%w: status line %q", errFraming, bytes.TrimSpace(line))
	}
	status := int(line[9]-'0')*100 + int(line[10]-'0')*10 + int(line[11]-'0')
	if status < 100 || status >= maxStatus {
		return 0, fmt.Errorf("%w: status line %q", errFraming, bytes.TrimSpace(line))
	}
	return status, nil
}

var (
	contentLength    = []byte("content-length")
	transferEncoding = []byte("transfer-encoding")
	connection       = []byte("connection")
)

func (c *conn) readHeader() (length int, chunked, keep bool, err error) {
	length, keep = -1, true
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, false, false, err
		}
		if len(line) <= 2 {
			return length, chunked, keep, nil
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 0 {
			return 0, false, false, fmt.Errorf("%w: header %q", errFraming, bytes.TrimSpace(line))
		}
		// Only names of these three lengths are looked at.
		name, value := line[:colon], line[colon+1:]
		switch colon {
		case len(contentLength):
			if bytes.EqualFold(name, contentLength) {
				length, err = strconv.Atoi(string(bytes.TrimSpace(value)))
				if err != nil || length < 0 || length > maxBody {
					return 0, false, false, fmt.Errorf("%w: content length %q", errFraming, bytes.TrimSpace(value))
				}
			}
		case len(transferEncoding):
			if bytes.EqualFold(name, transferEncoding) {
				chunked = bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked"))
			}
		case len(connection):
			if bytes.EqualFold(name, connection) {
				keep = !bytes.EqualFold(bytes.TrimSpace(value), []byte("close"))
			}
		}
	}
}

// readBody appends n bytes of the stream to dst and keeps them as the body.
func (c *conn) readBody(dst []byte, n int) error {
	at := len(dst)
	if cap(dst) < at+n {
		grown := make([]byte, at, at+n)
		copy(grown, dst)
		dst = grown
	}
	dst = dst[:at+n]
	_, err := io.ReadFull(c.in, dst[at:])
	c.body = dst
	return err
}

func (c *conn) readChunks() error {
	c.body = c.body[:0]
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(";"))
		n, err := strconv.ParseUint(string(size), 16, 32)
		if err != nil || len(c.body)+int(n) > maxBody {
			return fmt.Errorf("%w: chunk size %q", errFraming, size)
		}
		if n == 0 {
			break
		}
		if err := c.readBody(c.body, int(n)); err != nil {
			return err
		}
		if _, err := c.in.Discard(2); err != nil {
			return err
		}
	}
	for { // trailers, up to the empty line
		line, err := c.in.ReadSlice('\n')
		if err != nil || len(line) <= 2 {
			return err
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
