package embedded

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a server may take to end by itself.
const stopGrace = 10 * time.Second

// process is a child that dies with this process.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // valid once exited is closed
	once   sync.Once
}

// startProcess starts a command whose output goes to a log file. The child is
// told to end when this process dies, even by SIGKILL. Linux ties that to the
// thread that started the child, so a thread is kept for it.
func startProcess(cmd *exec.Cmd, logPath string) (*process, error) {
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// SIGQUIT is PostgreSQL's immediate shutdown; Redis ends on it as well.
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	cmd.SysProcAttr.Setpgid = true // Ctrl-C reaches us first; we stop children in order
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = out.Close() }() // the child wrote to it, not we
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// stop asks the child to end with sig, and kills it when it does not.
func (p *process) stop(sig os.Signal) error {
	var err error
	p.once.Do(func() {
		if sigErr := p.cmd.Process.Signal(sig); sigErr != nil && !errors.Is(sigErr, os.ErrProcessDone) {
			err = fmt.Errorf("stop %s: %w", p.cmd.Path, sigErr)
		}
		select {
		case <-p.exited:
		case <-time.After(stopGrace):
			err = errors.Join(err, fmt.Errorf("%s did not end within %s and was killed", p.cmd.Path, stopGrace), p.cmd.Process.Kill())
			<-p.exited
		}
	})
	return err
}
