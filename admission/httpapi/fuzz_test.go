package httpapi

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http/httptest"
	"testing"
	"unicode/utf8"

	"tollgate/admission/answer"
)

// fuzzBody holds the scanner against encoding/json: what the scanner takes,
// encoding/json must take and read as the same; and nothing may crash it.
func fuzzBody(f *testing.F, fresh func() object) {
	seeds := []string{
		reserveJSON, settleJSON, `{}`, `{"reason":"\ud83d\ude00\u0041\\\/"}`,
		`{"readings":[{"id":"m1","kind":"gpu","tenant_id":"acme","from":"2026-03-04T05:00:00Z","to":"2026-03-04T05:06:00+13:45","gpu_ms":5,"final":false}]}`,
	}
	for _, cases := range [][]bodyCase{badJSON, badFields, badCounts} {
		for _, c := range cases {
			if len(c.body) < 1000 {
				seeds = append(seeds, c.body)
			}
		}
	}
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	var s scanner // reused, as calls are
	f.Fuzz(func(t *testing.T, body []byte) {
		ours := fresh()
		if bad := s.decode(body, ours); bad != nil {
			if bad.status != 400 && bad.status != 422 || bad.detail == "" || bad.reason == "" || !utf8.ValidString(bad.field) {
				t.Fatalf("refused without a word: %+v", bad)
			}
			return
		}
		theirs := fresh()
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.DisallowUnknownFields()
		if err := dec.Decode(theirs); err != nil {
			t.Fatalf("taken, but encoding/json says %v", err)
		}
		if _, err := dec.Token(); err != io.EOF {
			t.Fatalf("taken with something behind it: %v", err)
		}
		a, _ := json.Marshal(ours)
		b, _ := json.Marshal(theirs)
		if !bytes.Equal(a, b) {
			t.Fatalf("read as\n%s\nand by encoding/json as\n%s", a, b)
		}
	})
}

func FuzzReserveBody(f *testing.F) { fuzzBody(f, func() object { return new(ReserveBody) }) }
func FuzzUsageBody(f *testing.F)   { fuzzBody(f, func() object { return new(UsageBody) }) }
func FuzzSettleBody(f *testing.F)  { fuzzBody(f, func() object { return new(SettleBody) }) }
func FuzzCancelBody(f *testing.F)  { fuzzBody(f, func() object { return new(CancelBody) }) }
func FuzzMetersBody(f *testing.F)  { fuzzBody(f, func() object { return &normalMeters{} }) }

// normalMeters marshals times in UTC, as the scanner keeps them.
type normalMeters struct{ MetersBody }

func (m *normalMeters) MarshalJSON() ([]byte, error) {
	for i := range m.Readings {
		m.Readings[i].From, m.Readings[i].To = m.Readings[i].From.UTC(), m.Readings[i].To.UTC()
	}
	return json.Marshal(m.MetersBody)
}

// FuzzPath: any path is answered, and never by a crash or a redirect.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/", "/v1/reservations", "/v1/reservations/rsv_1/settle", "/v1/requests/a/b/cancel", "/v1/requests/cancel", "/v1/requests//cancel", "/v1/quota/usage", "/healthz/", "//v1/reservations", "/v1/../healthz"} {
		f.Add(s)
	}
	fx := newFixture(f)
	f.Fuzz(func(t *testing.T, path string) {
		r := httptest.NewRequest("POST", "/", bytes.NewReader([]byte(settleJSON)))
		r.URL.Path, r.RequestURI = path, path
		r.Header.Set("Authorization", "Bearer "+keyAcme)
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		fx.ServeHTTP(w, r)
		if w.Code < 200 || w.Code >= 300 && w.Code < 400 || w.Code >= 500 {
			t.Fatalf("%q: %d %s", path, w.Code, w.Body)
		}
	})
}

// FuzzStrings: the two string encoders write what their readers read back.
func FuzzStrings(f *testing.F) {
	f.Add("plain")
	f.Add("quote\" back\\slash \x00\x1f\x7f é \u2028 \xff \U0001f600")
	f.Fuzz(func(t *testing.T, s string) {
		var back string
		encoded := appendString(nil, s)
		if err := json.Unmarshal(encoded, &back); err != nil {
			t.Fatalf("%s: %v", encoded, err)
		}
		if want := string([]rune(s)); back != want {
			t.Fatalf("%q came back as %q", want, back)
		}
		for _, b := range answer.AppendSFString(nil, s) {
			if b < ' ' || b > '~' {
				t.Fatalf("byte %#x in a header", b)
			}
		}
	})
}
