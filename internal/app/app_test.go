package app

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"tollgate/internal/testenv"
	"tollgate/tenancy"
)

var roles = map[string]func(*App) error{
	"gateway": (*App).Gateway, "relay": (*App).Relay, "ledger": (*App).Ledger, "reconcile": (*App).Reconcile,
}

func TestEachRoleStartsBecomesReadyAndStops(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// A relay and a reconciler work on what a gateway has set up.
	gateway := New(s.config(), quiet())
	s.start(gateway, gateway.Gateway)
	for name, add := range roles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := New(s.config("relay.enabled_in_gateway", "false"), quiet())
			inner := *s
			inner.t = t
			stop := inner.start(a, func() error { return add(a) })
			if got := ask(t, "GET", "http://"+a.AdminAddr+"/healthz", "", nil); got.status != 200 || got.body != "ok\n" {
				t.Errorf("healthz: %+v", got)
			}
			untilReady(t, a)
			if got := ask(t, "GET", "http://"+a.AdminAddr+"/metrics", "", nil); !strings.Contains(got.body, "\ntollgate_") {
				t.Errorf("no metric of the role's own: %.300s", got.body)
			}
			if err := stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			if conn, err := net.Dial("tcp", a.AdminAddr); err == nil {
				conn.Close()
				t.Error("the admin listener is still there after the end")
			}
		})
	}
}

// Whatever starts before the part that fails is stopped again, and the error
// names the part and the setting.
func TestAFailedStartStopsWhatHadStarted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a := New(s.config("listen", taken.Addr().String()), quiet())
	if err := a.Gateway(); err != nil {
		t.Fatal(err)
	}
	err = a.Run(t.Context())
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "listen" || !strings.Contains(err.Error(), "start http api") {
		t.Errorf("got %v, want the http api's listen error", err)
	}
	if conn, err := net.Dial("tcp", a.AdminAddr); err == nil {
		conn.Close()
		t.Error("the admin listener was left running")
	}
}

// A part that fails for good ends the app with its error.
func TestAPartThatFailsEndsTheRole(t *testing.T) {
	t.Parallel()
	s := &site{t: t}
	a := New(s.config("admin_listen", "127.0.0.1:0"), quiet())
	broken := errors.New("broken for good")
	a.background("part", func(context.Context) error { return broken })
	stopped := false
	a.add(part{
		name:  "other",
		start: func(context.Context) error { return nil },
		stop:  func(context.Context) error { stopped = true; return nil },
	})
	err := a.Run(t.Context())
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "part: ") {
		t.Errorf("got %v", err)
	}
	if !stopped {
		t.Error("the other part was not stopped")
	}
}

func TestARoleWithoutDatabaseSaysWhatToSet(t *testing.T) {
	t.Parallel()
	s := &site{t: t}
	for _, name := range []string{"ledger", "reconcile"} {
		a := New(s.config("postgres.url", ""), quiet())
		if err := roles[name](a); !errors.Is(err, ErrNoDatabase) {
			t.Errorf("%s: got %v, want ErrNoDatabase", name, err)
		}
		a.close()
	}
}

// Readiness follows PostgreSQL; liveness does not: a restart would not help.
func TestReadinessFollowsPostgres(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	direct, err := url.Parse(s.set["postgres.url"])
	if err != nil {
		t.Fatal(err)
	}
	p := newHop(t, direct.Host)
	direct.Host = p.addr
	gateway := New(s.config(), quiet()) // publishes, for the reconciler
	s.start(gateway, gateway.Gateway)
	for _, name := range []string{"ledger", "reconcile"} {
		a := New(s.config("postgres.url", direct.String()), quiet())
		s.start(a, func() error { return roles[name](a) })
		untilReady(t, a)
		p.cut()
		until(t, func() string {
			got := ready(t, a)
			if got.status == 503 && strings.Contains(got.body, "not ready: postgres\n") {
				return ""
			}
			return name + ": " + got.body
		})
		if got := ask(t, "GET", "http://"+a.AdminAddr+"/healthz", "", nil); got.status != 200 {
			t.Errorf("%s: healthz without PostgreSQL: %d", name, got.status)
		}
		p.restore()
		untilReady(t, a)
	}
}

// Readiness of ledger and relay follows Kafka. The broker is one of the test's
// own, since it dies.
func TestReadinessFollowsKafka(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := t.TempDir()
	port := 0
	up := func() *kfake.Cluster {
		var opts []kfake.Opt
		opts = append(opts, kfake.NumBrokers(1), kfake.DataDir(dir))
		if port != 0 {
			opts = append(opts, kfake.Ports(port))
		}
		c, err := kfake.NewCluster(opts...)
		if err != nil {
			t.Fatal(err)
		}
		_, text, err := net.SplitHostPort(c.ListenAddrs()[0])
		if err == nil {
			port, err = strconv.Atoi(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	broker := up()
	cfg := s.config("kafka.brokers", broker.ListenAddrs()[0], "ledger.stall_after", "1s")
	if err := Migrate(t.Context(), cfg, quiet()); err != nil {
		t.Fatal(err)
	}
	key := s.tenant(tenancy.Tenant{ID: "acme", Name: "Acme", TimeZone: "UTC", Currency: "USD"})
	a := New(cfg, quiet())
	s.start(a, a.Gateway, a.Ledger)
	untilReady(t, a)
	untilKnown(t, a, key)

	broker.Close()
	until(t, func() string {
		got := ready(t, a)
		if got.status == 503 && strings.Contains(got.body, "not ready: kafka\n") {
			return ""
		}
		return got.body
	})
	// A reservation is taken all the same: its event waits in the outbox. The
	// relay finds out that nobody takes it.
	if got := ask(t, "POST", "http://"+a.Addr+"/v1/reservations", key, reserve("while-away", 10, 10)); got.status != 201 {
		t.Errorf("reserve while the log is away: %+v", got)
	}
	until(t, func() string {
		if got := ready(t, a); !strings.Contains(got.body, "not ready: relay\n") {
			return got.body
		}
		return ""
	})
	broker = up()
	defer func() { broker.Close() }()
	untilReady(t, a)
	backend, err := newBackend(a)
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() string { return undrained(t, backend) })
}

type reserveBody struct {
	RequestID       string `json:"request_id"`
	Endpoint        string `json:"endpoint"`
	Model           string `json:"model"`
	InputTokens     int64  `json:"input_tokens"`
	MaxOutputTokens int64  `json:"max_output_tokens"`
	TTLMillis       int64  `json:"ttl_ms,omitempty"`
}

func reserve(id string, input, output int64) reserveBody {
	return reserveBody{RequestID: id, Endpoint: "chat", Model: "m", InputTokens: input, MaxOutputTokens: output}
}

// newBackend is Backend without adding a reconciler to a running app.
func newBackend(a *App) (*Backend, error) {
	return &Backend{store: a.store, kafka: a.kafkaClient, pool: a.pool}, nil
}

// undrained says what has still to be copied or folded.
func undrained(t *testing.T, b *Backend) string {
	t.Helper()
	backlog, err := b.Backlog(t.Context())
	if err != nil {
		return err.Error()
	}
	lag, err := b.Lag(t.Context())
	if err != nil {
		return err.Error()
	}
	if backlog+lag > 0 {
		return strconv.FormatInt(backlog, 10) + " wait in the outbox, " + strconv.FormatInt(lag, 10) + " in the log"
	}
	return ""
}

// A gateway that has never reached Redis refuses, and says when to come back.
func TestAGatewayWithoutRedisRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.tenant(tenancy.Tenant{ID: "acme", Name: "Acme", TimeZone: "UTC", Currency: "USD"})
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	a := New(s.config("redis.addresses", nobody.Addr().String()), quiet())
	s.start(a, a.Gateway)
	mustRefuse(t, a, key)
	if got := ready(t, a); got.status != 503 || !strings.Contains(got.body, "not ready: admission\n") {
		t.Errorf("readyz: %+v", got)
	}
}

func mustRefuse(t *testing.T, a *App, key string) {
	t.Helper()
	got := ask(t, "POST", "http://"+a.Addr+"/v1/reservations", key, reserve("refused", 10, 10))
	seconds, err := strconv.Atoi(got.header.Get("Retry-After"))
	if got.status != 503 || err != nil || seconds < 1 {
		t.Errorf("reserve: %d, Retry-After %q, %s; want 503 and seconds", got.status, got.header.Get("Retry-After"), got.body)
	}
}

// A gateway whose Redis goes away refuses at once, never admits unchecked, and
// goes on by itself when it is back.
func TestAGatewayOutlivesRedisBeingAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.tenant(tenancy.Tenant{ID: "acme", Name: "Acme", TimeZone: "UTC", Currency: "USD"})
	p := newHop(t, os.Getenv(testenv.EnvRedis))
	a := New(s.config("redis.addresses", p.addr, "admission.request_timeout", "500ms"), quiet())
	s.start(a, a.Gateway)
	untilReady(t, a)
	untilKnown(t, a, key)
	url := "http://" + a.Addr + "/v1/reservations"
	if got := ask(t, "POST", url, key, reserve("before", 10, 10)); got.status != 201 {
		t.Fatalf("reserve: %+v", got)
	}
	p.cut()
	began := time.Now()
	mustRefuse(t, a, key)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the refusal took %s", took)
	}
	p.restore()
	until(t, func() string {
		if got := ask(t, "POST", url, key, reserve("after", 10, 10)); got.status != 201 && got.status != 200 {
			return got.body
		}
		return ""
	})
	// The request from before is known.
	if got := ask(t, "POST", url, key, reserve("before", 10, 10)); got.status != 200 {
		t.Errorf("repeat: %+v, want 200", got)
	}
}
