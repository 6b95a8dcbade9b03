package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"tollgate/admission"
	"tollgate/internal/testenv"
	"tollgate/tenancy"
)

// singles are the backends on which one call serves many shards.
var singles = []backend{{"miniredis", miniBackend}, {"redis", testenv.Redis}}

// onShards returns a tenant of each shard.
func onShards(shards int, limits ...tenancy.Limit) []*tenancy.Tenant {
	list := make([]*tenancy.Tenant, shards)
	for i, left := 0, shards; left > 0; i++ {
		id := fmt.Sprintf("tenant-%d", i)
		if shard := admission.Shard(id, shards); list[shard] == nil {
			list[shard] = tenant(id, limits...)
			left--
		}
	}
	return list
}

// batchOf reserves for each tenant in one script call.
func (w *world) batchOf(tenants []*tenancy.Tenant, request string) []error {
	errs := make([]error, len(tenants))
	var calls []func()
	for i, t := range tenants {
		calls = append(calls, func() { _, errs[i] = w.reserve(ask(t, request, 10)) })
	}
	inOneBatch(w.stores[0], calls)
	return errs
}

// A batch has one outbox entry, whatever shards its operations belong to, and
// still each of them needs its own shard's epoch: after a single one was lost,
// in an emptied Redis, while a rebuild has filled some shards and others not,
// and when shards were filled by different rebuilds.
func TestABatchOverShardsNeedsTheEpochOfEach(t *testing.T) {
	for _, b := range singles {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, b.open, 1, nil)
			s := w.stores[0]
			tenants := onShards(4, perMinute(1000), concurrency(100))
			want := func(request string, refused ...int) {
				t.Helper()
				before := len(w.log())
				entries := w.entries()
				errs := w.batchOf(tenants, request)
				admitted := 0
				for shard, err := range errs {
					missing := strings.Contains(fmt.Sprint(refused), fmt.Sprint(shard))
					if missing != errors.Is(err, admission.ErrNotRebuilt) || (!missing && err != nil) {
						t.Errorf("%s on shard %d: %v", request, shard, err)
					}
					if err == nil {
						admitted++
					}
				}
				if n := len(w.log()) - before; n != admitted {
					t.Errorf("%s: %d events of %d admitted", request, n, admitted)
				}
				if n := w.entries() - entries; n != min(admitted, 1) {
					t.Errorf("%s: %d outbox entries", request, n)
				}
			}
			want("all")
			if err := w.client.Del(t.Context(), s.shardKey(0, "epoch")).Err(); err != nil {
				t.Fatal(err)
			}
			want("first lost", 0)
			if _, err := s.Seed(t.Context(), 0, "e2", nil); err != nil {
				t.Fatal(err)
			}
			want("two rebuilds")
			w.fold() // ids are unique, and seq has no gaps
			if n := w.left(tenants[0], "tokens-60s").Held; n != 20 {
				t.Errorf("the first tenant holds %d, want the 20 that were admitted", n)
			}

			keys, err := w.client.Keys(t.Context(), w.prefix+"*").Result()
			if err != nil {
				t.Fatal(err)
			}
			if err := w.client.Del(t.Context(), keys...).Err(); err != nil {
				t.Fatal(err)
			}
			want("emptied", 0, 1, 2, 3)
			for shard := range 4 {
				if _, err := s.Seed(t.Context(), shard, "e3", nil); err != nil {
					t.Fatal(err)
				}
				var missing []int
				for i := shard + 1; i < 4; i++ {
					missing = append(missing, i)
				}
				want(fmt.Sprintf("filled through %d", shard), missing...)
			}
			if n := w.left(tenants[3], "tokens-60s").Held; n != 10 {
				t.Errorf("the last tenant holds %d, want the 10 since its shard was filled", n)
			}
			w.fold()
		})
	}
}

// entries counts the entries of all outboxes.
func (w *world) entries() int {
	w.t.Helper()
	var sum int64
	for shard := range w.stores[0].opts.Shards {
		n, err := w.client.XLen(w.t.Context(), w.stores[0].shardKey(shard, "outbox")).Result()
		if err != nil && !errors.Is(err, goredis.Nil) {
			w.t.Fatal(err)
		}
		sum += n
	}
	return int(sum)
}

// Leases that ended are not in use, whether somebody swept them or not.
func TestUnsweptLeasesDoNotRefuse(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		global := tenancy.Limit{Name: "global", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 2}
		acme := tenant("acme", concurrency(2))
		for i := range 2 {
			w.mustReserve(ask(acme, requestID(i), 1, global))
		}
		if r := w.refused(second(w.reserve(ask(acme, "third", 1, global)))); r.Reason != admission.ReasonConcurrency || r.Used != 2 {
			t.Errorf("refused with %+v", r)
		}
		w.clock.advance(2*time.Minute + time.Second)
		for i := range 2 {
			w.mustReserve(ask(acme, requestID(10+i), 1, global))
		}
		if r := w.refused(second(w.reserve(ask(acme, "fifth", 1, global)))); r.Used != 2 {
			t.Errorf("refused with %+v", r)
		}
		w.wantLeft(acme, "concurrency", 2, 0)
		w.wantLeft(acme, "global", 2, 0, global)
	})
}

func second[T any](_ T, err error) error { return err }
