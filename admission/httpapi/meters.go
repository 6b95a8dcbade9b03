package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"tollgate/events"
	"tollgate/tenancy"
)

// MetersAccepted answers a batch of readings that is safe in the log.
type MetersAccepted struct {
	Accepted int64 `json:"accepted" doc:"Readings taken, those included that were sent before."`
}

// The span in which a reading's end must lie, from the gateway's clock. It is
// narrower than what the log takes, so that nothing accepted here is
// quarantined there because clocks differ a little.
const (
	meterFuture = 4 * time.Minute
	meterPast   = 34 * 24 * time.Hour
)

// postMeters takes a batch of readings as a whole: one that is wrong refuses
// all. The answer comes when the log has acknowledged them.
func (c *call) postMeters() *problem {
	if p := c.authenticate(tenancy.RoleMeter); p != nil {
		return p
	}
	var body MetersBody
	if p := c.read(&body); p != nil {
		return p
	}
	sink := c.server.opts.Meters
	if sink == nil {
		return &problem{
			status: http.StatusServiceUnavailable, reason: "meters_not_taken", retryAfter: 60,
			detail: "This gateway takes no meter readings.",
		}
	}
	batch := make([]events.Event, len(body.Readings))
	now := c.server.opts.Now()
	for i := range body.Readings {
		if p := c.checkReading(&body.Readings[i], i, now); p != nil {
			return p
		}
		batch[i] = meterEvent(&body.Readings[i], c.principal.Key.ID)
	}
	ctx, cancel := c.finish()
	defer cancel()
	if err := sink.Publish(ctx, batch); err != nil {
		if errors.Is(err, events.ErrRefused) {
			return &problem{
				status: http.StatusUnprocessableEntity, reason: "reading_refused", cause: err,
				detail: "The log does not take one of the readings. Send them one by one to find it.",
			}
		}
		return &problem{
			status: http.StatusServiceUnavailable, reason: "log_unavailable", retryAfter: 5, cause: err,
			detail: "The readings may not all be recorded. Send the same batch again: each counts once.",
		}
	}
	c.out = append(appendInt(c.out[:0], `{"accepted":`, int64(len(batch))), '}')
	c.send(http.StatusAccepted, jsonType)
	return nil
}

// checkReading applies the rules between fields; the scanner applied those of
// each field.
func (c *call) checkReading(r *Reading, i int, now time.Time) *problem {
	bad := func(reason, field, detail string) *problem {
		return problemOfBody(unacceptable(reason, "readings["+strconv.Itoa(i)+"]."+field, detail))
	}
	switch r.Kind {
	case "model":
		if r.GPUMillis != 0 {
			return bad(reasonRange, "gpu_ms", "belongs in a reading of kind gpu")
		}
	case "gpu":
		if r.InputTokens != 0 || r.OutputTokens != 0 {
			return bad(reasonRange, "input_tokens", "and output_tokens belong in a reading of kind model")
		}
	default:
		return bad(reasonFormat, "kind", "must be model or gpu")
	}
	if r.ReservationID != "" {
		if field := tooMuch(r); field != "" {
			return bad(reasonRange, field, "must be between 0 and "+strconv.Itoa(maxCount)+" for a reservation")
		}
	}
	if r.ReservationID == "" && r.Final {
		return bad(reasonRange, "final", "needs a reservation_id: only an execution ends")
	}
	if r.To.Before(r.From) || r.ReservationID == "" && !r.From.Before(r.To) {
		return bad(reasonRange, "from", "must be before to")
	}
	if r.To.After(now.Add(meterFuture)) || r.To.Before(now.Add(-meterPast)) {
		return bad(reasonRange, "to", "is too far from now; set the sender's clock, or report readings within 34 days")
	}
	if own := c.principal.Key.TenantID; own != "" && own != r.TenantID {
		return &problem{
			status: http.StatusForbidden, reason: "other_tenant", giveUp: true,
			detail: "This key reports its own tenant's meters only.",
		}
	}
	if _, err := c.server.opts.Directory.Tenant(r.TenantID); err != nil {
		if errors.Is(err, tenancy.ErrNotFound) {
			return bad(reasonRange, "tenant_id", "is not a tenant")
		}
		return problemOf(err)
	}
	return nil
}

// tooMuch names a figure that is more than one reservation may have.
func tooMuch(r *Reading) string {
	switch {
	case r.InputTokens > maxCount:
		return "input_tokens"
	case r.OutputTokens > maxCount:
		return "output_tokens"
	case r.GPUMillis > maxCount:
		return "gpu_ms"
	}
	return ""
}

// meterEvent names the event after the key and the reading's own id, so that a
// reading which is sent again is the same event, and readings of different
// meters never meet under one id.
func meterEvent(r *Reading, keyID string) events.Event {
	kind := events.TypeModelMeter
	if r.Kind == "gpu" {
		kind = events.TypeGPUMeter
	}
	return events.Event{
		ID: keyID + ":" + r.ID, Source: "tollgate/meters/" + keyID, Type: kind,
		Subject: r.TenantID, Time: r.To.Truncate(time.Millisecond),
		Data: events.AppendMeter(nil, &events.Meter{
			TenantID: r.TenantID, ReservationID: r.ReservationID, RequestID: r.RequestID,
			Pool: r.Pool, Model: r.Model, From: r.From, To: r.To,
			InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, GPUMillis: r.GPUMillis, Final: r.Final,
		}),
	}
}
