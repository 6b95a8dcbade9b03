package hop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program that was started for a measurement.
type Process struct {
	Addr  string // where it serves; whoever starts it knows
	Ended chan struct{}

	cmd  *exec.Cmd
	out  tail
	once sync.Once
}

// Start starts a program with env on top of this process's environment. It gets
// a group of processes of its own, so that what it starts ends with it.
func Start(program string, args, env []string) (*Process, error) {
	p := &Process{Ended: make(chan struct{})}
	p.cmd = exec.Command(program, args...) //nolint:gosec,noctx // the operator names the program; Stop ends it
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = 100 * time.Millisecond // for what it started and what may outlive it, with its output open
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended does not matter, what it printed does
		close(p.Ended)
	}()
	return p, nil
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is the end of what it printed.
func (p *Process) Output() string { return p.out.String() }

// Stop ends it and what it started, and waits. It may be called twice.
func (p *Process) Stop() {
	p.once.Do(func() {
		group := -p.cmd.Process.Pid
		_ = syscall.Kill(p.cmd.Process.Pid, syscall.SIGTERM) // it may have ended by itself
		select {
		case <-p.Ended:
		case <-time.After(10 * time.Second):
		}
		_ = syscall.Kill(group, syscall.SIGKILL)
		<-p.Ended
	})
}

// tail keeps the end of what is written.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 8 << 10

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailSize; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// FreeAddress is a loopback address that nothing listens on at this moment.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// tree is a process with all its children and theirs.
func tree(root int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]int)
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// "pid (name) state ppid …"; a name may hold anything.
		_, fields, _ := strings.Cut(string(data[strings.LastIndexByte(string(data), ')'):]), " ")
		words := strings.Fields(fields)
		if len(words) < 2 {
			continue
		}
		pid, pidErr := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, parentErr := strconv.Atoi(words[1])
		if pidErr == nil && parentErr == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all, nil
}

// cpu is the processor time, user's and system's, of a process and all that it
// started and that still runs; zero for no process. It comes from the processes'
// clocks (clock_getcpuclockid(3)): what /proc/PID/stat says is rounded to 10 ms.
func cpu(root int) (time.Duration, error) {
	if root == 0 {
		return 0, nil
	}
	pids, err := tree(root)
	if err != nil {
		return 0, err
	}
	total := time.Duration(0)
	for _, pid := range pids {
		const schedClock = 2
		var spec unix.Timespec
		if err := unix.ClockGettime(int32(^pid<<3|schedClock), &spec); err != nil {
			if pid == root {
				return 0, fmt.Errorf("read the processor time of process %d: %w", root, err)
			}
			continue // a child that has ended
		}
		total += time.Duration(spec.Nano())
	}
	return total, nil
}

// rss is the resident memory of a process and its children, in KiB.
func rss(root int) (float64, error) {
	pids, err := tree(root)
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			if pid == root {
				return 0, fmt.Errorf("read the memory of process %d: %w", root, err)
			}
			continue
		}
		_, rest, found := strings.Cut(string(data), "\nVmRSS:")
		value, _, _ := strings.Cut(rest, " kB")
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if !found || err != nil {
			if pid == root {
				return 0, errors.New("the memory is not in /proc")
			}
			continue // it is about to end
		}
		total += n
	}
	return total, nil
}
