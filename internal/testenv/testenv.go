// Package testenv gives tests the real services: a PostgreSQL database, Redis
// keys, Redis Cluster keys and Kafka topics that belong to one test alone and
// are gone when it ends, so that tests run in parallel on shared servers.
//
// Addresses come from the environment; deploy/services starts the servers and
// prints them:
//
//	TOLLGATE_TEST_POSTGRES       a superuser's URL
//	TOLLGATE_TEST_REDIS          host:port
//	TOLLGATE_TEST_REDIS_CLUSTER  host:port,host:port,…
//	TOLLGATE_TEST_KAFKA          host:port,host:port,…
//
// A test whose variable is unset is skipped and says so. With
// TOLLGATE_TEST_REQUIRE=1 it fails instead, so that a run that is meant to be
// whole cannot pass by skipping.
package testenv

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"
)

// The environment variables that tests read.
const (
	EnvPostgres     = "TOLLGATE_TEST_POSTGRES"
	EnvRedis        = "TOLLGATE_TEST_REDIS"
	EnvRedisCluster = "TOLLGATE_TEST_REDIS_CLUSTER"
	EnvKafka        = "TOLLGATE_TEST_KAFKA"
	EnvRequire      = "TOLLGATE_TEST_REQUIRE"
)

// cleanupTimeout bounds what a test's end may wait for a server that the test
// itself may have killed.
const cleanupTimeout = 20 * time.Second

// Required reports whether a missing service or program must fail a test
// rather than skip it.
func Required() bool { return os.Getenv(EnvRequire) == "1" }

// Missing ends the test: it is skipped, or fails where the run requires
// everything. Tests call it for what they need beyond the services, such as a
// program on PATH.
func Missing(t testing.TB, what string) {
	t.Helper()
	if Required() {
		t.Fatalf("%s is missing and %s=1 forbids skipping", what, EnvRequire)
	}
	t.Skipf("skipped: %s is missing (deploy/services up, then eval \"$(deploy/services env)\")", what)
}

// address returns an environment variable's value, or ends the test.
func address(t testing.TB, variable string) string {
	t.Helper()
	value := strings.TrimSpace(os.Getenv(variable))
	if value == "" {
		Missing(t, variable)
	}
	return value
}

// addresses is address for a comma-separated list.
func addresses(t testing.TB, variable string) []string {
	t.Helper()
	var list []string
	for part := range strings.SplitSeq(address(t, variable), ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// unique returns 12 hexadecimal digits that no other test has. They hold no
// character with a meaning in a Redis pattern, a hash tag, a topic's name or
// an SQL identifier.
func unique() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}

// atEnd runs clean when the test is over. What clean returns is a test error:
// a left-over would disturb the tests that follow, and is worth a look. A
// server that is gone is not: the test may have stopped it on purpose.
func atEnd(t testing.TB, what string, clean func(ctx context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := clean(ctx); err != nil {
			t.Logf("testenv: cleaning up %s: %v", what, err)
		}
	})
}
