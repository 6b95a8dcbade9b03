package dialecttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/proxy"
	"tollgate/proxy/sse"
	"tollgate/tenancy"
)

// Each path is one dialect's. The one that all share goes by its headers to the
// first that is asked: what is left is OpenAI's.
func TestOneDialectTakesARequest(t *testing.T) {
	anthropics, googles := http.Header{"Anthropic-Version": {"2023-06-01"}}, http.Header{"X-Goog-Api-Key": {"tgk_a"}}
	type request struct {
		method, path string
		header       http.Header
		dialect      string
	}
	requests := []request{
		{"GET", "/v1/models", nil, "openai"},
		{"GET", "/v1/models/m", http.Header{"Authorization": {"Bearer tgk_a"}}, "openai"},
		{"GET", "/v1/models", anthropics, "anthropic"},
		{"GET", "/v1/models/m", anthropics, "anthropic"},
		{"GET", "/v1/models", googles, "gemini"},
		{"GET", "/v1/models/m", googles, "gemini"},
	}
	for _, header := range []http.Header{nil, anthropics, googles} {
		requests = append(
			requests,
			request{"GET", "/v1beta/models", header, "gemini"},
			request{"GET", "/v1beta/models/m", header, "gemini"},
			request{"POST", "/v1beta/models/m:countTokens", header, "gemini"},
			request{"POST", "/v1/messages/count_tokens", header, "anthropic"},
			request{"POST", "/v1/embeddings", header, "openai"},
			request{"POST", "/v1/images/generations", header, "openai"},
			request{"POST", "/v1/audio/speech", header, "openai"},
			request{"POST", "/v1/audio/transcriptions", header, "openai"},
		)
		for i := range samples {
			s := &samples[i]
			requests = append(requests, request{"POST", s.plain, header, s.dialect.Name()})
			if s.stream != "" {
				requests = append(requests, request{"POST", s.stream, header, s.dialect.Name()})
			}
		}
	}
	for _, r := range requests {
		var taken []string
		for _, d := range dialects {
			if e, _, ok := d.Endpoint(r.method, r.path, r.header); ok {
				taken = append(taken, d.Name())
				if !regexp.MustCompile(`^[a-z0-9._/-]{1,64}$`).MatchString(e.Name()) {
					t.Errorf("%s: %q cannot stand in a quota document", r.path, e.Name())
				}
			}
		}
		if shared := r.method == "GET" && strings.HasPrefix(r.path, "/v1/models"); len(taken) == 0 || taken[0] != r.dialect || len(taken) > 1 && !shared {
			t.Errorf("%s %s %v: taken by %q", r.method, r.path, r.header, taken)
		}
	}
}

func TestNoCredentialIsNone(t *testing.T) {
	for _, d := range dialects {
		for _, header := range []http.Header{nil, {}, {"Authorization": {""}}, {"Authorization": {"Bearer "}}, {"Authorization": {"Basic dTpw"}}, {"Cookie": {"key=tgk_a"}}} {
			if got := d.Credential(header, "alt=sse&x=1"); got != "" {
				t.Errorf("%s: %v gives %q", d.Name(), header, got)
			}
		}
	}
}

// The upstream's key stands in one header, and nowhere in the address; without
// one there is none.
func TestTheUpstreamsKeyStandsInAHeader(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		e, _ := s.endpoint(t, true)
		url, header := s.dialect.Address(e, proxy.Upstream{Base: "https://up.example/base", Key: "up-secret"}, "m", "alt=sse")
		if !strings.HasPrefix(url, "https://up.example/base/") || strings.Contains(url, "up-secret") {
			t.Error(url)
		}
		held := 0
		for name, values := range header {
			if http.CanonicalHeaderKey(name) != name {
				t.Errorf("%s is not canonical: it would stand beside the client's own", name)
			}
			held += strings.Count(strings.Join(values, " "), "up-secret")
		}
		if held != 1 {
			t.Errorf("the key stands %d times in %v", held, header)
		}
		if _, header = s.dialect.Address(e, proxy.Upstream{Base: "https://up.example"}, "m", ""); strings.Contains(strings.ToLower(headerText(header)), "auth") || strings.Contains(strings.ToLower(headerText(header)), "key") {
			t.Errorf("a key that is none is sent: %v", header)
		}
	})
}

func headerText(h http.Header) string {
	var b bytes.Buffer
	_ = h.Write(&b)
	return b.String()
}

func TestNothingToChangeChangesNothing(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		for _, streamed := range []bool{false, true} {
			e, ask, body := s.ask(t, streamed)
			if ask.Model != "alias" || ask.Stream != streamed || ask.MaxOutputTokens != -1 || ask.Choices != 1 || ask.InputTokens(letters{}) <= 0 {
				t.Errorf("%+v", ask)
			}
			for _, change := range []proxy.Change{{}, {Model: "alias"}, {Model: "alias", AskUsage: ask.Stream && !ask.UsageAsked && s.dialect.Name() != "openai"}} {
				got, _, err := e.Upstream(body, ask, change)
				if err != nil || len(got) == 0 || &got[0] != &body[0] {
					t.Errorf("%+v: %s %v", change, got, err)
				}
			}
		}
	})
}

func TestWhatIsChangedIsReadAgain(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		for _, streamed := range []bool{false, true} {
			e, ask, body := s.ask(t, streamed)
			kept := bytes.Clone(body)
			got, contentType, err := e.Upstream(body, ask, proxy.Change{Model: "up/\"stream\"", OutputCap: 4321, AskUsage: true})
			if err != nil || !json.Valid(got) || contentType != "application/json" || !bytes.Equal(kept, body) {
				t.Fatalf("%s %s %v", got, contentType, err)
			}
			_, model := s.endpoint(t, streamed)
			again, err := e.Read(got, contentType, model)
			if err != nil {
				t.Fatal(err)
			}
			if again.MaxOutputTokens != 4321 || again.Stream != ask.Stream || again.InputTokens(letters{}) != ask.InputTokens(letters{}) {
				t.Errorf("%s: %+v", got, again)
			}
			if model == "" && again.Model != `up/"stream"` {
				t.Errorf("%s: model %q", got, again.Model)
			}
			// A cap that stands is left alone.
			same, _, err := e.Upstream(got, again, proxy.Change{OutputCap: 9})
			if err != nil || &same[0] != &got[0] {
				t.Errorf("%s became %s", got, same)
			}
		}
	})
}

func TestWhatCannotBeReadInOneWayIsRefused(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		e, model := s.endpoint(t, false)
		bodies := map[string]string{
			"nothing":      "",
			"no object":    "[" + s.request + "]",
			"cut":          s.request[:len(s.request)-1],
			"rest":         s.request + "{}",
			"abyss":        s.request[:len(s.request)-1] + `,"x":` + strings.Repeat("[", 1<<20),
			"129 levels":   s.request[:len(s.request)-1] + `,"x":` + strings.Repeat("[", 128) + strings.Repeat("]", 128) + `}`,
			"control byte": strings.Replace(s.request, "hi", "h\x01i", 1),
		}
		// Each member of the sample is one that is interpreted.
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(s.request), &members); err != nil {
			t.Fatal(err)
		}
		for name, value := range members {
			escaped := `\u00` + hex(name[0]) + name[1:]
			bodies[name+" twice"] = s.request[:len(s.request)-1] + `,"` + name + `":` + string(value) + `}`
			bodies[name+" twice, escaped"] = s.request[:len(s.request)-1] + `,"` + escaped + `":` + string(value) + `}`
			bodies[name+" in capitals"] = s.request[:len(s.request)-1] + `,"` + strings.ToUpper(name) + `":` + string(value) + `}`
		}
		for name, body := range bodies {
			_, err := e.Read([]byte(body), "application/json", model)
			var bad *proxy.BadRequest
			if !errors.As(err, &bad) || bad.Error() == "" {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func hex(b byte) string { return string("0123456789abcdef"[b>>4]) + string("0123456789abcdef"[b&15]) }

// answers are errors of all kinds.
func answers() []*answer.Answer {
	all := []*answer.Answer{
		answer.Of(errors.New("pq: password of postgres://internal")),
		answer.Of(admission.ErrUnavailable),
		answer.OfRefusal(&admission.Refusal{
			Constraint: admission.Constraint{Limit: tenancy.Limit{Name: "the \"limit\"", Layer: "L1", Limit: 100, Budget: true, Metric: "tokens", Scope: "tenant"}},
			Reason:     admission.ReasonSpent, Used: 90, Held: 5, Requested: 10,
		}),
	}
	for _, status := range []int{400, 401, 402, 403, 404, 405, 408, 409, 413, 415, 422, 429, 499, 500, 502, 503, 504, 529} {
		all = append(all, &answer.Answer{
			Status: status, Reason: "a_reason", Detail: "A \"detail\"\nin \xff two lines.", Field: "model", RetryAfter: 3, Cause: errors.New("internal cause"),
		})
	}
	return all
}

func TestErrorsAreJSONAndTellNoInternals(t *testing.T) {
	for _, d := range dialects {
		for _, a := range answers() {
			body := d.Error(a, "gw-\"1\"")
			var read struct {
				Error    struct{ Message string }
				Tollgate struct {
					Reason    string
					RequestID string `json:"request_id"`
					Name      string
					Limit     *int64
				}
			}
			if err := json.Unmarshal(body, &read); err != nil {
				t.Errorf("%s: %s: %v", d.Name(), body, err)
				continue
			}
			detail := strings.ToValidUTF8(a.Detail, "\ufffd")
			if !strings.HasSuffix(read.Error.Message, detail) || strings.Count(read.Error.Message, "model") > 1 ||
				read.Tollgate.Reason != a.Reason || read.Tollgate.RequestID != "gw-\"1\"" || (a.Limit != nil) != (read.Tollgate.Limit != nil) {
				t.Errorf("%s: %s", d.Name(), body)
			}
			if a.Cause != nil && bytes.Contains(body, []byte(a.Cause.Error())) {
				t.Errorf("%s tells the cause: %s", d.Name(), body)
			}
		}
	}
}

// An error in a stream is read as one by the same dialect.
func TestErrorEventsAreTheDialects(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		for _, a := range answers() {
			e, ask, _ := s.ask(t, true)
			out := s.dialect.ErrorEvent(e, a, "gw-1")
			follower := e.Stream(ask, letters{})
			for _, ev := range parse(t, out) {
				follower.Event(ev)
			}
			if tally := follower.Tally(true); !tally.Failed || tally.Complete || tally.Garbage || tally.Content {
				t.Errorf("%s: %+v", out, tally)
			}
			if a.Cause != nil && bytes.Contains(out, []byte(a.Cause.Error())) {
				t.Errorf("tells the cause: %s", out)
			}
		}
	})
}

// parse cuts what is written to a client into events, which must be whole and
// hold JSON.
func parse(t testing.TB, out []byte) []sse.Event {
	t.Helper()
	var all []sse.Event
	p := sse.New(0)
	if err := p.Feed(out, func(ev sse.Event) error {
		if !json.Valid(ev.Data) && string(ev.Data) != "[DONE]" {
			t.Errorf("not JSON: %s", ev.Data)
		}
		all = append(all, sse.Event{
			Raw: bytes.Clone(ev.Raw), Name: bytes.Clone(ev.Name), Data: bytes.Clone(ev.Data), HasData: ev.HasData, Cut: ev.Cut,
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if p.Pending() {
		t.Errorf("not ended: %q", out)
	}
	return all
}

func TestModelsAreListed(t *testing.T) {
	for _, d := range dialects {
		for _, ids := range [][]string{nil, {"a"}, {"a", "org/b", "c\"d"}} {
			body, ok := d.Models(ids, "")
			if !ok || !json.Valid(body) {
				t.Errorf("%s: %s", d.Name(), body)
			}
			for _, id := range ids {
				text, _ := json.Marshal(id)
				one, ok := d.Models(ids, id)
				if inner := text[1 : len(text)-1]; !bytes.Contains(body, inner) || !ok || !json.Valid(one) || !bytes.Contains(one, inner) {
					t.Errorf("%s: %s is missing: %s %s", d.Name(), text, body, one)
				}
			}
			if one, ok := d.Models(ids, "z"); ok {
				t.Errorf("%s knows a model that is none: %s", d.Name(), one)
			}
		}
	}
}
