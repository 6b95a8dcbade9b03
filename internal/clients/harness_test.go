package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"tollgate/internal/app"
	"tollgate/internal/config"
	"tollgate/internal/fakeprovider"
	"tollgate/internal/testenv"
	"tollgate/tenancy"
	tenancypg "tollgate/tenancy/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds how long a test waits for what must come.
const patience = 60 * time.Second

// directKey is the provider's own: the gateway's clients never see it.
const directKey = "sk-of-the-provider"

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

// site is a provider, and an installation of Tollgate in front of it.
type site struct {
	provider *fakeprovider.Server
	url      string // the gateway's
	pool     *pgxpool.Pool
	store    *tenancypg.Store
}

// newSite starts both. models are the names of models that are served, each by a
// deployment of its own.
func newSite(t *testing.T, models []string) *site {
	t.Helper()
	s := &site{provider: fakeprovider.New(fakeprovider.Options{Models: models, Key: directKey, DecodePerSecond: 2000})}
	if err := s.provider.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.provider.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("stop the provider: %v", err)
		}
	})
	_, prefix := testenv.Redis(t)
	brokers, topics := testenv.Kafka(t)
	cfg, err := config.Load(config.Source{Flags: map[string]string{
		"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0",
		"redis.addresses": os.Getenv(testenv.EnvRedis), "redis.prefix": prefix, "redis.cluster": "false", "redis.shards": "4",
		"kafka.brokers": strings.Join(brokers, ","), "kafka.topic_prefix": topics, "kafka.partitions": "2",
		"postgres.url": testenv.PostgresURL(t), "ledger.flush_interval": "100ms", "ledger.group": topics + "ledger",
		"proxy.upstreams_file": upstreams(t, s.provider.URL(), models),
	}})
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	if err := app.Migrate(t.Context(), cfg, quiet); err != nil {
		t.Fatal(err)
	}
	if s.pool, err = app.NewPostgres(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	s.store = tenancypg.New(s.pool)
	s.url = start(t, app.New(cfg, quiet))
	return s
}

// upstreams writes the front door's table.
func upstreams(t *testing.T, provider string, models []string) string {
	t.Helper()
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte(directKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	fmt.Fprintf(&table, "upstreams:\n"+
		"  - {name: openai, dialect: openai, url: %q, key_file: %q, identify: true}\n"+
		"  - {name: anthropic, dialect: anthropic, url: %q, key_file: %q, identify: true}\n"+
		"  - {name: gemini, dialect: gemini, url: %q, key_file: %q, identify: true}\n"+
		"models:\n", provider+"/v1", keyFile, provider, keyFile, provider, keyFile)
	for _, model := range models {
		upstream := "openai"
		switch {
		case strings.Contains(model, "claude"):
			upstream = "anthropic"
		case strings.Contains(model, "gemini"):
			upstream = "gemini"
		}
		fmt.Fprintf(&table, "  - {name: %q, deployments: [{upstream: %s}]}\n", model, upstream)
	}
	path := filepath.Join(t.TempDir(), "upstreams.yaml")
	if err := os.WriteFile(path, []byte(table.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs a gateway with a ledger until the test ends, and returns its URL.
func start(t *testing.T, a *app.App) string {
	t.Helper()
	for _, add := range []func() error{a.Gateway, a.Ledger} {
		if err := add(); err != nil {
			t.Fatal(err)
		}
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	a.OnReady(func(*app.App) { close(ready) })
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("stop the gateway: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("the gateway did not start: %v", err)
	}
	return "http://" + a.Addr
}

// change is who did it, in tests.
var change = tenancy.Change{Author: "test", Reason: "test"}

// tenant makes one whose quota counts requests alone: where tokens are counted,
// an answer without a cap is given one, which the Responses API shows.
func (s *site) tenant(t *testing.T, id string) {
	t.Helper()
	tenant := tenancy.Tenant{ID: id, Name: id, TimeZone: "UTC", Currency: "USD", Quota: tenancy.Quota{
		Limits: []tenancy.Limit{{
			Name: "requests", Layer: "L2", Kind: tenancy.KindRate, Scope: tenancy.ScopeTenant,
			Metric: tenancy.MetricRequests, Limit: 1000, Window: tenancy.Duration(time.Second), Burst: 1000,
		}},
	}}
	if _, err := s.store.CreateTenant(t.Context(), change, tenant); err != nil {
		t.Fatal(err)
	}
}

// key makes a key of a tenant's, and returns its secret.
func (s *site) key(t *testing.T, tenant string, limits ...tenancy.Limit) string {
	t.Helper()
	_, secret, err := s.store.CreateKey(t.Context(), change, tenancypg.NewKey{
		TenantID: tenant, Name: "test", Role: tenancy.RoleTenant, Limits: limits,
	})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// untilKnown waits until the gateway accepts a key.
func (s *site) untilKnown(t *testing.T, key string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	until(t, func() string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/quota/usage", nil)
		if err != nil {
			return err.Error()
		}
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := client.Do(req)
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return "usage query: " + res.Status
		}
		return ""
	})
}

// door is where a client is pointed to.
type door struct{ url, key string }

func (s *site) direct() door { return door{s.provider.URL(), directKey} }

// newTenant makes a tenant with one key and waits until the gateway knows it.
func (s *site) newTenant(t *testing.T, id string) door {
	t.Helper()
	s.tenant(t, id)
	key := s.key(t, id)
	s.untilKnown(t, key)
	return door{s.url, key}
}

// decode reads what a suite printed.
func decode(t *testing.T, output []byte) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(output)))
	decoder.UseNumber()
	var cases map[string]any
	if err := decoder.Decode(&cases); err != nil {
		t.Fatalf("the suite did not print JSON: %v\n%.500s", err, output)
	}
	return cases
}
