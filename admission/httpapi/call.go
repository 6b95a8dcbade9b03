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

	"tollgate/tenancy"
)

// call is one request under way. It is reused: whatever outlives the answer,
// such as what the store is given, is not part of it.
type call struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request

	route  route
	id     string // the path's reservation or request id
	status int    // of the answer, 0 before it

	principal tenancy.Principal
	requestID string // the caller's, once it is known

	body []byte
	out  []byte
	scan scanner

	reserve ReserveBody
	usage   UsageBody
	settle  SettleBody
	cancel  CancelBody
}

func newCall(s *Server) *call {
	return &call{server: s, body: make([]byte, 0, 1024), out: make([]byte, 0, 2048)}
}

// keepBytes is the largest buffer that a call keeps for the next request.
const keepBytes = 16 << 10

func (c *call) reset() {
	*c = call{server: c.server, body: c.body[:0], out: c.out[:0], scan: scanner{scratch: c.scan.scratch[:0]}}
	if cap(c.body) > keepBytes || cap(c.out) > keepBytes || cap(c.scan.scratch) > keepBytes {
		*c = *newCall(c.server)
	}
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	s.metrics.inFlight.Add(1)
	c := s.calls.Get().(*call)
	c.w, c.r = w, r
	defer func() {
		if caught := recover(); caught != nil {
			c.crashed(caught)
		}
		took := time.Since(start)
		s.metrics.observe(c.route, c.status, took)
		if s.log.Enabled(r.Context(), slog.LevelDebug) {
			s.log.DebugContext(r.Context(), "request", append(c.attrs(), "took", took)...)
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
	if len(c.r.RequestURI) > maxURLBytes {
		return &problem{
			status: http.StatusRequestURITooLong, reason: "url_too_long",
			detail: "The URL has more than " + strconv.Itoa(maxURLBytes) + " bytes.",
		}
	}
	c.route, c.id = routeOf(c.r.URL.Path)
	route := &routes[c.route]
	if c.route != routeUnknown && c.r.Method != route.method && (c.r.Method != http.MethodHead || route.method != http.MethodGet) {
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
	presented, ok := credential(c.r.Header)
	if !ok {
		p := badCredential
		return &p
	}
	principal, err := c.server.opts.Directory.Authenticate(presented)
	if err != nil {
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

// credential returns the API key of the one header that carries it. Several
// are refused: which of them counts would be a guess.
func credential(h http.Header) (string, bool) {
	authorization, key := h["Authorization"], h["X-Api-Key"]
	if len(authorization)+len(key) != 1 {
		return "", false
	}
	if len(key) == 1 {
		return key[0], key[0] != ""
	}
	const scheme = "Bearer "
	value := authorization[0]
	if len(value) <= len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", false
	}
	return value[len(scheme):], true
}

// noQuery refuses query parameters on routes that have none: one that names a
// tenant, say, must not look as if it had worked.
func (c *call) noQuery() *problem {
	if c.r.URL.RawQuery == "" {
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
	if !jsonContent(c.r.Header["Content-Type"]) {
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

func jsonContent(values []string) bool {
	if len(values) != 1 {
		return false
	}
	if values[0] == "application/json" {
		return true
	}
	media, parameter, _ := strings.Cut(values[0], ";")
	parameter = strings.ToLower(strings.TrimSpace(parameter))
	return strings.EqualFold(strings.TrimSpace(media), "application/json") &&
		(parameter == "" || parameter == "charset=utf-8" || parameter == `charset="utf-8"`)
}

func (c *call) readBody() *problem {
	limit := c.server.opts.MaxBodyBytes
	length := c.r.ContentLength
	if length > limit {
		return tooLarge(limit)
	}
	if length >= 0 {
		if int64(cap(c.body)) < length {
			c.body = make([]byte, 0, length)
		}
		n, err := io.ReadFull(c.r.Body, c.body[:length])
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

func tooLarge(limit int64) *problem {
	return &problem{
		status: http.StatusRequestEntityTooLarge, reason: "body_too_large",
		detail: "The body has more than " + strconv.FormatInt(limit, 10) + " bytes.",
	}
}

func unreadable(err error) *problem {
	return &problem{status: http.StatusBadRequest, reason: "body_unreadable", detail: "The body ended early or came too slowly.", cause: err}
}

// decide bounds how long a decision may take. It ends with the client, whose
// retry will meet what was decided.
func (c *call) decide() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.r.Context(), c.server.opts.RequestTimeout)
}

// finish is for figures that must count though their sender has gone away.
func (c *call) finish() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.r.Context()), c.server.opts.RequestTimeout)
}

// Header values are shared between answers; net/http only reads them.
var (
	jsonType    = []string{"application/json"}
	problemType = []string{"application/problem+json"}
	noStore     = []string{"no-store"}
	yes         = []string{"true"}
	no          = []string{"false"}
	challenge   = []string{`Bearer realm="tollgate"`}
)

// send answers with c.out.
func (c *call) send(status int, contentType []string) {
	h := c.w.Header()
	h["Content-Type"] = contentType
	h["Cache-Control"] = noStore
	if len(c.out) > 2048 { // net/http counts up to there by itself
		h["Content-Length"] = []string{strconv.Itoa(len(c.out))}
	}
	c.status = status
	c.w.WriteHeader(status)
	// An error means that the client is gone; net/http notices by itself.
	_, _ = c.w.Write(c.out)
}

// fail answers with a problem.
func (c *call) fail(p *problem) {
	if errors.Is(p.cause, context.Canceled) && c.r.Context().Err() != nil {
		c.status = statusClientGone
		return
	}
	if c.requestID == "" {
		c.requestID = newRequestID()
	}
	h := c.w.Header()
	var wait int64
	if p.retryAfter > 0 {
		wait = p.retryAfter
		h["Retry-After"] = []string{strconv.FormatInt(wait, 10)}
	}
	if p.giveUp {
		h["X-Should-Retry"] = no
	}
	if p.allow != "" {
		h["Allow"] = []string{p.allow}
	}
	if p.status == http.StatusUnauthorized {
		h["Www-Authenticate"] = challenge
	}
	if f := p.limit; f != nil {
		remaining := effective(f.constraint) - f.used - f.reserved
		h["Ratelimit-Policy"] = []string{string(appendPolicy(nil, f.constraint))}
		h["Ratelimit"] = []string{string(appendRemaining(nil, f.constraint, remaining, wait))}
		c.server.metrics.refused(f.constraint.Limit.Layer, p.reason)
	}
	if p.status >= 500 && p.limit == nil {
		level := slog.LevelWarn
		if p.status == http.StatusInternalServerError {
			level = slog.LevelError
		}
		c.status = p.status
		c.server.log.Log(c.r.Context(), level, "request failed", append(c.attrs(), "reason", p.reason, "error", p.cause)...)
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
	c.server.log.ErrorContext(c.r.Context(), "request failed after its answer", append(c.attrs(), "error", err)...)
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
	args = append(args, "method", c.r.Method, "route", routes[c.route].path, "status", c.status, "request_id", c.requestID)
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
