package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"tollgate/tenancy"
	"tollgate/tenancy/postgres"
)

// A change reaches every gateway: tenants, keys, quotas, the platform's
// document, suspension and revocation. The time that it takes is measured by
// BenchmarkChangeReachesEveryGateway.
func TestChangeReachesEveryGateway(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		w.publisher(t, PublisherOptions{})
		gateways := make([]*Directory, 3)
		for i := range gateways {
			gateways[i] = w.directory(t, DirectoryOptions{})
			w.ready(t, gateways[i])
		}
		ctx := t.Context()
		everywhere := func(what string, holds func(*Directory) bool) {
			t.Helper()
			w.current(t, gateways...)
			for i, d := range gateways {
				if !holds(d) {
					t.Errorf("gateway %d: not so: %s", i, what)
				}
			}
		}

		want := w.tenant(t, "acme")
		key, presented := w.key(t, postgres.NewKey{TenantID: "acme", Role: tenancy.RoleTenant})
		everywhere("the key opens", func(d *Directory) bool {
			who, err := d.Authenticate(presented)
			return err == nil && cmp.Equal(want, who.Tenant) && cmp.Equal(key, who.Key)
		})

		if _, err := w.store.SetLimit(ctx, why, "acme", tenancy.Limit{
			Name: "concurrency", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeTenant, Limit: 7,
		}); err != nil {
			t.Fatal(err)
		}
		everywhere("the quota changed", func(d *Directory) bool {
			tenant, err := d.Tenant("acme")
			return err == nil && tenant.Quota.Version == 2 && tenant.Quota.Limits[3].Limit == 7
		})

		if _, err := w.store.SetModel(ctx, why, tenancy.Model{Name: "gpt", WeightMilli: 1500}); err != nil {
			t.Fatal(err)
		}
		everywhere("the platform changed", func(d *Directory) bool {
			return d.Platform().Version == 1 && len(d.Platform().Models) == 1
		})

		yes, no := true, false
		if _, err := w.store.UpdateTenant(ctx, why, "acme", postgres.TenantPatch{Suspended: &yes}); err != nil {
			t.Fatal(err)
		}
		everywhere("the tenant is suspended", func(d *Directory) bool {
			_, err := d.Authenticate(presented)
			return errors.Is(err, tenancy.ErrSuspended)
		})
		if _, err := w.store.UpdateTenant(ctx, why, "acme", postgres.TenantPatch{Suspended: &no}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.RevokeKey(ctx, why, key.ID); err != nil {
			t.Fatal(err)
		}
		everywhere("the key is revoked", func(d *Directory) bool {
			_, err := d.Authenticate(presented)
			return errors.Is(err, tenancy.ErrKeyRevoked)
		})

		// Removed by hand, which no method does.
		if _, err := w.pool.Exec(ctx, `DELETE FROM api_keys`); err != nil {
			t.Fatal(err)
		}
		if _, err := w.pool.Exec(ctx, `WITH q AS (DELETE FROM tenant_quotas) SELECT`); err != nil {
			t.Fatal(err)
		}
		if _, err := w.pool.Exec(ctx, `DELETE FROM tenants`); err != nil {
			t.Fatal(err)
		}
		everywhere("key and tenant are gone", func(d *Directory) bool {
			_, keyErr := d.Authenticate(presented)
			_, tenantErr := d.Tenant("acme")
			return errors.Is(keyErr, tenancy.ErrBadKey) && errors.Is(tenantErr, tenancy.ErrNotFound) && len(d.Tenants()) == 0
		})
	})
}

func TestDirectoryIsNotReadyUntilSomethingIsPublished(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		var lines logLines
		d := w.directory(t, DirectoryOptions{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		eventually(t, "the missing publication is noticed", func() bool { return errors.Is(d.Err(), errNotPublished) })
		if _, err := d.Authenticate("tgk_0123456789abcdef." + strings.Repeat("A", 43)); !errors.Is(err, tenancy.ErrNotReady) {
			t.Errorf("Authenticate gives %v", err)
		}
		if _, err := d.Tenant("acme"); !errors.Is(err, tenancy.ErrNotReady) {
			t.Errorf("Tenant gives %v", err)
		}
		if err := d.Ready(); !errors.Is(err, errNotPublished) {
			t.Errorf("Ready gives %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.WaitReady(ctx); !errors.Is(err, tenancy.ErrNotReady) || !errors.Is(err, context.Canceled) {
			t.Errorf("WaitReady gives %v", err)
		}
		if !strings.Contains(lines.String(), "level=ERROR") || !strings.Contains(lines.String(), "is a publisher running?") {
			t.Errorf("logged only %q", lines.String())
		}
		w.publisher(t, PublisherOptions{})
		w.ready(t, d)
		if diff := cmp.Diff(tenancy.DefaultPlatform(), *d.Platform()); diff != "" {
			t.Errorf("platform of a new installation (-want +got):\n%s", diff)
		}
	})
}

func TestEmptiedRedisIsPublishedAnewAndForgetsNobody(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		w.publisher(t, PublisherOptions{Resync: time.Hour})
		d := w.directory(t, DirectoryOptions{Resync: time.Hour})
		w.tenant(t, "acme")
		_, presented := w.key(t, postgres.NewKey{TenantID: "acme", Role: tenancy.RoleTenant})
		w.ready(t, d)
		before := d.snapshot.Load()
		for range 3 {
			w.empty(t)
			eventually(t, "the directory is loaded from the new publication", func() bool {
				if _, err := d.Authenticate(presented); err != nil {
					t.Fatalf("the key was forgotten: %v", err)
				}
				return d.snapshot.Load().epoch != before.epoch
			})
			if now := d.snapshot.Load(); now.version < before.version {
				t.Errorf("version went back from %d to %d", before.version, now.version)
			}
			before = d.snapshot.Load()
		}
		w.tenant(t, "later")
		w.current(t, d)
		if _, err := d.Tenant("later"); err != nil {
			t.Errorf("a change after all that is missing: %v", err)
		}
	})
}

func TestDirectoryKeepsItsStateWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, DialTimeout: time.Second})
	t.Cleanup(func() { _ = client.Close() })
	w := newWorld(t, client, "tg:")
	w.publisher(t, PublisherOptions{})
	d := w.directory(t, DirectoryOptions{})
	w.tenant(t, "acme")
	_, presented := w.key(t, postgres.NewKey{TenantID: "acme", Role: tenancy.RoleTenant})
	w.ready(t, d)

	server.Close()
	eventually(t, "the loss is noticed", func() bool { return d.Err() != nil })
	if _, err := d.Authenticate(presented); err != nil {
		t.Errorf("the key was forgotten: %v", err)
	}
	w.tenant(t, "meanwhile")
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	w.current(t, d)
	if _, err := d.Tenant("meanwhile"); err != nil {
		t.Errorf("what changed meanwhile is missing: %v", err)
	}
}

func TestUnusableDocumentsKeepTheLastGood(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		p := w.publisher(t, PublisherOptions{Resync: time.Hour})
		var lines logLines
		d := w.directory(t, DirectoryOptions{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		w.tenant(t, "acme")
		_, presented := w.key(t, postgres.NewKey{TenantID: "acme", Role: tenancy.RoleTenant})
		w.ready(t, d)
		want := *d.snapshot.Load()
		p.Stop() // else it would mend what follows

		ctx, k := t.Context(), keysOf(w.prefix)
		for i, document := range []string{
			"not json", "null", `{"id":"other","name":"x","time_zone":"UTC","currency":"EUR"}`,
			`{"id":"acme","name":"x","time_zone":"Mars","currency":"EUR"}`, `{"id":"acme","quota":{"limits":[{"kind":"new"}]},"limits":[{"kind":"new"}]}`,
		} {
			version, err := w.client.HIncrBy(ctx, k.version, "version", 1).Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, field := range []string{"tenant:acme", "key:" + presented[:20], "platform"} {
				if err := errors.Join(
					w.client.HSet(ctx, k.documents, field, document).Err(),
					w.client.ZAdd(ctx, k.changes, redis.Z{Score: float64(version), Member: field}).Err(),
				); err != nil {
					t.Fatal(err)
				}
			}
			// Once by its change, once by a load of everything.
			epoch := want.epoch
			if i%2 == 0 {
				epoch = fmt.Sprint("epoch", i)
			}
			want.epoch = epoch
			if err := w.client.HSet(ctx, k.version, "epoch", epoch, "version", version+1).Err(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the documents are refused: "+document, func() bool {
				now := d.snapshot.Load()
				return now.epoch == epoch && now.source == version+1 && len(now.unusable) == 3
			})
			eventually(t, "the failure is told", func() bool {
				err := d.Err()
				return err != nil && strings.Contains(err.Error(), "3 published documents cannot be used, first key:tgk_")
			})
			if err := d.Ready(); err != nil {
				t.Errorf("unusable documents stop the gateway: %v", err)
			}
			who, err := d.Authenticate(presented)
			if err != nil || !cmp.Equal(who.Tenant, want.tenants["acme"]) || !cmp.Equal(d.Platform(), want.platform) {
				t.Errorf("%s: the last good state is lost: %+v, %v", document, who, err)
			}
		}
		if !strings.Contains(lines.String(), "level=ERROR") || !strings.Contains(lines.String(), "tenant:acme") && !strings.Contains(lines.String(), "key:") {
			t.Errorf("logged only %q", lines.String())
		}

		w.publisher(t, PublisherOptions{})
		eventually(t, "a publisher mends it", func() bool { return d.Err() == nil })
		if who, err := d.Authenticate(presented); err != nil || !cmp.Equal(who.Tenant, want.tenants["acme"]) {
			t.Errorf("after mending: %+v, %v", who, err)
		}
	})
}

// What is changed or evicted in Redis behind the publisher's back comes back.
func TestPublisherHealsWhatIsLostInRedis(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		w.publisher(t, PublisherOptions{Resync: time.Millisecond})
		d := w.directory(t, DirectoryOptions{})
		w.tenant(t, "acme")
		w.ready(t, d)
		ctx, k := t.Context(), keysOf(w.prefix)
		want, err := w.client.HGetAll(ctx, k.documents).Result()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(
			w.client.HDel(ctx, k.documents, "tenant:acme").Err(),
			w.client.HSet(ctx, k.documents, "key:tgk_ffffffffffffffff", "planted", "platform", "{}").Err(),
		); err != nil {
			t.Fatal(err)
		}
		eventually(t, "Redis is as before", func() bool {
			got, err := w.client.HGetAll(ctx, k.documents).Result()
			return err == nil && cmp.Equal(want, got)
		})
	})
}

func TestAnotherPublisherTakesOver(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		d := w.directory(t, DirectoryOptions{})
		first := w.publisher(t, PublisherOptions{})
		eventually(t, "the first leads", first.Leading)
		second := w.publisher(t, PublisherOptions{})
		w.tenant(t, "one")
		w.ready(t, d)
		if second.Leading() {
			t.Error("two publish at once")
		}
		// The leader's database connection dies.
		if _, err := w.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); err != nil {
			t.Fatal(err)
		}
		w.tenant(t, "two")
		w.current(t, d)
		eventually(t, "one leads", func() bool { return first.Leading() != second.Leading() })
		// The leader ends.
		other := first
		if first.Leading() {
			other = second
			first.Stop()
		} else {
			second.Stop()
		}
		w.tenant(t, "three")
		w.current(t, d)
		eventually(t, "the other leads", other.Leading)
		if diff := cmp.Diff([]string{"one", "three", "two"}, d.Tenants()); diff != "" {
			t.Errorf("tenants (-want +got):\n%s", diff)
		}
	})
}

// Without a publisher revocations do not arrive, and nothing else would tell.
func TestDirectorySaysThatNobodyPublishes(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		p := w.publisher(t, PublisherOptions{})
		d := w.directory(t, DirectoryOptions{})
		w.ready(t, d)
		p.Stop()
		left, err := w.client.PTTL(t.Context(), keysOf(w.prefix).alive).Result()
		if err != nil || left <= 0 || left > aliveFor {
			t.Errorf("the sign of life lasts %s, %v", left, err)
		}
		if err := w.client.Del(t.Context(), keysOf(w.prefix).alive).Err(); err != nil { // as if it had run out
			t.Fatal(err)
		}
		eventually(t, "the silence is noticed", func() bool { return errors.Is(d.Err(), errNoPublisher) })
		if err := d.Ready(); err != nil {
			t.Errorf("and yet the directory answers: %v", err)
		}
		w.publisher(t, PublisherOptions{})
		eventually(t, "all is well again", func() bool { return d.Err() == nil })
	})
}

// A publisher that was replaced without noticing, for it was stopped in mid
// work, cannot write older documents over newer ones.
func TestReplacedPublisherIsFenced(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		old := NewPublisher(nil, w.client, w.prefix, PublisherOptions{})
		stale, err := old.take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := old.write(ctx, stale, map[string][]byte{"platform": []byte("v1")}, 1); err != nil {
			t.Fatal(err)
		}
		fresh, err := NewPublisher(nil, w.client, w.prefix, PublisherOptions{}).take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if fresh.published != 1 || fresh.epoch != stale.epoch {
			t.Errorf("the successor found %+v", fresh)
		}
		if err := old.check(ctx, stale); !errors.Is(err, errReplaced) {
			t.Errorf("check gives %v", err)
		}
		if err := old.write(ctx, stale, map[string][]byte{"platform": []byte("v0")}, 2); !errors.Is(err, errReplaced) {
			t.Errorf("write gives %v", err)
		}
		if got := w.client.HGet(ctx, keysOf(w.prefix).documents, "platform").Val(); got != "v1" {
			t.Errorf("the document is %q", got)
		}
	})
}

// A publication in several parts shows only when it is whole.
func TestPublicationInPartsShowsWhenWhole(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		p := NewPublisher(nil, w.client, w.prefix, PublisherOptions{})
		term, err := p.take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		documents := map[string][]byte{"a": []byte("1"), "platform": []byte("2")}
		if err := p.writePart(ctx, term, 5, []string{"a"}, documents, false); err != nil {
			t.Fatal(err)
		}
		d := NewDirectory(w.client, w.prefix, DirectoryOptions{})
		if _, err := d.published(ctx); !errors.Is(err, errNotPublished) {
			t.Errorf("half a publication: %v", err)
		}
		p.partLen = 1
		if err := p.write(ctx, term, documents, 5); err != nil {
			t.Fatal(err)
		}
		if found, err := d.published(ctx); err != nil || found.version != 5 || found.epoch != term.epoch {
			t.Errorf("published %+v, %v", found, err)
		}
		if err := p.writePart(ctx, term, 5, nil, nil, true); err == nil {
			t.Error("the same version was published twice")
		}
	})
}

// A store that was restored from a backup has lower versions: they are
// published all the same, and directories take them.
func TestRestoredStoreIsPublished(t *testing.T) {
	t.Parallel()
	onEveryBackend(t, func(t *testing.T, w *world) {
		w.publisher(t, PublisherOptions{Resync: time.Hour})
		d := w.directory(t, DirectoryOptions{})
		w.tenant(t, "kept")
		w.tenant(t, "lost")
		w.ready(t, d)
		before := d.Version()
		tx, err := w.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range []string{
			`DELETE FROM tenant_quotas WHERE tenant_id = 'lost'`, `DELETE FROM tenants WHERE id = 'lost'`,
			`DELETE FROM config_fields WHERE field = 'tenant:lost'`, `UPDATE config_version SET version = 1`,
		} {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the directory is as the restored store", func() bool {
			return cmp.Equal(d.Tenants(), []string{"kept"})
		})
		if d.Version() <= before {
			t.Errorf("version went from %d to %d", before, d.Version())
		}
	})
}

func TestStartAndStopInAnyOrder(t *testing.T) {
	t.Parallel()
	client, prefix := backends["miniredis"](t)
	w := newWorld(t, client, prefix)
	p := NewPublisher(postgres.NewFeed(w.pool), client, prefix, PublisherOptions{})
	d := NewDirectory(client, prefix, DirectoryOptions{})
	p.Stop()
	d.Stop()
	p.Start()
	d.Start()
	p.Stop()
	d.Stop()
	if p.Leading() || d.Version() != 0 {
		t.Error("started after Stop")
	}
	p = w.publisher(t, PublisherOptions{})
	d = w.directory(t, DirectoryOptions{})
	p.Start()
	d.Start()
	w.ready(t, d)
	for range 2 {
		p.Stop()
		d.Stop()
	}
	if p.Leading() || d.Version() != 0 && d.Platform() == nil {
		t.Error("after Stop the last state is not readable")
	}
}
