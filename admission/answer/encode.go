package answer

import (
	"strconv"
	"time"
	"unicode/utf8"

	"tollgate/admission"
	"tollgate/tenancy"
)

// Effective is the limit as it binds: a lease's with its burst.
func Effective(c *admission.Constraint) int64 {
	if c.Limit.Kind == tenancy.KindLease && c.Units > 0 {
		return c.Units
	}
	return c.Limit.Limit
}

// AppendFacts appends the members that say which limit refused.
func AppendFacts(dst []byte, f *Facts) []byte {
	limit := &f.Constraint.Limit
	if limit.Name == "" { // an end that no limit brought about, such as expiry
		return dst
	}
	dst = append(dst, `,"name":`...)
	dst = AppendString(dst, limit.Name)
	dst = append(dst, `,"layer":`...)
	dst = AppendString(dst, limit.Layer)
	dst = append(dst, `,"scope":`...)
	dst = AppendString(dst, string(limit.Scope))
	dst = append(dst, `,"unit":`...)
	dst = AppendString(dst, UnitOf(limit))
	dst = appendInt(dst, `,"limit":`, Effective(f.Constraint))
	dst = appendInt(dst, `,"used":`, f.Used)
	dst = appendInt(dst, `,"reserved":`, f.Reserved)
	return appendInt(dst, `,"requested":`, f.Requested)
}

// UnitOf names what a limit's figures count.
func UnitOf(l *tenancy.Limit) string {
	if l.Kind == tenancy.KindLease {
		return "reservations"
	}
	return string(l.Metric)
}

// AppendPolicy appends a limit's item of the RateLimit-Policy field.
func AppendPolicy(dst []byte, c *admission.Constraint) []byte {
	dst = AppendSFString(dst, c.Limit.Name)
	dst = appendInt(dst, ";q=", Effective(c))
	if c.Limit.Window > 0 {
		dst = appendInt(dst, ";w=", Seconds(time.Duration(c.Limit.Window)))
	}
	return dst
}

// AppendRemaining appends a limit's item of the RateLimit field. A wait of
// zero seconds is left out.
func AppendRemaining(dst []byte, c *admission.Constraint, remaining, wait int64) []byte {
	dst = AppendSFString(dst, c.Limit.Name)
	dst = appendInt(dst, ";r=", max(remaining, 0))
	if wait > 0 {
		dst = appendInt(dst, ";t=", wait)
	}
	return dst
}

// AppendSFString appends a structured field's string (RFC 8941, 3.3.3), which
// is printable ASCII; anything else becomes a question mark.
func AppendSFString(dst []byte, s string) []byte {
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

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string.
func AppendString(dst []byte, s string) []byte {
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

// appendInt appends a field name with its punctuation, then n.
func appendInt(dst []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(dst, name...), n, 10)
}
