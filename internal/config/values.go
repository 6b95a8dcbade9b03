package config

import (
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strconv"
	"strings"
)

const redacted = "REDACTED"

// Secret is text that is never printed: every way to format, log or encode it
// gives REDACTED.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String implements fmt.Stringer.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// SecretURL is a URL that may carry a password. It prints without user
// password and without the values of unknown parameters.
type SecretURL string

// Reveal returns the URL itself.
func (s SecretURL) Reveal() string { return string(s) }

// String implements fmt.Stringer.
func (s SecretURL) String() string {
	if s == "" {
		return ""
	}
	u, err := url.Parse(string(s))
	if err != nil || u.Host == "" {
		return redacted
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), redacted)
	}
	query := u.Query()
	for name := range query {
		switch name {
		case "sslmode", "application_name", "connect_timeout", "target_session_attrs":
		default:
			query.Set(name, redacted)
		}
	}
	u.RawQuery, u.Fragment, u.RawFragment = query.Encode(), "", ""
	return u.String()
}

// GoString implements fmt.GoStringer.
func (s SecretURL) GoString() string { return strconv.Quote(s.String()) }

// MarshalText implements encoding.TextMarshaler.
func (s SecretURL) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements slog.LogValuer.
func (s SecretURL) LogValue() slog.Value { return slog.StringValue(s.String()) }

// ByteSize is a number of bytes, written as a number or as "64KiB", "1MiB".
type ByteSize int64

var byteUnits = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// String gives the largest unit that the size is a whole number of.
func (b ByteSize) String() string {
	for _, u := range byteUnits {
		if b != 0 && int64(b)%u.bytes == 0 {
			return strconv.FormatInt(int64(b)/u.bytes, 10) + u.suffix
		}
	}
	return "0"
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *ByteSize) UnmarshalText(text []byte) error {
	for _, u := range byteUnits {
		digits, found := strings.CutSuffix(string(text), u.suffix)
		if !found {
			continue
		}
		n, err := parseWhole(digits)
		if err != nil || n < 0 || n > math.MaxInt64/u.bytes {
			break
		}
		*b = ByteSize(n * u.bytes)
		return nil
	}
	return fmt.Errorf(`must be a number of bytes, such as 65536, "64KiB" or "1MiB"`)
}

// Percent is a percentage in millionths: 1 % is 10,000. It is exact to four
// decimals; floats have no part in it.
type Percent int64

// PPM is the percentage in parts per million.
func (p Percent) PPM() int64 { return int64(p) }

// String gives "1" or "0.25", without the sign for percent.
func (p Percent) String() string {
	text := fmt.Sprintf("%d.%04d", p/10_000, p%10_000)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Percent) UnmarshalText(text []byte) error {
	whole, decimals, _ := strings.Cut(string(text), ".")
	if len(whole) >= 1 && len(whole) <= 6 && len(decimals) <= 4 {
		n, err := strconv.ParseUint(whole+decimals+strings.Repeat("0", 4-len(decimals)), 10, 63)
		if err == nil {
			*p = Percent(n)
			return nil
		}
	}
	return fmt.Errorf(`must be a percentage with at most four decimals, such as 1 or 0.25`)
}

// parseWhole reads a decimal whole number; "1_000_000" is one too.
func parseWhole(text string) (int64, error) {
	if text == "" || text[0] == '_' || text[len(text)-1] == '_' || text[0] == '+' {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
}
