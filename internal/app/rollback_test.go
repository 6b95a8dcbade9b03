package app

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"tollgate/internal/testenv"
	"tollgate/tenancy"
)

func TestOlderStateIsToldFromLaterState(t *testing.T) {
	t.Parallel()
	const first, second = "01kbg000000000000000000000", "01kbg000010000000000000000"
	for _, c := range []struct {
		name      string
		seen, now mark
		older     bool
	}{
		{"never seen", mark{}, mark{first, 5}, false},
		{"the same", mark{first, 5}, mark{first, 5}, false},
		{"further", mark{first, 5}, mark{first, 6}, false},
		{"less far", mark{first, 5}, mark{first, 4}, true},
		{"rebuilt", mark{first, 5}, mark{second, 0}, false},
		{"before it was rebuilt", mark{second, 0}, mark{first, 5}, true},
		{"lost", mark{first, 5}, mark{"", 0}, false},
		{"an epoch without order", mark{first, 5}, mark{"e1", 0}, false},
		{"after an epoch without order", mark{"e1", 5}, mark{first, 0}, false},
	} {
		if got := c.now.older(c.seen); got != c.older {
			t.Errorf("%s: older = %t, want %t", c.name, got, c.older)
		}
	}
	// A clock that went back does not make rebuilt state look old.
	ahead := "7zzzzzz000" + strings.Repeat("0", 16)
	if epoch := newEpoch(map[int]mark{0: {ahead, 1}}); (mark{epoch, 0}).older(mark{ahead, 1}) {
		t.Errorf("epoch %s is older than %s", epoch, ahead)
	}
}

func TestRedisRestoredFromAnOlderCopyIsClosedAndRebuilt(t *testing.T) {
	t.Parallel()
	own := newOwnRedis(t, "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction")
	s := newSite(t)
	s.set["redis.addresses"] = own.addr
	limit := tenancy.Limit{
		Name: "tokens", Layer: "L1", Kind: tenancy.KindCounter, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricTokens,
		Limit: 1_000_000, Period: tenancy.PeriodNone, Budget: true,
	}
	key := s.tenant(tenancy.Tenant{ID: "acme", Name: "Acme", TimeZone: "UTC", Currency: "USD", Quota: tenancy.Quota{Limits: []tenancy.Limit{limit}}})
	a := New(s.config(), quiet())
	s.start(a, a.Gateway, a.Ledger)
	untilReady(t, a)
	untilKnown(t, a, key)
	open := func(id string) string {
		t.Helper()
		got := ask(t, "POST", "http://"+a.Addr+"/v1/reservations", key, reserve(id, 10, 20))
		if got.status != 201 {
			t.Fatalf("reserve %s: %+v", id, got)
		}
		var o outcome
		got.decode(t, &o)
		return o.ReservationID
	}
	settle := func(id string) answer {
		t.Helper()
		return ask(t, "POST", "http://"+a.Addr+"/v1/reservations/"+id+"/settle", key, map[string]int64{"input_tokens": 10, "output_tokens": 5})
	}
	mustSettle := func(id string) {
		t.Helper()
		if got := settle(id); got.status != 200 {
			t.Fatalf("settle %s: %+v", id, got)
		}
	}

	// Under load: what the copy catches of it is up to chance.
	stillOpen := open("settled-after-the-copy")
	var load sync.WaitGroup
	for worker := range 3 {
		load.Go(func() {
			for i := range 20 {
				mustSettleFrom(t, a, key, fmt.Sprintf("load-%d-%d", worker, i))
			}
		})
	}
	old := t.TempDir()
	own.copyTo(old)
	load.Wait()
	mustSettle(stillOpen)
	later := open("reserved-after-the-copy")
	for i := range 10 {
		mustSettle(open(fmt.Sprintf("after-%d", i)))
	}
	backend, err := newBackend(a)
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() string { return undrained(t, backend) })
	r, err := a.rebuilderFor(t)
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() string { // what Redis has is what was last seen of it
		seen, err := r.seen(t.Context())
		if err != nil {
			return err.Error()
		}
		now, err := r.marks(t.Context())
		for shard, m := range now {
			if seen[shard] != m {
				return fmt.Sprintf("shard %d: seen %v, is %v", shard, seen[shard], m)
			}
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	epochs, err := a.store.Epoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	rebuilding := &spent{site: s}
	release := rebuilding.holdRebuild(t)
	own.kill()
	own.restore(old)
	own.start()
	until(t, func() string {
		got := ask(t, "POST", "http://"+a.Addr+"/v1/reservations", key, reserve("too-early", 1, 1))
		if got.status != 503 || !strings.Contains(got.body, "state_not_rebuilt") {
			return fmt.Sprintf("reserve on an old copy: %+v", got)
		}
		return ""
	})
	if got := settle(stillOpen); got.status != 503 {
		t.Errorf("settle of what the copy has open and the log has settled: %+v, want 503", got)
	}
	if n := rollbacks(t, a); n != 1 {
		t.Errorf("rollbacks_total = %v, want 1", n)
	}
	release()
	untilReady(t, a)
	now, err := a.store.Epoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for shard := range epochs {
		if now[shard] <= epochs[shard] {
			t.Errorf("shard %d: epoch %s after %s", shard, now[shard], epochs[shard])
		}
	}

	// A repeated settle is known; the hold that the copy lacked can be settled.
	mustSettle(stillOpen)
	mustSettle(later)
	until(t, func() string { return undrained(t, backend) })
	const settled = 1 + 60 + 10 + 1
	var requests, tokens, worst, conflicts int64
	err = a.pool.QueryRow(t.Context(), `SELECT sum(requests), sum(milli_units) / 1000,
			(SELECT max(input_tokens + output_tokens) FROM reservations), (SELECT count(*) FROM event_conflicts) FROM usage_hour`).
		Scan(&requests, &tokens, &worst, &conflicts)
	if err != nil || worst != 15 || conflicts != 0 {
		t.Errorf("a reservation has %d tokens, %d conflicts, %v; want 15, 0", worst, conflicts, err)
	}
	// Gateways may have admitted "too-early" before the copy was noticed; it is
	// open then, and charged nothing.
	if requests != settled || tokens != settled*15 {
		t.Errorf("ledger: %d requests, %d tokens; want %d, %d", requests, tokens, settled, settled*15)
	}
	limits := standing(t, a, key)
	if len(limits) != 1 || limits[0].Used != tokens {
		t.Errorf("admission has %+v, the ledger %d tokens used", limits, tokens)
	}
	if n := rollbacks(t, a); n != 1 {
		t.Errorf("rollbacks_total = %v, want still 1", n)
	}
}

// mustSettleFrom reserves and settles from any goroutine.
func mustSettleFrom(t *testing.T, a *App, key, id string) {
	got := ask(t, "POST", "http://"+a.Addr+"/v1/reservations", key, reserve(id, 10, 20))
	var o outcome
	got.decode(t, &o)
	got = ask(t, "POST", "http://"+a.Addr+"/v1/reservations/"+o.ReservationID+"/settle", key,
		map[string]int64{"input_tokens": 10, "output_tokens": 5})
	if got.status != 200 {
		t.Errorf("settle %s: %+v", id, got)
	}
}

func rollbacks(t *testing.T, a *App) float64 {
	t.Helper()
	families, err := a.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tollgate_admission_rollbacks_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

// A slow look must not close what was rebuilt since, nor hide what others saw.
func TestSlowLookAtTheStateDoesNoHarm(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := New(s.config(), quiet())
	t.Cleanup(a.close)
	r, err := a.rebuilder()
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	note := func(seen, now mark) {
		t.Helper()
		if err := r.note(ctx, map[int]mark{1: seen}, map[int]mark{1: now}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want mark) {
		t.Helper()
		if seen, err := r.seen(ctx); err != nil || seen[1] != want {
			t.Errorf("seen %v, %v; want %v", seen[1], err, want)
		}
	}
	note(mark{}, mark{"a", 5})
	note(mark{}, mark{"a", 3}) // which began before there was anything
	check(mark{"a", 5})
	note(mark{"a", 5}, mark{"a", 9})
	note(mark{"a", 5}, mark{"a", 7})
	check(mark{"a", 9})
	note(mark{"a", 9}, mark{"b", 0})
	note(mark{"a", 9}, mark{"a", 12})
	check(mark{"b", 0})

	epoch := newEpoch(nil)
	if _, err := r.store.Seed(context.WithoutCancel(ctx), 1, epoch, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := r.store.Forget(ctx, map[int]string{0: "", 1: "another"}); err != nil || n != 0 {
		t.Errorf("forgot %d shards of another epoch, %v", n, err)
	}
	if n, err := r.store.Forget(ctx, map[int]string{1: epoch}); err != nil || n != 1 {
		t.Errorf("forgot %d shards, %v; want 1", n, err)
	}
}

func TestNewConnectionToRedisIsSignalled(t *testing.T) {
	t.Parallel()
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		own := newOwnRedis(t)
		client := redis.NewClient(&redis.Options{Addr: own.addr})
		t.Cleanup(func() { _ = client.Close() })
		signal := make(chan struct{}, 1)
		onDial(client, signal)
		ping := func() string {
			if err := client.Ping(t.Context()).Err(); err != nil {
				return err.Error()
			}
			return ""
		}
		until(t, ping)
		<-signal
		until(t, ping)
		if len(signal) != 0 {
			t.Error("a signal without a new connection")
		}
		own.kill()
		own.start()
		until(t, ping)
		<-signal
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		_, prefix := testenv.RedisCluster(t)
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: strings.Split(os.Getenv(testenv.EnvRedisCluster), ",")})
		t.Cleanup(func() { _ = client.Close() })
		signal := make(chan struct{}, 1)
		onDial(client, signal)
		if err := client.Exists(t.Context(), prefix+"x").Err(); err != nil {
			t.Fatal(err)
		}
		<-signal
	})
}

// What a closed shard's outbox has is in neither the log nor the ledger: state
// that was rebuilt before it came there would lack it.
func TestClosedShardIsRebuiltOnceItsOutboxIsInTheLog(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.tenant(tenancy.Tenant{ID: "acme", Name: "Acme", TimeZone: "UTC", Currency: "USD", Quota: wideQuota()})
	a := New(s.config("relay.enabled_in_gateway", "false"), quiet())
	s.start(a, a.Gateway, a.Ledger)
	untilReady(t, a)
	untilKnown(t, a, key)
	body := reserve("before", 10, 20)
	first := ask(t, "POST", "http://"+a.Addr+"/v1/reservations", key, body)
	if first.status != 201 {
		t.Fatalf("reserve: %+v", first)
	}
	epochs, err := a.store.Epoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release := (&spent{site: s}).holdRebuild(t)
	if n, err := a.store.Forget(t.Context(), epochs); err != nil || n != len(epochs) {
		t.Fatalf("closed %d shards of %d: %v", n, len(epochs), err)
	}
	r, err := a.rebuilderFor(t)
	if err != nil {
		t.Fatal(err)
	}
	release()
	var refused error
	until(t, func() string { // the gateway's rebuilder may have the lock
		if refused = r.once(t.Context()); refused == nil {
			return "nobody had to wait"
		}
		return ""
	})
	if !strings.Contains(refused.Error(), "not in the log yet: 1") {
		t.Errorf("rebuilding with an entry in the outbox: %v", refused)
	}
	relay := New(s.config(), quiet())
	s.start(relay, relay.Relay)
	untilReady(t, a)
	got := ask(t, "POST", "http://"+a.Addr+"/v1/reservations", key, body)
	if got.status != 200 || got.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("repeat of what was in the outbox: %+v", got)
	}
}
