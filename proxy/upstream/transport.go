// Package upstream is HTTP/1.1 without TLS as a gateway needs it of the servers
// that it stands in front of: an http.RoundTripper that writes the request and
// reads the answer on the caller's goroutine.
//
// net/http's Transport has two goroutines for each connection and hands every
// request and every answer over between them. With one request a connection
// these hand-overs are most of what a proxied request costs. Here there are
// none. What an answer means is still the standard library's to say: it is read
// by http.ReadResponse.
//
// A Transport serves one address. It knows no TLS, no HTTP/2, no proxies, no
// cookies and no compression, follows nothing, and wants to know a request's
// length; whatever needs more of these is net/http's.
package upstream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// Options configures a Transport. Zero values take the defaults named.
type Options struct {
	// Dial makes connections, and bounds how long that may take; default Dialer(0).
	Dial DialFunc
	// ResponseTimeout bounds the wait for the answer's head once the request is
	// written, and each wait for the server to take a piece of the request; 0: only
	// the request's context does.
	ResponseTimeout time.Duration
	// MaxConnections bounds connections, those that are being made included;
	// requests wait for their turn. 0: none.
	MaxConnections int
	MaxIdle        int           // unused connections that are kept; default 512
	IdleTimeout    time.Duration // after which they are closed; default 90 s
	MaxHeaderBytes int64         // of an answer's head, interim answers included; default 64 KiB
}

// Transport is an http.RoundTripper for one address. Errors are net.Errors whose
// Timeout is true where a time-out ended the request, and the cause of the
// request's context where that did.
//
// A request on a connection that the server turns out to have closed is repeated
// once, on a new connection, if nothing of an answer came and the request may be
// sent twice by net/http's rules: a method without effects, or a header field
// Idempotency-Key or X-Idempotency-Key, be it without a value.
type Transport struct {
	opts Options
	host string // of URLs
	pool pool
}

// New returns a Transport for the host of base, an http:// URL whose host is
// ASCII.
func New(base string, opts Options) (*Transport, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	if !Serves(u) {
		return nil, errors.New("upstream: only http:// URLs with a plain host are served")
	}
	if opts.MaxIdle <= 0 {
		opts.MaxIdle = 512
	}
	if opts.IdleTimeout <= 0 {
		opts.IdleTimeout = 90 * time.Second
	}
	if opts.MaxHeaderBytes <= 0 {
		opts.MaxHeaderBytes = 64 << 10
	}
	if opts.Dial == nil {
		opts.Dial = Dialer(0)
	}
	t := &Transport{opts: opts, host: u.Host}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	t.pool.init(address, &t.opts)
	return t, nil
}

// Serves says whether a Transport can serve a URL's host.
func Serves(u *url.URL) bool {
	return strings.EqualFold(u.Scheme, "http") && u.User == nil && u.Hostname() != "" && allIn(u.Host, &hostBytes)
}

// CloseIdleConnections closes connections that nobody uses, and those in use
// when their request is done, until the next request.
func (t *Transport) CloseIdleConnections() { t.pool.closeIdle() }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body := req.Body
	if err := t.check(req); err != nil {
		closeBody(body)
		return nil, err
	}
	for again := false; ; again = true {
		c, err := t.pool.get(req.Context(), again)
		if err != nil {
			closeBody(body)
			return nil, err
		}
		resp, err := c.exchange(req, body)
		if err == nil {
			return resp, nil
		}
		if again || !c.stale(err) || !repeatable(req) || req.Context().Err() != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("upstream: the server closed the connection before it answered: %w", io.ErrUnexpectedEOF)
			}
			return nil, err
		}
		if body != nil && body != http.NoBody {
			if body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// check refuses what cannot be sent, or would be read by a server as another
// request than it is.
func (t *Transport) check(req *http.Request) error {
	switch {
	case req.URL == nil || !strings.EqualFold(req.URL.Scheme, "http") || req.URL.Host != t.host:
		return errors.New("upstream: the request is not for this server")
	case req.Method == http.MethodConnect || !allIn(req.Method, &tokenBytes):
		return fmt.Errorf("upstream: method %q", req.Method)
	case !allIn(req.Host, &hostBytes):
		return errors.New("upstream: the request's host is not a host")
	case len(req.TransferEncoding) > 0 || len(req.Trailer) > 0:
		return errors.New("upstream: requests have a length, and no trailer")
	case hasBody(req) && req.ContentLength <= 0, !hasBody(req) && req.ContentLength > 0:
		return errors.New("upstream: the length of the request's body is not known")
	}
	for name, values := range req.Header {
		if name == "" || !allIn(name, &tokenBytes) {
			return fmt.Errorf("upstream: header field name %q", name)
		}
		for _, value := range values {
			if !allIn(value, &valueBytes) {
				return fmt.Errorf("upstream: the value of header field %q has a control character", name)
			}
		}
	}
	return nil
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

func closeBody(body io.Closer) {
	if body != nil {
		_ = body.Close() // it was read, or nobody will
	}
}

// repeatable says whether a request may be sent twice, and can be.
func repeatable(req *http.Request) bool {
	if hasBody(req) && req.GetBody == nil {
		return false
	}
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, own := req.Header["X-Idempotency-Key"]
	return key || own
}

// closedByServer says that an error is of a connection that the server has
// closed.
func closedByServer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

const lettersAndDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

var (
	tokenBytes = bytesOf(lettersAndDigits + "!#$%&'*+-.^_`|~") // RFC 9110, section 5.6.2
	hostBytes  = bytesOf(lettersAndDigits + "-._:[]")
	// targetBytes are what an escaped request target may be of: anything else would
	// end it.
	targetBytes = func() (table [256]bool) {
		for b := '!'; b <= '~'; b++ {
			table[b] = true
		}
		return table
	}()
	valueBytes = func() (table [256]bool) { // RFC 9110, section 5.5, obs-text included
		for b := range table {
			table[b] = b >= ' ' && b != 0x7f || b == '\t'
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
