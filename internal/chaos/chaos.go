// Package chaos kills every process of an installation with SIGKILL while a
// trace runs through it, in an order drawn from a seed, and brings each back.
// The drill behind it then says whether every total is still exact.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Role is a process of Tollgate that can be killed and started again.
type Role struct {
	Name string
	Args []string
	Env  []string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts the process; its output is appended to a file in dir.
func (r *Role) Start(binary, dir string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	out, err := os.OpenFile(filepath.Join(dir, r.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", r.Name, err)
	}
	cmd := exec.Command(binary, r.Args...)
	cmd.Env = append(os.Environ(), r.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", r.Name, err), out.Close())
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()  // killed on purpose, or seen in its log
		_ = out.Close() // the process wrote to it, not we
		close(exited)
	}()
	r.cmd, r.exited = cmd, exited
	return nil
}

// Kill ends the process at once and waits until it is gone.
func (r *Role) Kill() { r.end(syscall.SIGKILL) }

// Stop asks the process to end and kills it when it does not.
func (r *Role) Stop() { r.end(syscall.SIGTERM) }

func (r *Role) end(sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Signal(sig) // it may have ended by itself
	select {
	case <-r.exited:
	case <-time.After(30 * time.Second):
		_ = r.cmd.Process.Kill()
		<-r.exited
	}
	r.cmd = nil
}

// Victim is something that can be killed and brought back.
type Victim struct {
	Name   string
	Kill   func(ctx context.Context) error
	Revive func(ctx context.Context) error
}

// RoleVictim is a process of Tollgate.
func RoleVictim(r *Role, binary, dir string) Victim {
	return Victim{
		Name:   r.Name,
		Kill:   func(context.Context) error { r.Kill(); return nil },
		Revive: func(context.Context) error { return r.Start(binary, dir) },
	}
}

// ServiceVictim is a server that the services script manages.
func ServiceVictim(name, script string) Victim {
	run := func(verb string) func(context.Context) error {
		return func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, script, verb, name).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s %s %s: %w: %s", script, verb, name, err, out)
			}
			return nil
		}
	}
	return Victim{Name: name, Kill: run("kill"), Revive: run("up")}
}

// Killer kills its victims one after another while a count of done work goes
// up. Work waits at the gate while a kill that is due has not been started, so
// every kill happens while the trace runs.
type Killer struct {
	victims []Victim
	at      []int // the count at which each is due
	pauses  []time.Duration
	note    func(format string, args ...any)

	mu     sync.Mutex
	next   int
	killed int
	err    error
	work   sync.WaitGroup

	revival sync.Mutex // apart from mu, which Done holds while it waits for work
	failed  []error
}

// NewKiller plans rounds of kills over total units of work. In each round every
// victim dies once, in an order and with a time of being away drawn from seed.
func NewKiller(seed uint64, victims []Victim, rounds, total int, note func(string, ...any)) *Killer {
	rng := rand.New(rand.NewPCG(seed, 0x6368616f73))
	k := &Killer{note: note}
	for range rounds {
		for _, i := range rng.Perm(len(victims)) {
			k.victims = append(k.victims, victims[i])
			k.pauses = append(k.pauses, 100*time.Millisecond+time.Duration(rng.Int64N(int64(1500*time.Millisecond))))
		}
	}
	for i := range k.victims {
		k.at = append(k.at, total*(i+1)/(len(k.victims)+1))
	}
	return k
}

// Done is told the count after each unit of work. It kills what is due.
func (k *Killer) Done(ctx context.Context, count int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.next < len(k.victims) && count >= k.at[k.next] {
		v, pause := k.victims[k.next], k.pauses[k.next]
		k.next++
		k.work.Wait() // one at a time: the last one is back before the next dies
		k.note("  %6d requests done: kill -9 %s, back in %s", count, v.Name, pause.Round(10*time.Millisecond))
		if err := v.Kill(ctx); err != nil {
			k.err = errors.Join(k.err, err)
			continue
		}
		k.killed++
		k.work.Go(func() {
			// How long a process is away is the experiment, not a wait.
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			if err := v.Revive(context.WithoutCancel(ctx)); err != nil {
				k.revival.Lock()
				k.failed = append(k.failed, err)
				k.revival.Unlock()
			}
		})
	}
}

// Wait returns when everything that was killed is back, with what went wrong
// about killing and reviving, and how many were killed.
func (k *Killer) Wait() (killed int, err error) {
	k.work.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.killed, errors.Join(append(k.failed, k.err)...)
}
