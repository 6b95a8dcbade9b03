package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/tenancy"
)

// authorClient is the author of what a caller's own requests record.
const authorClient = "client"

func (c *call) postReservation() *problem {
	if p := c.authenticate(tenancy.RoleTenant); p != nil {
		return p
	}
	if p := c.read(&c.reserve); p != nil {
		return p
	}
	c.requestID = c.reserve.RequestID
	if m := c.reserve.Model; m[0] == ' ' || m[len(m)-1] == ' ' {
		return problemOfBody(unacceptable(reasonFormat, "model", "must not begin or end with a space"))
	}
	req, err := c.plan()
	if err != nil {
		return problemOf(err)
	}
	ctx, cancel := c.decide()
	defer cancel()
	reservation, err := c.server.opts.Store.Reserve(ctx, req)
	if err != nil {
		return problemOf(err)
	}

	status := http.StatusCreated
	if reservation.Replayed {
		status = http.StatusOK
		c.header("Idempotent-Replayed", "true")
	} else {
		c.head = append(append(append(c.head, "Location: /v1/reservations/"...), reservation.ID...), "\r\n"...)
	}
	c.quotaHeaders(reservation.Left)
	c.out = appendReservation(c.out[:0], reservation, granted(req, reservation))
	c.send(status, jsonType)
	return nil
}

// plan makes the store's request of the verified principal and the read body.
// It is the caller's to keep: the store may hold it beyond the answer.
func (c *call) plan() (*admission.ReserveRequest, error) {
	b, platform := &c.reserve, c.server.opts.Directory.Platform()
	if platform == nil {
		return nil, tenancy.ErrNotReady
	}
	figures := admission.Figures{
		InputTokens: b.InputTokens, MaxOutputTokens: -1, Images: b.Images, GPUMillis: b.GPUMillis,
	}
	if c.scan.seen&(1<<maxOutputField) != 0 {
		figures.MaxOutputTokens = b.MaxOutputTokens
	}
	tenant, key := c.principal.Tenant, c.principal.Key
	limits := c.server.limits.Of(admission.LimitKey{Tenant: tenant, Key: key, Platform: platform, Endpoint: b.Endpoint, Model: b.Model})
	worst, err := admission.Hold(figures, tenant, b.Model, platform, limits)
	if err != nil {
		return nil, err
	}
	return &admission.ReserveRequest{
		Tenant: tenant, Key: key,
		RequestID: b.RequestID, Endpoint: b.Endpoint, Model: b.Model,
		Hold: worst.Hold, WeightMilli: worst.WeightMilli, ImageTokens: worst.ImageTokens,
		BodyHash: admission.BodyHash(b.Endpoint, b.Model, figures),
		TTL:      admission.HoldTTL(time.Duration(b.TTLMillis)*time.Millisecond, tenant, platform), MaxHold: time.Duration(platform.MaxHold),
		Limits: limits, Author: authorClient,
	}, nil
}

// granted is the output cap that was admitted. A replay repeats the first
// answer: when the cap was chosen by rule and the rule's documents have changed
// since, it is what the first hold leaves beside the input.
func granted(req *admission.ReserveRequest, r *admission.Reservation) int64 {
	output := req.Hold.OutputTokens
	if !r.Replayed || r.AdmittedUnits <= 0 || req.WeightMilli <= 0 {
		return output
	}
	beside := req.Hold.InputTokens + req.Hold.Images*req.ImageTokens
	return max(r.AdmittedUnits/req.WeightMilli-beside, 0)
}

const (
	policyField    = "RateLimit-Policy: "
	remainingField = "RateLimit: "
)

// quotaHeaders announces the standing of the caller's own limits.
func (c *call) quotaHeaders(left []admission.Left) {
	head := append(c.head, policyField...)
	start := len(head)
	for i := range left {
		if l := &left[i]; !l.Constraint.Pool {
			if len(head) > start {
				head = append(head, ", "...)
			}
			head = answer.AppendPolicy(head, &l.Constraint)
		}
	}
	if len(head) == start {
		return
	}
	head = append(append(head, "\r\n"...), remainingField...)
	start = len(head)
	for i := range left {
		if l := &left[i]; !l.Constraint.Pool {
			if len(head) > start {
				head = append(head, ", "...)
			}
			var wait int64
			if l.Reset > 0 {
				wait = answer.Seconds(l.Reset)
			}
			head = answer.AppendRemaining(head, &l.Constraint, l.Remaining, wait)
		}
	}
	c.head = append(head, "\r\n"...)
}

func (c *call) getReservation() *problem {
	if p := c.authenticateOwner(); p != nil {
		return p
	}
	if p := c.noQuery(); p != nil {
		return p
	}
	if p := c.reservationID(); p != nil {
		return p
	}
	ctx, cancel := c.decide()
	defer cancel()
	reservation, err := c.server.opts.Store.Get(ctx, c.principal.Tenant, c.id)
	if err != nil {
		return problemOf(err)
	}
	return c.answer(reservation, false)
}

// reservationID refuses ids of another form before the store sees them.
func (c *call) reservationID() *problem {
	if _, _, err := admission.ParseReservationID(c.id); err != nil {
		return problemOf(err)
	}
	return nil
}

func (c *call) postUsage() *problem {
	if p := c.begin(&c.usage); p != nil {
		return p
	}
	b := &c.usage
	platform := c.server.opts.Directory.Platform()
	if platform == nil {
		return problemOf(tenancy.ErrNotReady)
	}
	return c.record(c.server.opts.Store.Report, &admission.UsageReport{
		Total: b.usage(), Estimated: b.Estimated, TTL: admission.HoldTTL(time.Duration(b.TTLMillis)*time.Millisecond, c.principal.Tenant, platform),
	})
}

func (c *call) postSettle() *problem {
	if p := c.begin(&c.settle); p != nil {
		return p
	}
	return c.record(c.server.opts.Store.Settle, &admission.UsageReport{
		Total: c.settle.usage(), Estimated: c.settle.Estimated,
	})
}

func (c *call) postCancel() *problem {
	if p := c.begin(&c.cancel); p != nil {
		return p
	}
	return c.recordCancel(&admission.UsageReport{})
}

// postCancelRequest cancels by request id, also one that was never seen: its
// reserve may still be on its way, and must then be refused.
func (c *call) postCancelRequest() *problem {
	if p := c.authenticateOwner(); p != nil {
		return p
	}
	rule := &reserveRules.fields[0]
	if len(c.id) > int(rule.max) {
		return problemOfBody(unacceptable(reasonRange, rule.name, "must have 1 to "+strconv.FormatInt(rule.max, 10)+" characters"))
	}
	for i := range len(c.id) {
		if !rule.charset[c.id[i]] {
			return problemOfBody(unacceptable(reasonFormat, rule.name, "must match "+rule.pattern))
		}
	}
	c.requestID = c.id
	if p := c.read(&c.cancel); p != nil {
		return p
	}
	return c.recordCancel(&admission.UsageReport{RequestID: c.id})
}

// recordCancel completes a report from the cancel's body. Without figures,
// what was reported before is charged.
func (c *call) recordCancel(report *admission.UsageReport) *problem {
	b, given := &c.cancel, c.scan.seen&figureFields
	for i := range 2 { // input_tokens and output_tokens
		if given != 0 && given&(1<<i) == 0 {
			return problemOfBody(unacceptable(reasonMissing, cancelRules.fields[i].name,
				"is required when any figure is given; leave all out to charge what was reported before"))
		}
	}
	report.Total, report.SoFar = b.usage(), given == 0
	report.Estimated, report.Reason = b.Estimated, b.Reason
	return c.record(c.server.opts.Store.Cancel, report)
}

// begin is what all routes of one reservation do first.
func (c *call) begin(body object) *problem {
	if p := c.authenticateOwner(); p != nil {
		return p
	}
	if p := c.reservationID(); p != nil {
		return p
	}
	return c.read(body)
}

// record gives figures to the store. They count even if their sender leaves.
func (c *call) record(do func(context.Context, *admission.UsageReport) (*admission.Reservation, error), report *admission.UsageReport) *problem {
	if bad := impossible(&report.Total); bad != nil {
		return problemOfBody(bad)
	}
	report.Tenant, report.Author = c.principal.Tenant, authorClient
	if report.RequestID == "" {
		report.ReservationID = c.id
	}
	ctx, cancel := c.finish()
	defer cancel()
	reservation, err := do(ctx, report)
	if err != nil {
		p := problemOf(err)
		if errors.Is(err, admission.ErrAlreadyFinal) {
			p.stored = reservation
		}
		return p
	}
	return c.answer(reservation, reservation.Replayed)
}

// impossible finds parts that exceed their whole.
func impossible(u *events.Usage) *invalid {
	switch {
	case u.CachedInputTokens > u.InputTokens:
		return unacceptable(reasonRange, "cached_input_tokens", "is part of input_tokens and cannot exceed it")
	case u.ReasoningTokens > u.OutputTokens:
		return unacceptable(reasonRange, "reasoning_tokens", "is part of output_tokens and cannot exceed it")
	}
	return nil
}

func (c *call) answer(r *admission.Reservation, replayed bool) *problem {
	if c.requestID == "" {
		c.requestID = r.RequestID
	}
	if replayed {
		c.header("Idempotent-Replayed", "true")
	}
	c.out = appendReservation(c.out[:0], r, -1)
	c.send(http.StatusOK, jsonType)
	return nil
}
