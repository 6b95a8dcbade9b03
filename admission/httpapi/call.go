package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"tollgate/admission/answer"
	"tollgate/tenancy"
)

// call is one request under way. It is reused: whatever outlives the answer,
// such as what the store is given, is not part of it.
type call struct {
	server *Server
	// Either w and r are set, when net/http serves, or conn is.
	w    http.ResponseWriter
	r    *http.Request
	conn *conn

	asked  asked
	route  route
	id     string // the path's reservation or request id
	status int    // of the answer, 0 before it

	principal tenancy.Principal
	requestID string // the caller's, once it is known

	body []byte
	head []byte // the answer's header fields, each "Name: value\r\n"
	out  []byte // the answer's body
	wire []byte // the whole answer, when conn is set
	scan scanner

	reserve ReserveBody
	usage   UsageBody
	settle  SettleBody
	cancel  CancelBody
}

func newCall(s *Server) *call {
	return &call{server: s, body: make([]byte, 0, 1024), head: make([]byte, 0, 512), out: make([]byte, 0, 2048)}
}

// keepBytes is the largest buffer that a call keeps for the next request.
const keepBytes = 16 << 10

func (c *call) reset() {
	*c = call{
		server: c.server, body: c.body[:0], head: c.head[:0], out: c.out[:0], wire: c.wire[:0],
		scan: scanner{scratch: c.scan.scratch[:0]},
	}
	if cap(c.body) > keepBytes || cap(c.out) > keepBytes || cap(c.wire) > keepBytes || cap(c.scan.scratch) > keepBytes {
		*c = *newCall(c.server)
	}
}

// ServeHTTP answers one request that net/http has read.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if front := s.opts.FrontDoor; front != nil {
		if known, _ := routeOf(r.URL.Path); known == routeUnknown && front.Matches(r) {
			front.ServeHTTP(w, r)
			return
		}
	}
	c := s.calls.Get().(*call)
	c.w, c.r, c.asked = w, r, askedOf(r)
	s.answer(c)
}

// answer answers the call's request and gives the call back.
func (s *Server) answer(c *call) {
	start := time.Now()
	s.metrics.inFlight.Add(1)
	defer func() {
		if caught := recover(); caught != nil {
			c.crashed(caught)
		}
		took := time.Since(start)
		s.metrics.observe(c.route, c.status, took)
		if s.log.Enabled(c.context(), slog.LevelDebug) {
			s.log.DebugContext(c.context(), "request", append(c.attrs(), "took", took)...)
		}
		c.reset()
		s.calls.Put(c)
		s.metrics.inFlight.Add(-1)
	}()
	if p := c.dispatch(); p != nil {
		c.fail(p)
	}
}

func (c *call) dispatch() *problem {
	if c.asked.urlBytes > maxURLBytes {
		return &problem{
			status: http.StatusRequestURITooLong, reason: "url_too_long",
			detail: "The URL has more than " + strconv.Itoa(maxURLBytes) + " bytes.",
		}
	}
	c.route, c.id = routeOf(c.asked.path)
	route := &routes[c.route]
	if c.route != routeUnknown && c.asked.method != route.method && (c.asked.method != http.MethodHead || route.method != http.MethodGet) {
		return &problem{
			status: http.StatusMethodNotAllowed, reason: "method_not_allowed", allow: route.method,
			detail: "This path takes " + route.method + ".",
		}
	}
	return c.handle()
}

// authenticate verifies the credential. It comes first in every handler of
// /v1: who may not ask learns nothing about the question.
func (c *call) authenticate(roles ...tenancy.Role) *problem {
	return c.verify(false, roles)
}

// authenticateOwner is authenticate for what a tenant has already: one that is
// suspended reserves nothing new, but what it was given before is still
// reported, settled and billed.
func (c *call) authenticateOwner() *problem {
	return c.verify(true, []tenancy.Role{tenancy.RoleTenant})
}

func (c *call) verify(suspendedToo bool, roles []tenancy.Role) *problem {
	presented, ok := c.asked.credential()
	if !ok {
		p := badCredential
		return &p
	}
	principal, err := c.server.opts.Directory.Authenticate(presented)
	if err != nil && !(suspendedToo && errors.Is(err, tenancy.ErrSuspended) && principal.Key != nil) {
		return problemOf(err)
	}
	c.principal = principal
	for _, role := range roles {
		if principal.Key.Role == role {
			if role == tenancy.RoleTenant && principal.Tenant == nil {
				break // a tenant key without a tenant may do nothing
			}
			return nil
		}
	}
	return &problem{
		status: http.StatusForbidden, reason: "role_not_allowed", giveUp: true,
		detail: "This key's role may not use this route.",
	}
}

// noQuery refuses query parameters on routes that have none: one that names a
// tenant, say, must not look as if it had worked.
func (c *call) noQuery() *problem {
	if c.asked.rawQuery == "" {
		return nil
	}
	return &problem{
		status: http.StatusBadRequest, reason: "unknown_parameter",
		detail: "This route takes no query parameters; the tenant is the credential's.",
	}
}

// read reads the body into o.
func (c *call) read(o object) *problem {
	if p := c.noQuery(); p != nil {
		return p
	}
	if !c.asked.contentType.isJSON() {
		return &problem{
			status: http.StatusUnsupportedMediaType, reason: "not_json",
			detail: "Send the body as Content-Type: application/json.",
		}
	}
	if p := c.readBody(); p != nil {
		return p
	}
	if bad := c.scan.decode(c.body, o); bad != nil {
		return problemOfBody(bad)
	}
	return nil
}

func (c *call) readBody() *problem {
	limit := c.server.opts.MaxBodyBytes
	length := c.asked.length
	if length > limit {
		return tooLarge(limit)
	}
	if length >= 0 {
		if int64(cap(c.body)) < length {
			c.body = make([]byte, 0, length)
		}
		n, err := c.readFull(c.body[:length])
		c.body = c.body[:n]
		if err != nil {
			return unreadable(err)
		}
		return nil
	}
	for int64(len(c.body)) <= limit {
		if len(c.body) == cap(c.body) {
			c.body = append(c.body, 0)[:len(c.body)]
		}
		n, err := c.r.Body.Read(c.body[len(c.body):cap(c.body)])
		c.body = c.body[:len(c.body)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return unreadable(err)
		}
	}
	if int64(len(c.body)) > limit {
		return tooLarge(limit)
	}
	return nil
}

func (c *call) readFull(dst []byte) (int, error) {
	if c.conn != nil {
		return c.conn.readBody(dst)
	}
	return io.ReadFull(c.r.Body, dst)
}

func tooLarge(limit int64) *problem {
	return &problem{
		status: http.StatusRequestEntityTooLarge, reason: "body_too_large",
		detail: "The body has more than " + strconv.FormatInt(limit, 10) + " bytes.",
	}
}

func unreadable(err error) *problem {
	return &problem{status: http.StatusBadRequest, reason: "body_unreadable", detail: "The body ended early or came too slowly.", cause: err}
}

// context is the request's, for logs.
func (c *call) context() context.Context {
	if c.conn != nil {
		return context.Background()
	}
	return c.r.Context()
}

// decide bounds how long a decision may take. It ends with the client, whose
// retry will meet what was decided.
func (c *call) decide() (context.Context, context.CancelFunc) {
	if c.conn != nil {
		return c.conn.decide(false)
	}
	return context.WithTimeout(c.r.Context(), c.server.opts.RequestTimeout)
}

// finish is for figures that must count though their sender has gone away.
func (c *call) finish() (context.Context, context.CancelFunc) {
	if c.conn != nil {
		return c.conn.decide(true)
	}
	return context.WithTimeout(context.WithoutCancel(c.r.Context()), c.server.opts.RequestTimeout)
}

// gone says that the client has left.
func (c *call) gone() bool {
	if c.conn != nil {
		return c.conn.gone.Load()
	}
	return c.r.Context().Err() != nil
}

const (
	jsonType    = "application/json"
	problemType = "application/problem+json"
)

// header adds a field to the answer. Values are ours or made safe before: they
// hold no control characters.
func (c *call) header(name, value string) {
	c.head = append(c.head, name...)
	c.head = append(c.head, ": "...)
	c.head = append(c.head, value...)
	c.head = append(c.head, "\r\n"...)
}

// send answers with c.head and c.out.
func (c *call) send(status int, contentType string) {
	c.status = status
	if c.conn != nil {
		c.sendWire(contentType)
		return
	}
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	if len(c.r.TransferEncoding) > 0 || !c.r.ProtoAtLeast(1, 1) {
		// net/http drops a Content-Length beside a Transfer-Encoding, and a
		// Transfer-Encoding from HTTP/1.0, without a word. A proxy may have read
		// the body's end elsewhere: nothing may follow on this connection.
		h.Set("Connection", "close")
	}
	for fields := string(c.head); fields != ""; {
		var field string
		field, fields, _ = strings.Cut(fields, "\r\n")
		name, value, _ := strings.Cut(field, ": ")
		h.Set(name, value)
	}
	if len(c.out) > 2048 { // net/http counts up to there by itself
		h.Set("Content-Length", strconv.Itoa(len(c.out)))
	}
	c.w.WriteHeader(status)
	// An error means that the client is gone; net/http notices by itself.
	_, _ = c.w.Write(c.out)
}

// fail answers with a problem.
func (c *call) fail(p *problem) {
	if errors.Is(p.cause, context.Canceled) && c.gone() {
		c.status = statusClientGone
		return
	}
	if c.requestID == "" {
		c.requestID = newRequestID()
	}
	c.head = c.head[:0]
	wait := p.retryAfter
	if wait > 0 {
		c.header("Retry-After", strconv.FormatInt(wait, 10))
	}
	if p.giveUp {
		c.header("X-Should-Retry", "false")
	}
	if p.allow != "" {
		c.header("Allow", p.allow)
	}
	if p.status == http.StatusUnauthorized {
		c.header("WWW-Authenticate", `Bearer realm="tollgate"`)
	}
	if f := p.limit; f != nil {
		remaining := answer.Effective(f.Constraint) - f.Used - f.Reserved
		c.head = append(answer.AppendPolicy(append(c.head, policyField...), f.Constraint), "\r\n"...)
		c.head = append(answer.AppendRemaining(append(c.head, remainingField...), f.Constraint, remaining, wait), "\r\n"...)
		c.server.metrics.refused(f.Constraint.Limit.Layer, p.reason)
	}
	if p.status >= 500 && p.limit == nil {
		level := slog.LevelWarn
		if p.status == http.StatusInternalServerError {
			level = slog.LevelError
		}
		c.status = p.status
		c.server.log.Log(c.context(), level, "request failed", append(c.attrs(), "reason", p.reason, "error", p.cause)...)
	}
	title := p.title
	if title == "" {
		title = http.StatusText(p.status)
	}
	c.out = appendProblem(c.out[:0], p, title, c.requestID)
	c.send(p.status, problemType)
}

// statusClientGone is what metrics and logs call a request whose client left
// before its answer; nothing is sent.
const statusClientGone = 499

// crashed answers for a handler that panicked.
func (c *call) crashed(caught any) {
	if err, ok := caught.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(caught)
	}
	err := fmt.Errorf("panic: %v\n%s", caught, debug.Stack())
	if c.status == 0 {
		c.fail(problemOf(err))
		return
	}
	c.server.log.ErrorContext(c.context(), "request failed after its answer", append(c.attrs(), "error", err)...)
}

// newRequestID names a request that has no name of its own, so that an answer
// can be found in the log.
func newRequestID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return "gw-" + hex.EncodeToString(b[:])
}

// attrs are what every log line says of the request: ids, never a secret.
func (c *call) attrs() []any {
	args := make([]any, 0, 18)
	args = append(args, "method", c.asked.method, "route", routes[c.route].path, "status", c.status, "request_id", c.requestID)
	if c.principal.Key != nil {
		args = append(args, "key", c.principal.Key.ID)
	}
	if c.principal.Tenant != nil {
		args = append(args, "tenant", c.principal.Tenant.ID)
	}
	if c.route >= routeReservation && c.route <= routeCancel {
		args = append(args, "reservation", clip([]byte(c.id)))
	}
	return args
}
