package httpapi

import (
	"strconv"
	"time"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/events"
)

// Answers are appended by hand: the hot routes would spend more on reflection
// than on deciding. A test holds each encoder against the type that documents
// it, field by field.

// appendString appends s as a JSON string.
func appendString(dst []byte, s string) []byte { return answer.AppendString(dst, s) }

// appendTime appends t in UTC with milliseconds, RFC 3339.
func appendTime(dst []byte, t time.Time) []byte {
	dst = append(dst, '"')
	dst = t.UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
	return append(dst, '"')
}

// appendInt appends a field name with its punctuation, then n.
func appendInt(dst []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(dst, name...), n, 10)
}

// appendCount is appendInt for a field that is left out when zero.
func appendCount(dst []byte, name string, n int64) []byte {
	if n == 0 {
		return dst
	}
	return appendInt(dst, name, n)
}

func appendUsage(dst []byte, u *events.Usage) []byte {
	dst = appendInt(dst, `{"input_tokens":`, u.InputTokens)
	dst = appendInt(dst, `,"output_tokens":`, u.OutputTokens)
	dst = appendCount(dst, `,"cached_input_tokens":`, u.CachedInputTokens)
	dst = appendCount(dst, `,"reasoning_tokens":`, u.ReasoningTokens)
	dst = appendCount(dst, `,"tool_calls":`, u.ToolCalls)
	dst = appendCount(dst, `,"images":`, u.Images)
	dst = appendCount(dst, `,"audio_ms":`, u.AudioMillis)
	dst = appendCount(dst, `,"gpu_ms":`, u.GPUMillis)
	return append(dst, '}')
}

// tokens turns milli-units into the weighted tokens that people are shown,
// rounded up.
func tokens(milliUnits int64) int64 {
	if milliUnits <= 0 {
		return 0
	}
	return (milliUnits-1)/1000 + 1
}

// appendLeft appends the standing of the limits that are the caller's own.
// Limits over all tenants are left out: they would show others' use.
func appendLeft(dst []byte, left []admission.Left) []byte {
	dst = append(dst, '[')
	first := true
	for i := range left {
		l := &left[i]
		if l.Constraint.Pool {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, `{"name":`...)
		dst = appendString(dst, l.Constraint.Limit.Name)
		dst = append(dst, `,"layer":`...)
		dst = appendString(dst, l.Constraint.Limit.Layer)
		dst = appendInt(dst, `,"limit":`, answer.Effective(&l.Constraint))
		dst = appendInt(dst, `,"used":`, l.Used)
		dst = appendInt(dst, `,"held":`, l.Held)
		dst = appendInt(dst, `,"remaining":`, l.Remaining)
		dst = appendInt(dst, `,"reset_ms":`, l.Reset.Milliseconds())
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// appendReservation appends a ReservationAnswer. MaxOutput below zero leaves
// max_output_tokens out.
func appendReservation(dst []byte, r *admission.Reservation, maxOutput int64) []byte {
	dst = append(dst, `{"reservation_id":`...)
	dst = appendString(dst, r.ID)
	dst = append(dst, `,"request_id":`...)
	dst = appendString(dst, r.RequestID)
	dst = append(dst, `,"state":`...)
	dst = appendString(dst, string(r.State))
	dst = appendInt(dst, `,"admitted_units":`, r.AdmittedUnits)
	dst = appendInt(dst, `,"admitted_tokens":`, tokens(r.AdmittedUnits))
	if maxOutput >= 0 {
		dst = appendInt(dst, `,"max_output_tokens":`, maxOutput)
	}
	dst = append(dst, `,"used":`...)
	dst = appendUsage(dst, &r.Total)
	dst = appendInt(dst, `,"used_units":`, r.TotalUnits)
	dst = appendInt(dst, `,"used_tokens":`, tokens(r.TotalUnits))
	if !r.CreatedAt.IsZero() {
		dst = append(dst, `,"created_at":`...)
		dst = appendTime(dst, r.CreatedAt)
	}
	if !r.ExpiresAt.IsZero() {
		dst = append(dst, `,"expires_at":`...)
		dst = appendTime(dst, r.ExpiresAt)
	}
	if r.Left != nil {
		dst = append(dst, `,"limits":`...)
		dst = appendLeft(dst, r.Left)
	}
	if r.Stop != nil {
		p := problemOfRefusal(r.Stop)
		dst = append(dst, `,"stop":{"reason":`...)
		dst = appendString(dst, p.reason)
		dst = append(dst, `,"detail":`...)
		dst = appendString(dst, "The report is recorded. End the work now and settle: the reservation has outgrown its limits.")
		dst = answer.AppendFacts(dst, p.limit)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// appendProblem appends a Problem.
func appendProblem(dst []byte, p *problem, title, requestID string) []byte {
	kind := p.kind
	if kind == "" {
		kind = "about:blank"
	}
	dst = append(dst, `{"type":`...)
	dst = appendString(dst, kind)
	dst = append(dst, `,"title":`...)
	dst = appendString(dst, title)
	dst = appendInt(dst, `,"status":`, int64(p.status))
	dst = append(dst, `,"detail":`...)
	if p.field == "" {
		dst = appendString(dst, p.detail)
	} else {
		dst = appendString(dst, p.field+" "+p.detail)
	}
	dst = append(dst, `,"reason":`...)
	dst = appendString(dst, p.reason)
	if p.field != "" {
		dst = append(dst, `,"field":`...)
		dst = appendString(dst, p.field)
	}
	if p.limit != nil {
		dst = answer.AppendFacts(dst, p.limit)
		if p.kind == answer.TypeQuotaExceeded {
			dst = append(dst, `,"violated-policies":[`...)
			dst = appendString(dst, p.limit.Constraint.Limit.Name)
			dst = append(dst, ']')
		}
	}
	if p.stored != nil {
		dst = append(dst, `,"reservation":`...)
		dst = appendReservation(dst, p.stored, -1)
	}
	dst = append(dst, `,"request_id":`...)
	dst = appendString(dst, requestID)
	return append(dst, '}')
}
