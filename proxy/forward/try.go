package forward

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/route"
)

// failure is a try that gave the client nothing.
type failure struct {
	// With a status above zero it is the upstream's own answer, which passes when
	// no other try does better.
	status     int
	header     http.Header
	body       []byte
	err        error // else
	kind       string
	outcome    route.Outcome
	retryAfter time.Duration
	// final: another upstream would answer the same.
	final bool
}

// errIdle is why a try ends whose upstream is silent for too long.
var errIdle = errors.New("the upstream was silent for too long")

// defaultIdle is for upstreams that are given no bound.
const defaultIdle = 10 * time.Minute

// maxErrorBody bounds an upstream's error that is passed on.
const maxErrorBody = 1 << 20

// forward tries upstreams until one answers, or none is left.
func (c *call) forward() {
	var last *failure
	for i, d := range c.plan.Deployments {
		if c.ex.Tries >= c.h.opts.MaxTries || c.ctx.Err() != nil {
			break
		}
		if !d.Try(c.h.opts.Now()) {
			continue
		}
		c.ex.Tries++
		c.triesLeft = i+1 < len(c.plan.Deployments) && c.ex.Tries < c.h.opts.MaxTries
		c.ending.Tally = proxy.Tally{}
		c.ex.Upstream, c.ex.Region = d.Upstream.Name, d.Upstream.Region
		began := c.h.opts.Now()
		f := c.try(d)
		c.ex.Upstreams += c.h.opts.Now().Sub(began)
		if f == nil {
			return
		}
		last, c.ex.TryFailed = f, f.kind
		if f.final {
			break
		}
	}
	c.unanswered(last)
}

// unanswered tells the client that no upstream answered.
func (c *call) unanswered(last *failure) {
	if c.ctx.Err() != nil {
		cause, why := c.whyOver()
		c.ending.Cause = cause
		if why == nil {
			c.ex.Status, c.ex.ErrorType, c.abort = statusClientGone, "client_gone", true
			return
		}
		c.cutReason(why)
		c.refuse(why.answer)
		return
	}
	c.ending.Cause = proxy.CauseUpstreamGone
	// Who got no answer does not pay for one, whatever a server says that it used:
	// the same answer costs nothing when another upstream is left to try.
	seen := &c.ending.Tally
	seen.Usage, seen.Delivered, seen.Content = nil, events.Usage{}, false
	if last == nil {
		c.refuse(&answer.Answer{
			Status: http.StatusServiceUnavailable, Reason: "upstream_unavailable", RetryAfter: 1,
			Type: answer.TypeReducedCapacity, Title: answer.TitleReducedCapacity,
			Detail: "Every server of this model has failed and is left alone for a while. Repeat after Retry-After.",
		})
		return
	}
	c.ex.ErrorType = last.kind
	if last.status > 0 {
		c.passError(last)
		return
	}
	a := &answer.Answer{
		Status: http.StatusBadGateway, Reason: last.kind, Cause: last.err,
		Detail: "The model's server did not answer as it should. Repeat the request. Nothing was charged.",
	}
	if last.kind == "upstream_timeout" {
		a.Status = http.StatusGatewayTimeout
	}
	c.errorAnswer(a, sourceUpstream)
}

// passError passes an upstream's own error on.
func (c *call) passError(f *failure) {
	c.ex.Status, c.ex.FromUpstream = f.status, true
	answerHeader(c.w.Header(), f.header)
	c.ownHeader()
	h := c.w.Header()
	h.Set(sourceHeader, sourceUpstream)
	h.Set("Content-Length", strconv.Itoa(len(f.body)))
	c.wrote = true
	c.extendWrite()
	c.w.WriteHeader(f.status)
	_, _ = c.w.Write(f.body) // a client that is gone is noticed by net/http
}

// try sends the request to one deployment. nil: the client has its answer, or
// as much of it as there is. The deployment's breaker is told in any case.
func (c *call) try(d *route.Deployment) (f *failure) {
	outcome, retryAfter := route.Abandoned, time.Duration(0)
	defer func() {
		if f != nil {
			outcome, retryAfter = f.outcome, f.retryAfter
			if c.ctx.Err() != nil {
				outcome, retryAfter = route.Abandoned, 0
			}
		}
		d.Done(outcome, retryAfter, c.h.opts.Now())
	}()
	t := try{c: c, at: d, idle: d.Upstream.IdleTimeout}
	if t.idle <= 0 {
		t.idle = defaultIdle
	}
	t.ctx, t.cancel = context.WithCancelCause(c.ctx)
	defer t.cancel(nil)
	head := d.Upstream.ResponseTimeout
	if t.plain = !c.ask.Stream; t.plain && d.Upstream.AnswerTimeout > 0 {
		head = d.Upstream.AnswerTimeout
	}
	if head <= 0 {
		head = defaultIdle
	}
	// The watch runs while the connection is made, too, which has a bound of its own.
	t.watch = time.AfterFunc(head+d.Upstream.ConnectTimeout, func() { t.cancel(errIdle) })
	defer t.watch.Stop()
	resp, f := t.send(d)
	if f != nil {
		return f
	}
	t.watch.Reset(t.idle)
	defer func() { _ = resp.Body.Close() }() // what was read is all that counts
	if resp.StatusCode < 200 {               // net/http gives 101 with the bare connection as its body
		return t.broken(errors.New("the upstream changed the protocol without being asked"))
	}
	// Not every body's reads end with the request's context.
	raw := resp.Body
	ended := context.AfterFunc(t.ctx, func() { _ = raw.Close() })
	defer ended()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return t.refused(resp)
	}
	c.ending.Phase = proxy.PhaseAnswered
	if f = t.decode(resp); f != nil {
		return f
	}
	switch {
	case c.endpoint.Free():
		f = t.whole(resp)
	case mediaType(resp.Header) == "text/event-stream":
		return t.stream(resp, &outcome)
	case c.ask.Binary:
		return t.binary(resp, &outcome)
	default:
		f = t.whole(resp)
	}
	if f == nil {
		outcome = route.Good
	}
	return f
}

// try is one try of an upstream.
type try struct {
	c      *call
	idle   time.Duration // an upstream that is silent for so long has hung
	plain  bool          // the answer comes as a whole, when it is ready
	ctx    context.Context
	cancel context.CancelCauseFunc
	watch  *time.Timer // runs while the upstream is waited for
	sent   payload
	at     *route.Deployment
}

func (t *try) send(d *route.Deployment) (*http.Response, *failure) {
	c := t.c
	change := proxy.Change{
		Model: d.Model, OutputCap: c.capped, OutputCapField: d.Upstream.OutputCapField, AskUsage: c.ask.Stream && !c.ask.UsageAsked,
	}
	body, contentType, err := c.endpoint.Upstream(c.body, c.ask, change)
	if err != nil {
		return nil, &failure{err: err, kind: "request_not_changeable", outcome: route.Abandoned, final: true}
	}
	address, own := c.dialect.Address(c.endpoint, d.Upstream.Server, d.Model, withoutCredentials(c.r.URL.RawQuery))
	target, err := url.Parse(address)
	if err != nil {
		return nil, &failure{err: err, kind: "upstream_misconfigured", outcome: route.Bad}
	}
	header := upstreamHeader(c.r.Header)
	for name, values := range own {
		if _, given := header[name]; !given { // credentials are never given by the client
			header[name] = values
		}
	}
	if contentType != "" {
		header["Content-Type"] = []string{contentType}
	}
	header["X-Request-Id"] = []string{c.requestID}
	if d.Upstream.Identify {
		header["X-Tollgate-Tenant"] = []string{c.principal.Tenant.ID}
		header["X-Tollgate-Model"] = []string{c.plan.Name}
		if c.reserved != nil {
			header["X-Tollgate-Reservation"] = []string{c.reserved.ID}
		}
	}
	c.h.opts.Observer.Try(c.ctx, &c.ex, header)
	c.ex.TryFailed = ""

	req := (&http.Request{
		Method: c.r.Method, URL: target, Host: target.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(t.ctx)
	if len(body) > 0 {
		t.sent.data = body
		req.ContentLength = int64(len(body))
		req.Body = t.sent.reader()
		req.GetBody = func() (io.ReadCloser, error) { return t.sent.reader(), nil }
	}
	if c.ending.Phase = proxy.PhaseReserved; c.reserved == nil || len(body) == 0 {
		c.ending.Phase = proxy.PhaseSent
	}
	// The client's transport alone: redirects are not followed, and there are no
	// cookies.
	transport := d.Upstream.Client.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	resp, err := transport.RoundTrip(req)
	if t.sent.begun() {
		c.ending.Phase = proxy.PhaseSent
	}
	if err != nil {
		return nil, t.broken(err)
	}
	return resp, nil
}

// release lets go of the request once no other upstream can be tried. What a
// dialect's stream needs of it it holds itself.
func (t *try) release() {
	t.sent.drop()
	t.c.body, t.c.ask = nil, nil
	t.c.giveRoom()
}

// broken is a try that came to nothing for reasons of transport.
func (t *try) broken(err error) *failure {
	f := &failure{err: err, kind: "upstream_broken", outcome: route.Bad}
	var network net.Error
	if errors.Is(context.Cause(t.ctx), errIdle) || errors.As(err, &network) && network.Timeout() {
		f.kind = "upstream_timeout"
		// How long a whole answer takes is its request's doing: that we would not wait
		// for it says nothing of the server.
		if t.plain && t.c.ending.Phase == proxy.PhaseSent {
			f.outcome = route.Abandoned
		}
	}
	return f
}

// refused reads an answer that is no success.
func (t *try) refused(resp *http.Response) *failure {
	t.c.ending.Phase = proxy.PhaseRefused
	if f := t.decode(resp); f != nil {
		return f
	}
	t.watch.Reset(t.idle) // for all of it: an error is short
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	t.watch.Stop()
	if err != nil {
		return t.broken(err)
	}
	f := &failure{status: resp.StatusCode, header: resp.Header, body: body, outcome: route.Good, kind: "upstream_" + strconv.Itoa(resp.StatusCode)}
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		f.outcome, f.retryAfter = route.Overload, retryAfter(resp.Header, t.c.h.opts.Now())
	case code >= 500, code == http.StatusRequestTimeout:
		f.outcome = route.Bad
	case code == http.StatusUnauthorized, code == http.StatusPaymentRequired, code == http.StatusProxyAuthRequired, code < 400:
		// The operator's key, account or address is wrong: that is not the client's to
		// know, nor to mend.
		f.status, f.outcome, f.kind = 0, route.Bad, "upstream_misconfigured"
		f.err = errors.New("the upstream answered " + resp.Status)
	default:
		f.final = true
	}
	return f
}

// retryAfter reads what an upstream asks to wait, in seconds or as a date.
func retryAfter(header http.Header, now time.Time) time.Duration {
	value := header.Get("Retry-After")
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// decode undoes a compression that nobody asked for. Another one than gzip
// cannot be read, and what cannot be read is not passed on.
func (t *try) decode(resp *http.Response) *failure {
	switch encoding := strings.ToLower(strings.TrimSpace(resp.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return nil
	case "gzip", "x-gzip":
		plain, err := gzip.NewReader(resp.Body)
		if err != nil {
			return t.broken(err)
		}
		resp.Body = struct {
			io.Reader
			io.Closer
		}{plain, resp.Body}
		resp.ContentLength = -1
		return nil
	default:
		return &failure{
			err: errors.New("the upstream compressed its answer as " + strconv.Quote(encoding) + " without being asked"), kind: "upstream_garbage", outcome: route.Bad,
		}
	}
}

func mediaType(header http.Header) string {
	media, _, _ := mime.ParseMediaType(header.Get("Content-Type")) // "" for what is none; of parameters any will do
	return media
}

// payload is a request's body that can be let go of: net/http keeps the request
// as long as its answer is read.
type payload struct {
	mu   sync.Mutex
	data []byte
	read bool
}

func (p *payload) reader() io.ReadCloser {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &payloadReader{of: p, left: bytes.NewReader(p.data)}
}

func (p *payload) begun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read
}

func (p *payload) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.data = nil
}

type payloadReader struct {
	of    *payload
	mu    sync.Mutex
	left  *bytes.Reader
	noted bool
}

// Read implements io.Reader. That it is called at all means that there is a
// connection.
func (r *payloadReader) Read(dst []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == nil {
		return 0, io.EOF
	}
	if !r.noted {
		r.noted = true
		r.of.mu.Lock()
		r.of.read = true
		r.of.mu.Unlock()
	}
	n, err := r.left.Read(dst)
	if r.left.Len() == 0 {
		r.left = nil
		err = io.EOF
	}
	return n, err
}

// Close implements io.Closer.
func (r *payloadReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = nil
	return nil
}
