package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tollgate/admission"
	"tollgate/tenancy"
)

const plainHead = "POST /v1/reservations HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n" +
	"Authorization: Bearer " + keyAcme + "\r\nContent-Length: 3\r\n\r\n"

// strangeHeads are requests that only net/http may read: each would let this
// reader and a proxy before it, or it and net/http, disagree on what was asked
// or where the next request begins.
var strangeHeads = map[string]string{
	"two lengths":               strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nContent-Length: 3", 1),
	"two other lengths":         strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\ncontent-length: 4", 1),
	"a list of lengths":         strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3, 3", 1),
	"a signed length":           strings.Replace(plainHead, "Content-Length: 3", "Content-Length: +3", 1),
	"a hexadecimal length":      strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 0x3", 1),
	"an empty length":           strings.Replace(plainHead, "Content-Length: 3", "Content-Length: ", 1),
	"a length beyond any":       strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 18446744073709551619", 1),
	"no length":                 strings.Replace(plainHead, "Content-Length: 3\r\n", "", 1),
	"chunks":                    strings.Replace(plainHead, "Content-Length: 3", "Transfer-Encoding: chunked", 1),
	"chunks and a length":       strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\ntransfer-encoding: chunked", 1),
	"chunks in disguise":        strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nTransfer-Encoding\t: chunked", 1),
	"chunks behind a space":     strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nTransfer-Encoding : chunked", 1),
	"a space before a colon":    strings.Replace(plainHead, "Content-Length: 3", "Content-Length : 3", 1),
	"a folded line":             strings.Replace(plainHead, "Content-Length: 3", "X-A: b\r\n Content-Length: 3", 1),
	"a line without a colon":    strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nnothing", 1),
	"an empty name":             strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\n: x", 1),
	"a bare line feed":          strings.Replace(plainHead, "Host: gateway\r\n", "Host: gateway\n", 1),
	"a line feed in a value":    strings.Replace(plainHead, "gateway", "gateway\nTransfer-Encoding: chunked", 1),
	"a bare carriage return":    strings.Replace(plainHead, "gateway", "gateway\rTransfer-Encoding: chunked", 1),
	"a NUL in a value":          strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nX-A: \x00", 1),
	"a byte beyond ASCII":       strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nX-A: \xa0", 1),
	"no host":                   strings.Replace(plainHead, "Host: gateway\r\n", "", 1),
	"two hosts":                 strings.Replace(plainHead, "Host: gateway\r\n", "Host: gateway\r\nhost: other\r\n", 1),
	"a host with a path":        strings.Replace(plainHead, "Host: gateway", "Host: gateway/x", 1),
	"an absolute target":        strings.Replace(plainHead, "/v1/reservations", "http://other/v1/reservations", 1),
	"an escaped path":           strings.Replace(plainHead, "/v1/reservations", "/v1/%72eservations", 1),
	"a fragment":                strings.Replace(plainHead, "/v1/reservations", "/v1/reservations#x", 1),
	"two spaces":                strings.Replace(plainHead, " HTTP", "  HTTP", 1),
	"a tab for a space":         strings.Replace(plainHead, " HTTP", "\tHTTP", 1),
	"HTTP/1.0":                  strings.Replace(plainHead, "HTTP/1.1", "HTTP/1.0", 1),
	"HTTP/1.10":                 strings.Replace(plainHead, "HTTP/1.1", "HTTP/1.10", 1),
	"an empty line before":      "\r\n" + plainHead,
	"a method in small letters": strings.Replace(plainHead, "POST", "post", 1),
	"another method":            strings.Replace(plainHead, "POST", "PUT", 1),
	"expects to continue":       strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nExpect: 100-continue", 1),
	"an upgrade":                strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nConnection: upgrade\r\nUpgrade: h2c", 1),
	"an upgrade alone":          strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nUpgrade: h2c", 1),
	"closes":                    strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nConnection: close", 1),
	"keeps alive and closes":    strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nConnection: keep-alive, close", 1),
	"trailers":                  strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nTrailer: Authorization", 1),
	"takes trailers":            strings.Replace(plainHead, "Content-Length: 3", "Content-Length: 3\r\nTE: trailers", 1),
	"a GET with a body":         strings.Replace(plainHead, "POST", "GET", 1),
	"a route that is no API's":  "GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n",
	"the preface of HTTP/2":     "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"a handshake of TLS":        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
	"nothing":                   "\r\n\r\n",
	"":                          "",
}

func TestOnlyPlainHeadsAreRead(t *testing.T) {
	for name, head := range strangeHeads {
		if a, ok := readHead(head); ok {
			t.Errorf("%s is taken as %+v", name, a)
		}
	}
	for name, head := range map[string]string{
		"plain":         plainHead,
		"small letters": strings.NewReplacer("Host", "host", "Content-Length", "content-length", "Authorization", "AUTHORIZATION").Replace(plainHead),
		"no spaces":     strings.NewReplacer("Host: ", "Host:", "Length: ", "Length:\t ", ": Bearer", ":Bearer").Replace(plainHead),
		"keep-alive":    strings.Replace(plainHead, "Content-Length: 3", "Connection: Keep-Alive\r\nContent-Length: 3", 1),
		"a query":       strings.Replace(plainHead, "/v1/reservations", "/v1/reservations?a=b%20c&d", 1),
	} {
		a, ok := readHead(head)
		if !ok || a.path != "/v1/reservations" || a.length != 3 || a.authorization != (single{"Bearer " + keyAcme, 1}) {
			t.Errorf("%s: taken %v as %+v", name, ok, a)
		}
	}
}

// FuzzHead holds this reading of a head against net/http's: what is taken here
// is a request there too, has the same meaning, and ends at the same byte.
func FuzzHead(f *testing.F) {
	f.Add([]byte(plainHead))
	f.Add([]byte("GET /v1/quota/usage?endpoint=chat&model=a%2Fb HTTP/1.1\r\nHost: [::1]:80\r\nX-Api-Key:k\r\nX-Api-Key: l\r\nUser-Agent: (x)\r\n\r\n"))
	for _, head := range strangeHeads {
		f.Add([]byte(head))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		end := bytes.Index(raw, headerFinish)
		if end < 0 {
			return
		}
		head := raw[:end+4]
		ours, ok := readHead(string(head))
		if !ok || ours.length > 1<<20 {
			return
		}
		stream := bufio.NewReader(io.MultiReader(bytes.NewReader(head), bytes.NewReader(make([]byte, ours.length)), strings.NewReader("next")))
		r, err := http.ReadRequest(stream)
		if err != nil {
			t.Fatalf("taken, but net/http says %v", err)
		}
		theirs := askedOf(r)
		for _, s := range []*single{&ours.authorization, &ours.apiKey, &ours.contentType, &theirs.authorization, &theirs.apiKey, &theirs.contentType} {
			if s.count > 1 { // then no value counts
				s.value = ""
			}
		}
		if ours != theirs {
			t.Fatalf("read as\n%+v\nand by net/http as\n%+v", ours, theirs)
		}
		if len(r.TransferEncoding) > 0 || r.Trailer != nil || r.Close || r.Host == "" || r.ProtoMajor != 1 || r.ProtoMinor != 1 {
			t.Fatalf("a strange request was taken: %+v", r)
		}
		for _, name := range []string{"Expect", "Upgrade", "Te", "Trailer", "Transfer-Encoding"} {
			if _, there := r.Header[textproto.CanonicalMIMEHeaderKey(name)]; there {
				t.Fatalf("%s was taken", name)
			}
		}
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n != ours.length {
			t.Fatalf("net/http finds a body of %d bytes, %v; want %d", n, err, ours.length)
		}
		if next, _ := io.ReadAll(stream); string(next) != "next" {
			t.Fatalf("net/http begins the next request with %q", next)
		}
	})
}

// TestPlainRequestsAreAnsweredAlike: the same requests get the same answers
// from this package's reader and from net/http's.
func TestPlainRequestsAreAnsweredAlike(t *testing.T) {
	made := regexp.MustCompile(`gw-[0-9a-f]{24}`)
	plain, other := newFixture(t), newFixture(t)
	path := plain.reserved(t)
	if got := other.reserved(t); got != path {
		t.Fatalf("%s and %s", path, got)
	}
	refuse := func(f *fixture, err error) {
		f.store.mu.Lock()
		defer f.store.mu.Unlock()
		f.store.hook = func(context.Context, string) error { return err }
	}
	refusals := []error{
		nil, admission.ErrUnavailable, admission.ErrBacklogFull, errors.New("secret trouble"),
		&admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant), Reason: admission.ReasonWindow, Used: 58, Held: 10, Requested: 80, RetryAfter: 9400 * time.Millisecond},
		&admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant, budget), Reason: admission.ReasonSpent, Used: 100},
	}
	for i, refusal := range refusals {
		refuse(plain, refusal)
		refuse(other, refusal)
		for _, q := range []struct{ method, path, key, body string }{
			{"POST", "/v1/reservations", keyAcme, reserveJSON},
			{"POST", "/v1/reservations", keyAcme, strings.Replace(reserveJSON, "r1", fmt.Sprint("n", i), 1)},
			{"POST", "/v1/reservations", keyAcme, `{"request_id":1}`},
			{"POST", "/v1/reservations", keyAcme, `{`},
			{"POST", "/v1/reservations", keyAcme, ""},
			{"POST", "/v1/reservations", keyAcme, strings.Repeat(" ", 70_000)},
			{"POST", "/v1/reservations", "", reserveJSON},
			{"POST", "/v1/reservations", keyRevoked, reserveJSON},
			{"POST", "/v1/reservations", keySuspend, reserveJSON},
			{"POST", "/v1/reservations", keyMeter, reserveJSON},
			{"POST", "/v1/reservations?tenant_id=x", keyAcme, reserveJSON},
			{"GET", "/v1/reservations", keyAcme, ""},
			{"GET", path, keyAcme, ""},
			{"GET", path, keyOther, ""},
			{"POST", path + "/usage", keyAcme, settleJSON},
			{"POST", path + "/settle", keyAcme, settleJSON},
			{"POST", path + "/settle", keyAcme, `{"input_tokens":1,"output_tokens":1}`},
			{"POST", path + "/cancel", keyAcme, "{}"},
			{"POST", "/v1/requests/a/b/cancel", keyAcme, "{}"},
			{"POST", "/v1/requests/a+b/cancel", keyAcme, "{}"},
			{"POST", "/v1//reservations/../x", keyAcme, "{}"},
			{"GET", "/v1/quota/usage", keyAcme, ""},
			{"GET", "/v1/quota/usage?endpoint=chat&model=small", keyAcme, ""},
			{"GET", "/v1/quota/usage?endpoint=%zz", keyAcme, ""},
			{"GET", "/v1/" + strings.Repeat("x", 3000), keyAcme, ""},
			{"POST", "/v1/meters", keyMeter, `{"readings":[{"id":"m1","kind":"gpu","tenant_id":"acme","from":"2026-03-04T05:00:00Z","to":"2026-03-04T05:06:00Z","gpu_ms":5}]}`},
		} {
			got := plain.ask(q.method, q.path, q.key, q.body)
			want := httptest.NewRecorder()
			other.ServeHTTP(want, request(q.method, q.path, q.key, q.body))
			for _, h := range []http.Header{got.Header(), want.Header()} {
				h.Del("Date")
				h.Del("Content-Length")
			}
			clean := func(w *httptest.ResponseRecorder) string { return made.ReplaceAllString(w.Body.String(), "gw-") }
			if got.Code != want.Code || clean(got) != clean(want) || !cmp.Equal(got.Header(), want.Header()) {
				t.Errorf("%s %s (%v):\n%d %v %s\nby net/http\n%d %v %s", q.method, q.path, refusal,
					got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
			}
		}
	}
}

// talk is one connection on which requests follow each other.
type talk struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

func (f *fixture) talk(t *testing.T) *talk {
	c, _ := f.dial()
	t.Cleanup(func() { _ = c.Close() })
	return &talk{t, c, bufio.NewReader(c)}
}

func (k *talk) say(raw string) {
	k.t.Helper()
	if _, err := io.WriteString(k.c, raw); err != nil {
		k.t.Fatal(err)
	}
}

// sayMeanwhile writes while answers are read: what is said may be more than
// the connection holds.
func (k *talk) sayMeanwhile(raw string) {
	go func() {
		if _, err := io.WriteString(k.c, raw); err != nil {
			k.t.Error(err)
		}
	}()
}

func (k *talk) hear() (int, string) {
	k.t.Helper()
	res, err := http.ReadResponse(k.r, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close() // read to its end
	if err != nil {
		k.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func (k *talk) expect(status int, inBody string) {
	k.t.Helper()
	if got, body := k.hear(); got != status || !strings.Contains(body, inBody) {
		k.t.Errorf("%d %s; want %d, %s", got, body, status, inBody)
	}
}

// TestRequestsOnOneConnection: whole ones, ones in pieces, several at once, ones
// whose body nobody wants, and in the end ones that are net/http's.
func TestRequestsOnOneConnection(t *testing.T) {
	f := newFixture(t)
	k := f.talk(t)
	k.say(reserveRaw("a"))
	k.expect(201, `"request_id":"a"`)
	raw := reserveRaw("b")
	for _, cut := range []int{len(raw) - len(reserveJSON) + 1, len(raw) - 10} { // head and body apart
		k.say(raw[:cut])
		k.say(raw[cut:])
		k.hear()
	}
	k.sayMeanwhile(reserveRaw("c") + reserveRaw("d") + reserveRaw("e"))
	for _, id := range []string{"c", "d", "e"} {
		k.expect(201, `"request_id":"`+id+`"`)
	}
	// Without a credential the body is skipped: it is not the next request.
	hidden := reserveRaw("smuggled")
	head := "POST /v1/reservations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
	k.say(head + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden)
	k.expect(401, "invalid_credential")
	big := strings.Repeat(hidden, 100)
	k.sayMeanwhile(head + fmt.Sprint(len(big)) + "\r\n\r\n" + big + reserveRaw("f"))
	k.expect(401, "invalid_credential")
	k.expect(201, `"request_id":"f"`)
	// A body larger than the buffer is read whole.
	long := strings.Replace(reserveJSON, "{", "{"+strings.Repeat(" ", 20_000), 1)
	k.say(strings.Replace(head, "Content-Length", "Authorization: Bearer "+keyAcme+"\r\nContent-Length", 1) + fmt.Sprint(len(long)) + "\r\n\r\n" + long)
	k.expect(201, `"request_id":"r1"`)

	k.say("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	k.expect(200, "ok")
	k.say(reserveRaw("g"))
	k.expect(201, `"request_id":"g"`)
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if n := len(f.store.byID); n != 8 {
		t.Errorf("%d reservations, want 8", n)
	}
}

// pass lets the watch believe that the time has passed.
func (c *conns) pass(d time.Duration) {
	c.looks.Add(uint64(d/lookEvery) + restLooks + 2)
}

// ends waits until the server has closed the connection.
func (k *talk) ends() {
	k.t.Helper()
	_ = k.c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if b, err := io.ReadAll(k.r); err != nil || len(b) > 0 {
		k.t.Errorf("%q, %v; want the connection's end", b, err)
	}
}

// TestSlowClientsAreCut in every phase, and only then.
func TestSlowClientsAreCut(t *testing.T) {
	f := newFixture(t)
	silent := f.talk(t)
	f.pipe.pass(readHeaderTimeout)
	silent.ends()

	idle := f.talk(t)
	idle.say(reserveRaw("a"))
	idle.expect(201, "")
	isIdle := func() bool { return f.inPhase(phaseIdle) }
	eventually(t, "it waits for a request", isIdle)
	f.pipe.pass(readHeaderTimeout) // between requests one may wait longer
	idle.say(reserveRaw("b"))
	idle.expect(201, "")
	eventually(t, "it waits for a request", isIdle)
	f.pipe.pass(idleTimeout)
	idle.ends()

	trickle := f.talk(t)
	raw := reserveRaw("c")
	trickle.say(raw[:len(raw)-5])
	eventually(t, "it waits for the body", func() bool { return f.inPhase(phaseBody) })
	f.pipe.pass(readTimeout)
	trickle.expect(400, "body_unreadable")
	trickle.ends()

	deaf := f.talk(t)
	deaf.say(reserveRaw("d"))
	eventually(t, "it waits for its answer to be taken", func() bool { return f.inPhase(phaseWrite) })
	f.pipe.pass(writeTimeout)
	eventually(t, "the connection is gone", func() bool { return f.pipe.count() == 0 })
}

func (f *fixture) inPhase(p phase) bool {
	f.pipe.mu.Lock()
	defer f.pipe.mu.Unlock()
	for c := range f.pipe.open {
		if phase(c.state.Load()%uint64(phaseCount)) == p {
			return true
		}
	}
	return false
}

// TestPlainConnectionsSurviveAPanic, unless it asks for the connection's end.
func TestPlainConnectionsSurviveAPanic(t *testing.T) {
	f := newFixture(t)
	k := f.talk(t)
	caught := errors.New("trouble")
	f.store.hook = func(context.Context, string) error { panic(caught) }
	k.say(reserveRaw("a"))
	k.expect(500, "internal")
	f.store.mu.Lock()
	f.store.hook = nil
	f.store.mu.Unlock()
	k.say(reserveRaw("b"))
	k.expect(201, "")
	f.store.mu.Lock()
	f.store.hook = func(context.Context, string) error { panic(http.ErrAbortHandler) }
	f.store.mu.Unlock()
	k.say(reserveRaw("c"))
	k.ends()
}

// TestStopEndsIdleConnections at once, without waiting for their patience.
func TestStopEndsIdleConnections(t *testing.T) {
	f, addr := started(t)
	var idle []net.Conn
	for i := range 3 { // a new one, a plain one, one of net/http's
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if i > 0 {
			_, _ = io.WriteString(c, []string{"", reserveRaw("a"), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"}[i])
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		idle = append(idle, c)
	}
	eventually(t, "the connections are served", func() bool { return f.running[0].conns.count() == 2 })
	if err := f.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	for i, c := range idle {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("connection %d still lives: %d, %v", i, n, err)
		}
	}
}

// TestDecisionIsAContext: context's own packages may derive from it.
func TestDecisionIsAContext(t *testing.T) {
	for _, early := range []bool{false, true} {
		d := &decision{deadline: time.Now().Add(time.Hour)}
		if early {
			d.end(context.Canceled)
		}
		derived, cancel := context.WithCancel(d)
		defer cancel()
		if !early && (d.Err() != nil || derived.Err() != nil) {
			t.Fatal("ended too soon")
		}
		d.end(context.DeadlineExceeded)
		d.end(context.DeadlineExceeded)
		<-d.Done()
		<-derived.Done()
		want := context.DeadlineExceeded
		if early {
			want = context.Canceled
		}
		if !errors.Is(d.Err(), want) || !errors.Is(derived.Err(), want) {
			t.Errorf("%v, %v; want %v", d.Err(), derived.Err(), want)
		}
	}
}

// TestNothingFollowsChunks: where a body's end may be read in two ways, what
// follows on the connection could be one client's words in another's request.
func TestNothingFollowsChunks(t *testing.T) {
	body := "3\r\n{} \r\n0\r\n\r\n"
	for name, head := range map[string]string{
		"chunks":                strangeHeads["chunks"],
		"chunks and a length":   strangeHeads["chunks and a length"],
		"HTTP/1.0 with chunks":  strings.NewReplacer("HTTP/1.1", "HTTP/1.0", "Content-Length: 3", "Connection: keep-alive\r\nContent-Length: 3\r\nTransfer-Encoding: chunked").Replace(plainHead),
		"HTTP/1.0 that remains": strings.NewReplacer("HTTP/1.1", "HTTP/1.0", "Content-Length: 3", "Connection: keep-alive\r\nContent-Length: 3").Replace(plainHead),
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := started(t)
			k := f.talk(t)
			k.say(head + body + plainHead + "{} ")
			if status, body := k.hear(); status < 400 || status >= 500 {
				t.Errorf("%d %s", status, body)
			}
			k.ends()
		})
	}
}
