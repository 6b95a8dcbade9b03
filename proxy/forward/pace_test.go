package forward

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	t.Parallel()
	var p pace
	now := time.Now()
	allowed := func(tenant string) (n int) {
		for p.allow(tenant, now) {
			n++
		}
		return n
	}
	if n := allowed("a"); n != paceBurst {
		t.Errorf("%d at once", n)
	}
	if n := allowed("b"); n != paceBurst {
		t.Errorf("%d of another", n)
	}
	now = now.Add(time.Second)
	if n := allowed("a"); n != int(time.Second/paceEvery) {
		t.Errorf("%d in a second", n)
	}
	now = now.Add(time.Hour)
	for i := range maxPaced + 5 {
		p.allow(strconv.Itoa(i), now.Add(time.Duration(i)*time.Second))
	}
	if len(p.due) > maxPaced {
		t.Errorf("%d tenants are remembered", len(p.due))
	}
}

// Counting tokens reserves nothing, and is not without bound for that.
func TestFreeEndpointsHaveAPace(t *testing.T) {
	t.Parallel()
	stands := time.Now()
	w := newWorld(t, setup{change: func(o *Options) { o.Now = func() time.Time { return stands } }})
	w.upstreams[0].script(func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		_, _ = io.WriteString(rw, `{"input_tokens":7}`)
	})
	count := func() answered {
		r, err := http.NewRequestWithContext(t.Context(), "POST", w.server.URL+"/v1/messages/count_tokens", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", w.key)
		r.Header.Set("Content-Type", "application/json")
		return w.do(r)
	}
	for range paceBurst {
		if a := count(); a.status != http.StatusOK {
			t.Fatalf("answer %d %s", a.status, a.body)
		}
	}
	if a := count(); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "1" || !strings.Contains(a.body, `"rate_limit_error"`) {
		t.Errorf("one more: %d %v %s", a.status, a.header, a.body)
	}
	if n := w.upstreams[0].calls.Load(); n != paceBurst {
		t.Errorf("%d calls upstream", n)
	}
	w.tenant.Suspended = true
	if a := count(); a.status != http.StatusForbidden {
		t.Errorf("suspended: %d %s", a.status, a.body)
	}
}
