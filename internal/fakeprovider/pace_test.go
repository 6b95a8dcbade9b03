package fakeprovider

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
)

// Speeds are kept to the millisecond, streamed or not: reading the prompt, the
// time to the first token, and a step for each token after it.
func TestSpeeds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body, order string
		want        time.Duration
	}{
		"plain":   {chatPlain, "", 100*time.Millisecond + 80*time.Millisecond + 19*20*time.Millisecond},
		"stream":  {chatStreamed, "", 100*time.Millisecond + 80*time.Millisecond + 19*20*time.Millisecond},
		"cached":  {chatPlain, "cached=5", 100*time.Millisecond + 30*time.Millisecond + 19*20*time.Millisecond},
		"reason":  {chatStreamed, "reasoning=10", 100*time.Millisecond + 80*time.Millisecond + 29*20*time.Millisecond},
		"slow":    {chatStreamed, "slow=5", 180*time.Millisecond + 5*time.Millisecond + 19*25*time.Millisecond},
		"refused": {chatPlain, "503,slow=250", 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{FirstToken: 100 * time.Millisecond, PrefillPerSecond: 100, DecodePerSecond: 50})
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, strings.NewReader(c.body))
				r.Header.Set(HeaderFault, c.order)
				began := time.Now()
				s.ServeHTTP(httptest.NewRecorder(), r)
				if took := time.Since(began); took != c.want {
					t.Errorf("took %s, want %s", took, c.want)
				}
			})
		})
	}
}

// Jitter varies the steps, and the same request varies the same way.
func TestJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{DecodePerSecond: 50, JitterPercent: 50})
		var took [2]time.Duration
		for i := range took {
			began := time.Now()
			s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, strings.NewReader(chatStreamed)))
			took[i] = time.Since(began)
		}
		if even := 19 * 20 * time.Millisecond; took[0] != took[1] || took[0] == even || took[0] < even/2 || took[0] > even*3/2 {
			t.Errorf("took %s and %s", took[0], took[1])
		}
	})
}

func TestTokensPerChunk(t *testing.T) {
	t.Parallel()
	s := start(t, Options{TokensPerChunk: 8, GPUInUsage: true, VendorHeaders: true, KeepHeaders: true})
	got := send(t, s.URL()+chatPath, chatStreamed, "Authorization", "Bearer secret", "Traceparent", "00-1-2-01")
	if r := last(t, s, 1); r.Chunks != 3 || r.Output != 20 || r.Header.Get("Traceparent") != "00-1-2-01" || r.Header.Get("Authorization") != "(present)" {
		t.Errorf("logged: %+v", r)
	}
	all := events(got.body)
	if u := gjson.Get(all[len(all)-2], "usage"); u.Get("gpu_ms").Int() != 41 || u.Get("completion_tokens").Int() != 20 {
		t.Errorf("usage is %s", u.Raw)
	}
	if got.header.Get("X-Ratelimit-Limit-Requests") == "" || got.header.Get("Set-Cookie") == "" {
		t.Errorf("no vendor's headers: %v", got.header)
	}
}
