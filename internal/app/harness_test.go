package app

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"tollgate/internal/config"
	"tollgate/internal/testenv"
	"tollgate/tenancy"
	tenancypg "tollgate/tenancy/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds how long a test waits for what must come.
const patience = 30 * time.Second

// site is an installation of a test's own on the real services.
type site struct {
	t      *testing.T
	set    map[string]string // configuration of every role
	redis  redis.UniversalClient
	prefix string
}

func newSite(t *testing.T) *site {
	t.Helper()
	client, prefix := testenv.Redis(t)
	brokers, topics := testenv.Kafka(t)
	s := &site{t: t, redis: client, prefix: prefix, set: map[string]string{
		"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0",
		"redis.addresses": os.Getenv(testenv.EnvRedis), "redis.prefix": prefix, "redis.cluster": "false", "redis.shards": "4",
		"kafka.brokers": strings.Join(brokers, ","), "kafka.topic_prefix": topics, "kafka.partitions": "2",
		"postgres.url": testenv.PostgresURL(t), "ledger.flush_interval": "100ms", "ledger.group": topics + "ledger",
		"relay.lease": "2s",
	}}
	if err := Migrate(t.Context(), s.config(), quiet()); err != nil {
		t.Fatal(err)
	}
	return s
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// config is the site's configuration with some fields changed.
func (s *site) config(changes ...string) *config.Config {
	s.t.Helper()
	set := map[string]string{}
	for field, value := range s.set {
		set[field] = value
	}
	for i := 0; i < len(changes); i += 2 {
		set[changes[i]] = changes[i+1]
	}
	cfg, err := config.Load(config.Source{Flags: set})
	if err != nil {
		s.t.Fatal(err)
	}
	return cfg
}

// start runs an app until the test ends or stop is called, which returns what
// Run returned.
func (s *site) start(a *App, roles ...func() error) (stop func() error) {
	s.t.Helper()
	for _, add := range roles {
		if err := add(); err != nil {
			s.t.Fatal(err)
		}
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	a.OnReady(func(*App) { close(ready) })
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- a.Run(ctx) }()
	var once sync.Once
	var result error
	stop = func() error {
		once.Do(func() { cancel(); result = <-ended })
		return result
	}
	s.t.Cleanup(func() {
		if err := stop(); err != nil {
			s.t.Errorf("stopping: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		s.t.Fatalf("did not start: %v", err)
	}
	return stop
}

// until waits until check returns "", and fails with what it last returned.
func until(t *testing.T, check func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", patience, problem)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// client keeps no connection open, so that nothing outlives a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}

// answer is an HTTP answer, read whole.
type answer struct {
	status int
	header http.Header
	body   string
}

func ask(t *testing.T, method, url, key string, body any) answer {
	t.Helper()
	var payload io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		payload = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, payload)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(data)}
}

// decode reads the answer's body as JSON.
func (a answer) decode(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		t.Fatalf("decode %s: %v", a.body, err)
	}
}

// ready asks an app's readiness endpoint.
func ready(t *testing.T, a *App) answer {
	return ask(t, "GET", "http://"+a.AdminAddr+"/readyz", "", nil)
}

func untilReady(t *testing.T, a *App) {
	t.Helper()
	until(t, func() string {
		if got := ready(t, a); got.status != 200 {
			return "readyz: " + got.body
		}
		return ""
	})
}

// tenant creates a tenant with a quota and a key and returns the key's secret.
func (s *site) tenant(tenant tenancy.Tenant, keyLimits ...tenancy.Limit) string {
	s.t.Helper()
	pool, err := NewPostgres(s.config())
	if err != nil {
		s.t.Fatal(err)
	}
	defer pool.Close()
	store := tenancypg.New(pool)
	change := tenancy.Change{Author: "test", Reason: "test"}
	if _, err := store.CreateTenant(s.t.Context(), change, tenant); err != nil {
		s.t.Fatal(err)
	}
	_, secret, err := store.CreateKey(s.t.Context(), change, tenancypg.NewKey{
		TenantID: tenant.ID, Name: "test", Role: tenancy.RoleTenant, Limits: keyLimits,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return secret
}

// untilKnown waits until the gateway accepts the key.
func untilKnown(t *testing.T, a *App, key string) {
	t.Helper()
	until(t, func() string {
		if got := ask(t, "GET", "http://"+a.Addr+"/v1/quota/usage", key, nil); got.status != 200 {
			return "usage query: " + got.body
		}
		return ""
	})
}

// hop passes connections on to a server until it is cut; then it refuses new
// ones and ends those that are open.
type hop struct {
	t      *testing.T
	target string
	addr   string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
	running  sync.WaitGroup
}

func newHop(t *testing.T, target string) *hop {
	t.Helper()
	p := &hop{t: t, target: target, addr: "127.0.0.1:0"}
	p.restore()
	t.Cleanup(p.cut)
	return p
}

func (p *hop) restore() {
	p.t.Helper()
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.listener, p.addr, p.open = l, l.Addr().String(), map[net.Conn]bool{}
	p.mu.Unlock()
	p.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.pass(l, conn) })
		}
	})
}

func (p *hop) pass(l net.Listener, conn net.Conn) {
	defer conn.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	if p.listener != l {
		p.mu.Unlock()
		return // cut while it was being connected
	}
	p.open[conn], p.open[server] = true, true
	p.mu.Unlock()
	var copying sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{conn: server, server: conn} {
		copying.Go(func() {
			_, _ = io.Copy(to, from) // ends when either side does
			_ = to.Close()
		})
	}
	copying.Wait()
}

func (p *hop) cut() {
	p.mu.Lock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
		for conn := range p.open {
			_ = conn.Close()
		}
	}
	p.mu.Unlock()
	p.running.Wait()
}
