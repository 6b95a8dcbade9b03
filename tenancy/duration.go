package tenancy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// maxDurationText bounds what ParseDuration looks at.
const maxDurationText = 32

// ParseDuration reads what time.ParseDuration reads, and whole days in front
// of it: "60s", "1h30m", "30d", "1d12h". A day is always 24 hours. Negative
// durations and plain numbers are refused, so that nobody takes "60" for
// minutes.
func ParseDuration(text string) (Duration, error) {
	if text == "" || len(text) > maxDurationText {
		return 0, fmt.Errorf("a duration is written like \"60s\", \"1h30m\" or \"30d\"")
	}
	rest, total := text, time.Duration(0)
	if days, after, found := strings.Cut(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 32)
		if err != nil || n > uint64(math.MaxInt64/int64(day)) {
			return 0, fmt.Errorf("%q is not a duration: days are a whole number, as in \"30d\"", text)
		}
		total, rest = time.Duration(n)*day, after
	}
	if rest != "" {
		if rest[0] == '-' || rest[0] == '+' {
			return 0, fmt.Errorf("%q is not a duration: it must not have a sign", text)
		}
		part, err := time.ParseDuration(rest)
		if err != nil {
			return 0, fmt.Errorf("%q is not a duration: write it like \"60s\", \"1h30m\" or \"30d\"", text)
		}
		if part > math.MaxInt64-total {
			return 0, fmt.Errorf("%q is too long a duration", text)
		}
		total += part
	}
	return Duration(total), nil
}

// String gives the text that ParseDuration reads back: days, hours or seconds
// where the duration is a whole number of them ("30d", "1h", "90s"), else what
// time.Duration writes.
func (d Duration) String() string {
	t := time.Duration(d)
	switch {
	case t == 0:
		return "0s"
	case t < 0:
		return t.String()
	case t%day == 0:
		return strconv.FormatInt(int64(t/day), 10) + "d"
	case t%time.Hour == 0:
		return strconv.FormatInt(int64(t/time.Hour), 10) + "h"
	case t%time.Second == 0:
		return strconv.FormatInt(int64(t/time.Second), 10) + "s"
	}
	return t.String()
}

// MarshalText implements encoding.TextMarshaler, for JSON and YAML.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := ParseDuration(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}
