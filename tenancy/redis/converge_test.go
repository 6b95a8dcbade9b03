package redis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tollgate/tenancy"
	"tollgate/tenancy/postgres"
)

// number reads a test's knob from the environment.
func number(t *testing.T, name string, otherwise int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// Whatever administrators change at once, and whatever happens to publishers,
// directories and Redis meanwhile, every directory ends with exactly what the
// store holds, and on the way forgets nobody who was there all the time.
func TestPropertyDirectoriesConvergeToTheStore(t *testing.T) {
	t.Parallel()
	seed := uint64(number(t, "TOLLGATE_TEST_SEED", time.Now().UnixNano()))
	changes := int(number(t, "TOLLGATE_TEST_CHANGES", 25))
	onEveryBackend(t, func(t *testing.T, w *world) {
		t.Logf("TOLLGATE_TEST_SEED=%d TOLLGATE_TEST_CHANGES=%d", seed, changes)
		w.tenant(t, "steady")
		_, steady := w.key(t, postgres.NewKey{TenantID: "steady", Role: tenancy.RoleTenant})
		for _, id := range []string{"a", "b", "c"} {
			w.tenant(t, id)
		}
		publishers := []*Publisher{w.publisher(t, PublisherOptions{}), w.publisher(t, PublisherOptions{})}
		directories := []*Directory{w.directory(t, DirectoryOptions{}), w.directory(t, DirectoryOptions{}), w.directory(t, DirectoryOptions{})}
		for _, d := range directories {
			w.ready(t, d)
		}

		var writers sync.WaitGroup
		for writer := range 3 {
			random := rand.New(rand.NewPCG(seed, uint64(writer)))
			writers.Go(func() {
				for i := range changes {
					if err := w.randomChange(t, random, fmt.Sprintf("w%d-%d", writer, i)); err != nil {
						t.Errorf("change: %v", err)
					}
				}
			})
		}
		written := make(chan struct{})
		go func() { writers.Wait(); close(written) }()

		random := rand.New(rand.NewPCG(seed, 99))
		for quiet := false; !quiet; {
			select {
			case <-written:
				quiet = true
			case <-time.After(time.Duration(random.IntN(40)) * time.Millisecond):
			}
			for _, d := range directories {
				if _, err := d.Authenticate(steady); err != nil {
					t.Errorf("the steady key was refused: %v", err)
				}
			}
			switch random.IntN(6) {
			case 0:
				w.empty(t)
			case 1:
				w.client.HDel(t.Context(), keysOf(w.prefix).documents, "tenant:a", "platform")
				w.client.HDel(t.Context(), keysOf(w.prefix).version, "epoch")
			case 2:
				if _, err := w.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); err != nil {
					t.Error(err)
				}
			case 3:
				i := random.IntN(len(publishers))
				publishers[i].Stop()
				publishers[i] = w.publisher(t, PublisherOptions{})
			case 4:
				i := random.IntN(len(directories))
				directories[i].Stop()
				directories[i] = w.directory(t, DirectoryOptions{})
				w.ready(t, directories[i])
			}
		}

		ctx := t.Context()
		tenants, err1 := w.store.ListTenants(ctx)
		stored, err2 := w.store.ListKeys(ctx, "")
		platform, err3 := w.store.GetPlatform(ctx)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		want := &snapshot{tenants: map[string]*tenancy.Tenant{}, keys: map[string]*tenancy.Key{}, platform: platform}
		for i := range tenants {
			want.tenants[tenants[i].ID] = &tenants[i]
		}
		for i := range stored {
			want.keys[stored[i].ID] = &stored[i]
		}
		for i, d := range directories {
			difference := ""
			t.Cleanup(func() {
				if difference != "" {
					t.Logf("directory %d differs from the store (-store +directory):\n%s", i, difference)
				}
			})
			eventually(t, fmt.Sprintf("directory %d equals the store", i), func() bool {
				got := d.snapshot.Load()
				difference = cmp.Diff(want.tenants, got.tenants) + cmp.Diff(want.keys, got.keys) + cmp.Diff(want.platform, got.platform)
				return difference == ""
			})
		}
	})
}

func (w *world) randomChange(t *testing.T, random *rand.Rand, name string) error {
	ctx := t.Context()
	tenant := []string{"a", "b", "c"}[random.IntN(3)]
	switch random.IntN(7) {
	case 0:
		_, err := w.store.CreateTenant(ctx, why, tenancy.Tenant{ID: name, Name: name, TimeZone: "UTC", Currency: "USD"})
		return err
	case 1:
		suspended := random.IntN(2) == 0
		_, err := w.store.UpdateTenant(ctx, why, tenant, postgres.TenantPatch{Suspended: &suspended, Name: &name})
		return err
	case 2:
		_, _, err := w.store.CreateKey(ctx, why, postgres.NewKey{TenantID: tenant, Name: name, Role: tenancy.RoleTenant})
		return err
	case 3, 4:
		keys, err := w.store.ListKeys(ctx, tenant)
		if err != nil || len(keys) == 0 {
			return err
		}
		key := keys[random.IntN(len(keys))]
		switch random.IntN(3) {
		case 0:
			_, err = w.store.RevokeKey(ctx, why, key.ID)
		case 1:
			_, _, err = w.store.RotateKey(ctx, why, key.ID, time.Duration(random.IntN(2))*time.Hour)
		default:
			_, err = w.pool.Exec(ctx, `DELETE FROM api_keys WHERE id = $1`, key.ID)
		}
		if errors.Is(err, tenancy.ErrKeyRevoked) || errors.Is(err, tenancy.ErrNotFound) {
			return nil // another writer was faster
		}
		return err
	case 5:
		_, err := w.store.SetLimit(ctx, why, tenant, tenancy.Limit{
			Name: "concurrency", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeTenant, Limit: random.Int64N(100),
		})
		return err
	default:
		_, err := w.store.SetModel(ctx, why, tenancy.Model{Name: "m", WeightMilli: 1 + random.Int64N(1000)})
		return err
	}
}
