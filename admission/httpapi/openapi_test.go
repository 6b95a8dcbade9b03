package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/tenancy"
)

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

var openAPIFile = filepath.Join("..", "..", "docs", "openapi.json")

func TestOpenAPIFileIsCurrent(t *testing.T) {
	want, err := OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(openAPIFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(openAPIFile)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s is not what the code says (%v); run go generate ./admission/httpapi", openAPIFile, err)
	}
}

// apiDocument is as much of the document as the tests look at.
type apiDocument struct {
	OpenAPI string `json:"openapi"`
	Paths   map[string]map[string]struct {
		RequestBody *struct {
			Content map[string]struct {
				Schema struct {
					Ref string `json:"$ref"`
				} `json:"schema"`
			} `json:"content"`
		} `json:"requestBody"`
		Responses map[string]struct {
			Content map[string]struct {
				Schema struct {
					Ref string `json:"$ref"`
				} `json:"schema"`
			} `json:"content"`
		} `json:"responses"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]struct {
			Properties map[string]struct {
				Type      any    `json:"type"`
				Format    string `json:"format"`
				Minimum   *int64 `json:"minimum"`
				Maximum   *int64 `json:"maximum"`
				MinLength *int64 `json:"minLength"`
				MaxLength *int64 `json:"maxLength"`
				MinItems  *int64 `json:"minItems"`
				MaxItems  *int64 `json:"maxItems"`
				Pattern   string `json:"pattern"`
			} `json:"properties"`
			Required             []string `json:"required"`
			AdditionalProperties any      `json:"additionalProperties"`
		} `json:"schemas"`
	} `json:"components"`
}

func readDocument(t *testing.T) (apiDocument, []byte) {
	t.Helper()
	w := newFixture(t).ask("GET", "/openapi.json", "", "")
	raw := slices.Clone(w.Body.Bytes())
	var doc apiDocument
	if err := json.Unmarshal(raw, &doc); err != nil || w.Code != 200 {
		t.Fatalf("%d %v", w.Code, err)
	}
	return doc, raw
}

// TestHandlersAcceptWhatIsDocumented: every body's fields, which of them are
// required, and their bounds are the same in the schema, in the rules, and in
// the struct that slot fills.
func TestHandlersAcceptWhatIsDocumented(t *testing.T) {
	doc, _ := readDocument(t)
	if maxCount >= admission.MaxUnits || maxInterval >= admission.MaxUnits {
		t.Errorf("a body may carry %d and %d, more than can be counted", int64(maxCount), int64(maxInterval))
	}
	largest := func(body object, field string) int64 {
		switch _, reading := body.(*Reading); {
		case reading:
			return maxInterval
		case field == "images":
			return 1_000_000
		case field == "ttl_ms":
			return 86_400_000
		}
		return maxCount
	}
	for name, body := range map[string]object{
		"ReserveBody": new(ReserveBody), "UsageBody": new(UsageBody), "SettleBody": new(SettleBody),
		"CancelBody": new(CancelBody), "MetersBody": new(MetersBody), "Reading": new(Reading),
	} {
		schema, ok := doc.Components.Schemas[name]
		if !ok || schema.AdditionalProperties != false {
			t.Errorf("%s: in the document: %v, additional properties %v", name, ok, schema.AdditionalProperties)
		}
		rules := body.rules()
		var fields, required []string
		for i, f := range rules.fields {
			fields = append(fields, f.name)
			if rules.required&(1<<i) != 0 {
				required = append(required, f.name)
			}
			at, dst := body.slot([]byte(f.name))
			want := reflect.ValueOf(body).Elem().Field(i).Addr().Pointer()
			if at != i || reflect.ValueOf(dst).Pointer() != want {
				t.Errorf("%s.%s goes to slot %d, want %d, or to another field", name, f.name, at, i)
			}
			p := schema.Properties[f.name]
			same := func(what string, got *int64, rule int64) {
				if got == nil || *got != rule {
					t.Errorf("%s.%s: %s is enforced as %d and documented otherwise", name, f.name, what, rule)
				}
			}
			switch dst.(type) {
			case *int64:
				same("minimum", p.Minimum, f.min)
				same("maximum", p.Maximum, f.max)
				if p.Type != "integer" || p.Format != "int64" || f.max != largest(body, f.name) || f.min < 0 {
					t.Errorf("%s.%s: type %v %s, bounds %d to %d", name, f.name, p.Type, p.Format, f.min, f.max)
				}
			case *string:
				same("minLength", p.MinLength, f.min)
				same("maxLength", p.MaxLength, f.max)
				if p.Type != "string" || p.Pattern != f.pattern || f.pattern == "" {
					t.Errorf("%s.%s: type %v, pattern %q documented, %q enforced", name, f.name, p.Type, p.Pattern, f.pattern)
				}
				whole := regexp.MustCompile(p.Pattern)
				for b := range 0x80 {
					if whole.MatchString(string(rune(b))) != f.charset[b] {
						t.Errorf("%s.%s: byte %#x is admitted: %v, against the pattern", name, f.name, b, f.charset[b])
					}
				}
			case *bool:
				if p.Type != "boolean" {
					t.Errorf("%s.%s: type %v", name, f.name, p.Type)
				}
			case *time.Time:
				if p.Type != "string" || p.Format != "date-time" {
					t.Errorf("%s.%s: type %v %s", name, f.name, p.Type, p.Format)
				}
			case list:
				same("minItems", p.MinItems, f.min)
				same("maxItems", p.MaxItems, f.max)
			}
		}
		var documented []string
		for property := range schema.Properties {
			documented = append(documented, property)
		}
		if diff := cmp.Diff(sorted(documented), sorted(fields)); diff != "" {
			t.Errorf("%s: fields (-documented +enforced):\n%s", name, diff)
		}
		if diff := cmp.Diff(sorted(schema.Required), sorted(required)); diff != "" {
			t.Errorf("%s: required (-documented +enforced):\n%s", name, diff)
		}
		if at, dst := body.slot([]byte("no_such_field")); at != -1 || dst != nil {
			t.Errorf("%s takes a field that it does not have", name)
		}
	}
	for i := range 2 {
		if name := cancelRules.fields[i].name; name != []string{"input_tokens", "output_tokens"}[i] {
			t.Errorf("field %d of a cancel is %s", i, name)
		}
	}
	if reserveRules.fields[maxOutputField].name != "max_output_tokens" || cancelRules.fields[8].name != "estimated" {
		t.Error("maxOutputField or figureFields names other fields")
	}
}

// TestEveryRouteIsDocumented, with its one method, and nothing else is.
func TestEveryRouteIsDocumented(t *testing.T) {
	doc, _ := readDocument(t)
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("openapi %s", doc.OpenAPI)
	}
	var served, documented []string
	for r := routeReservations; r < routeCount; r++ {
		if r != routeOpenAPIJSON && r != routeOpenAPIYAML {
			served = append(served, strings.ToLower(routes[r].method)+" "+routes[r].path)
		}
	}
	for path, item := range doc.Paths {
		for method := range item {
			documented = append(documented, method+" "+path)
		}
	}
	if diff := cmp.Diff(sorted(served), sorted(documented)); diff != "" {
		t.Errorf("(-served +documented):\n%s", diff)
	}
	f := newFixture(t)
	if w := f.ask("GET", "/openapi.yaml", "", ""); w.Code != 200 || !strings.Contains(w.Body.String(), "openapi: 3.1.0") {
		t.Errorf("yaml: %d", w.Code)
	}
	if w := f.ask("HEAD", "/openapi.json", "", ""); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
}

// TestAnswersMatchTheirSchemas validates real answers of every route, good and
// bad, with the schema that the document gives for their status.
func TestAnswersMatchTheirSchemas(t *testing.T) {
	doc, raw := readDocument(t)
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	if err := compiler.AddResource("mem:///openapi.json", parsed); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t)
	path := f.reserved(t)
	check := func(route route, w *httptest.ResponseRecorder) {
		t.Helper()
		method := strings.ToLower(routes[route].method)
		response, ok := doc.Paths[routes[route].path][method].Responses[strconv.Itoa(w.Code)]
		content, typed := response.Content[w.Header().Get("Content-Type")]
		if !ok || !typed {
			t.Errorf("%s %s: status %d with %s is not documented", method, routes[route].path, w.Code, w.Header().Get("Content-Type"))
			return
		}
		schema, err := compiler.Compile("mem:///openapi.json" + content.Schema.Ref)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(w.Body.Bytes()))
		if err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s %s %d: %v\n%s", method, routes[route].path, w.Code, err, w.Body)
		}
	}
	const meters = `{"readings":[{"id":"m1","kind":"gpu","tenant_id":"acme","from":"2026-03-04T05:00:00Z","to":"2026-03-04T05:06:00Z","gpu_ms":5}]}`
	type ask struct {
		route             route
		method, path, key string
		body              string
	}
	asks := []ask{
		{routeReservations, "POST", "/v1/reservations", keyAcme, strings.Replace(reserveJSON, "r1", "r2", 1)},
		{routeReservations, "POST", "/v1/reservations", keyAcme, reserveJSON},
		{routeReservation, "GET", path, keyAcme, ""},
		{routeUsage, "POST", path + "/usage", keyAcme, settleJSON},
		{routeSettle, "POST", path + "/settle", keyAcme, settleJSON},
		{routeSettle, "POST", path + "/settle", keyAcme, `{"input_tokens":1,"output_tokens":1}`},
		{routeCancel, "POST", path + "/cancel", keyAcme, `{}`},
		{routeCancelRequest, "POST", "/v1/requests/r1/cancel", keyAcme, `{}`},
		{routeCancelRequest, "POST", "/v1/requests/r9/cancel", keyAcme, `{}`},
		{routeQuotaUsage, "GET", "/v1/quota/usage", keyAcme, ""},
		{routeQuotaUsage, "GET", "/v1/quota/usage?tenant_id=other", keyAcme, ""},
		{routeMeters, "POST", "/v1/meters", keyMeter, meters},
		{routeHealth, "GET", "/healthz", "", ""},
		{routeReady, "GET", "/readyz", "", ""},
	}
	f.store.stop = &admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant), Reason: admission.ReasonWindow}
	for _, a := range asks {
		check(a.route, f.ask(a.method, a.path, a.key, a.body))
		if a.key == "" {
			continue
		}
		check(a.route, f.ask(a.method, a.path, "", a.body))
		check(a.route, f.ask(a.method, a.path, keySuspend, a.body))
		if a.method == "POST" {
			check(a.route, f.ask(a.method, a.path, a.key, "{"))
			check(a.route, f.ask(a.method, a.path, a.key, `{"no":1}`))
			check(a.route, f.ask(a.method, a.path, a.key, strings.Repeat(" ", 70_000)))
			check(a.route, f.ask(a.method, a.path, a.key, a.body, "Content-Type: "))
		}
	}
	for _, err := range []error{
		admission.ErrUnavailable, admission.ErrInFlight, admission.ErrTombstone, admission.ErrBodyMismatch, os.ErrClosed,
		&admission.Refusal{Constraint: limit("L4", tenancy.KindLease, tenancy.ScopeGlobal), Reason: admission.ReasonConcurrency},
		&admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant, budget), Reason: admission.ReasonSpent},
		&admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant), Reason: admission.ReasonWindow},
	} {
		f.store.failWith(err)
		check(routeReservations, f.ask("POST", "/v1/reservations", keyAcme, reserveJSON))
	}
	f.store.failWith(admission.ErrNotFound)
	check(routeReservation, f.ask("GET", path, keyAcme, ""))
}

// TestEncodersMatchTheirTypes fills every field and compares the hand-written
// encoders with what encoding/json makes of the documented types.
func TestEncodersMatchTheirTypes(t *testing.T) {
	at, maxOutput := testNow, int64(11)
	n := func(v int64) *int64 { return &v }
	c := limit("L1", tenancy.KindRing, tenancy.ScopeTenant)
	c.Limit.Name = "quote\" and é\u2028\x01\xff"
	r := &admission.Reservation{
		ID: "rsv_1", RequestID: "r\\1", State: events.StateHeld, AdmittedUnits: 1001,
		Total:      events.Usage{InputTokens: 1, OutputTokens: 2, CachedInputTokens: 3, ReasoningTokens: 4, ToolCalls: 5, Images: 6, AudioMillis: 7, GPUMillis: 8},
		TotalUnits: 2000, CreatedAt: at, ExpiresAt: at.Add(time.Second),
		Left: []admission.Left{{Constraint: c, Used: 1, Held: 2, Remaining: 3, Reset: 4567 * time.Millisecond}},
		Stop: &admission.Refusal{Constraint: c, Reason: admission.ReasonWindow, Used: 5, Held: 6, Requested: 7},
	}
	facts := LimitFacts{
		Name: "quote\" and é\u2028\x01\ufffd", Layer: "L1", Scope: "tenant", Unit: "tokens",
		Limit: n(100), Used: n(5), Reserved: n(6), Requested: n(7),
	}
	later := at.Add(time.Second)
	want := ReservationAnswer{
		ReservationID: "rsv_1", RequestID: "r\\1", State: "held", AdmittedUnits: 1001, AdmittedTokens: 2, MaxOutputTokens: &maxOutput,
		Used: UsageAnswer{1, 2, 3, 4, 5, 6, 7, 8}, UsedUnits: 2000, UsedTokens: 2, CreatedAt: &at, ExpiresAt: &later,
		Limits: []LimitLeft{{facts.Name, "L1", 100, 1, 2, 3, 4567}},
		Stop:   &Stop{Reason: "window_exhausted", LimitFacts: facts},
	}
	encoded := appendReservation(nil, r, maxOutput)
	var got ReservationAnswer
	if err := strictly(encoded, &got); err != nil {
		t.Fatalf("%v\n%s", err, encoded)
	}
	want.Stop.Detail = got.Stop.Detail
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	sameKeys(t, encoded, want)

	p := problemOf(r.Stop)
	p.field, p.stored = "f", r
	encoded = appendProblem(nil, p, p.title, "r1")
	var problem Problem
	if err := strictly(encoded, &problem); err != nil {
		t.Fatalf("%v\n%s", err, encoded)
	}
	want.MaxOutputTokens = nil
	wantProblem := Problem{
		Type: answer.TypeQuotaExceeded, Title: answer.TitleQuotaExceeded, Status: 429, Detail: problem.Detail, Reason: "window_exhausted", Field: "f",
		LimitFacts: facts, ViolatedPolicies: []string{facts.Name}, Reservation: &want, RequestID: "r1",
	}
	if diff := cmp.Diff(wantProblem, problem); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	sameKeys(t, encoded, wantProblem)
}

func strictly(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

// sameKeys: a type that gained a field which the encoder does not write would
// otherwise go unnoticed.
func sameKeys(t *testing.T, encoded []byte, typed any) {
	t.Helper()
	var a, b map[string]json.RawMessage
	other, err := json.Marshal(typed)
	if err != nil || json.Unmarshal(encoded, &a) != nil || json.Unmarshal(other, &b) != nil {
		t.Fatal("not objects", err)
	}
	for key := range b {
		if _, ok := a[key]; !ok {
			t.Errorf("the encoder leaves out %s", key)
		}
	}
}
