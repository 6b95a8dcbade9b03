package httpapi

import (
	"strconv"
	"time"
	"unicode/utf8"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// Answers are appended by hand: the hot routes would spend more on reflection
// than on deciding. A test holds each encoder against the type that documents
// it, field by field.

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		b := s[i]
		if b >= ' ' && b != '"' && b != '\\' && b < utf8.RuneSelf {
			i++
			continue
		}
		if b >= utf8.RuneSelf {
			if r, size := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
			dst = append(append(dst, s[start:i]...), "\\ufffd"...)
		} else if b == '"' || b == '\\' {
			dst = append(append(dst, s[start:i]...), '\\', b)
		} else {
			dst = append(append(dst, s[start:i]...), '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}

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

// effective is the limit as it binds: a lease's with its burst.
func effective(c *admission.Constraint) int64 {
	if c.Limit.Kind == tenancy.KindLease && c.Units > 0 {
		return c.Units
	}
	return c.Limit.Limit
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
		dst = appendInt(dst, `,"limit":`, effective(&l.Constraint))
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
		dst = appendFacts(dst, p.limit)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// appendFacts appends the members that say which limit refused.
func appendFacts(dst []byte, f *limitFacts) []byte {
	limit := &f.constraint.Limit
	if limit.Name == "" { // an end that no limit brought about, such as expiry
		return dst
	}
	dst = append(dst, `,"name":`...)
	dst = appendString(dst, limit.Name)
	dst = append(dst, `,"layer":`...)
	dst = appendString(dst, limit.Layer)
	dst = append(dst, `,"scope":`...)
	dst = appendString(dst, string(limit.Scope))
	dst = append(dst, `,"unit":`...)
	dst = appendString(dst, unitOf(limit))
	dst = appendInt(dst, `,"limit":`, effective(f.constraint))
	dst = appendInt(dst, `,"used":`, f.used)
	dst = appendInt(dst, `,"reserved":`, f.reserved)
	return appendInt(dst, `,"requested":`, f.requested)
}

// unitOf names what a limit's figures count.
func unitOf(l *tenancy.Limit) string {
	if l.Kind == tenancy.KindLease {
		return "reservations"
	}
	return string(l.Metric)
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
		dst = appendFacts(dst, p.limit)
		if p.kind == typeQuotaExceeded {
			dst = append(dst, `,"violated-policies":[`...)
			dst = appendString(dst, p.limit.constraint.Limit.Name)
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

// appendPolicy appends a limit's item of the RateLimit-Policy field.
func appendPolicy(dst []byte, c *admission.Constraint) []byte {
	dst = appendSFString(dst, c.Limit.Name)
	dst = appendInt(dst, ";q=", effective(c))
	if c.Limit.Window > 0 {
		dst = appendInt(dst, ";w=", seconds(time.Duration(c.Limit.Window)))
	}
	return dst
}

// appendRemaining appends a limit's item of the RateLimit field. A wait of
// zero seconds is left out.
func appendRemaining(dst []byte, c *admission.Constraint, remaining, wait int64) []byte {
	dst = appendSFString(dst, c.Limit.Name)
	dst = appendInt(dst, ";r=", max(remaining, 0))
	if wait > 0 {
		dst = appendInt(dst, ";t=", wait)
	}
	return dst
}

// appendSFString appends a structured field's string (RFC 8941, 3.3.3), which
// is printable ASCII; anything else becomes a question mark.
func appendSFString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		switch b := s[i]; {
		case b == '"' || b == '\\':
			dst = append(dst, '\\', b)
		case b < ' ' || b > '~':
			dst = append(dst, '?')
		default:
			dst = append(dst, b)
		}
	}
	return append(dst, '"')
}
