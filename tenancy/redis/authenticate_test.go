package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tollgate/tenancy"
	"tollgate/tenancy/postgres"
)

func TestAuthenticateRefuses(t *testing.T) {
	t.Parallel()
	client, prefix := backends["miniredis"](t)
	w := newWorld(t, client, prefix)
	w.publisher(t, PublisherOptions{})
	var ahead time.Duration // of the gateway's clock
	var clock sync.Mutex
	d := w.directory(t, DirectoryOptions{Now: func() time.Time {
		clock.Lock()
		defer clock.Unlock()
		return time.Now().Add(ahead)
	}})
	ctx, yes := t.Context(), true
	w.tenant(t, "acme")
	w.tenant(t, "asleep")
	if _, err := w.store.UpdateTenant(ctx, why, "asleep", postgres.TenantPatch{Suspended: &yes}); err != nil {
		t.Fatal(err)
	}
	_, good := w.key(t, postgres.NewKey{TenantID: "acme", Role: tenancy.RoleTenant})
	_, other := w.key(t, postgres.NewKey{TenantID: "acme", Role: tenancy.RoleTenant})
	_, asleep := w.key(t, postgres.NewKey{TenantID: "asleep", Role: tenancy.RoleTenant})
	_, operator := w.key(t, postgres.NewKey{Role: tenancy.RoleOperator})
	_, meter := w.key(t, postgres.NewKey{Role: tenancy.RoleMeter})
	_, expired := w.key(t, postgres.NewKey{TenantID: "asleep", Role: tenancy.RoleTenant, ExpiresAt: time.Now().Add(-time.Second)})
	_, expiring := w.key(t, postgres.NewKey{TenantID: "acme", Role: tenancy.RoleTenant, ExpiresAt: time.Now().Add(time.Hour)})
	revokedKey, revoked := w.key(t, postgres.NewKey{TenantID: "acme", Role: tenancy.RoleTenant})
	if _, err := w.store.RevokeKey(ctx, why, revokedKey.ID); err != nil {
		t.Fatal(err)
	}
	rotatedKey, rotated := w.key(t, postgres.NewKey{TenantID: "acme", Role: tenancy.RoleTenant})
	_, successor, err := w.store.RotateKey(ctx, why, rotatedKey.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.ready(t, d)

	for _, test := range []struct {
		name, presented string
		want            error
		tenant          string
	}{
		{"good", good, nil, "acme"},
		{"other key of the tenant", other, nil, "acme"},
		{"operator", operator, nil, ""},
		{"meter", meter, nil, ""},
		{"not yet expired", expiring, nil, "acme"},
		{"successor of a rotated key", successor, nil, "acme"},
		{"empty", "", tenancy.ErrBadKey, ""},
		{"id without secret", good[:20], tenancy.ErrBadKey, ""},
		{"unknown id, known secret", "tgk_0000000000000000" + good[20:], tenancy.ErrBadKey, ""},
		{"known id, another key's secret", good[:20] + other[20:], tenancy.ErrBadKey, ""},
		{"known id, secret of zeros", good[:21] + strings.Repeat("A", 43), tenancy.ErrBadKey, ""},
		{"unknown id, secret of zeros", "tgk_0000000000000000." + strings.Repeat("A", 43), tenancy.ErrBadKey, ""},
		{"first character changed", good[:21] + flip(good[21:22]) + good[22:], tenancy.ErrBadKey, ""},
		{"upper-case id", strings.ToUpper(good[:20]) + good[20:], tenancy.ErrBadKey, ""},
		{"trailing space", good + " ", tenancy.ErrBadKey, ""},
		{"two keys", good + good, tenancy.ErrBadKey, ""},
		{"a megabyte", strings.Repeat("x", 1<<20), tenancy.ErrBadKey, ""},
		{"revoked", revoked, tenancy.ErrKeyRevoked, ""},
		{"rotated out", rotated, tenancy.ErrKeyRevoked, ""},
		{"expired, of a suspended tenant", expired, tenancy.ErrKeyRevoked, ""},
		{"suspended tenant", asleep, tenancy.ErrSuspended, ""},
		// Who does not know the secret learns nothing about the key.
		{"revoked id, wrong secret", revoked[:20] + good[20:], tenancy.ErrBadKey, ""},
		{"suspended tenant, wrong secret", asleep[:20] + good[20:], tenancy.ErrBadKey, ""},
	} {
		who, err := d.Authenticate(test.presented)
		if !errors.Is(err, test.want) || test.want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", test.name, err, test.want)
			continue
		}
		if err != nil {
			if errors.Is(test.want, tenancy.ErrSuspended) { // it may still end what it has
				if who.Key == nil || who.Key.ID != asleep[:20] || who.Tenant == nil || who.Tenant.ID != "asleep" {
					t.Errorf("%s: is %+v", test.name, who)
				}
			} else if who != (tenancy.Principal{}) {
				t.Errorf("%s: refused, and yet told who it is", test.name)
			}
			if strings.Contains(err.Error(), good[21:]) {
				t.Errorf("%s: the error shows the secret", test.name)
			}
			continue
		}
		if got := tenantOf(who); got != test.tenant || who.Key.ID != test.presented[:20] {
			t.Errorf("%s: is key %s of tenant %q", test.name, who.Key.ID, got)
		}
	}

	clock.Lock()
	ahead = 2 * time.Hour
	clock.Unlock()
	if _, err := d.Authenticate(expiring); !errors.Is(err, tenancy.ErrKeyRevoked) {
		t.Errorf("after its expiry, with no change published: %v", err)
	}
}

func flip(c string) string {
	if c == "A" {
		return "B"
	}
	return "A"
}

func tenantOf(who tenancy.Principal) string {
	if who.Tenant == nil {
		return ""
	}
	return who.Tenant.ID
}

// loaded is a directory of n tenants with a key each, without any Redis.
func loaded(tb testing.TB, n int) (d *Directory, presented []string) {
	tb.Helper()
	s := (&snapshot{}).with(nil)
	platform := tenancy.DefaultPlatform()
	s.platform = &platform
	random := &counter{}
	for i := range n {
		id := fmt.Sprintf("tenant-%d", i)
		c, err := tenancy.NewCredential(random)
		if err != nil {
			tb.Fatal(err)
		}
		s.tenants[id] = &tenancy.Tenant{ID: id, Quota: tenancy.DefaultQuota()}
		s.keys[c.KeyID] = &tenancy.Key{ID: c.KeyID, TenantID: id, Role: tenancy.RoleTenant, SecretHash: c.SecretHash}
		presented = append(presented, c.Presented)
	}
	d = NewDirectory(nil, "", DirectoryOptions{})
	d.snapshot.Store(s)
	return d, presented
}

// counter stands in for randomness where keys need only differ.
type counter struct{ n uint64 }

func (c *counter) Read(p []byte) (int, error) {
	for i := range p {
		c.n = c.n*6364136223846793005 + 1442695040888963407
		p[i] = byte(c.n >> 56)
	}
	return len(p), nil
}

func TestRequestPathDoesNotAllocate(t *testing.T) {
	d, presented := loaded(t, 10)
	wrong := presented[0][:20] + presented[1][20:]
	for name, do := range map[string]func(){
		"Authenticate":                func() { _, _ = d.Authenticate(presented[3]) },
		"Authenticate with bad key":   func() { _, _ = d.Authenticate(wrong) },
		"Authenticate with bad shape": func() { _, _ = d.Authenticate("x") },
		"Tenant":                      func() { _, _ = d.Tenant("tenant-3") },
		"Tenants":                     func() { _ = d.Tenants() },
		"Platform":                    func() { _ = d.Platform() },
		"Version":                     func() { _ = d.Version() },
	} {
		if n := testing.AllocsPerRun(200, do); n != 0 {
			t.Errorf("%s allocates %.0f times", name, n)
		}
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		b.Run(fmt.Sprintf("tenants=%d", n), func(b *testing.B) {
			d, presented := loaded(b, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, err := d.Authenticate(presented[i%n]); err != nil {
					b.Fatal(err)
				}
				i += 7919
			}
		})
	}
}

// BenchmarkChangeReachesEveryGateway measures from the moment that a change is
// committed until the last of eight gateways has it.
func BenchmarkChangeReachesEveryGateway(b *testing.B) {
	for name, backend := range backends {
		b.Run(name, func(b *testing.B) {
			client, prefix := backend(b)
			w := newWorld(b, client, prefix)
			w.publisher(b, PublisherOptions{})
			gateways := make([]*Directory, 8)
			for i := range gateways {
				gateways[i] = w.directory(b, DirectoryOptions{})
				w.ready(b, gateways[i])
			}
			w.tenant(b, "acme")
			var took []time.Duration
			ctx := context.Background()
			for b.Loop() {
				quota, err := w.store.SetLimit(ctx, why, "acme", tenancy.Limit{
					Name: "concurrency", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeTenant, Limit: int64(len(took)),
				})
				if err != nil {
					b.Fatal(err)
				}
				committed := time.Now()
				for _, d := range gateways {
					for {
						tenant, err := d.Tenant("acme")
						if err == nil && tenant.Quota.Version >= quota.Version {
							break
						}
						if time.Since(committed) > 5*time.Second {
							b.Fatal("a gateway has not got the change in 5 s")
						}
						time.Sleep(100 * time.Microsecond)
					}
				}
				took = append(took, time.Since(committed))
			}
			slices.Sort(took)
			milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(milliseconds(took[len(took)/2]), "p50-ms")
			b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-ms")
			b.ReportMetric(milliseconds(took[len(took)-1]), "max-ms")
		})
	}
}
