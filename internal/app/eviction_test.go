package app

import (
	"errors"
	"strings"
	"testing"

	"tollgate/internal/testenv"
)

func TestGatewayIsNotReadyOnRedisThatEvicts(t *testing.T) {
	t.Parallel()
	own := newOwnRedis(t, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
	s := newSite(t)
	s.set["redis.addresses"] = own.addr
	a := New(s.config(), quiet())
	s.start(a, a.Gateway, a.Ledger)
	until(t, func() string {
		if got := ready(t, a); got.status != 503 || got.body != "not ready: redis keeps its keys\n" {
			return "readyz: " + got.body
		}
		return ""
	})
}

func TestEvictionWatchFollowsThePolicy(t *testing.T) {
	t.Parallel()
	own := newOwnRedis(t, "--maxmemory-policy", "volatile-ttl")
	w := newEvictionWatch(own.client, quiet())
	if err := w.ready(t.Context()); !errors.Is(err, errPolicyNotAsked) {
		t.Errorf("before it asked: %v", err)
	}
	w.ask(t.Context())
	if err := w.ready(t.Context()); err == nil || !strings.Contains(err.Error(), own.addr+" has maxmemory-policy volatile-ttl") {
		t.Errorf("volatile-ttl: %v", err)
	}
	if err := own.client.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	w.ask(t.Context())
	if err := w.ready(t.Context()); err != nil {
		t.Errorf("noeviction: %v", err)
	}
	// What is not told changes nothing, and does not keep a gateway that has
	// just started from being ready.
	w.conclude(errors.New("evicts"), nil)
	w.conclude(nil, errors.New("not told"))
	if w.ready(t.Context()) == nil {
		t.Error("an answer that failed undid one that was given")
	}
	fresh := newEvictionWatch(own.client, quiet())
	fresh.conclude(nil, errors.New("not told"))
	if err := fresh.ready(t.Context()); err != nil {
		t.Errorf("a Redis that tells nothing: %v", err)
	}
}

func TestEvictionWatchAsksEveryMasterOfACluster(t *testing.T) {
	t.Parallel()
	cluster, _ := testenv.RedisCluster(t)
	w := newEvictionWatch(cluster, quiet())
	w.ask(t.Context())
	if err := w.ready(t.Context()); err != nil {
		t.Error(err)
	}
}
