package admission

import (
	"strconv"
	"time"

	"tollgate/tenancy"
)

// TenantLeases is the Field of every tenant-wide lease limit. They all count
// the same set, which is also where a hold's deadline is kept.
const TenantLeases = "leases"

// Constraints lists the limits that apply to one request, narrow to wide: the
// key's own, the tenant's for this endpoint or model, the tenant's, then the
// platform's for the endpoint and for everything. Key and platform may be nil.
// The result is the same for the same documents, and shares nothing mutable
// with them.
func Constraints(tenant *tenancy.Tenant, key *tenancy.Key, endpoint, model string, platform *tenancy.Platform) []Constraint {
	n := len(tenant.Quota.Limits)
	if key != nil {
		n += len(key.Limits)
	}
	if platform != nil {
		n += len(platform.Limits)
	}
	list := make([]Constraint, 0, n)

	keyID := ""
	if key != nil {
		keyID = key.ID
		for i := range key.Limits {
			list = append(list, constraint(&key.Limits[i], keyID, false))
		}
	}
	// Two passes over the tenant's lines and two over the platform's keep the
	// order of each document within a width.
	for _, width := range [...]int{1, 2, 3} {
		for i := range tenant.Quota.Limits {
			l := &tenant.Quota.Limits[i]
			if widthOf(l.Scope) != width {
				continue
			}
			if match, ok := applies(l, keyID, endpoint, model); ok {
				list = append(list, constraint(l, match, false))
			}
		}
	}
	if platform == nil {
		return list
	}
	for _, width := range [...]int{2, 4} {
		for i := range platform.Limits {
			l := &platform.Limits[i]
			if widthOf(l.Scope) != width {
				continue
			}
			if match, ok := applies(l, keyID, endpoint, model); ok {
				list = append(list, constraint(l, match, true))
			}
		}
	}
	return list
}

func widthOf(s tenancy.Scope) int {
	switch s {
	case tenancy.ScopeKey:
		return 1
	case tenancy.ScopeEndpoint, tenancy.ScopeModel:
		return 2
	case tenancy.ScopeTenant:
		return 3
	}
	return 4
}

// applies says whether l bounds this request, and which key, endpoint or model
// its counter is kept for.
func applies(l *tenancy.Limit, keyID, endpoint, model string) (match string, ok bool) {
	switch l.Scope {
	case tenancy.ScopeKey:
		return keyID, keyID != ""
	case tenancy.ScopeEndpoint:
		return endpoint, endpoint != "" && (l.Match == "*" || l.Match == endpoint)
	case tenancy.ScopeModel:
		return model, model != "" && (l.Match == "*" || l.Match == model)
	}
	return "", true
}

func constraint(l *tenancy.Limit, match string, pool bool) Constraint {
	return Constraint{Limit: *l, Field: field(l, match, pool), Pool: pool, Units: scriptUnits(l)}
}

// scriptUnits is the limit as the script counts it. BurstPercent rounds down:
// a cap is never passed.
func scriptUnits(l *tenancy.Limit) int64 {
	switch {
	case l.Kind == tenancy.KindLease && l.BurstPercent > 0:
		return l.Limit * l.BurstPercent / 100
	case l.Kind != tenancy.KindLease && l.Metric == tenancy.MetricTokens:
		return l.Limit * MilliPerUnit
	}
	return l.Limit
}

// field names a counter: kind and shape, scope, limit name and match. A ring of
// another shape or a counter of another period is another counter, because its
// stored numbers would mean something else.
func field(l *tenancy.Limit, match string, pool bool) string {
	if l.Kind == tenancy.KindLease && l.Scope == tenancy.ScopeTenant && !pool {
		return TenantLeases
	}
	b := make([]byte, 0, 64)
	switch l.Kind {
	case tenancy.KindRing:
		b = append(b, 'r')
		b = strconv.AppendInt(b, int64(l.Slots), 10)
		b = append(b, 'x')
		b = strconv.AppendInt(b, SlotWidth(l).Milliseconds(), 10)
		b = append(b, '.')
		b = append(b, l.Metric...)
	case tenancy.KindCounter:
		b = append(b, 'c', '.')
		b = append(b, l.Period...)
		b = append(b, '.')
		b = append(b, l.Metric...)
	case tenancy.KindRate:
		b = append(b, 'g')
	default:
		b = append(b, 'l')
	}
	b = append(b, ':')
	b = append(b, l.Scope...)
	b = append(b, ':')
	b = append(b, l.Name...)
	if match != "" {
		b = append(b, ':')
		b = appendPlain(b, match)
	}
	return string(b)
}

// SlotWidth is the precision of a ring.
func SlotWidth(l *tenancy.Limit) time.Duration {
	if l.Slots < 1 {
		return 0
	}
	return time.Duration(l.Window) / time.Duration(l.Slots)
}

// appendPlain writes everything outside a small alphabet as "=XX", so that a
// field never holds a separator of the script's formats.
func appendPlain(b []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9',
			c == '.', c == '_', c == '/', c == '@', c == '+', c == '-':
			b = append(b, c)
		default:
			b = append(b, '=', hex[c>>4], hex[c&15])
		}
	}
	return b
}

// LimitUnits converts a figure of the script into the limit's own unit, rounded
// up: what is shown as used is never less than what was.
func (c *Constraint) LimitUnits(script int64) int64 {
	if c.Limit.Kind != tenancy.KindLease && c.Limit.Metric == tenancy.MetricTokens {
		return (script + MilliPerUnit - 1) / MilliPerUnit
	}
	return script
}
