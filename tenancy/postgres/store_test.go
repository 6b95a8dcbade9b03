package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/internal/testenv"
	"tollgate/tenancy"
	"tollgate/tenancy/postgres"
)

var why = tenancy.Change{Author: "alice", Reason: "ticket 7"}

func acme() tenancy.Tenant {
	return tenancy.Tenant{ID: "acme", Name: "Acme", TimeZone: "Europe/Berlin", Currency: "EUR"}
}

func newStore(t *testing.T) (*postgres.Store, *pgxpool.Pool) {
	t.Helper()
	pool := testenv.Postgres(t)
	return postgres.New(pool), pool
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestCreateTenantStoresTheDefaultQuota(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	created := must(store.CreateTenant(ctx, why, acme()))(t)
	want := acme()
	want.Quota = tenancy.DefaultQuota()
	want.Quota.Version = 1
	want.CreatedAt, want.UpdatedAt = created.CreatedAt, created.UpdatedAt
	if diff := cmp.Diff(&want, created); diff != "" {
		t.Errorf("created tenant (-want +got):\n%s", diff)
	}
	if age := time.Since(created.CreatedAt); age < -time.Minute || age > time.Minute {
		t.Errorf("created_at is %s", created.CreatedAt)
	}
	if diff := cmp.Diff(created, must(store.GetTenant(ctx, "acme"))(t)); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestCreateTenantTwice(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	must(store.CreateTenant(ctx, why, acme()))(t)
	version := must(store.Version(ctx))(t)
	if _, err := store.CreateTenant(ctx, why, acme()); !errors.Is(err, tenancy.ErrAlreadyThere) {
		t.Errorf("second creation gives %v", err)
	}
	if after := must(store.Version(ctx))(t); after != version {
		t.Errorf("a refused creation moved the version from %d to %d", version, after)
	}
	if n := len(must(store.Changes(ctx, "", 100))(t)); n != 1 {
		t.Errorf("%d audit records, want 1", n)
	}
}

// Whatever is invalid is refused before anything is written.
func TestInvalidChangesWriteNothing(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	must(store.CreateTenant(ctx, why, acme()))(t)
	version := must(store.Version(ctx))(t)

	badZone := "Mars/Olympus"
	badTenant := acme()
	badTenant.ID = "Bad Id"
	badLimit := tenancy.Limit{Name: "x", Layer: "L1", Kind: tenancy.KindRing, Scope: tenancy.ScopeTenant}
	platform := tenancy.DefaultPlatform()
	platform.HoldTTL = 0
	for name, do := range map[string]func() error{
		"tenant": func() error { _, err := store.CreateTenant(ctx, why, badTenant); return err },
		"zone": func() error {
			_, err := store.UpdateTenant(ctx, why, "acme", postgres.TenantPatch{TimeZone: &badZone})
			return err
		},
		"quota": func() error {
			_, err := store.SetQuota(ctx, why, "acme", tenancy.Quota{Version: 1, Limits: []tenancy.Limit{badLimit}})
			return err
		},
		"limit":    func() error { _, err := store.SetLimit(ctx, why, "acme", badLimit); return err },
		"platform": func() error { _, err := store.SetPlatform(ctx, why, platform); return err },
		"model":    func() error { _, err := store.SetModel(ctx, why, tenancy.Model{Name: "m"}); return err },
		"key role": func() error {
			_, _, err := store.CreateKey(ctx, why, postgres.NewKey{TenantID: "acme", Name: "k", Role: "root"})
			return err
		},
		"operator key of a tenant": func() error {
			_, _, err := store.CreateKey(ctx, why, postgres.NewKey{TenantID: "acme", Name: "k", Role: tenancy.RoleOperator})
			return err
		},
		"no author": func() error {
			_, err := store.UpdateTenant(ctx, tenancy.Change{Reason: "r"}, "acme", postgres.TenantPatch{})
			return err
		},
		"no reason": func() error {
			_, err := store.RemoveLimit(ctx, tenancy.Change{Author: "a"}, "acme", "requests")
			return err
		},
	} {
		if err := do(); !errors.Is(err, tenancy.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	if after := must(store.Version(ctx))(t); after != version {
		t.Errorf("version went from %d to %d", version, after)
	}
	if n := len(must(store.Changes(ctx, "", 100))(t)); n != 1 {
		t.Errorf("%d audit records, want 1", n)
	}
}

func TestUnknownSubjects(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	for name, do := range map[string]func() error{
		"get tenant":    func() error { _, err := store.GetTenant(ctx, "nobody"); return err },
		"get NUL":       func() error { _, err := store.GetTenant(ctx, "a\x00"); return err },
		"update tenant": func() error { _, err := store.UpdateTenant(ctx, why, "nobody", postgres.TenantPatch{}); return err },
		"quota":         func() error { _, err := store.GetQuota(ctx, "nobody"); return err },
		"history":       func() error { _, err := store.QuotaHistory(ctx, "nobody"); return err },
		"set limit":     func() error { _, err := store.SetLimit(ctx, why, "nobody", tenancy.Limit{}); return err },
		"key of nobody": func() error {
			_, _, err := store.CreateKey(ctx, why, postgres.NewKey{TenantID: "nobody", Name: "k", Role: tenancy.RoleTenant})
			return err
		},
		"keys of nobody": func() error { _, err := store.ListKeys(ctx, "nobody"); return err },
		"revoke":         func() error { _, err := store.RevokeKey(ctx, why, "tgk_0000000000000000"); return err },
		"rotate":         func() error { _, _, err := store.RotateKey(ctx, why, strings.Repeat("k", 1000), 0); return err },
		"model":          func() error { _, err := store.RemoveModel(ctx, why, "gpt"); return err },
	} {
		if err := do(); !errors.Is(err, tenancy.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", name, err)
		}
	}
}

func TestSuspendAndResume(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	must(store.CreateTenant(ctx, why, acme()))(t)
	yes, no := true, false
	if got := must(store.UpdateTenant(ctx, why, "acme", postgres.TenantPatch{Suspended: &yes}))(t); !got.Suspended || got.Name != "Acme" {
		t.Errorf("after suspending: %+v", got)
	}
	if got := must(store.UpdateTenant(ctx, why, "acme", postgres.TenantPatch{Suspended: &no}))(t); got.Suspended {
		t.Errorf("after resuming: %+v", got)
	}
	var actions []string
	for _, r := range must(store.Changes(ctx, "tenant:acme", 10))(t) {
		actions = append(actions, r.Action)
	}
	if diff := cmp.Diff([]string{"tenant.resume", "tenant.suspend", "tenant.create"}, actions); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

func TestQuotaVersionsAndConflict(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	must(store.CreateTenant(ctx, why, acme()))(t)

	first := must(store.GetQuota(ctx, "acme"))(t)
	mine, theirs := *first, *first
	mine.DefaultMaxOutputTokens = 100
	theirs.DefaultMaxOutputTokens = 200
	if got := must(store.SetQuota(ctx, why, "acme", theirs))(t); got.Version != 2 {
		t.Errorf("version after one change is %d", got.Version)
	}
	if _, err := store.SetQuota(ctx, why, "acme", mine); !errors.Is(err, tenancy.ErrConflict) {
		t.Errorf("a document read before the other change gives %v, want ErrConflict", err)
	}
	if got := must(store.GetQuota(ctx, "acme"))(t); got.DefaultMaxOutputTokens != 200 {
		t.Errorf("in force is %d, want 200", got.DefaultMaxOutputTokens)
	}

	limit := tenancy.Limit{Name: "concurrency", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeTenant, Limit: 7}
	got := must(store.SetLimit(ctx, why, "acme", limit))(t)
	if len(got.Limits) != 4 || got.Limits[3].Limit != 7 {
		t.Errorf("SetLimit of a known name gives %+v", got.Limits)
	}
	limit.Name = "more"
	if got = must(store.SetLimit(ctx, why, "acme", limit))(t); len(got.Limits) != 5 {
		t.Errorf("SetLimit of a new name gives %d lines", len(got.Limits))
	}
	if got = must(store.RemoveLimit(ctx, why, "acme", "tokens-60s"))(t); len(got.Limits) != 4 || got.Limits[0].Name != "tokens-30d" {
		t.Errorf("RemoveLimit gives %+v", got.Limits)
	}
	if _, err := store.RemoveLimit(ctx, why, "acme", "tokens-60s"); !errors.Is(err, tenancy.ErrNotFound) {
		t.Errorf("removing it again gives %v", err)
	}

	history := must(store.QuotaHistory(ctx, "acme"))(t)
	if len(history) != 5 || history[0].Quota.Version != 5 || history[4].Author != "alice" {
		t.Fatalf("history is %+v", history)
	}
	first.Version = 1
	if diff := cmp.Diff(*first, history[4].Quota); diff != "" {
		t.Errorf("version 1 changed (-want +got):\n%s", diff)
	}
}

// Optimistic versions: of many that read the same version, one wins.
func TestSetQuotaConcurrently(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	must(store.CreateTenant(ctx, why, acme()))(t)
	for range 10 {
		quota := must(store.GetQuota(ctx, "acme"))(t)
		var wait sync.WaitGroup
		results := make(chan error, 8)
		for range cap(results) {
			wait.Go(func() {
				_, err := store.SetQuota(ctx, why, "acme", *quota)
				results <- err
			})
		}
		wait.Wait()
		close(results)
		won := 0
		for err := range results {
			switch {
			case err == nil:
				won++
			case !errors.Is(err, tenancy.ErrConflict):
				t.Errorf("unexpected %v", err)
			}
		}
		if won != 1 {
			t.Errorf("%d writers won, want 1", won)
		}
	}
}

func TestKeysAreShownOnceAndStoredHashed(t *testing.T) {
	t.Parallel()
	store, pool := newStore(t)
	ctx := t.Context()
	must(store.CreateTenant(ctx, why, acme()))(t)
	key, presented, err := store.CreateKey(ctx, why, postgres.NewKey{TenantID: "acme", Name: "ci", Role: tenancy.RoleTenant})
	if err != nil {
		t.Fatal(err)
	}
	id, hash, err := tenancy.ParseCredential(presented)
	if err != nil || id != key.ID || !key.SecretMatches(hash) {
		t.Fatalf("presented key %q does not open %+v: %v", presented, key, err)
	}
	secret := strings.SplitAfter(presented, ".")[1]

	// Nowhere in the database is the secret, and nowhere but in api_keys its hash.
	for _, table := range []string{"tenants", "api_keys", "tenant_quotas", "platform_versions", "admin_changes", "config_fields"} {
		var text string
		if err := pool.QueryRow(ctx, `SELECT coalesce(string_agg(x::text, E'\n'), '') FROM `+table+` x`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, secret) {
			t.Errorf("table %s holds the secret", table)
		}
		hashText := must(json.Marshal(key.SecretHash))(t)
		if strings.Contains(text, strings.Trim(string(hashText), `"`)) {
			t.Errorf("table %s shows the secret's hash", table)
		}
	}
	listed := must(store.ListKeys(ctx, "acme"))(t)
	if diff := cmp.Diff([]tenancy.Key{*key}, listed); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
}

func TestRevokeKeyTwiceKeepsTheFirstTime(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	key, _, err := store.CreateKey(ctx, why, postgres.NewKey{Name: "op", Role: tenancy.RoleOperator})
	if err != nil {
		t.Fatal(err)
	}
	first := must(store.RevokeKey(ctx, why, key.ID))(t)
	if first.RevokedAt.IsZero() {
		t.Fatal("not revoked")
	}
	second := must(store.RevokeKey(ctx, why, key.ID))(t)
	if !second.RevokedAt.Equal(first.RevokedAt) {
		t.Errorf("revoked at %s, then at %s", first.RevokedAt, second.RevokedAt)
	}
	if n := len(must(store.Changes(ctx, "key:"+key.ID, 10))(t)); n != 2 {
		t.Errorf("%d audit records, want create and revoke", n)
	}
}

func TestRotateKey(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	must(store.CreateTenant(ctx, why, acme()))(t)
	limits := []tenancy.Limit{{Name: "c", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeKey, Limit: 2}}
	old, oldPresented, err := store.CreateKey(ctx, why, postgres.NewKey{TenantID: "acme", Name: "ci", Role: tenancy.RoleTenant, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	next, presented, err := store.RotateKey(ctx, why, old.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if next.ID == old.ID || presented == oldPresented || next.Name != "ci" || next.TenantID != "acme" || len(next.Limits) != 1 {
		t.Errorf("new key is %+v", next)
	}
	ending := must(store.GetKey(ctx, old.ID))(t)
	if left := time.Until(ending.ExpiresAt); left < 50*time.Minute || left > 70*time.Minute || !ending.RevokedAt.IsZero() {
		t.Errorf("old key ends in %s: %+v", left, ending)
	}
	// A second rotation with a longer overlap must not lengthen the old key's life.
	if _, _, err := store.RotateKey(ctx, why, old.ID, 48*time.Hour); err != nil {
		t.Fatal(err)
	}
	if again := must(store.GetKey(ctx, old.ID))(t); !again.ExpiresAt.Equal(ending.ExpiresAt) {
		t.Errorf("old key's end moved from %s to %s", ending.ExpiresAt, again.ExpiresAt)
	}

	if _, _, err := store.RotateKey(ctx, why, next.ID, 0); err != nil {
		t.Fatal(err)
	}
	if got := must(store.GetKey(ctx, next.ID))(t); got.RevokedAt.IsZero() {
		t.Error("rotated without overlap, and still open")
	}
	if _, _, err := store.RotateKey(ctx, why, next.ID, 0); !errors.Is(err, tenancy.ErrKeyRevoked) {
		t.Errorf("rotating a revoked key gives %v", err)
	}
	if _, _, err := store.RotateKey(ctx, why, old.ID, -time.Second); !errors.Is(err, tenancy.ErrInvalid) {
		t.Errorf("a negative overlap gives %v", err)
	}
}

func TestPlatform(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	ctx := t.Context()
	got := must(store.GetPlatform(ctx))(t)
	want := tenancy.DefaultPlatform()
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("a new installation's platform (-want +got):\n%s", diff)
	}
	got = must(store.SetModel(ctx, why, tenancy.Model{Name: "gpt", WeightMilli: 1500}))(t)
	if got.Version != 1 || len(got.Models) != 1 {
		t.Errorf("after SetModel: %+v", got)
	}
	if _, err := store.SetPlatform(ctx, why, want); !errors.Is(err, tenancy.ErrConflict) {
		t.Errorf("a document of version 0 gives %v", err)
	}
	want.Version, want.HoldTTL = 1, tenancy.Duration(time.Minute)
	if got = must(store.SetPlatform(ctx, why, want))(t); got.Version != 2 {
		t.Errorf("version is %d", got.Version)
	}
	want.Version = 2
	if diff := cmp.Diff(&want, must(store.GetPlatform(ctx))(t)); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestAuditTrailSaysWhoWhyAndWhat(t *testing.T) {
	t.Parallel()
	store, pool := newStore(t)
	ctx := t.Context()
	must(store.CreateTenant(ctx, why, acme()))(t)
	name := "Acme Inc"
	must(store.UpdateTenant(ctx, tenancy.Change{Author: "bob", Reason: "merger"}, "acme", postgres.TenantPatch{Name: &name}))(t)
	records := must(store.Changes(ctx, "tenant:acme", 1))(t)
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	r := records[0]
	var before, after tenancy.Tenant
	if err := errors.Join(json.Unmarshal(r.Before, &before), json.Unmarshal(r.After, &after)); err != nil {
		t.Fatal(err)
	}
	if r.Author != "bob" || r.Reason != "merger" || r.Action != "tenant.update" || before.Name != "Acme" || after.Name != "Acme Inc" {
		t.Errorf("record is %+v", r)
	}
	for _, statement := range []string{
		`UPDATE admin_changes SET author = 'mallory'`,
		`DELETE FROM admin_changes`,
		`TRUNCATE admin_changes`,
		`UPDATE tenant_quotas SET document = '{}'`,
	} {
		if _, err := pool.Exec(ctx, statement); err == nil {
			t.Errorf("%s was carried out", statement)
		}
	}
}

func TestFeedTellsEveryChangeOnce(t *testing.T) {
	t.Parallel()
	store, pool := newStore(t)
	ctx := t.Context()
	feed := postgres.NewFeed(pool)
	defer feed.Resign()
	if leads := must(feed.Lead(ctx))(t); !leads {
		t.Fatal("alone, and not leading")
	}
	documents, version, err := feed.All(ctx)
	if err != nil || version != 0 || len(documents) != 1 || documents["platform"] == nil {
		t.Fatalf("a new installation feeds %q at %d, %v", documents, version, err)
	}
	must(store.CreateTenant(ctx, why, acme()))(t)
	key, _, err := store.CreateKey(ctx, why, postgres.NewKey{TenantID: "acme", Name: "ci", Role: tenancy.RoleTenant})
	if err != nil {
		t.Fatal(err)
	}
	if err := feed.Wait(ctx, time.Minute); err != nil { // by notification: the test would outlast a minute
		t.Fatal(err)
	}
	documents, version, err = feed.Changes(ctx, 0)
	if err != nil || len(documents) != 2 || documents["tenant:acme"] == nil || documents["key:"+key.ID] == nil {
		t.Fatalf("changes are %q, %v", documents, err)
	}
	if want := must(store.Version(ctx))(t); version != want {
		t.Errorf("at version %d, want %d", version, want)
	}
	documents, again, err := feed.Changes(ctx, version)
	if err != nil || len(documents) != 0 || again != version {
		t.Errorf("nothing changed, and the feed tells %q at %d, %v", documents, again, err)
	}

	// A change by hand is told too, and so is a deletion.
	if _, err := pool.Exec(ctx, `DELETE FROM api_keys`); err != nil {
		t.Fatal(err)
	}
	documents, _, err = feed.Changes(ctx, version)
	if document, told := documents["key:"+key.ID]; err != nil || !told || document != nil || len(documents) != 1 {
		t.Errorf("after deleting the key the feed tells %q, %v", documents, err)
	}
}

func TestFeedHasOneLeader(t *testing.T) {
	t.Parallel()
	_, pool := newStore(t)
	ctx := t.Context()
	first, second := postgres.NewFeed(pool), postgres.NewFeed(pool)
	defer first.Resign()
	defer second.Resign()
	if !must(first.Lead(ctx))(t) || must(second.Lead(ctx))(t) {
		t.Fatal("want the first to lead, and it alone")
	}
	if !must(first.Lead(ctx))(t) {
		t.Error("asking again lost the lead")
	}
	if _, _, err := second.Changes(ctx, 0); err == nil {
		t.Error("one who does not lead was served")
	}
	// The leader's connection dies without a word.
	if _, err := pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { leads, err := second.Lead(ctx); return err == nil && leads })
	if _, _, err := first.All(ctx); err == nil {
		t.Error("the old leader did not notice")
	}
	if leads := must(first.Lead(ctx))(t); leads {
		t.Error("two lead")
	}
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatal("did not come about in 10 s")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
