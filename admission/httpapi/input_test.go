package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// problemIn reads a problem strictly: a member that the documented type lacks
// fails the test.
func problemIn(t *testing.T, body []byte) Problem {
	t.Helper()
	var p Problem
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("not a problem: %v\n%s", err, body)
	}
	return p
}

// bodyCase is one bad body: what is answered to it.
type bodyCase struct {
	name   string
	body   string
	status int
	reason string
	detail string // must be contained
}

// badJSON are bodies that are bad for every route, whatever its fields.
var badJSON = []bodyCase{
	{"empty", ``, 400, reasonMalformed, "no JSON value at byte 0"},
	{"only space", " \n", 400, reasonMalformed, "no JSON value at byte 2"},
	{"not JSON", `hello`, 400, reasonMalformed, "no JSON value"},
	{"open object", `{`, 400, reasonMalformed, "no field name"},
	{"open string", `{"`, 400, reasonMalformed, "a string without end"},
	{"comment", `{/**/}`, 400, reasonMalformed, "no field name"},
	{"single quotes", `{'input_tokens':1}`, 400, reasonMalformed, "no field name"},
	{"byte order mark", "\ufeff{}", 400, reasonMalformed, "no JSON value"},
	{"bad UTF-8", "{\"\xff\":1}", 400, reasonMalformed, "not valid UTF-8"},
	{"encoded surrogate", "{\"\xed\xa0\x80\":1}", 400, reasonMalformed, "not valid UTF-8"},
	{"control character", "{\"a\x01\":1}", 400, reasonMalformed, "a control character"},
	{"unknown escape", `{"\q":1}`, 400, reasonMalformed, "an unknown escape"},
	{"short escape", `{"\u12`, 400, reasonMalformed, `a broken \u escape`},
	{"half a pair", `{"\ud800":1}`, 400, reasonMalformed, "half a surrogate pair"},
	{"pair in wrong order", `{"\ud800\ud800":1}`, 400, reasonMalformed, "half a surrogate pair"},
	{"array", `[]`, 422, reasonType, "must be a JSON object"},
	{"null", `null`, 422, reasonType, "must be a JSON object"},
	{"number", `1`, 422, reasonType, "must be a JSON object"},
	{"deep array", strings.Repeat("[", 20000), 422, reasonType, "must be a JSON object"},
	{"deep object", strings.Repeat(`{"a":`, 10000), 422, reasonUnknown, "a is not a field"},
	{"unknown field", `{"tenant_id":"other"}`, 422, reasonUnknown, "tenant_id is not a field"},
	{"unknown field, escaped", `{"tenant\u005fid":"other"}`, 422, reasonUnknown, "tenant_id is not a field"},
	{"other letter case", `{"Input_Tokens":1}`, 422, reasonUnknown, "Input_Tokens is not a field"},
	{"long unknown field", `{"` + strings.Repeat("é", 2000) + `":1}`, 422, reasonUnknown, "é… is not a field"},
	{"markup in a field", `{"<b>\"":1}`, 422, reasonUnknown, `<b>" is not a field`},
}

// badFields are bad wherever input_tokens is a field.
var badFields = []bodyCase{
	{"no colon", `{"input_tokens" 1}`, 400, reasonMalformed, "no colon"},
	{"no value", `{"input_tokens":}`, 400, reasonMalformed, "no JSON value"},
	{"no comma", `{"input_tokens":1 "output_tokens":1}`, 400, reasonMalformed, "no comma"},
	{"comma at the end", `{"input_tokens":1,}`, 400, reasonMalformed, "no field name"},
}

// badCounts are bodies that are bad wherever there are counts.
var badCounts = []bodyCase{
	{"trailing garbage", `{"input_tokens":1,"output_tokens":1} x`, 400, reasonMalformed, "something follows"},
	{"second object", `{"input_tokens":1,"output_tokens":1}{}`, 400, reasonMalformed, "something follows"},
	{"NUL after the end", "{\"input_tokens\":1,\"output_tokens\":1}\x00", 400, reasonMalformed, "something follows"},
	{"twice", `{"input_tokens":1,"output_tokens":1,"input_tokens":1}`, 400, reasonDuplicate, "input_tokens is given twice"},
	{"twice, escaped", `{"input_tokens":1,"output_tokens":1,"\u0069nput_tokens":9}`, 400, reasonDuplicate, "input_tokens is given twice"},
	{"string for a number", `{"input_tokens":"1"}`, 422, reasonType, "input_tokens must be an integer"},
	{"null for a number", `{"input_tokens":null}`, 422, reasonType, "input_tokens must be an integer"},
	{"array for a number", `{"input_tokens":[1]}`, 422, reasonType, "input_tokens must be an integer"},
	{"true for a number", `{"input_tokens":true}`, 422, reasonType, "input_tokens must be an integer"},
	{"NaN", `{"input_tokens":NaN}`, 400, reasonMalformed, "no JSON value"},
	{"fraction", `{"input_tokens":1.0}`, 422, reasonType, "without fraction or exponent"},
	{"exponent", `{"input_tokens":1e3}`, 422, reasonType, "without fraction or exponent"},
	{"negative", `{"input_tokens":-1}`, 422, reasonRange, "input_tokens must be between 0 and"},
	{"minus zero", `{"input_tokens":-0}`, 422, reasonRange, "input_tokens must be between 0 and"},
	{"minus alone", `{"input_tokens":-}`, 400, reasonMalformed, "no digits after a minus"},
	{"plus", `{"input_tokens":+1}`, 400, reasonMalformed, "no JSON value"},
	{"leading zero", `{"input_tokens":01}`, 400, reasonMalformed, "leading zero"},
	{"hexadecimal", `{"input_tokens":0x10}`, 400, reasonMalformed, "no comma"},
	{"2^31", `{"input_tokens":2147483648}`, 422, reasonRange, "between 0 and 2147483647"},
	{"2^52", `{"input_tokens":4503599627370496}`, 422, reasonRange, "between 0 and 2147483647"},
	{"2^64 + 1", `{"input_tokens":18446744073709551617}`, 422, reasonRange, "between 0 and 2147483647"},
	{"very long", `{"input_tokens":` + strings.Repeat("9", 5000) + `}`, 422, reasonRange, "between 0 and 2147483647"},
	{"cached above input", `{"input_tokens":1,"output_tokens":1,"cached_input_tokens":2}`, 422, reasonRange, "cached_input_tokens is part of"},
	{"reasoning above output", `{"input_tokens":1,"output_tokens":1,"reasoning_tokens":2}`, 422, reasonRange, "reasoning_tokens is part of"},
	{"estimated is a number", `{"input_tokens":1,"output_tokens":1,"estimated":1}`, 422, reasonType, "estimated must be true or false"},
	{"estimated is half a word", `{"input_tokens":1,"output_tokens":1,"estimated":tru}`, 400, reasonMalformed, "no JSON value"},
}

func TestBadBodiesAtEveryRoute(t *testing.T) {
	f := newFixture(t)
	reservation := f.reserved(t)
	reserve := func(with string) string {
		return `{"request_id":"r2","endpoint":"chat","model":"small","input_tokens":1` + with + `}`
	}
	reading := func(with string) string {
		return `{"readings":[{"id":"m1","kind":"model","tenant_id":"acme","from":"2026-03-04T05:00:00Z","to":"2026-03-04T05:06:00Z"` + with + `}]}`
	}
	const missing = reasonMissing
	for _, route := range []struct {
		path, key string
		counts    bool
		cases     []bodyCase
	}{
		{"/v1/reservations", keyAcme, false, []bodyCase{
			{"no fields", `{}`, 422, missing, "request_id is required"},
			{"no endpoint", `{"request_id":"r2"}`, 422, missing, "endpoint is required"},
			{"no model", `{"request_id":"r2","endpoint":"chat"}`, 422, missing, "model is required"},
			{"no input", `{"request_id":"r2","endpoint":"chat","model":"small"}`, 422, missing, "input_tokens is required"},
			{"request id a number", `{"request_id":1}`, 422, reasonType, "request_id must be a string"},
			{"request id empty", `{"request_id":""}`, 422, reasonRange, "request_id must have 1 to 128 characters"},
			{"request id too long", `{"request_id":"` + strings.Repeat("x", 129) + `"}`, 422, reasonRange, "request_id must have 1 to 128"},
			{"request id with space", `{"request_id":"a b"}`, 422, reasonFormat, "request_id must match ^["},
			{"request id with NUL", `{"request_id":"a\u0000"}`, 422, reasonFormat, "request_id must match ^["},
			{"request id not ASCII", `{"request_id":"é"}`, 422, reasonFormat, "request_id must match ^["},
			{"endpoint in capitals", `{"endpoint":"Chat"}`, 422, reasonFormat, "endpoint must match"},
			{"endpoint too long", `{"endpoint":"` + strings.Repeat("x", 65) + `"}`, 422, reasonRange, "endpoint must have 1 to 64"},
			{"model with separator", `{"model":"a|b"}`, 422, reasonFormat, "model must match"},
			{"model with control character", `{"model":"a\u007f"}`, 422, reasonFormat, "model must match"},
			{"model begins with a space", `{"request_id":"r2","endpoint":"chat","model":" small","input_tokens":1}`, 422, reasonFormat, "model must not begin or end"},
			{"negative output", reserve(`,"max_output_tokens":-1`), 422, reasonRange, "max_output_tokens must be between"},
			{"null output", reserve(`,"max_output_tokens":null`), 422, reasonType, "max_output_tokens must be an integer"},
			{"too many images", reserve(`,"images":1000001`), 422, reasonRange, "images must be between 0 and 1000000"},
			{"no time to live", reserve(`,"ttl_ms":0`), 422, reasonRange, "ttl_ms must be between 1 and 86400000"},
			{"too long to live", reserve(`,"ttl_ms":86400001`), 422, reasonRange, "ttl_ms must be between 1 and 86400000"},
			{"worst case too large", `{"request_id":"r2","endpoint":"chat","model":"huge","input_tokens":2147483647,"max_output_tokens":2147483647,"images":1000000}`, 422, reasonRange, "larger than can be counted"},
			{"output tokens are not asked for", reserve(`,"output_tokens":1`), 422, reasonUnknown, "output_tokens is not a field"},
			{"a weight of one's own", reserve(`,"weight_milli":1`), 422, reasonUnknown, "weight_milli is not a field"},
		}},
		{reservation + "/usage", keyAcme, true, []bodyCase{
			{"no output", `{"input_tokens":1}`, 422, missing, "output_tokens is required"},
			{"no input", `{"output_tokens":1}`, 422, missing, "input_tokens is required"},
			{"a reason", `{"input_tokens":1,"output_tokens":1,"reason":"x"}`, 422, reasonUnknown, "reason is not a field"},
			{"no time to live", `{"input_tokens":1,"output_tokens":1,"ttl_ms":0}`, 422, reasonRange, "ttl_ms must be between"},
		}},
		{reservation + "/settle", keyAcme, true, []bodyCase{
			{"no output", `{"input_tokens":1}`, 422, missing, "output_tokens is required"},
			{"no figures", `{}`, 422, missing, "input_tokens is required"},
			{"a ttl", `{"input_tokens":1,"output_tokens":1,"ttl_ms":1}`, 422, reasonUnknown, "ttl_ms is not a field"},
		}},
		{reservation + "/cancel", keyAcme, true, []bodyCase{
			{"half the figures", `{"input_tokens":1}`, 422, missing, "output_tokens is required when any figure is given"},
			{"only a part", `{"gpu_ms":1}`, 422, missing, "input_tokens is required when any figure is given"},
			{"reason with line break", `{"reason":"a\nb"}`, 422, reasonFormat, "reason must match"},
			{"reason too long", `{"reason":"` + strings.Repeat("é", 129) + `"}`, 422, reasonRange, "reason must have 0 to 128"},
		}},
		{"/v1/requests/r1/cancel", keyAcme, true, []bodyCase{
			{"half the figures", `{"output_tokens":1}`, 422, missing, "input_tokens is required when any figure is given"},
		}},
		{"/v1/meters", keyMeter, false, []bodyCase{
			{"no readings", `{}`, 422, missing, "readings is required"},
			{"readings is an object", `{"readings":{}}`, 422, reasonType, "readings must be an array"},
			{"an empty batch", `{"readings":[]}`, 422, reasonRange, "readings must not be empty"},
			{"a number in it", `{"readings":[1]}`, 422, reasonType, "readings[0] must be a JSON object"},
			{"comma at the end", `{"readings":[` + strings.TrimSuffix(strings.TrimPrefix(reading(""), `{"readings":[`), `]}`) + `,]}`, 400, reasonMalformed, "no JSON value"},
			{"array not closed", strings.TrimSuffix(reading(""), `]}`), 400, reasonMalformed, "no comma or end after an item"},
			{"too many", `{"readings":[` + strings.Repeat(strings.TrimSuffix(strings.TrimPrefix(reading(""), `{"readings":[`), `]}`)+",", 256) + `{}]}`, 422, reasonRange, "readings has more than 256 items"},
			{"no kind", `{"readings":[{"id":"a"}]}`, 422, missing, "readings[0].kind is required"},
			{"another kind", strings.Replace(reading(""), `"model"`, `"money"`, 1), 422, reasonFormat, "readings[0].kind must be model or gpu"},
			{"id too long", strings.Replace(reading(""), `"m1"`, `"`+strings.Repeat("m", 101)+`"`, 1), 422, reasonRange, "readings[0].id must have 1 to 100"},
			{"tenant unknown", strings.Replace(reading(""), `"acme"`, `"nobody"`, 1), 422, reasonRange, "readings[0].tenant_id is not a tenant"},
			{"time without zone", strings.Replace(reading(""), `05:06:00Z`, `05:06:00`, 1), 422, reasonRange, "readings[0].to must have 20 to 40"},
			{"time of words", strings.Replace(reading(""), `2026-03-04T05:06:00Z`, `the day before yesterday`, 1), 422, reasonFormat, "readings[0].to must be an RFC 3339 time"},
			{"day that is not", strings.Replace(reading(""), `2026-03-04T05:06:00Z`, `2026-02-30T05:06:00Z`, 1), 422, reasonFormat, "readings[0].to must be an RFC 3339 time"},
			{"backwards", strings.Replace(reading(""), `05:00:00Z`, `05:06:01Z`, 1), 422, reasonRange, "readings[0].from must be before to"},
			{"no interval", strings.Replace(reading(""), `05:00:00Z`, `05:06:00Z`, 1), 422, reasonRange, "readings[0].from must be before to"},
			{"from the future", strings.Replace(reading(""), `05:06:00Z`, `05:16:00Z`, 1), 422, reasonRange, "readings[0].to is too far from now"},
			{"long gone", strings.ReplaceAll(reading(""), `2026-03-04`, `2026-01-04`), 422, reasonRange, "readings[0].to is too far from now"},
			{"GPU time of a model server", reading(`,"gpu_ms":1`), 422, reasonRange, "readings[0].gpu_ms belongs in a reading of kind gpu"},
			{"tokens of a GPU agent", strings.Replace(reading(`,"output_tokens":1`), `"kind":"model"`, `"kind":"gpu"`, 1), 422, reasonRange, "readings[0].input_tokens and output_tokens belong"},
			{"final without reservation", reading(`,"final":true`), 422, reasonRange, "readings[0].final needs a reservation_id"},
			{"negative tokens", reading(`,"input_tokens":-5`), 422, reasonRange, "readings[0].input_tokens must be between 0 and"},
			{"twice in one reading", reading(`,"id":"m2"`), 400, reasonDuplicate, "readings[0].id is given twice"},
			{"unknown in a reading", reading(`,"units":1`), 422, reasonUnknown, "readings[0].units is not a field"},
		}},
	} {
		cases := append(append([]bodyCase(nil), badJSON...), route.cases...)
		if route.key != keyMeter {
			cases = append(cases, badFields...)
		}
		if route.counts {
			cases = append(cases, badCounts...)
		}
		for _, c := range cases {
			t.Run(route.path+"/"+c.name, func(t *testing.T) {
				w := f.ask("POST", route.path, route.key, c.body)
				p := problemIn(t, w.Body.Bytes())
				if w.Code != c.status || p.Reason != c.reason || !strings.Contains(p.Detail, c.detail) {
					t.Fatalf("%d %s %q, want %d %s %q", w.Code, p.Reason, p.Detail, c.status, c.reason, c.detail)
				}
				if p.Status != int64(w.Code) || p.Type != "about:blank" || p.Title != http.StatusText(w.Code) || p.RequestID == "" {
					t.Errorf("problem does not describe its answer: %s", w.Body)
				}
				if w.Header().Get("Content-Type") != "application/problem+json" {
					t.Errorf("content type %q", w.Header().Get("Content-Type"))
				}
			})
		}
	}
	if n := len(f.store.byID); n != 1 {
		t.Errorf("%d reservations after all that, want the first one alone", n)
	}
	if f.store.lastReport != nil || len(f.sink.got) != 0 {
		t.Error("a refused body reached the store or the log")
	}
}

func TestBadRequestsAtEveryRoute(t *testing.T) {
	f := newFixture(t)
	reservation := f.reserved(t)
	id := strings.TrimPrefix(reservation, "/v1/reservations/")
	type requestCase struct {
		name, method, path, key, body string
		headers                       []string
		status                        int
		reason, detail                string
	}
	cases := []requestCase{
		{"no such path", "GET", "/v2/reservations", keyAcme, "", nil, 404, "no_such_route", "no such path"},
		{"no such path, slash", "POST", "/v1/reservations/", keyAcme, "", nil, 404, "no_such_route", "no such path"},
		{"no such verb", "POST", reservation + "/steal", keyAcme, "", nil, 404, "no_such_route", "no such path"},
		{"verb and more", "POST", reservation + "/settle/x", keyAcme, "", nil, 404, "no_such_route", "no such path"},
		{"prefix of another word", "POST", "/v1/reservationsx", keyAcme, "", nil, 404, "no_such_route", "no such path"},
		{"no request id", "POST", "/v1/requests//cancel", keyAcme, "{}", nil, 404, "no_such_route", "no such path"},
		{"not a reservation id", "POST", "/v1/reservations/r1/settle", keyAcme, settleJSON, nil, 404, "reservation_not_found", "no such reservation"},
		{"dots for an id", "GET", "/v1/reservations/..", keyAcme, "", nil, 404, "reservation_not_found", "no such reservation"},
		{"of another tenant", "POST", reservation + "/settle", keyOther, settleJSON, nil, 404, "reservation_not_found", "no such reservation"},
		{"read of another tenant", "GET", reservation, keyOther, "", nil, 404, "reservation_not_found", "no such reservation"},
		{"never made", "POST", "/v1/reservations/" + id[:len(id)-1] + "9/settle", keyAcme, settleJSON, nil, 404, "reservation_not_found", "no such reservation"},
		{"request id of other characters", "POST", "/v1/requests/a%20b/cancel", keyAcme, "{}", nil, 422, reasonFormat, "request_id must match"},
		{"request id too long", "POST", "/v1/requests/" + strings.Repeat("x", 129) + "/cancel", keyAcme, "{}", nil, 422, reasonRange, "request_id must have 1 to 128"},
		{"URL too long", "GET", "/v1/quota/usage?endpoint=" + strings.Repeat("x", 2048), keyAcme, "", nil, 414, "url_too_long", "more than 2048 bytes"},
		{"body too large", "POST", "/v1/reservations", keyAcme, strings.Repeat(" ", 64<<10) + reserveJSON, nil, 413, "body_too_large", "more than 65536 bytes"},
		{"form", "POST", "/v1/reservations", keyAcme, reserveJSON, []string{"Content-Type: ", "Content-Type: application/x-www-form-urlencoded"}, 415, "not_json", "application/json"},
		{"no content type", "POST", "/v1/reservations", keyAcme, reserveJSON, []string{"Content-Type: "}, 415, "not_json", "application/json"},
		{"two content types", "POST", "/v1/reservations", keyAcme, reserveJSON, []string{"Content-Type: text/plain"}, 415, "not_json", "application/json"},
		{"other charset", "POST", "/v1/reservations", keyAcme, reserveJSON, []string{"Content-Type: ", "Content-Type: application/json; charset=latin1"}, 415, "not_json", "application/json"},
		{"tenant in the query", "POST", "/v1/reservations?tenant_id=other", keyAcme, reserveJSON, nil, 400, "unknown_parameter", "takes no query parameters"},
		{"query on a read", "GET", reservation + "?tenant_id=other", keyAcme, "", nil, 400, "unknown_parameter", "takes no query parameters"},
		{"unknown quota parameter", "GET", "/v1/quota/usage?tenant=acme", keyAcme, "", nil, 400, "unknown_parameter", "tenant_id, endpoint and model"},
		{"quota parameter twice", "GET", "/v1/quota/usage?tenant_id=acme&tenant_id=other", keyAcme, "", nil, 400, "unknown_parameter", "once"},
		{"broken query", "GET", "/v1/quota/usage?tenant_id=%zz", keyAcme, "", nil, 400, "unknown_parameter", "not well formed"},
		{"bad endpoint in the query", "GET", "/v1/quota/usage?endpoint=A", keyAcme, "", nil, 400, "unknown_parameter", "endpoint"},
		{"bad model in the query", "GET", "/v1/quota/usage?model=a%7Cb", keyAcme, "", nil, 400, "unknown_parameter", "model"},
		{"operator without a tenant", "GET", "/v1/quota/usage", keyOperator, "", nil, 422, reasonMissing, "tenant_id is required"},
		{"operator and nobody", "GET", "/v1/quota/usage?tenant_id=nobody", keyOperator, "", nil, 404, "tenant_not_found", "no such tenant"},
		{"meter of another tenant", "POST", "/v1/meters", keyOwnMeter, `{"readings":[{"id":"m1","kind":"gpu","tenant_id":"other","from":"2026-03-04T05:00:00Z","to":"2026-03-04T05:06:00Z"}]}`, nil, 403, "other_tenant", "own tenant"},
	}
	// Credentials come first on every route of /v1.
	for _, r := range []struct{ method, path, role string }{
		{"POST", "/v1/reservations", "tenant"},
		{"GET", reservation, "tenant"},
		{"POST", reservation + "/usage", "tenant"},
		{"POST", reservation + "/settle", "tenant"},
		{"POST", reservation + "/cancel", "tenant"},
		{"POST", "/v1/requests/r1/cancel", "tenant"},
		{"GET", "/v1/quota/usage", "tenant or operator"},
		{"POST", "/v1/meters", "meter"},
	} {
		bad := func(name, key string, status int, reason, detail string, headers ...string) {
			cases = append(cases, requestCase{name + " at " + r.path, r.method, r.path, key, "not even JSON", headers, status, reason, detail})
		}
		bad("nothing", "", 401, "invalid_credential", "valid API key")
		bad("a wrong key", keyAcme+"x", 401, "invalid_credential", "valid API key")
		bad("a revoked key", keyRevoked, 401, "invalid_credential", "valid API key")
		bad("another scheme", "", 401, "invalid_credential", "valid API key", "Authorization: Basic "+keyAcme)
		bad("a bare key", "", 401, "invalid_credential", "valid API key", "Authorization: "+keyAcme)
		bad("an empty key", "", 401, "invalid_credential", "valid API key", "Authorization: Bearer  ")
		bad("two credentials", keyAcme, 401, "invalid_credential", "valid API key", "X-Api-Key: "+keyAcme)
		bad("two of one kind", keyAcme, 401, "invalid_credential", "valid API key", "Authorization: Bearer "+keyOther)
		if r.role != "tenant" || r.path == "/v1/reservations" {
			bad("a suspended tenant", keySuspend, 403, "tenant_suspended", "suspended")
		}
		bad("no directory yet", keyStarting, 503, "directory_not_loaded", "starting")
		switch r.role {
		case "tenant":
			bad("an operator", keyOperator, 403, "role_not_allowed", "role")
			bad("a meter", keyMeter, 403, "role_not_allowed", "role")
		case "meter":
			bad("an operator", keyOperator, 403, "role_not_allowed", "role")
			bad("a tenant", keyAcme, 403, "role_not_allowed", "role")
		default:
			bad("a meter", keyMeter, 403, "role_not_allowed", "role")
		}
		other := map[string]string{"GET": "POST", "POST": "GET"}[r.method]
		cases = append(cases,
			requestCase{"method at " + r.path, other, r.path, keyAcme, "", nil, 405, "method_not_allowed", "takes " + r.method},
			requestCase{"DELETE at " + r.path, "DELETE", r.path, keyAcme, "", nil, 405, "method_not_allowed", "takes " + r.method},
		)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := f.ask(c.method, c.path, c.key, c.body, c.headers...)
			p := problemIn(t, w.Body.Bytes())
			if w.Code != c.status || p.Reason != c.reason || !strings.Contains(p.Detail, c.detail) {
				t.Fatalf("%d %s %q, want %d %s %q", w.Code, p.Reason, p.Detail, c.status, c.reason, c.detail)
			}
			wantChallenge := ""
			if c.status == 401 {
				wantChallenge = `Bearer realm="tollgate"`
			}
			if got := w.Header().Get("WWW-Authenticate"); got != wantChallenge {
				t.Errorf("WWW-Authenticate %q, want %q", got, wantChallenge)
			}
			if c.status == 405 && w.Header().Get("Allow") == "" {
				t.Error("405 without Allow")
			}
			if retry := w.Header().Get("Retry-After"); (retry != "") != (c.status == 503) {
				t.Errorf("Retry-After %q at %d", retry, c.status)
			}
			if strings.Contains(w.Body.String(), "secret") {
				t.Errorf("the answer repeats the credential: %s", w.Body)
			}
		})
	}
	if r := f.store.byID[id]; len(f.store.byID) != 1 || r.res.State != "held" || r.res.Total.InputTokens != 0 || len(f.sink.got) != 0 {
		t.Error("a refused request changed something")
	}
}

// What a strict reader must still take: any order, spaces, escapes.
func TestGoodBodiesInUnusualSpelling(t *testing.T) {
	f := newFixture(t)
	w := f.ask("POST", "/v1/reservations", "", " {\r\n\t\"input\\u005ftokens\" : 0 , \"model\":\"sm\\u0061ll\",\"endpoint\":\"v1\\/chat\",\n\"request_id\":\"A.b_c:d@e\\/f+g=h-i\" } \n",
		"X-Api-Key: "+keyAcme, "Content-Type: ", `Content-Type: Application/JSON; Charset="utf-8"`)
	if w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	got := f.store.lastReserve
	if got.RequestID != "A.b_c:d@e/f+g=h-i" || got.Endpoint != "v1/chat" || got.Model != "small" || got.Hold.InputTokens != 0 {
		t.Errorf("read as %+v", got)
	}
	if got.Tenant.ID != "acme" || got.Key.ID != "tgk_acmeacmeacmeacme" {
		t.Errorf("tenant %s, key %s", got.Tenant.ID, got.Key.ID)
	}
	w = f.ask("POST", "/v1/requests/A.b_c:d@e%2Ff+g=h-i/cancel", keyAcme, "{}")
	if w.Code != http.StatusOK || f.store.lastReport.RequestID != "A.b_c:d@e/f+g=h-i" || !f.store.lastReport.SoFar {
		t.Errorf("cancel by request id: %d, %+v", w.Code, f.store.lastReport)
	}
}

// A tenant that a client names in a header is nothing to us.
func TestTenantComesFromTheCredentialAlone(t *testing.T) {
	f := newFixture(t)
	w := f.ask("POST", "/v1/reservations", keyAcme, reserveJSON, "X-Tenant-Id: other", "Tenant: other", "X-Tollgate-Tenant: other")
	if w.Code != http.StatusCreated || f.store.lastReserve.Tenant.ID != "acme" {
		t.Fatalf("%d, tenant %s", w.Code, f.store.lastReserve.Tenant.ID)
	}
}
