package upstream

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// answers are what servers may say, good and bad.
var answers = map[string]string{
	"length":             okAnswer,
	"empty":              "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"chunks":             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n",
	"trailer":            "HTTP/1.1 200 OK\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
	"no chunk":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"until it closes":    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nto the end",
	"says it closes":     "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
	"old":                "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"old and kept":       "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
	"old, no length":     "HTTP/1.0 200 OK\r\n\r\nto the end",
	"no content":         "HTTP/1.1 204 No Content\r\n\r\n",
	"not modified":       "HTTP/1.1 304 Not Modified\r\nContent-Length: 50\r\n\r\n",
	"interim":            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + okAnswer,
	"five interim":       strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 5) + okAnswer,
	"error":              "HTTP/1.1 503 No\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nbusy",
	"no reason":          "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok",
	"bare line feeds":    "HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
	"same length twice":  "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
	"two lengths":        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
	"length and chunks":  "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"unknown coding":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
	"negative length":    "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
	"bad chunk":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
	"cut body":           "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nshort",
	"cut chunks":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
	"cut head":           "HTTP/1.1 200 OK\r\nContent-Le",
	"cut interim":        "HTTP/1.1 100 Continue\r\n\r\n",
	"nothing":            "",
	"not HTTP":           "SSH-2.0-x\r\n\r\n",
	"bad status":         "HTTP/1.1 2x0 OK\r\n\r\n",
	"bad version":        "HTTP/x.1 200 OK\r\n\r\n",
	"field without name": "HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 2\r\n\r\nok",
	"folded":             "HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\nok",
	"twice a field":      "HTTP/1.1 200 OK\r\nX-A: b\r\nx-a: c\r\nContent-Length: 2\r\n\r\nok",
	"large":              "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("0123456789", 10_000),
	"long field":         "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 30_000) + "\r\nContent-Length: 2\r\n\r\nok",
	"endless field":      "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 200_000) + "\r\nContent-Length: 2\r\n\r\nok",
	"endless trailer":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Long: " + strings.Repeat("x", 200_000) + "\r\n\r\n",
	"endless chunk line": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 200_000) + "\r\na\r\n0\r\n\r\n",
}

// keeping are the answers after which the server waits for another request. After
// the others it closes the connection.
var keeping = []string{
	"length", "empty", "chunks", "trailer", "no chunk", "says it closes", "old", "old and kept", "no content", "not modified",
	"interim", "five interim", "error", "no reason", "bare line feeds", "same length twice", "length and chunks", "folded",
	"twice a field", "large", "long field",
}

// TestAnswersAreThoseOfNetHTTP asks twice in a row, with every method, and holds
// what comes, and over how many connections, against net/http's own Transport.
func TestAnswersAreThoseOfNetHTTP(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		for _, method := range []string{"GET", "HEAD", "POST"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				t.Parallel()
				answer := answers[name]
				if method == "HEAD" { // which has no body
					end := strings.LastIndex(answer, "\r\n\r\n")
					if strings.HasSuffix(answer, "\r\n\r\n") || end < 0 || name == "trailer" {
						t.Skip("says nothing of its own")
					}
					answer = answer[:end+4]
				}
				ours, our := outcome(t, answer, slices.Contains(keeping, name), method, nil)
				theirs, their := outcome(t, answer, slices.Contains(keeping, name), method, &http.Transport{DisableCompression: true, MaxResponseHeaderBytes: 64 << 10})
				if ours != theirs {
					t.Errorf("%s:\nours\n%s\nnet/http's\n%s", name, ours, theirs)
				}
				if our != their {
					t.Errorf("%d connections, net/http: %d", our, their)
				}
			})
		}
	}
}

// outcome is what two requests come to, as text, and the connections they took.
func outcome(t *testing.T, answer string, kept bool, method string, theirs *http.Transport) (string, int64) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, uint64(len(answer))))
	cuts := make([]int, 0, 4)
	for range min(len(answer), 4) {
		cuts = append(cuts, rnd.IntN(len(answer)))
	}
	slices.Sort(cuts)
	cuts = append(cuts, len(answer))
	server := newPeer(t, func(_ int64, c *peerConn) {
		for c.request() != nil {
			at := 0
			for _, cut := range cuts {
				c.say(answer[at:cut])
				at = cut
			}
			if !kept {
				return
			}
		}
	})
	var rt http.RoundTripper = theirs
	if theirs == nil {
		rt = server.transport(Options{})
	} else {
		defer theirs.CloseIdleConnections()
	}
	var text strings.Builder
	for range 2 {
		req := request(t, method, server.url+"/v1/x", "")
		if method == "POST" {
			req = server.post("hello", false)
		}
		resp, body, err := read(rt, req)
		if resp == nil {
			fmt.Fprintln(&text, "no answer:", err != nil)
			continue
		}
		fmt.Fprintln(&text, resp.proto, resp.status, resp.length, resp.coding, resp.closes, resp.header, resp.trailer)
		fmt.Fprintln(&text, len(body), body[:min(len(body), 100)], "error:", err != nil)
		if method != "HEAD" && err == nil && resp.request != req {
			t.Error("the answer does not name its request")
		}
	}
	return text.String(), server.accepted.Load()
}

func TestAnswersThatNetHTTPWouldTake(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"many interim answers": strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 6) + okAnswer,
		"another protocol":     "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newPeer(t, func(_ int64, c *peerConn) {
				if c.request() != nil {
					c.say(answer)
					c.untilGone()
				}
			})
			if resp, body, err := read(server.transport(Options{}), server.get("/")); err == nil {
				t.Errorf("%s %q", resp.status, body)
			}
		})
	}
}

// FuzzAnswer holds what is made of any bytes against net/http's Transport.
func FuzzAnswer(f *testing.F) {
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		if len(answers[name]) < 1000 {
			f.Add([]byte(answers[name]), uint8(7))
		}
	}
	f.Fuzz(func(t *testing.T, answer []byte, step uint8) {
		if len(answer) > 1<<16 {
			return
		}
		dial := func() *scripted {
			return &scripted{answer: answer, step: int(step) + 1, asked: make(chan struct{}), closed: make(chan struct{})}
		}
		mine := dial()
		ours, err := New("http://server", Options{Dial: dialer(mine)})
		if err != nil {
			t.Fatal(err)
		}
		defer ours.CloseIdleConnections()
		their := dial()
		theirs := &http.Transport{DisableCompression: true, MaxResponseHeaderBytes: 64 << 10, DialContext: dialer(their)}
		defer theirs.CloseIdleConnections()
		a, aBody, aErr := read(ours, request(t, "GET", "http://server/x", ""))
		b, bBody, bErr := read(theirs, request(t, "GET", "http://server/x", ""))
		if b != nil && b.code == http.StatusSwitchingProtocols || strings.Count(string(answer), "HTTP/1.") > maxInterim {
			return // where this package is stricter
		}
		if (a == nil) != (b == nil) || (aErr == nil) != (bErr == nil) {
			t.Fatalf("ours %v %v, net/http's %v %v", a, aErr, b, bErr)
		}
		if a == nil {
			return
		}
		if aBody != bBody || a.status != b.status || a.closes != b.closes || a.length != b.length ||
			fmt.Sprint(a.header, a.trailer) != fmt.Sprint(b.header, b.trailer) {
			t.Fatalf("ours %v %q, net/http's %v %q", a, aBody, b, bBody)
		}
	})
}

// scripted is a connection whose other side answers the first write, a few bytes
// at a time, and closes.
type scripted struct {
	net.Conn
	answer        []byte
	step          int
	asked, closed chan struct{}
	wrote, ended  bool
}

func (s *scripted) Write(b []byte) (int, error) {
	if !s.wrote {
		s.wrote = true
		close(s.asked)
	}
	return len(b), nil
}

func (s *scripted) Read(b []byte) (int, error) {
	select {
	case <-s.asked:
	case <-s.closed:
		return 0, net.ErrClosed
	}
	if len(s.answer) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.answer[:min(len(s.answer), s.step)])
	s.answer = s.answer[n:]
	return n, nil
}

func (s *scripted) Close() error {
	if !s.ended {
		s.ended = true
		close(s.closed)
	}
	return nil
}

func (*scripted) SetDeadline(time.Time) error     { return nil }
func (*scripted) SetReadDeadline(time.Time) error { return nil }
