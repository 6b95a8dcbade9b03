package forward

import (
	"log/slog"
	"net/http"
	"strconv"

	"tollgate/admission/answer"
)

// Values of the header field that tells Tollgate's own errors from an
// upstream's.
const (
	sourceHeader   = "X-Tollgate-Error-Source"
	sourceTollgate = "tollgate"
	sourceUpstream = "upstream"
)

// refuse answers with an error of Tollgate's own, in the caller's dialect.
func (c *call) refuse(a *answer.Answer) { c.errorAnswer(a, sourceTollgate) }

func (c *call) errorAnswer(a *answer.Answer, source string) {
	if c.ex.ErrorType == "" {
		c.ex.ErrorType = a.Reason
	}
	c.ex.Status, c.ex.FromUpstream = a.Status, source == sourceUpstream
	if a.Status >= 500 {
		level := slog.LevelWarn
		if a.Status == http.StatusInternalServerError {
			level = slog.LevelError
		}
		c.h.log.Log(c.ctx, level, "request failed", append(c.attrs(), "status", a.Status, "reason", a.Reason, "source", source, "error", a.Cause)...)
	}
	if a.Status == statusClientGone {
		c.abort = true // one that only stopped sending must not take nothing for an answer
		return
	}
	if c.wrote {
		return
	}
	c.ownHeader()
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set(sourceHeader, source)
	if a.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(a.RetryAfter, 10))
	}
	if a.GiveUp || a.Status == http.StatusPaymentRequired {
		h.Set("X-Should-Retry", "false")
	}
	if a.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="tollgate"`)
	}
	if f := a.Limit; f != nil {
		remaining := answer.Effective(f.Constraint) - f.Used - f.Reserved
		h.Set("RateLimit-Policy", string(answer.AppendPolicy(nil, f.Constraint)))
		h.Set("RateLimit", string(answer.AppendRemaining(nil, f.Constraint, remaining, a.RetryAfter)))
	}
	body := c.dialect.Error(a, c.requestID)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.wrote = true
	c.extendWrite()
	c.w.WriteHeader(a.Status)
	if c.r.Method != http.MethodHead {
		_, _ = c.w.Write(body) // a client that is gone is noticed by net/http
	}
}

// listModels answers from the table.
func (c *call) listModels() {
	ask, err := c.endpoint.Read(c.body, c.r.Header.Get("Content-Type"), c.named)
	if err != nil {
		c.refuse(badRequest(err))
		return
	}
	only := c.named
	if ask != nil && ask.Model != "" {
		only = ask.Model
	}
	body, ok := c.dialect.Models(c.h.opts.Router.Models(c.dialect.Name()), only)
	if !ok {
		c.refuse(&answer.Answer{
			Status: http.StatusNotFound, Reason: "model_not_found", Field: "model", GiveUp: true,
			Detail: noSuchModel,
		})
		return
	}
	c.ownHeader()
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.ex.Status, c.wrote = http.StatusOK, true
	c.extendWrite()
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method != http.MethodHead {
		_, _ = c.w.Write(body)
	}
}
