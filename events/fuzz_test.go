package events_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"tollgate/events"
)

// agree holds a parser to encoding/json: what the parser takes, the standard
// library takes with the same result; what only the standard library takes is
// refused for a reason that this package is stricter about.
func agree[T any](t *testing.T, data []byte, got T, err error, cut func(*T)) {
	t.Helper()
	var std T
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	stdErr := d.Decode(&std)
	if stdErr == nil && d.More() {
		stdErr = errors.New("more than one value")
	}
	if err == nil {
		if stdErr != nil {
			t.Fatalf("%q is taken, but encoding/json says %v", data, stdErr)
		}
		cut(&std)
		if diff := cmp.Diff(std, got); diff != "" {
			t.Fatalf("%q (-json +parser):\n%s", data, diff)
		}
		return
	}
	var bad *events.InvalidError
	if !errors.As(err, &bad) {
		t.Fatalf("error %v is no *InvalidError", err)
	}
	if stdErr == nil && bad.Reason == events.ReasonBadJSON {
		// The decoder stops after the first value and does not see the rest.
		if json.Valid(data) {
			t.Fatalf("%q is JSON, but refused as none: %v", data, err)
		}
	}
}

func ms(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

func seeds(f *testing.F) {
	for _, payload := range goldenPayloads() {
		f.Add(encode(payload))
	}
	for _, s := range []string{
		``, `{}`, `null`, good, good + good, `{"tenant_id":"\u0000"}`, `{"seq":1e9}`, `{"a":`, "{\"tenant_id\":\"\xff\"}",
		strings.Replace(good, `"m"`, `"\ud83d\ude00\n\/"`, 1), strings.Replace(good, `.123Z`, `.123+05:30`, 1),
	} {
		f.Add([]byte(s))
	}
}

func FuzzParseReservation(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := events.ParseReservation(data)
		agree(t, data, r, err, func(r *events.Reservation) { r.ExpiresAt = ms(r.ExpiresAt) })
		if err != nil {
			return
		}
		// What is written again is read as the same.
		again, err := events.ParseReservation(events.AppendReservation(nil, &r))
		if err != nil || again != r {
			t.Fatalf("written again: %+v, %v; want %+v", again, err, r)
		}
		for _, s := range []string{r.TenantID, r.Model, r.Reason, r.RequestID} {
			if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
				t.Fatalf("string %q cannot be stored", s)
			}
		}
	})
}

func FuzzParseMeter(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := events.ParseMeter(data)
		agree(t, data, m, err, func(m *events.Meter) { m.From, m.To = ms(m.From), ms(m.To) })
		if err != nil {
			return
		}
		if again, err := events.ParseMeter(events.AppendMeter(nil, &m)); err != nil || again != m {
			t.Fatalf("written again: %+v, %v; want %+v", again, err, m)
		}
	})
}

func FuzzParseSettlement(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := events.ParseSettlement(data)
		agree(t, data, v, err, func(v *events.Settlement) { v.WindowStart, v.WindowEnd = ms(v.WindowStart), ms(v.WindowEnd) })
		if err != nil {
			return
		}
		if again, err := events.ParseSettlement(events.AppendSettlement(nil, &v)); err != nil || again != v {
			t.Fatalf("written again: %+v, %v; want %+v", again, err, v)
		}
	})
}

func FuzzDayOf(f *testing.F) {
	f.Add("e1-s07-1787155200123-0.0")
	f.Add("--")
	f.Fuzz(func(t *testing.T, id string) {
		day, err := events.DayOf(id)
		if err == nil && (day.Year() < 2000 || day.Year() > 2199 || !day.Equal(day.Truncate(24*time.Hour))) {
			t.Fatalf("DayOf(%q) = %v", id, day)
		}
	})
}

// Any reservation that is written is read back equal, whatever its strings.
func TestWrittenReservationsAreReadBack(t *testing.T) {
	text := rapid.Map(rapid.StringN(1, 20, 120), func(s string) string {
		s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "0")
		if s == "" {
			return "x"
		}
		return s
	})
	count := func(low int64) *rapid.Generator[int64] { return rapid.Int64Range(low, 1<<53) }
	usage := func(low int64) *rapid.Generator[events.Usage] {
		return rapid.Custom(func(t *rapid.T) events.Usage {
			n := func() int64 { return rapid.OneOf(rapid.Just(int64(0)), count(low)).Draw(t, "n") }
			return events.Usage{
				InputTokens: n(), OutputTokens: n(), CachedInputTokens: n(), ReasoningTokens: n(),
				ToolCalls: n(), Images: n(), AudioMillis: n(), GPUMillis: n(),
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		want := events.Reservation{
			TenantID: text.Draw(t, "tenant"), ReservationID: text.Draw(t, "reservation"), RequestID: text.Draw(t, "request"),
			KeyID: text.Draw(t, "key"), Endpoint: text.Draw(t, "endpoint"), Model: text.Draw(t, "model"),
			Seq: count(1).Draw(t, "seq"), State: rapid.SampledFrom([]events.State{events.StateHeld, events.StateExpired, events.StateSettled, events.StateCancelled}).Draw(t, "state"),
			Delta: usage(-1<<53).Draw(t, "delta"), DeltaMilliUnits: count(-1<<53).Draw(t, "delta units"),
			Total: usage(0).Draw(t, "total"), TotalMilliUnits: count(0).Draw(t, "total units"),
			WeightMilli: count(0).Draw(t, "weight"), HeldMilliUnits: count(0).Draw(t, "held"),
			ExpiresAt: time.UnixMilli(rapid.Int64Range(-62_135_596_800_000, 253_402_300_799_999).Draw(t, "expires")).UTC(),
			Estimated: rapid.Bool().Draw(t, "estimated"), Tombstone: rapid.Bool().Draw(t, "tombstone"),
			Author: text.Draw(t, "author"), Reason: text.Draw(t, "reason"),
		}
		data := events.AppendReservation(nil, &want)
		got, err := events.ParseReservation(data)
		if err != nil || got != want {
			t.Fatalf("%s read back: %+v, %v; want %+v", data, got, err, want)
		}
		var std events.Reservation
		if err := json.Unmarshal(data, &std); err != nil || std != want {
			t.Fatalf("%s read by encoding/json: %+v, %v", data, std, err)
		}
	})
}
