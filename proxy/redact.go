package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
)

// Format implements fmt.Formatter for every verb, so that an upstream's key is
// not shown by printing whatever holds it.
func (u Upstream) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, u.shown()) }

// LogValue implements slog.LogValuer.
func (u Upstream) LogValue() slog.Value { return slog.StringValue(u.shown()) }

// MarshalJSON implements json.Marshaler.
func (u Upstream) MarshalJSON() ([]byte, error) { return json.Marshal(u.shown()) }

func (u Upstream) shown() string {
	if u.Key == "" {
		return u.Base
	}
	return u.Base + " (key REDACTED)"
}
