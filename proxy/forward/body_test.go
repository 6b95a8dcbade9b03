package forward

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"tollgate/tenancy"
)

// neighbour adds a second tenant and returns its key.
func (w *world) neighbour() string {
	own := w.dir.keys[w.key]
	key, tenant := *own.Key, *own.Tenant
	key.ID, key.TenantID, tenant.ID = "k2", "other", "other"
	w.dir.keys["other"] = tenancy.Principal{Key: &key, Tenant: &tenant}
	return "other"
}

// half opens a connection that announces a body and sends a part of it.
func (w *world) half(announced int, sent string) net.Conn {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", w.key, announced, sent); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// Who announces large bodies and does not send them keeps nobody's out.
func TestAnnouncedBodiesTakeNoRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{change: func(o *Options) { o.MaxBodyBytes, o.MaxBodiesBytes = 1<<20, 4<<20 }})
	w.upstreams[0].script(whole("four", usageText))
	for range 32 {
		w.half(1<<20, "{")
	}
	w.eventually("the bodies to be waited for", func() bool { return w.handler.underWay() == 32 })
	for _, length := range []int64{0, -1} {
		r := w.request(t.Context(), strings.Repeat(" ", 200_000))
		if length < 0 {
			r.ContentLength = -1
		}
		if a := w.do(r); a.status != http.StatusOK {
			t.Errorf("a body that came: %d %s", a.status, a.body)
		}
	}
}

// One tenant's large bodies leave room for others', and who finds none may send
// all of its body and gets its answer, on a connection that stays.
func TestRoomOfOneTenant(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	w := newWorld(t, setup{change: func(o *Options) { o.MaxBodyBytes, o.MaxBodiesBytes = size+100, 2*size+500 }})
	w.upstreams[0].script(whole("four", usageText))
	other := w.neighbour()
	w.half(size, strings.Repeat(" ", size-1))
	w.eventually("the body to be here", func() bool { return w.handler.room.taken() > size/2 })

	conn := w.half(size, strings.Repeat(" ", size-100)) // which blocks as long as nobody reads
	if _, err := io.WriteString(conn, strings.Repeat(" ", 100)+"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+w.key+"\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(got, []byte("HTTP/1.1 503 ")) || !bytes.Contains(got, []byte("too_many_large_bodies")) || !bytes.Contains(got, []byte("HTTP/1.1 200 OK")) {
		t.Errorf("the tenant's second body: %v\n%s", err, got)
	}
	r := w.request(t.Context(), strings.Repeat(" ", size-200), "Authorization", "Bearer "+other)
	if a := w.do(r); a.status != http.StatusOK {
		t.Errorf("another tenant's body: %d %s", a.status, a.body)
	}
}

// A body that comes too slowly ends before the whole time is up; one that keeps
// the rate goes on.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{change: func(o *Options) { o.BodyGrace, o.BodyRate = 300*time.Millisecond, 100 }})
	w.upstreams[0].script(whole("four", usageText))
	conn := w.half(1000, "{")
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // long before the body's whole time
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")) || !bytes.Contains(got, []byte("body_unreadable")) {
		t.Errorf("a body that does not come: %v\n%s", err, got)
	}
	body := `{"model":"alias","messages":[{"role":"user","content":"one two three"}]}` + strings.Repeat(" ", 200)
	conn = w.half(len(body), body[:len(body)-1])
	time.Sleep(600 * time.Millisecond) // time itself is what is tested
	if _, err := io.WriteString(conn, body[len(body)-1:]); err != nil {
		t.Fatal(err)
	}
	if line := firstLine(t, conn); !strings.Contains(line, "200") {
		t.Errorf("a body that keeps the rate: %s", line)
	}
}

// A body that does not come holds up no shutdown, whether there is patience for
// streams or none.
func TestHalfABodyAtShutdown(t *testing.T) {
	t.Parallel()
	for name, patience := range map[string]time.Duration{"ended": time.Nanosecond, "hurried": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{change: func(o *Options) { o.DrainTimeout = patience }})
			conn := w.half(1000, "{")
			w.eventually("the body to be waited for", func() bool { return w.handler.underWay() == 1 })
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := w.handler.Stop(ctx); err != nil || ctx.Err() != nil || w.handler.underWay() != 0 {
				t.Errorf("stopped with %v, %v, %d under way", err, ctx.Err(), w.handler.underWay())
			}
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.HasPrefix(got, []byte("HTTP/1.1 503 ")) || !bytes.Contains(got, []byte("shutting_down")) {
				t.Errorf("the client got %v\n%s", err, got)
			}
		})
	}
}

// A body that comes in time is served, though the shutdown has begun, for as long
// as its answer takes.
func TestBodyInTimeAtShutdown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{change: func(o *Options) { o.DrainTimeout = time.Minute }})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		time.Sleep(lastWords + 200*time.Millisecond) // time itself is what is tested
		whole("four", usageText)(rw, r, body)
	})
	body := `{"model":"alias","messages":[{"role":"user","content":"one two three"}]}`
	conn := w.half(len(body), body[:10])
	w.eventually("the body to be waited for", func() bool { return w.handler.underWay() == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- w.handler.Stop(context.Background()) }()
	w.eventually("the shutdown to begin", w.handler.isDraining)
	if _, err := io.WriteString(conn, body[10:]); err != nil {
		t.Fatal(err)
	}
	if line := firstLine(t, conn); !strings.Contains(line, "200") {
		t.Errorf("answered %q", line)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
