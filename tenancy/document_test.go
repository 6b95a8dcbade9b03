package tenancy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseQuotaRefuses(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{``, "is not JSON: it ends too early"},
		{`{`, "is not JSON: it ends too early"},
		{"{\n\"limits\": [\n{,}]}", "is not JSON: line 3"},
		{`null`, "is not a JSON object"},
		{`[]`, "is not a JSON object"},
		{`{}`, "limits: is missing"},
		{`{"limits": null}`, "limits: is missing"},
		{`{"limits": []} {}`, "has something after its end"},
		{`{"limit": []}`, `limit: is not a field; did you mean "limits"?`},
		{`{"Limits": []}`, `Limits: is not a field; did you mean "limits"?`},
		{`{"limits": [], "limits": []}`, "limits: is there twice"},
		{`{"limits": [{"widnow": "60s"}]}`, `limits[0].widnow: is not a field; did you mean "window"?`},
		{`{"limits": [{"limit": 1, "limit": 100}]}`, "limits[0].limit: is there twice"},
		{`{"limits": [{"limit": 1.5}]}`, "limits.limit: must be a whole number, is a number 1.5"},
		{`{"limits": [{"limit": "5"}]}`, "limits.limit: must be a whole number, is a string"},
		{`{"limits": [{"limit": 1e30}]}`, "limits.limit: must be a whole number, is a number 1e30"},
		{`{"limits": [{"window": "60"}]}`, `"60" is not a duration`},
		{`{"limits": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "is not JSON: nested more than 16 deep"},
		{`{"limits": [], "version": "` + strings.Repeat("x", MaxDocumentBytes) + `"}`, "has 262173 bytes, at most"},
	} {
		_, err := ParseQuota([]byte(test.text))
		wantMistake(t, err, test.want)
	}
}

func TestParseQuotaTakesNoLimits(t *testing.T) {
	quota, err := ParseQuota([]byte(`{"limits": [], "hold_ttl": "2m"}`))
	if err != nil || quota.HoldTTL != Duration(2*time.Minute) {
		t.Fatalf("got %+v, %v", quota, err)
	}
}

func TestDuration(t *testing.T) {
	for _, test := range []struct {
		text, back string
		want       time.Duration
	}{
		{"60s", "60s", time.Minute},
		{"1m", "60s", time.Minute},
		{"90m", "5400s", 90 * time.Minute},
		{"720h", "30d", 720 * time.Hour},
		{"30d", "30d", 720 * time.Hour},
		{"1d12h", "36h", 36 * time.Hour},
		{"250ms", "250ms", 250 * time.Millisecond},
		{"0s", "0s", 0},
	} {
		got, err := ParseDuration(test.text)
		if err != nil || got != Duration(test.want) || got.String() != test.back {
			t.Errorf("%q gives %s, %v; want %s", test.text, got, err, test.back)
		}
	}
	for _, bad := range []string{"", "60", "-1s", "+1s", "1d-1s", "d", "-1d", "1.5d", "1w", "99999999999d", "200000d", "106751d1000000h", " 1s", "1s ", "1D", strings.Repeat("1", 40) + "s"} {
		if got, err := ParseDuration(bad); err == nil {
			t.Errorf("%q gives %s, want an error", bad, got)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, seed := range []string{"60s", "30d", "1d12h", "1h30m", "-1s", "9999999d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDuration(text)
		if err != nil {
			return
		}
		if d < 0 {
			t.Fatalf("%q gives the negative %s", text, d)
		}
		if back, err := ParseDuration(d.String()); err != nil || back != d {
			t.Fatalf("%q is written as %q, which reads as %s, %v", text, d, back, err)
		}
	})
}

func FuzzParseQuota(f *testing.F) {
	text, err := json.Marshal(DefaultQuota())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"limits":[{"name":"a","layer":"L3","kind":"lease","scope":"endpoint","match":"*","limit":3}]}`))
	f.Add([]byte(`{"limits":[],"limits":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		quota, err := ParseQuota(data)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		again, err := json.Marshal(quota)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseQuota(again); err != nil {
			t.Fatalf("what was accepted is refused when written again: %v\n%s", err, again)
		}
	})
}

func TestClosest(t *testing.T) {
	names := []string{"addresses", "password", "prefix", "shards"}
	for name, want := range map[string]string{
		"adresses": "addresses", "Prefix": "prefix", "shard": "shards", "pasword": "password",
		"zzz": "", "": "", strings.Repeat("a", 100): "",
	} {
		if got := Closest(name, names); got != want {
			t.Errorf("Closest(%q) = %q, want %q", name, got, want)
		}
	}
}
