package forward

import (
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"net/http"
	"time"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/proxy"
	"tollgate/proxy/route"
	"tollgate/tenancy"
)

// author is the author of what the front door records.
const author = "proxy"

// admit does everything that comes before the first byte goes upstream. It
// returns what to answer instead.
func (c *call) admit() *answer.Answer {
	if a := c.authenticate(); a != nil {
		return a
	}
	if a := c.readBody(); a != nil {
		return a
	}
	if c.endpoint.Operation() == proxy.OperationModels {
		return nil
	}
	if c.endpoint.Free() && !c.h.pace.allow(c.principal.Tenant.ID, c.h.opts.Now()) {
		return &answer.Answer{
			Status: http.StatusTooManyRequests, Reason: "rate_limited", RetryAfter: 1,
			Detail: "This endpoint takes nothing from a quota and is asked too often. Repeat after Retry-After.",
		}
	}
	if a := c.read(); a != nil {
		return a
	}
	if a := c.route(); a != nil {
		return a
	}
	if c.endpoint.Free() {
		return nil
	}
	return c.reserve()
}

func (c *call) authenticate() *answer.Answer {
	presented := c.dialect.Credential(c.r.Header, c.r.URL.RawQuery)
	if presented == "" {
		a := answer.BadCredential
		return &a
	}
	principal, err := c.h.opts.Directory.Authenticate(presented)
	if err != nil {
		return answer.Of(err)
	}
	if principal.Key.Role != tenancy.RoleTenant || principal.Tenant == nil {
		return &answer.Answer{
			Status: http.StatusForbidden, Reason: "role_not_allowed", GiveUp: true,
			Detail: "This key's role may not use models. Use a tenant's key.",
		}
	}
	c.principal = principal
	c.ex.Tenant = principal.Tenant.ID
	return nil
}

// overBefore is the answer when the call's context ended before an upstream was
// tried: nil facts for a client that has gone.
func (c *call) overBefore() *answer.Answer {
	if _, why := c.whyOver(); why != nil {
		return why.answer
	}
	return &answer.Answer{Status: statusClientGone, Reason: "client_gone"}
}

func (c *call) read() *answer.Answer {
	if q, ok := c.endpoint.(proxy.QueryReader); ok {
		if err := q.ReadQuery(c.r.URL.RawQuery); err != nil {
			return badRequest(err)
		}
	}
	ask, err := c.endpoint.Read(c.body, c.r.Header.Get("Content-Type"), c.named)
	if err != nil {
		return badRequest(err)
	}
	c.ask = ask
	c.ex.Stream = ask.Stream
	if !validModel(ask.Model) {
		return badRequest(&proxy.BadRequest{
			Field: "model", Detail: "must be 1 to 128 printable ASCII characters without '|', and no space at either end",
		})
	}
	if ask.Choices < 1 {
		ask.Choices = 1
	}
	return nil
}

func badRequest(err error) *answer.Answer {
	var bad *proxy.BadRequest
	if !errors.As(err, &bad) {
		return answer.Of(err)
	}
	a := &answer.Answer{Status: bad.Status, Reason: "invalid_request", Field: bad.Field, Detail: bad.Error(), GiveUp: true}
	if a.Status == 0 {
		a.Status = http.StatusBadRequest
	}
	return a
}

// validModel: what admission can keep as a model's name.
func validModel(name string) bool {
	if len(name) < 1 || len(name) > 128 || name[0] == ' ' || name[len(name)-1] == ' ' {
		return false
	}
	for i := range len(name) {
		if b := name[i]; b < ' ' || b > '~' || b == '|' {
			return false
		}
	}
	return true
}

// Details of a field begin with its name.
const noSuchModel = "model is the name of none that is served here. Those that are stand at the models endpoint."

// regionHeader keeps a request in one region.
const regionHeader = "X-Tollgate-Region"

func (c *call) route() *answer.Answer {
	plan, err := c.h.opts.Router.Plan(c.ask.Model, c.dialect.Name(), c.r.Header.Get(regionHeader))
	if err != nil {
		var away *route.Unavailable
		var nowhere *route.NoDeploymentError
		switch {
		case errors.As(err, &away):
			return &answer.Answer{
				Status: http.StatusServiceUnavailable, Reason: "upstream_unavailable", RetryAfter: answer.Seconds(away.RetryAfter),
				Type: answer.TypeReducedCapacity, Title: answer.TitleReducedCapacity, Cause: err,
				Detail: "Every server of this model has failed and is left alone for a while. Repeat after Retry-After.",
			}
		case errors.As(err, &nowhere):
			return &answer.Answer{
				Status: http.StatusNotFound, Reason: "model_not_found", Field: "model", GiveUp: true, Cause: err,
				Detail: "model is not served as this request asks for it: " + err.Error() + ".",
			}
		case errors.Is(err, route.ErrUnknownModel):
			return &answer.Answer{
				Status: http.StatusNotFound, Reason: "model_not_found", Field: "model", GiveUp: true, Cause: err,
				Detail: noSuchModel,
			}
		}
		return answer.Of(err)
	}
	c.plan, c.ex.Model = plan, plan.Model
	// The upstream's own name says more of its tokenizer than what operators call it.
	c.counter = c.h.opts.Counters(plan.Deployments[0].Model, plan.Tokenizer)
	return nil
}

// reserve holds the request's worst case.
func (c *call) reserve() *answer.Answer {
	req, err := c.worst()
	if err != nil {
		return answer.Of(err)
	}
	now := c.h.opts.Now()
	res, a := c.reserveOnce(req)
	if a != nil {
		return a
	}
	c.mu.Lock()
	c.reserved, c.ttl = res, req.TTL
	c.nextReport = now.Add(c.h.progressEvery(c.ttl))
	c.lastsUntil = now.Add(req.MaxHold - min(req.MaxHold/10, 5*time.Second))
	c.mu.Unlock()
	c.ex.Reservation = res.ID
	if c.ask.Stream && c.limited && c.ask.MaxOutputTokens < 0 && atTheEdge(res.Left, req) {
		c.capped = max(c.hold.OutputTokens/c.ask.Choices, 1)
	}
	if c.ctx.Err() != nil { // nothing was sent, so nothing is charged
		c.settle()
		return c.overBefore()
	}
	return nil
}

// atTheEdge says that some limit leaves less output beside the hold than the hold
// itself is. What a stream thinks unseen is not counted before its end: there it
// is given its hold as a cap, and is not extended. A cap of all that is left could
// be more than the model's server takes.
func atTheEdge(left []admission.Left, req *admission.ReserveRequest) bool {
	for i := range left {
		need := req.Hold.OutputTokens
		switch l := left[i].Constraint.Limit; {
		case l.Kind == tenancy.KindLease:
			continue
		case l.Metric == tenancy.MetricTokens:
			need = times(need, req.WeightMilli) / 1000
		case l.Metric != tenancy.MetricOutputTokens:
			continue
		}
		if left[i].Remaining < need {
			return true
		}
	}
	return false
}

// worst is the request for the hold: the input as counted here, and for output
// what was asked for, or what the rule gives.
func (c *call) worst() (*admission.ReserveRequest, error) {
	platform := c.h.opts.Directory.Platform()
	if platform == nil {
		return nil, tenancy.ErrNotReady
	}
	ask, tenant, key, endpoint := c.ask, c.principal.Tenant, c.principal.Key, c.endpoint.Name()
	if ask.InputTokens != nil {
		c.ending.InputTokens = ask.InputTokens(c.counter)
	}
	c.ending.AudioMillis = ask.AudioMillis
	figures := admission.Figures{
		InputTokens: c.ending.InputTokens, MaxOutputTokens: ask.MaxOutputTokens,
		Images: ask.Images, AudioMillis: ask.AudioMillis,
	}
	if figures.MaxOutputTokens > 0 {
		figures.MaxOutputTokens = times(figures.MaxOutputTokens, ask.Choices)
	}
	if c.endpoint.Operation() == proxy.OperationEmbeddings && figures.MaxOutputTokens < 0 {
		figures.MaxOutputTokens = 0
	}
	limits := c.h.limits.Of(admission.LimitKey{Tenant: tenant, Key: key, Platform: platform, Endpoint: endpoint, Model: c.plan.Name})
	worst, err := admission.Hold(figures, tenant, c.plan.Name, platform, limits)
	if err != nil {
		return nil, err
	}
	for i := range limits {
		m := limits[i].Limit.Metric
		c.limited = c.limited || limits[i].Limit.Kind != tenancy.KindLease && (m == tenancy.MetricTokens || m == tenancy.MetricOutputTokens)
	}
	if figures.MaxOutputTokens < 0 && !ask.Stream && c.limited {
		// A whole answer cannot be stopped on its way: it must fit its hold. Where no
		// limit counts tokens, what nobody asked for is not changed.
		c.capped = max(worst.Hold.OutputTokens/ask.Choices, 1)
		if ask.Choices > worst.Hold.OutputTokens { // no answer can be capped below one token
			figures.MaxOutputTokens = ask.Choices
			if worst, err = admission.Hold(figures, tenant, c.plan.Name, platform, limits); err != nil {
				return nil, err
			}
		}
	}
	c.hold = worst.Hold
	return &admission.ReserveRequest{
		Tenant: tenant, Key: key, RequestID: attemptID(c.requestID, 1), Endpoint: endpoint, Model: c.plan.Name,
		Hold: worst.Hold, WeightMilli: worst.WeightMilli, ImageTokens: worst.ImageTokens,
		TTL: admission.HoldTTL(0, tenant, platform), MaxHold: time.Duration(platform.MaxHold),
		Limits: limits, Author: author,
	}, nil
}

// times multiplies counts; what is too large to be counted stays too large.
func times(a, b int64) int64 {
	if a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

// bodyHash is over what the client sent, so that a changed rule does not make
// another request of a retry.
func (c *call) bodyHash() [16]byte {
	sum := sha256.New()
	_, _ = io.WriteString(sum, c.r.Method+" "+c.r.URL.Path+"\n") // a hash's Write never fails
	_, _ = sum.Write(c.body)
	var full [sha256.Size]byte
	return [16]byte(sum.Sum(full[:0]))
}
