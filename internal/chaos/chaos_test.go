package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ward records what happens to its victims.
type ward struct {
	mu    sync.Mutex
	log   []string
	away  int
	worst int // most that were away at once
}

func (w *ward) victim(name string, killErr, reviveErr error) Victim {
	return Victim{
		Name: name,
		Kill: func(context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.log = append(w.log, "kill "+name)
			if killErr == nil {
				w.away++
				w.worst = max(w.worst, w.away)
			}
			return killErr
		},
		Revive: func(ctx context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.log = append(w.log, "revive "+name)
			w.away--
			return errors.Join(reviveErr, ctx.Err())
		},
	}
}

func quiet(string, ...any) {}

func TestEveryVictimDiesOnceARoundWhileTheWorkRuns(t *testing.T) {
	const rounds, total = 3, 1000
	names := []string{"a", "b", "c", "d"}
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			w := &ward{}
			var victims []Victim
			for _, n := range names {
				victims = append(victims, w.victim(n, nil, nil))
			}
			k := NewKiller(seed, victims, rounds, total, quiet)
			var killsAt []int
			for done := 1; done <= total; done++ {
				before := k.next
				k.Done(t.Context(), done)
				for range k.next - before {
					killsAt = append(killsAt, done)
				}
			}
			killed, err := k.Wait()
			if err != nil || killed != rounds*len(names) {
				t.Fatalf("seed %d: %d killed, %v", seed, killed, err)
			}
			if w.away != 0 || w.worst != 1 {
				t.Errorf("seed %d: %d are still away, %d were at once", seed, w.away, w.worst)
			}
			var order []string
			for i, line := range w.log {
				name := strings.Fields(line)[1]
				if want := []string{"kill ", "revive "}[i%2] + name; line != want {
					t.Errorf("seed %d: %s, want %s", seed, line, want)
				}
				if i%2 == 0 {
					order = append(order, name)
				} else if name != order[len(order)-1] {
					t.Errorf("seed %d: %s came back before %s", seed, name, order[len(order)-1])
				}
			}
			for r := range rounds {
				round := slices.Sorted(slices.Values(order[r*len(names) : (r+1)*len(names)]))
				if diff := cmp.Diff(names, round); diff != "" {
					t.Errorf("seed %d, round %d: %s", seed, r+1, diff)
				}
			}
			if killsAt[0] == 1 || killsAt[len(killsAt)-1] == total || !slices.IsSorted(killsAt) {
				t.Errorf("seed %d: kills at %v, want them inside the run", seed, killsAt)
			}
		})
	}
}

func TestTheSeedDecidesTheOrder(t *testing.T) {
	t.Parallel()
	order := func(seed uint64) (names []string) {
		var victims []Victim
		for i := range 6 {
			victims = append(victims, Victim{Name: strconv.Itoa(i)})
		}
		for _, v := range NewKiller(seed, victims, 2, 100, quiet).victims {
			names = append(names, v.Name)
		}
		return names
	}
	if diff := cmp.Diff(order(7), order(7)); diff != "" {
		t.Errorf("the same seed gave another order: %s", diff)
	}
	if cmp.Equal(order(7), order(8)) && cmp.Equal(order(8), order(9)) {
		t.Error("every seed gives the same order")
	}
}

// A count that jumps, as workers report at once, skips no kill.
func TestNoKillIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &ward{}
		k := NewKiller(1, []Victim{w.victim("a", nil, nil), w.victim("b", nil, nil)}, 2, 100, quiet)
		k.Done(t.Context(), 100)
		if killed, err := k.Wait(); killed != 4 || err != nil || w.worst != 1 {
			t.Errorf("%d killed, %d at once, %v; want 4, one after another", killed, w.worst, err)
		}
	})
}

func TestFailuresAreTold(t *testing.T) {
	errKill, errRevive := errors.New("cannot kill"), errors.New("cannot revive")
	synctest.Test(t, func(t *testing.T) {
		w := &ward{}
		k := NewKiller(1, []Victim{
			w.victim("a", errKill, nil), w.victim("b", nil, errRevive), w.victim("c", nil, nil),
		}, 1, 10, quiet)
		for done := range 10 {
			k.Done(t.Context(), done+1)
		}
		killed, err := k.Wait()
		if killed != 2 || !errors.Is(err, errKill) || !errors.Is(err, errRevive) {
			t.Errorf("%d killed, %v; want 2 and both errors", killed, err)
		}
		if slices.Contains(w.log, "revive a") || !slices.Contains(w.log, "revive c") {
			t.Errorf("log %q: what was not killed is not revived, and the others go on", w.log)
		}
	})
}

// When the run is given up, what is away comes back at once.
func TestACancelledRunBringsEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &ward{}
		k := NewKiller(1, []Victim{w.victim("a", nil, nil)}, 1, 10, quiet)
		k.Done(ctx, 10)
		cancel()
		if killed, err := k.Wait(); killed != 1 || err != nil || w.away != 0 {
			t.Errorf("%d killed, %d away, %v", killed, w.away, err)
		}
	})
}

func TestARoleIsKilledAndComesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := &Role{Name: "role", Args: []string{"-c", `echo "$GREETING $$"; exec sleep 600`}, Env: []string{"GREETING=hello"}}
	v := RoleVictim(r, "/bin/sh", dir)
	if err := v.Revive(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := r.cmd.Process.Pid
	if err := v.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d after the kill: %v, want none", first, err)
	}
	if err := v.Kill(t.Context()); err != nil {
		t.Errorf("second kill: %v", err)
	}
	if err := v.Revive(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := r.cmd.Process.Pid
	r.Stop()
	r.Stop()
	if err := syscall.Kill(second, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d after the stop: %v, want none", second, err)
	}
	log, err := os.ReadFile(filepath.Join(dir, "role.log"))
	// The second one may be stopped before it has said anything.
	if err != nil || len(log) > 0 && !strings.HasPrefix(string(log), "hello ") {
		t.Errorf("log %q, %v", log, err)
	}
	if err := RoleVictim(r, "/nonexistent", dir).Revive(t.Context()); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestAServiceIsLeftToItsScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, out := filepath.Join(dir, "services"), filepath.Join(dir, "out")
	text := fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s\n[ \"$2\" != broken ] || { echo no such service; exit 3; }\n", out)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	v := ServiceVictim("redis", script)
	if err := errors.Join(v.Kill(t.Context()), v.Revive(t.Context())); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out)
	if err != nil || string(got) != "kill redis\nup redis\n" {
		t.Errorf("the script was called with %q, %v", got, err)
	}
	err = ServiceVictim("broken", script).Kill(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no such service") {
		t.Errorf("got %v, want what the script said", err)
	}
}
