package redis

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// Bounds of what goes into keys and records; events have the same.
const (
	maxIDBytes     = 128
	maxReasonBytes = 512
)

// Metric numbers of the script: 0 is milli-units, 1 to 8 the figures of a
// usage in the order of appendUsage, 9 a request.
var metricNumbers = map[tenancy.Metric]byte{
	tenancy.MetricTokens: '0', tenancy.MetricInputTokens: '1', tenancy.MetricOutputTokens: '2',
	tenancy.MetricToolCalls: '5', tenancy.MetricImages: '6', tenancy.MetricAudioMillis: '7',
	tenancy.MetricGPUMillis: '8', tenancy.MetricRequests: '9',
}

// appendTemplate writes constraints as the script reads them:
// kind,pool,field,metric,units,a,b,budget,layer; with a and b the slot width in
// ms and the slots of a ring, the period of a counter, the emission interval
// and the burst of a rate in µs.
func appendTemplate(b []byte, limits []admission.Constraint, poolOnly bool) []byte {
	for i := range limits {
		c := &limits[i]
		if poolOnly && !c.Pool {
			continue
		}
		b = append(b, kindLetter(c.Limit.Kind), ',', digit(c.Pool), ',')
		b = append(b, c.Field...)
		b = append(b, ',')
		metric, ok := metricNumbers[c.Limit.Metric]
		if !ok {
			metric = '9'
		}
		b = append(b, metric, ',')
		b = strconv.AppendInt(b, c.Units, 10)
		x, y := shape(&c.Limit)
		b = append(b, ',')
		b = strconv.AppendInt(b, x, 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, y, 10)
		b = append(b, ',', digit(c.Limit.Budget), ',')
		b = append(b, c.Limit.Layer...)
		b = append(b, ';')
	}
	return b
}

func kindLetter(k tenancy.Kind) byte {
	switch k {
	case tenancy.KindRing:
		return 'r'
	case tenancy.KindCounter:
		return 'c'
	case tenancy.KindRate:
		return 'g'
	}
	return 'l'
}

func shape(l *tenancy.Limit) (a, b int64) {
	switch l.Kind {
	case tenancy.KindRing:
		return admission.SlotWidth(l).Milliseconds(), int64(l.Slots)
	case tenancy.KindCounter:
		switch l.Period {
		case tenancy.PeriodDay:
			return 1, 0
		case tenancy.PeriodMonth:
			return 2, 0
		}
	case tenancy.KindRate:
		emission := emissionMicros(l)
		return emission, emission * max(l.Burst, 1)
	}
	return 0, 0
}

// emissionMicros is the time between requests at the limit's rate, rounded up,
// so that rounding never admits more than the limit.
func emissionMicros(l *tenancy.Limit) int64 {
	limit := max(l.Limit, 1)
	return (time.Duration(l.Window).Microseconds() + limit - 1) / limit
}

func digit(v bool) byte {
	if v {
		return '1'
	}
	return '0'
}

// checkLimits refuses a list that the script could not keep exact.
func checkLimits(limits []admission.Constraint) error {
	for i := range limits {
		c := &limits[i]
		ok := c.Units >= 0 && c.Units <= admission.MaxUnits && plainField(c.Field) && plainField(c.Limit.Layer)
		switch c.Limit.Kind {
		case tenancy.KindRing:
			ok = ok && c.Limit.Slots > 0 && admission.SlotWidth(&c.Limit) >= time.Millisecond
		case tenancy.KindRate:
			ok = ok && c.Limit.Limit > 0 && emissionMicros(&c.Limit) > 0 &&
				c.Limit.Burst <= admission.MaxUnits/4/emissionMicros(&c.Limit)
		case tenancy.KindCounter, tenancy.KindLease:
		default:
			ok = false
		}
		if c.Pool && c.Limit.Kind != tenancy.KindLease {
			ok = false // only leases can be taken and given back in two steps
		}
		if !ok {
			return fmt.Errorf("%w: limit %q cannot be applied", admission.ErrInvalid, c.Limit.Name)
		}
	}
	return nil
}

func plainField(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c > '~' || c == ',' || c == ';' || c == '|' || c == '#' {
			return false
		}
	}
	return len(s) <= 1024
}

// plain reports whether s can stand between separators as it is.
func plain(s string, low, high int) bool {
	if len(s) < low || len(s) > high {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '|' {
			return false
		}
	}
	return true
}

// appendFree writes text that people wrote, with separators and control
// characters as %XX.
func appendFree(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '|' || c == '%' || c == 0x7f {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

// free undoes appendFree.
func free(s string) string {
	at := 0
	for at < len(s) && s[at] != '%' {
		at++
	}
	if at == len(s) {
		return s
	}
	b := append([]byte(nil), s[:at]...)
	for i := at; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if v, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b = append(b, v...)
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

func appendUsage(b []byte, u *events.Usage) []byte {
	for i, v := range [...]int64{
		u.InputTokens, u.OutputTokens, u.CachedInputTokens, u.ReasoningTokens,
		u.ToolCalls, u.Images, u.AudioMillis, u.GPUMillis,
	} {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return b
}

func parseUsage(s string) (events.Usage, error) {
	var v [8]int64
	i, n := 0, 0
	for ; n < len(v) && i < len(s); n++ {
		start := i
		for i < len(s) && s[i] >= '0' && s[i] <= '9' && i-start < 18 {
			v[n] = v[n]*10 + int64(s[i]-'0')
			i++
		}
		if i == start {
			break
		}
		if i < len(s) && n < len(v)-1 {
			if s[i] != ',' {
				break
			}
			i++
		}
	}
	if n != len(v) || i != len(s) {
		return events.Usage{}, fmt.Errorf("usage %.64q is not eight counts", s)
	}
	return events.Usage{
		InputTokens: v[0], OutputTokens: v[1], CachedInputTokens: v[2], ReasoningTokens: v[3],
		ToolCalls: v[4], Images: v[5], AudioMillis: v[6], GPUMillis: v[7],
	}, nil
}

func checkReserve(req *admission.ReserveRequest) error {
	bad := func(what string) error { return fmt.Errorf("%w: %s", admission.ErrInvalid, what) }
	switch {
	case req.Tenant == nil || !tenancy.ValidTenantID(req.Tenant.ID):
		return bad("tenant")
	case !plain(req.RequestID, 1, maxIDBytes):
		return bad("request id")
	case !plain(req.Endpoint, 0, maxIDBytes):
		return bad("endpoint")
	case !plain(req.Model, 0, maxIDBytes):
		return bad("model")
	case req.Key != nil && !plain(req.Key.ID, 0, maxIDBytes):
		return bad("key id")
	case !author(req.Author):
		return bad("author")
	case req.TTL < time.Millisecond || req.MaxHold < time.Millisecond:
		return bad("a hold lives at least a millisecond")
	case req.TTL > 400*24*time.Hour || req.MaxHold > 400*24*time.Hour:
		return bad("a hold lives at most 400 days")
	case req.WeightMilli < 1:
		return bad("weight")
	}
	if _, err := admission.Units(req.Hold, req.WeightMilli, req.ImageTokens); err != nil {
		return err
	}
	return checkLimits(req.Limits)
}

func checkReport(rep *admission.UsageReport) error {
	bad := func(what string) error { return fmt.Errorf("%w: %s", admission.ErrInvalid, what) }
	switch {
	case rep.Tenant == nil || !tenancy.ValidTenantID(rep.Tenant.ID):
		return bad("tenant")
	case !author(rep.Author):
		return bad("author")
	case len(rep.Reason) > maxReasonBytes || !utf8.ValidString(rep.Reason):
		return bad("reason")
	case rep.TTL < 0 || rep.TTL > 400*24*time.Hour:
		return bad("a hold lives at most 400 days")
	}
	_, err := admission.Units(rep.Total, 1, 0)
	return err
}

func author(s string) bool {
	return s != "" && len(s) <= maxIDBytes && utf8.ValidString(s)
}

// encodeReserve writes the arguments lifetime, hash, units and terms; see
// admission.lua.
func encodeReserve(o *op, req *admission.ReserveRequest, hash string, dry bool) error {
	units, err := admission.Units(req.Hold, req.WeightMilli, req.ImageTokens)
	if err != nil {
		return err
	}
	o.kind, o.tenant = 'R', req.Tenant.ID
	if dry {
		o.kind = 'D'
	}
	o.template = appendTemplate(o.template, req.Limits, false)
	o.text = strconv.AppendInt(o.text, req.TTL.Milliseconds(), 10)
	o.text = append(o.text, ',')
	o.text = strconv.AppendInt(o.text, req.MaxHold.Milliseconds(), 10)
	o.end()
	o.argument(hash)
	o.number(units)
	o.text = hex.AppendEncode(o.text, req.BodyHash[:])
	o.text = append(o.text, '|')
	o.text = appendUsage(o.text, &req.Hold)
	o.text = append(o.text, '|')
	o.text = strconv.AppendInt(o.text, req.WeightMilli, 10)
	o.text = append(o.text, '|')
	o.text = strconv.AppendInt(o.text, req.ImageTokens, 10)
	o.text = append(o.text, '|')
	o.text = append(o.text, req.Tenant.ID...)
	o.text = append(o.text, '|')
	o.text = append(o.text, hash...)
	o.text = append(o.text, '|')
	o.text = appendFree(o.text, req.Author)
	o.text = append(o.text, '|')
	o.text = append(o.text, req.RequestID...)
	o.text = append(o.text, '|')
	if req.Key != nil {
		o.text = append(o.text, req.Key.ID...)
	}
	o.text = append(o.text, '|')
	o.text = append(o.text, req.Endpoint...)
	o.text = append(o.text, '|')
	o.text = append(o.text, req.Model...)
	o.end()
	return nil
}

// encodeReport writes the arguments hash, created, ttl, total, flags, author,
// reason and terms. created is empty where the request id names the
// reservation; then there are terms, for a tombstone.
func encodeReport(o *op, kind byte, rep *admission.UsageReport, hash string, created int64) {
	o.kind, o.tenant = kind, rep.Tenant.ID
	o.argument(hash)
	if created > 0 {
		o.number(created)
	} else {
		o.end()
	}
	o.number(rep.TTL.Milliseconds())
	o.text = appendUsage(o.text, &rep.Total)
	o.end()
	o.text = append(o.text, digit(rep.Estimated), digit(rep.SoFar))
	o.end()
	o.text = appendFree(o.text, rep.Author)
	o.end()
	o.text = appendFree(o.text, rep.Reason)
	o.end()
	if created == 0 {
		r := record{body: unknownBody, weight: admission.MilliPerUnit, tenant: rep.Tenant.ID, hash: hash, request: rep.RequestID}
		o.text = r.appendTerms(o.text)
	}
	o.end()
}

// encodePool writes the arguments member, hash, ttl and deadline.
func encodePool(o *op, kind byte, member, hash string, ttl time.Duration, deadline int64) {
	o.kind = kind
	o.argument(member)
	o.argument(hash)
	o.number(ttl.Milliseconds())
	o.number(deadline)
}
