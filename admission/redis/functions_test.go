package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"tollgate/admission"
	"tollgate/internal/testenv"
	"tollgate/tenancy"
)

// serverError is an error that a server answered.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// commandsHook counts commands and may answer one in the server's place.
type commandsHook struct {
	mu     sync.Mutex
	seen   map[string]int
	refuse map[string]error
}

func refusing(command string, err error) *commandsHook {
	return &commandsHook{seen: map[string]int{}, refuse: map[string]error{command: err}}
}

func (h *commandsHook) count(command string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[command]
}

func (h *commandsHook) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (h *commandsHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

func (h *commandsHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		h.mu.Lock()
		h.seen[cmd.Name()]++
		err := h.refuse[cmd.Name()]
		h.mu.Unlock()
		if err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// scriptBackend is a Redis that knows no functions.
func scriptBackend(t testing.TB) (goredis.UniversalClient, string) {
	t.Helper()
	client, prefix := testenv.Redis(t)
	client.AddHook(refusing("fcall", serverError("ERR unknown command 'fcall', with args beginning with: ")))
	return client, prefix
}

// eachMaster calls f with every server that holds keys.
func eachMaster(ctx context.Context, client goredis.UniversalClient, f func(goredis.Cmdable) error) error {
	if c, ok := client.(*goredis.ClusterClient); ok {
		return c.ForEachMaster(ctx, func(_ context.Context, node *goredis.Client) error { return f(node) })
	}
	return f(client)
}

// withFunctions runs a test on the servers that have functions.
func withFunctions(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for _, b := range backends {
		if b.name == "redis" || b.name == "cluster" {
			t.Run(b.name, func(t *testing.T) {
				t.Parallel()
				test(t, newWorld(t, b.open, 2, nil))
			})
		}
	}
}

// wantFunctions fails where a store gave functions up: the fallback would hide that
// the library cannot be loaded.
func (w *world) wantFunctions() {
	w.t.Helper()
	for i, s := range w.stores {
		if s.decide.scriptsOnly() {
			w.t.Errorf("gateway %d runs scripts", i)
		}
	}
}

func TestDecidesByAFunction(t *testing.T) {
	withFunctions(t, func(t *testing.T, w *world) {
		hook := refusing("evalsha", serverError("ERR a script was run"))
		w.client.AddHook(hook)
		for i := range 8 { // on several shards
			acme := tenant(fmt.Sprintf("acme-%d", i), perMinute(1000))
			for k := range 3 {
				w.mustReserve(ask(acme, requestID(k), 100))
			}
			w.wantLeft(acme, "tokens-60s", 0, 300)
		}
		w.wantFunctions()
		if hook.count("fcall") == 0 {
			t.Error("no function was called")
		}
	})
}

// The library goes again and again while gateways reserve and settle, as after a
// restart without persistence or a failover.
func TestFunctionsAreLostInMidTraffic(t *testing.T) {
	withFunctions(t, func(t *testing.T, w *world) {
		// Its own library, so that nobody else's is lost.
		mine := newProgram(clockedSource() + "-- " + w.prefix + "\n")
		for _, s := range w.stores {
			s.decide = mine
		}
		const workers, each = 4, 40
		acme := tenant("acme", perMinute(1e6), concurrency(workers))
		done := make(chan error, workers)
		for i := range workers {
			go func() {
				s := w.stores[i%len(w.stores)]
				for k := range each {
					r, err := s.Reserve(t.Context(), ask(acme, fmt.Sprintf("r-%d-%d", i, k), 100))
					if err == nil {
						_, err = s.Settle(t.Context(), used(acme, r.ID, 10, 20))
					}
					if err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		var lost atomic.Int64
		lose := func(node goredis.Cmdable) error {
			err := node.FunctionDelete(context.Background(), mine.name).Err()
			if err == nil {
				lost.Add(1)
			} else if strings.Contains(err.Error(), "Library not found") {
				return nil
			}
			return err
		}
		for left := workers; left > 0; {
			select {
			case err := <-done:
				left--
				if err != nil {
					t.Error(err)
				}
			default:
				if err := eachMaster(t.Context(), w.client, lose); err != nil {
					t.Fatal(err)
				}
			}
		}
		if lost.Load() == 0 {
			t.Error("the library was never there to lose")
		}
		w.wantLeft(acme, "tokens-60s", workers*each*30, 0)
		w.wantLeft(acme, "concurrency", 0, 0)
		if n := len(w.fold()); n != workers*each {
			t.Errorf("%d reservations in the log, want %d", n, workers*each)
		}
		w.wantFunctions()
		if err := eachMaster(t.Context(), w.client, lose); err != nil {
			t.Error(err)
		}
	})
}

// A server that does not let this user load or call functions runs the script.
func TestFunctionsAreNotAllowed(t *testing.T) {
	for _, denied := range []string{"function", "fcall"} {
		t.Run(denied, func(t *testing.T) {
			var user string
			var hook *commandsHook
			w := newWorld(t, func(t testing.TB) (goredis.UniversalClient, string) {
				admin, prefix := testenv.Redis(t)
				user = strings.TrimSuffix(prefix, ":") + "-" + denied
				err := admin.Do(t.Context(), "acl", "setuser", user, "on", "nopass", "~*", "+@all", "-"+denied).Err()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = admin.Do(context.Background(), "acl", "deluser", user).Err() })
				client := goredis.NewClient(&goredis.Options{
					Addr: admin.(*goredis.Client).Options().Addr, Username: user, Password: "any",
				})
				t.Cleanup(func() { _ = client.Close() })
				hook = refusing("", nil)
				client.AddHook(hook)
				return client, prefix
			}, 1, nil)
			if denied == "function" { // it must be asked for
				w.stores[0].decide = newProgram(clockedSource() + "-- never loaded: " + user + "\n")
			}
			acme := tenant("acme", perMinute(1000))
			for i := range 3 {
				r := w.mustReserve(ask(acme, requestID(i), 100))
				w.mustSettle(used(acme, r.ID, 10, 20))
			}
			w.wantLeft(acme, "tokens-60s", 90, 0)
			if !w.stores[0].decide.scriptsOnly() || hook.count("fcall") != 1 || hook.count("evalsha") < 7 {
				t.Errorf("functions were asked for %d times, scripts %d times", hook.count("fcall"), hook.count("evalsha"))
			}

			// A while later the server is asked again.
			w.stores[0].decide.scriptsUntil.Store(time.Now().Add(-time.Second).UnixMilli())
			w.mustReserve(ask(acme, "later", 100))
			if n := hook.count("fcall"); n != 2 {
				t.Errorf("functions were asked for %d times, want 2", n)
			}
		})
	}
}

// What a server refuses as a whole only while it takes no writes is decided by
// the script; functions are not given up.
func TestAServerThatTakesNoWritesStillAnswers(t *testing.T) {
	for _, answer := range []string{
		"OOM command not allowed when used memory > 'maxmemory'.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"NOREPLICAS Not enough good replicas to write.",
	} {
		w := newWorld(t, testenv.Redis, 1, nil)
		acme := tenant("acme", perMinute(1000))
		w.mustReserve(ask(acme, "r", 100))
		w.wantFunctions()
		hook := refusing("fcall", serverError(answer))
		w.client.AddHook(hook)
		again := w.mustReserve(ask(acme, "r", 100))
		if !again.Replayed {
			t.Errorf("%s: got %+v, want a repeat", answer, again)
		}
		w.wantLeft(acme, "tokens-60s", 0, 100)
		w.wantFunctions()
	}
}

// What the function keeps from call to call is dropped when it is too much.
func TestKeptTemplatesAreBounded(t *testing.T) {
	withFunctions(t, func(t *testing.T, w *world) {
		const line = "local KEPT = 16384"
		if strings.Count(decideSource, line) != 1 {
			t.Fatal("admission.lua does not bound what it keeps where the test expects it")
		}
		for _, s := range w.stores {
			s.decide = newProgram(strings.Replace(clockedSource(), line, "local KEPT = 5", 1))
		}
		global := tenancy.Limit{Name: "global", Layer: "L4", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 1000}
		const tenants, rounds = 12, 5
		var wg sync.WaitGroup
		for i := range tenants {
			wg.Go(func() {
				acme := tenant(fmt.Sprintf("acme-%d", i), perMinute(int64(rounds*100+i)), concurrency(int64(100+i)))
				for k := range rounds {
					if _, err := w.stores[k%2].Reserve(t.Context(), ask(acme, requestID(k), 100, global)); err != nil {
						t.Error(err)
						return
					}
				}
				if _, err := w.stores[0].Reserve(t.Context(), ask(acme, "more", 100, global)); !refuses(err) {
					t.Errorf("%s: one more gave %v", acme.ID, err)
				}
			})
		}
		wg.Wait()
		for i := range tenants {
			acme := tenant(fmt.Sprintf("acme-%d", i), perMinute(int64(rounds*100+i)), concurrency(int64(100+i)))
			w.wantLeft(acme, "tokens-60s", 0, rounds*100)
			w.wantLeft(acme, "concurrency", rounds, 0)
		}
		w.wantFunctions()
	})
}

// Installations that share a Redis share the function, not what is in use.
func TestKeptTemplatesAreOfOnePrefix(t *testing.T) {
	global := tenancy.Limit{Name: "global", Layer: "L4", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 1}
	acme := tenant("acme", perMinute(1000))
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			client, prefix := b.open(t)
			for _, other := range []string{"", "other:"} {
				w := newWorld(t, func(testing.TB) (goredis.UniversalClient, string) { return client, prefix + other }, 1, nil)
				w.mustReserve(ask(acme, "r", 100, global))
				if _, err := w.reserve(ask(acme, "more", 100, global)); !refuses(err) {
					t.Errorf("one more gave %v", err)
				}
			}
		})
	}
}

func refuses(err error) bool {
	_, ok := errors.AsType[*admission.Refusal](err)
	return ok
}

// Half of a list of limits must never be kept as the whole.
func TestAnUnreadableTemplateIsRefusedAgain(t *testing.T) {
	withFunctions(t, func(t *testing.T, w *world) {
		s := w.stores[0]
		for range 2 {
			o := newOp(t.Context())
			o.kind, o.tenant = 'Q', "acme"
			o.template = append(o.template, "l,0,leases,9,1,0,0,0,L3;l,0,leases,9,none,0,0,0,L3;"...)
			shard := admission.Shard("acme", s.opts.Shards)
			if err := s.target(shard).do(o); err == nil || !strings.Contains(err.Error(), "cannot be read") {
				t.Errorf("got %q, %v", o.reply, err)
			}
		}
		w.wantFunctions()
	})
}
