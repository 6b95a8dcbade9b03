package forward

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/route"
	"tollgate/tenancy"
)

// statusClientGone is what an exchange is said to have ended with when its
// client left before the answer's head; nothing is sent.
const statusClientGone = 499

// call is one request under way.
type call struct {
	h        *Handler
	w        http.ResponseWriter
	r        *http.Request
	rc       *http.ResponseController
	dialect  proxy.Dialect
	endpoint proxy.Endpoint
	named    string // the model that the path names

	// ctx ends with the client, or with a *cut as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	requestID string
	principal tenancy.Principal
	body      []byte
	room      int64 // that the body takes of what all large ones may
	ask       *proxy.Ask
	plan      *route.Plan
	counter   proxy.Counter
	ex        proxy.Exchange

	reserved *admission.Reservation
	hold     events.Usage
	ttl      time.Duration
	limited  bool  // some limit counts what the answer holds
	capped   int64 // output cap that is written into the request; 0: none
	bound    int64 // output that an estimate is not believed beyond: the client's cap; 0: none

	triesLeft bool // another upstream could be tried
	ending    proxy.Ending
	reason    string // why Tollgate ended it
	wrote     bool   // the answer's head was written
	abort     bool   // the connection must break: the answer is not whole

	// What the ticker and reports share with the request's goroutine.
	mu         sync.Mutex
	over       bool
	cutting    bool
	writeUntil time.Time // the deadline of writes to the client
	receiving  bool      // the body is being read
	readLimit  time.Time // no read of the body waits for longer; zero: none has to end
	progress   events.Usage
	reporting  bool
	nextReport time.Time
	lastsUntil time.Time // MaxHold, by this gateway's clock; zero: for ever
}

// cut is why Tollgate itself ends a request.
type cut struct {
	reason, detail string
	answer         *answer.Answer // where nothing was sent yet
}

// Error implements error.
func (k *cut) Error() string { return k.reason }

func newCall(h *Handler, w http.ResponseWriter, r *http.Request, d proxy.Dialect, e proxy.Endpoint, model string) *call {
	c := &call{
		h: h, w: w, r: r, rc: http.NewResponseController(w), dialect: d, endpoint: e, named: model,
		requestID: newRequestID(),
	}
	c.ex = proxy.Exchange{
		Dialect: d.Name(), Endpoint: e.Name(), Operation: e.Operation(), RequestID: c.requestID, Began: h.opts.Now(),
	}
	return c
}

// newRequestID names a request, so that it can be found in logs and upstreams.
func newRequestID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	var text [3 + 2*len(b)]byte
	copy(text[:], "gw-")
	hex.Encode(text[3:], b[:])
	return string(text[:])
}

// run serves the call from its first look to its last word.
func (c *call) run() {
	c.ctx, c.cancel = context.WithCancelCause(c.r.Context()) // first: whoever sees the call may end it
	if !c.h.enter(c) {
		defer c.cancel(nil)
		c.w.Header().Set("Connection", "close")
		c.refuse(shuttingDown())
		return
	}
	defer c.leave()
	defer func() {
		if caught := recover(); caught != nil {
			c.crashed(caught)
		}
	}()
	c.ctx = c.h.opts.Observer.Begin(c.ctx, &c.ex, c.r.Header)
	if a := c.admit(); a != nil {
		c.refuse(a)
		return
	}
	if c.endpoint.Operation() == proxy.OperationModels {
		c.listModels()
		return
	}
	c.forward()
	c.settle()
}

// leave ends the call for everybody else.
func (c *call) leave() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.cancel(nil)
	c.giveRoom()
	defer c.h.leave(c)
	c.ex.Took = c.h.opts.Now().Sub(c.ex.Began)
	c.h.opts.Observer.End(c.ctx, &c.ex)
	if c.abort {
		panic(http.ErrAbortHandler) // net/http breaks the connection and says nothing
	}
}

// crashed answers for a handler that panicked, and charges what was delivered
// until then. The charge comes first: what made the handler panic may do so again.
func (c *call) crashed(caught any) {
	c.ending.Cause = proxy.CauseCut
	c.reason, c.ex.ErrorType, c.abort = "panic", "panic", c.wrote
	if err, ok := caught.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		c.abort = true
		c.settle()
		return
	}
	err := fmt.Errorf("panic: %v\n%s", caught, debug.Stack())
	c.h.log.ErrorContext(c.ctx, "request failed", append(c.attrs(), "error", err)...)
	c.settle()
	if !c.wrote {
		c.refuse(answer.Of(err))
	}
}

// interrupt ends the call from outside: at once where it waits for an upstream,
// and soon where it waits for its client.
func (c *call) interrupt(why *cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.cutting {
		return
	}
	c.cutting = true
	c.cancel(why)
	c.hurryLocked(time.Now())
	_ = c.rc.SetWriteDeadline(time.Now().Add(lastWords)) // some writers have none
}

// hurry lets a call wait for its client's body no longer than until then.
func (c *call) hurry(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hurryLocked(until)
}

func (c *call) hurryLocked(until time.Time) {
	c.readLimit = until
	if c.receiving {
		_ = c.rc.SetReadDeadline(until) // some readers have none
	}
}

// lastWords bounds how long an interrupted call waits for its client.
const lastWords = 2 * time.Second

// whyOver says why the call's context ended: Tollgate's own reason, or that the
// client has gone. It is only asked when it has ended.
func (c *call) whyOver() (proxy.Cause, *cut) {
	var why *cut
	if errors.As(context.Cause(c.ctx), &why) {
		return proxy.CauseCut, why
	}
	return proxy.CauseClientGone, nil
}

// attrs are what every log line says of the call: ids, never a secret, never a
// prompt.
func (c *call) attrs() []any {
	args := make([]any, 0, 16)
	args = append(args, "request_id", c.requestID, "endpoint", c.endpoint.Name())
	if c.principal.Tenant != nil {
		args = append(args, "tenant", c.principal.Tenant.ID)
	}
	if c.reserved != nil {
		args = append(args, "reservation", c.reserved.ID)
	}
	if c.ex.Upstream != "" {
		args = append(args, "upstream", c.ex.Upstream)
	}
	return args
}

func shuttingDown() *answer.Answer {
	return &answer.Answer{
		Status: http.StatusServiceUnavailable, Reason: "shutting_down", RetryAfter: 1,
		Detail: "This gateway is shutting down. Repeat the request: another one will take it.",
	}
}
