package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// answerIn reads a reservation answer strictly.
func answerIn(t *testing.T, w *httptest.ResponseRecorder) ReservationAnswer {
	t.Helper()
	var a ReservationAnswer
	dec := json.NewDecoder(strings.NewReader(w.Body.String()))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		t.Fatalf("%d: %v\n%s", w.Code, err, w.Body)
	}
	return a
}

func TestReserveAnswer(t *testing.T) {
	f := newFixture(t)
	w := f.ask("POST", "/v1/reservations", keyAcme,
		`{"request_id":"r1","endpoint":"chat","model":"small","input_tokens":1000,"max_output_tokens":501,"images":2,"gpu_ms":70,"ttl_ms":90000}`)
	got := answerIn(t, w)
	maxOutput, created, expires := int64(501), testNow, testNow.Add(90*time.Second)
	want := ReservationAnswer{
		ReservationID: got.ReservationID, RequestID: "r1", State: "held",
		// (1000 + 501 + 2 images × 10 × 30) tokens at half weight
		AdmittedUnits: 2101 * 500, AdmittedTokens: 1051, MaxOutputTokens: &maxOutput,
		CreatedAt: &created, ExpiresAt: &expires, Limits: got.Limits,
	}
	if diff := cmp.Diff(want, got); diff != "" || w.Code != http.StatusCreated {
		t.Errorf("%d (-want +got):\n%s", w.Code, diff)
	}
	var names []string
	for _, l := range got.Limits {
		names = append(names, l.Name)
	}
	// Limits over all tenants are in the request and not in the answer.
	if diff := cmp.Diff([]string{"key-tokens", "tokens-60s", "tokens-30d", "requests", "concurrency"}, names); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if n := len(f.store.lastReserve.Limits); n != 7 {
		t.Errorf("%d limits given to the store, want 7", n)
	}
	if l := got.Limits[0]; l != (LimitLeft{"key-tokens", "L1", 500_000, 0, 1, 499_999, 60_000}) {
		t.Errorf("first limit %+v", l)
	}
	h := w.Header()
	if h.Get("Location") != "/v1/reservations/"+got.ReservationID || h.Get("Idempotent-Replayed") != "" {
		t.Errorf("headers %v", h)
	}
	wantPolicy := `"key-tokens";q=500000;w=60, "tokens-60s";q=1000000;w=60, "tokens-30d";q=1000000000;w=2592000, "requests";q=100;w=1, "concurrency";q=100`
	wantLeft := `"key-tokens";r=499999;t=60, "tokens-60s";r=999999;t=60, "tokens-30d";r=999999999;t=2592000, "requests";r=99;t=1, "concurrency";r=99`
	if h.Get("RateLimit-Policy") != wantPolicy || h.Get("RateLimit") != wantLeft {
		t.Errorf("RateLimit-Policy %s\nRateLimit %s", h.Get("RateLimit-Policy"), h.Get("RateLimit"))
	}
	req := f.store.lastReserve
	if req.TTL != 90*time.Second || req.MaxHold != time.Hour || req.WeightMilli != 500 || req.ImageTokens != 300 || req.Author != "client" ||
		req.Hold != (events.Usage{InputTokens: 1000, OutputTokens: 501, Images: 2, GPUMillis: 70}) {
		t.Errorf("request to the store %+v", req)
	}
}

// TestCaseA10_NoMaxTokens: the field is never demanded; the granted cap is
// answered, and no output at all is something else.
func TestCaseA10_NoMaxTokens(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		id, field string
		want      int64
	}{
		{"without", "", 4096}, {"none", `,"max_output_tokens":0`, 0}, {"some", `,"max_output_tokens":7`, 7},
	} {
		body := `{"request_id":"` + c.id + `","endpoint":"chat","model":"small","input_tokens":1` + c.field + `}`
		for _, status := range []int{201, 200} { // and the replay says the same
			w := f.ask("POST", "/v1/reservations", keyAcme, body)
			a := answerIn(t, w)
			if w.Code != status || a.MaxOutputTokens == nil || *a.MaxOutputTokens != c.want {
				t.Errorf("%s: %d, cap %v; want %d, %d", c.id, w.Code, a.MaxOutputTokens, status, c.want)
			}
		}
	}
	// A default that changed between the two does not change the answer.
	changed := *f.directory.platform
	changed.DefaultMaxOutputTokens = 99
	f.directory.platform = &changed
	w := f.ask("POST", "/v1/reservations", keyAcme, `{"request_id":"without","endpoint":"chat","model":"small","input_tokens":1}`)
	if a := answerIn(t, w); w.Code != 200 || *a.MaxOutputTokens != 4096 {
		t.Errorf("replay after a change of the default: %d, cap %d; want 200, 4096", w.Code, *a.MaxOutputTokens)
	}
}

func TestHoldTTL(t *testing.T) {
	platform := &tenancy.Platform{HoldTTL: tenancy.Duration(2 * time.Minute), MaxHold: tenancy.Duration(time.Hour)}
	tenant, own := &tenancy.Tenant{}, &tenancy.Tenant{Quota: tenancy.Quota{HoldTTL: tenancy.Duration(time.Minute)}}
	for _, c := range []struct {
		wish   int64
		tenant *tenancy.Tenant
		want   time.Duration
	}{
		{0, tenant, 2 * time.Minute}, {0, own, time.Minute}, {1500, own, 1500 * time.Millisecond}, {86_400_000, tenant, time.Hour},
	} {
		if got := admission.HoldTTL(time.Duration(c.wish)*time.Millisecond, c.tenant, platform); got != c.want {
			t.Errorf("wish of %d ms: %v, want %v", c.wish, got, c.want)
		}
	}
}

// TestCaseA14_SameRequestIDAgain: the same body is the same reservation,
// another body is 422, one that is being decided is 409.
func TestCaseA14_SameRequestIDAgain(t *testing.T) {
	f := newFixture(t)
	first := f.ask("POST", "/v1/reservations", keyAcme, reserveJSON)
	again := f.ask("POST", "/v1/reservations", keyAcme, ` {"max_output_tokens":50, "input_tokens":100,"model":"small","endpoint":"chat","request_id":"r1"}`)
	if first.Code != 201 || again.Code != 200 || first.Body.String() != again.Body.String() {
		t.Errorf("%d %s\n%d %s", first.Code, first.Body, again.Code, again.Body)
	}
	if got := again.Header()["Idempotent-Replayed"]; len(got) != 1 || got[0] != "true" {
		t.Errorf("Idempotent-Replayed %v", got)
	}
	for _, other := range []string{`"input_tokens":101`, `"input_tokens":100,"images":1`, `"input_tokens":100,"gpu_ms":1`} {
		w := f.ask("POST", "/v1/reservations", keyAcme, strings.Replace(reserveJSON, `"input_tokens":100`, other, 1))
		if p := problemIn(t, w.Body.Bytes()); w.Code != 422 || p.Reason != "request_id_reused" || p.Field != "request_id" || p.RequestID != "r1" {
			t.Errorf("%s: %d %+v", other, w.Code, p)
		}
	}
	if w := f.ask("POST", "/v1/reservations", keyOther, reserveJSON); w.Code != 201 {
		t.Errorf("the same id of another tenant: %d %s", w.Code, w.Body)
	}
	f.store.failWith(admission.ErrInFlight)
	w := f.ask("POST", "/v1/reservations", keyAcme, strings.Replace(reserveJSON, `"r1"`, `"r2"`, 1))
	if w.Code != 409 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("being decided: %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
	f.store.failWith(&admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant), Reason: admission.ReasonWindow})
	if w := f.ask("POST", "/v1/reservations", keyAcme, strings.Replace(reserveJSON, `"r1"`, `"r3"`, 1)); w.Code != 429 {
		t.Errorf("refused: %d", w.Code)
	}
	f.store.failWith(nil)
	if w := f.ask("POST", "/v1/reservations", keyAcme, strings.Replace(reserveJSON, `"r1"`, `"r3"`, 1)); w.Code != 201 {
		t.Errorf("a refused id tried again: %d %s", w.Code, w.Body)
	}
}

// TestCaseA12_CancelBeforeReserve at the door: by request id, with and without
// figures, and the late reserve is refused for good.
func TestCaseA12_CancelBeforeReserve(t *testing.T) {
	f := newFixture(t)
	w := f.ask("POST", "/v1/requests/r1/cancel", keyAcme, `{"reason":"client left"}`)
	if a := answerIn(t, w); w.Code != 200 || a.State != "cancelled" || a.RequestID != "r1" {
		t.Fatalf("%d %+v", w.Code, a)
	}
	w = f.ask("POST", "/v1/reservations", keyAcme, reserveJSON)
	if p := problemIn(t, w.Body.Bytes()); w.Code != 409 || p.Reason != "cancelled_before_reserve" || w.Header().Get("X-Should-Retry") != "false" {
		t.Errorf("late reserve: %d %+v", w.Code, p)
	}
}

// TestCaseM5_SettleTwice: the same figures are a no-op, others are
// already_settled with the figures that stand.
func TestCaseM5_SettleTwice(t *testing.T) {
	f := newFixture(t)
	path := f.reserved(t)
	first := f.ask("POST", path+"/settle", keyAcme, settleJSON)
	again := f.ask("POST", path+"/settle", keyAcme, settleJSON)
	if first.Code != 200 || again.Code != 200 || first.Body.String() != again.Body.String() {
		t.Errorf("%d %s\n%d %s", first.Code, first.Body, again.Code, again.Body)
	}
	if first.Header().Get("Idempotent-Replayed") != "" || again.Header().Get("Idempotent-Replayed") != "true" {
		t.Error("the replay alone says that it is one")
	}
	for _, verb := range []string{"/settle", "/cancel"} {
		w := f.ask("POST", path+verb, keyAcme, `{"input_tokens":100,"output_tokens":21}`)
		p := problemIn(t, w.Body.Bytes())
		if w.Code != 409 || p.Reason != "already_settled" || p.Reservation == nil || p.RequestID == "" {
			t.Fatalf("%s: %d %+v", verb, w.Code, p)
		}
		if u := p.Reservation.Used; u.InputTokens != 100 || u.OutputTokens != 20 || p.Reservation.State != "settled" || p.Reservation.UsedTokens != 120 {
			t.Errorf("%s: the figures that stand are %+v", verb, p.Reservation)
		}
	}
	if a := answerIn(t, f.ask("GET", path, keyAcme, "")); a.Used.OutputTokens != 20 {
		t.Errorf("after all that: %+v", a)
	}
}

func TestReportCancelAndRead(t *testing.T) {
	f := newFixture(t)
	path := f.reserved(t)
	w := f.ask("POST", path+"/usage", keyAcme,
		`{"input_tokens":9,"output_tokens":8,"cached_input_tokens":7,"reasoning_tokens":6,"tool_calls":5,"images":4,"audio_ms":3,"gpu_ms":2,"estimated":true,"ttl_ms":5000}`)
	a := answerIn(t, w)
	want := UsageAnswer{9, 8, 7, 6, 5, 4, 3, 2}
	if w.Code != 200 || a.Used != want || a.Stop != nil || !a.ExpiresAt.Equal(testNow.Add(5*time.Second)) || a.MaxOutputTokens != nil {
		t.Errorf("%d %+v", w.Code, a)
	}
	rep := f.store.lastReport
	if !rep.Estimated || rep.TTL != 5*time.Second || rep.Author != "client" || rep.Tenant.ID != "acme" || "/v1/reservations/"+rep.ReservationID != path {
		t.Errorf("report to the store %+v", rep)
	}

	f.store.stop = &admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant), Reason: admission.ReasonWindow, Used: 90, Held: 10, Requested: 20}
	a = answerIn(t, f.ask("POST", path+"/usage", keyAcme, settleJSON))
	if a.Stop == nil || a.Stop.Reason != "window_exhausted" || a.Stop.Name != "the-limit" || *a.Stop.Reserved != 10 || *a.Stop.Requested != 20 {
		t.Errorf("stop %+v", a.Stop)
	}
	f.store.stop = &admission.Refusal{Reason: admission.ReasonExpired}
	a = answerIn(t, f.ask("POST", path+"/usage", keyAcme, settleJSON))
	if a.Stop == nil || a.Stop.Reason != "hold_expired" || a.Stop.Name != "" || a.Stop.Limit != nil {
		t.Errorf("stop without a limit %+v", a.Stop)
	}

	// Without figures, what was reported stands.
	a = answerIn(t, f.ask("POST", path+"/cancel", keyAcme, `{"estimated":true,"reason":"süß"}`))
	if a.State != "cancelled" || a.Used.OutputTokens != 20 || !f.store.lastReport.SoFar || f.store.lastReport.Reason != "süß" || !f.store.lastReport.Estimated {
		t.Errorf("cancel %+v, %+v", a, f.store.lastReport)
	}
	a = answerIn(t, f.ask("GET", path, keyAcme, ""))
	if a.State != "cancelled" || a.Used.OutputTokens != 20 {
		t.Errorf("read %+v", a)
	}
}

// TestCaseM3_CancelWithZero: zero figures are figures.
func TestCaseM3_CancelWithZero(t *testing.T) {
	f := newFixture(t)
	path := f.reserved(t)
	a := answerIn(t, f.ask("POST", path+"/cancel", keyAcme, `{"input_tokens":0,"output_tokens":0}`))
	if f.store.lastReport.SoFar || a.State != "cancelled" || a.UsedUnits != 0 {
		t.Errorf("%+v, so far: %v", a, f.store.lastReport.SoFar)
	}
}

func TestQuotaUsage(t *testing.T) {
	f := newFixture(t)
	acme := f.directory.tenants["acme"]
	acme.Quota.Limits = append(acme.Quota.Limits,
		tenancy.Limit{Name: "chat", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeEndpoint, Match: "chat", Limit: 10},
		tenancy.Limit{Name: "each-endpoint", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeEndpoint, Match: "*", Limit: 20},
		tenancy.Limit{Name: "each-model", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeModel, Match: "*", Limit: 30},
		tenancy.Limit{Name: "tiny", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeModel, Match: "tiny", Limit: 40},
	)
	ask := func(key, query string) (QuotaUsage, []string) {
		t.Helper()
		w := f.ask("GET", "/v1/quota/usage"+query, key, "")
		var q QuotaUsage
		dec := json.NewDecoder(w.Body)
		dec.DisallowUnknownFields()
		if err := dec.Decode(&q); err != nil || w.Code != 200 {
			t.Fatalf("%s: %d %v", query, w.Code, err)
		}
		var names []string
		for _, l := range q.Limits {
			names = append(names, l.Name)
		}
		return q, names
	}
	own := []string{"key-tokens", "tokens-60s", "tokens-30d", "requests", "concurrency", "chat", "tiny"}
	for query, want := range map[string][]string{
		"":                             own,
		"?tenant_id=acme":              own,
		"?endpoint=chat&model=tiny":    {"key-tokens", "chat", "each-endpoint", "each-model", "tiny", "tokens-60s", "tokens-30d", "requests", "concurrency"},
		"?endpoint=embed&model=medium": {"key-tokens", "each-endpoint", "each-model", "tokens-60s", "tokens-30d", "requests", "concurrency", "chat", "tiny"},
	} {
		if _, names := ask(keyAcme, query); cmp.Diff(sorted(want), sorted(names)) != "" {
			t.Errorf("%s (-want +got):\n%s", query, cmp.Diff(sorted(want), sorted(names)))
		}
	}
	q, names := ask(keyOperator, "?tenant_id=acme")
	want := []string{"tokens-60s", "tokens-30d", "requests", "concurrency", "chat", "tiny", "global-concurrency"}
	if diff := cmp.Diff(sorted(want), sorted(names)); diff != "" || q.TenantID != "acme" || q.QuotaVersion != 7 {
		t.Errorf("as an operator, %s version %d (-want +got):\n%s", q.TenantID, q.QuotaVersion, diff)
	}

	tokens60, lease := limit("L1", tenancy.KindRing, tenancy.ScopeTenant, budget), limit("L3", tenancy.KindLease, tenancy.ScopeTenant, func(l *tenancy.Limit) { l.BurstPercent = 120 })
	tokens60.Units = 100_000
	f.store.standing = &admission.Standing{
		At: testNow,
		Left: []admission.Left{
			{Constraint: tokens60, Used: 58, Held: 9, Remaining: 33, Reset: 12_345 * time.Millisecond},
			{Constraint: lease, Held: 7, Remaining: 113},
		},
		LastRefusals: map[string]admission.LastRefusal{"the-limit": {At: testNow.Add(-time.Minute), Reason: admission.ReasonHeld}},
	}
	q, _ = ask(keyAcme, "")
	reset := testNow.Add(12_345 * time.Millisecond)
	refused := &Refused{At: testNow.Add(-time.Minute), Reason: "held_by_others"}
	wantLines := []LimitUsage{
		{Name: "the-limit", Layer: "L1", Kind: "ring", Scope: "tenant", Unit: "tokens", Window: "1m0s", Budget: true, Limit: 100, Used: 58, Held: 9, Left: 33, Percent: 33, LimitUnits: 100_000, ResetAt: &reset, LastRefusal: refused},
		{Name: "the-limit", Layer: "L3", Kind: "lease", Scope: "tenant", Unit: "reservations", Limit: 120, Held: 7, Left: 113, Percent: 94, LastRefusal: refused},
	}
	if diff := cmp.Diff(wantLines, q.Limits); diff != "" || !q.At.Equal(testNow) {
		t.Errorf("at %v (-want +got):\n%s", q.At, diff)
	}
}

// TestQuotaOfAnotherTenantIsForbidden, also of one that does not exist: a key
// cannot find out which there are. Operators may ask.
func TestQuotaOfAnotherTenantIsForbidden(t *testing.T) {
	f := newFixture(t)
	for _, other := range []string{"other", "nobody", "ACME", "acme%00"} {
		w := f.ask("GET", "/v1/quota/usage?tenant_id="+other, keyAcme, "")
		p := problemIn(t, w.Body.Bytes())
		if w.Code != 403 || p.Reason != "other_tenant" || w.Header().Get("Retry-After") != "" || p.Type != "about:blank" {
			t.Errorf("%s: %d %+v", other, w.Code, p)
		}
	}
	if f.store.asked != nil {
		t.Error("the store was asked")
	}
	if w := f.ask("GET", "/v1/quota/usage?tenant_id=other", keyOperator, ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"tenant_id":"other"`) {
		t.Errorf("operator: %d %s", w.Code, w.Body)
	}
}

func TestMeters(t *testing.T) {
	f := newFixture(t)
	const batch = `{"readings":[
		{"id":"m1","kind":"model","tenant_id":"acme","reservation_id":"rsv_1","request_id":"r1","pool":"a100","model":"small","from":"2026-03-04T05:00:00Z","to":"2026-03-04T06:05:07.123456+01:00","input_tokens":13,"output_tokens":33,"final":true},
		{"id":"m2","kind":"gpu","tenant_id":"other","from":"2026-03-04T05:00:00Z","to":"2026-03-04T05:01:00Z","gpu_ms":60000}]}`
	w := f.ask("POST", "/v1/meters", keyMeter, batch)
	if w.Code != 202 || w.Body.String() != `{"accepted":2}` {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	want := []events.Event{
		{
			ID: "tgk_metermetermeter0:m1", Source: "tollgate/meters/tgk_metermetermeter0", Type: events.TypeModelMeter, Subject: "acme",
			Time: time.Date(2026, 3, 4, 5, 5, 7, 123e6, time.UTC),
			Data: []byte(`{"tenant_id":"acme","reservation_id":"rsv_1","request_id":"r1","pool":"a100","model":"small","from":"2026-03-04T05:00:00.000Z","to":"2026-03-04T05:05:07.123Z","input_tokens":13,"output_tokens":33,"final":true}`),
		},
		{
			ID: "tgk_metermetermeter0:m2", Source: "tollgate/meters/tgk_metermetermeter0", Type: events.TypeGPUMeter, Subject: "other",
			Time: time.Date(2026, 3, 4, 5, 1, 0, 0, time.UTC),
			Data: []byte(`{"tenant_id":"other","from":"2026-03-04T05:00:00.000Z","to":"2026-03-04T05:01:00.000Z","gpu_ms":60000}`),
		},
	}
	if diff := cmp.Diff(want, f.sink.got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	for i := range f.sink.got {
		if _, err := f.sink.got[i].Meter(); err != nil {
			t.Errorf("the log would not take it: %v", err)
		}
	}
	// The same batch again makes the same events.
	f.ask("POST", "/v1/meters", keyMeter, batch)
	if diff := cmp.Diff(f.sink.got[:2], f.sink.got[2:]); diff != "" {
		t.Errorf("sent again (-first +second):\n%s", diff)
	}

	// No acknowledgement, no 202.
	f.sink.err = &events.PublishError{Failed: map[int]error{1: admission.ErrUnavailable}}
	w = f.ask("POST", "/v1/meters", keyMeter, batch)
	if p := problemIn(t, w.Body.Bytes()); w.Code != 503 || p.Reason != "log_unavailable" || w.Header().Get("Retry-After") != "5" {
		t.Errorf("log away: %d %+v", w.Code, p)
	}
	f.sink.err = &events.PublishError{Failed: map[int]error{1: events.ErrRefused}}
	if w = f.ask("POST", "/v1/meters", keyMeter, batch); w.Code != 422 {
		t.Errorf("log refuses: %d %s", w.Code, w.Body)
	}
	none := newFixture(t, func(o *Options) { o.Meters = nil })
	if w = none.ask("POST", "/v1/meters", keyMeter, batch); w.Code != 503 {
		t.Errorf("no sink: %d %s", w.Code, w.Body)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	f := newFixture(t)
	if w := f.ask("GET", "/healthz", "", ""); w.Code != 200 || w.Body.String() != `{"status":"ok"}` {
		t.Errorf("health: %d %s", w.Code, w.Body)
	}
	if w := f.ask("GET", "/readyz", "", ""); w.Code != 200 || w.Body.String() != `{"status":"ready"}` {
		t.Errorf("ready: %d %s", w.Code, w.Body)
	}
	f.store.ready = admission.ErrNotRebuilt
	if w := f.ask("GET", "/readyz", "", ""); w.Code != 503 || problemIn(t, w.Body.Bytes()).Reason != "state_not_rebuilt" {
		t.Errorf("not rebuilt: %d %s", w.Code, w.Body)
	}
	f.store.ready = nil
	f.directory.platform = nil
	for _, r := range []struct{ method, path, key string }{{"GET", "/readyz", ""}, {"POST", "/v1/reservations", keyAcme}, {"GET", "/v1/quota/usage", keyAcme}} {
		if w := f.ask(r.method, r.path, r.key, reserveJSON); w.Code != 503 || problemIn(t, w.Body.Bytes()).Reason != "directory_not_loaded" {
			t.Errorf("%s without a directory: %d %s", r.path, w.Code, w.Body)
		}
	}
	if w := f.ask("GET", "/healthz", "", ""); w.Code != 200 {
		t.Errorf("health without a directory: %d", w.Code)
	}
}

// TestSuspendedTenantEndsWhatItHas: work that was admitted is delivered, and
// billed, whatever is decided about its tenant meanwhile.
func TestSuspendedTenantEndsWhatItHas(t *testing.T) {
	for _, last := range []struct{ path, body, state string }{
		{"/settle", settleJSON, "settled"},
		{"/cancel", `{"input_tokens":1,"output_tokens":1}`, "cancelled"},
		{"by request", `{"input_tokens":1,"output_tokens":1}`, "cancelled"},
	} {
		f := newFixture(t)
		path := f.reserved(t)
		if w := f.ask("POST", "/v1/reservations", keySuspend, strings.Replace(reserveJSON, "r1", "r2", 1)); w.Code != 403 || !strings.Contains(w.Body.String(), "tenant_suspended") {
			t.Errorf("a new reserve: %d %s", w.Code, w.Body)
		}
		if w := f.ask("GET", path, keySuspend, ""); w.Code != 200 {
			t.Errorf("a read: %d %s", w.Code, w.Body)
		}
		if w := f.ask("POST", path+"/usage", keySuspend, `{"input_tokens":1,"output_tokens":1}`); w.Code != 200 {
			t.Errorf("a report: %d %s", w.Code, w.Body)
		}
		end := path + last.path
		if last.path == "by request" {
			end = "/v1/requests/r1/cancel"
		}
		w := f.ask("POST", end, keySuspend, last.body)
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"`+last.state+`"`) {
			t.Errorf("%s: %d %s", last.path, w.Code, w.Body)
		}
		for _, other := range []string{"/v1/quota/usage", "/v1/meters"} {
			method := map[bool]string{true: "POST", false: "GET"}[other == "/v1/meters"]
			if w := f.ask(method, other, keySuspend, `{}`); w.Code != 403 {
				t.Errorf("%s: %d %s", other, w.Code, w.Body)
			}
		}
	}
}

// TestReadingsOfAReservationAreBounded: an interval may sum what no reservation
// can have.
func TestReadingsOfAReservationAreBounded(t *testing.T) {
	f := newFixture(t)
	const id = "res_0123456789abcdef0123456789abcdef_1"
	reading := func(kind, with string) string {
		return `{"readings":[{"id":"m1","kind":"` + kind + `","tenant_id":"acme","from":"2026-03-04T05:00:00Z","to":"2026-03-04T05:06:00Z",` + with + `}]}`
	}
	for field, kind := range map[string]string{"input_tokens": "model", "output_tokens": "model", "gpu_ms": "gpu"} {
		for _, c := range []struct {
			with   string
			status int
		}{
			{`"reservation_id":"` + id + `","` + field + `":2147483647`, 202},
			{`"reservation_id":"` + id + `","` + field + `":2147483648`, 422},
			{`"` + field + `":1099511627776`, 202},
			{`"` + field + `":1099511627777`, 422},
		} {
			if w := f.ask("POST", "/v1/meters", keyMeter, reading(kind, c.with)); w.Code != c.status {
				t.Errorf("%s: %d %s, want %d", c.with, w.Code, w.Body, c.status)
			}
		}
	}
}
