package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// errNoBinary: a server's binary is not on the machine.
var errNoBinary = errors.New("binary not found")

type redisServer struct {
	addr, password string
	process        *process
}

// startRedisServer starts the redis-server on PATH with an append-only file in
// dir. It returns errNoBinary when there is none.
func startRedisServer(ctx context.Context, dir string) (*redisServer, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redis-server: %w", errNoBinary)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &redisServer{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), password: rand.Text()}
	// The password is in a file and not on the command line, where every user
	// of the machine could read it.
	conf := fmt.Sprintf("bind 127.0.0.1\nport %d\nrequirepass %s\ndir %s\nsave \"\"\nappendonly yes\nappendfsync everysec\nmaxmemory-policy noeviction\n",
		port, s.password, strconv.Quote(dir))
	confPath := filepath.Join(dir, "redis.conf")
	if err := os.WriteFile(confPath, []byte(conf), 0o600); err != nil {
		return nil, fmt.Errorf("write redis.conf: %w", err)
	}
	s.process, err = startProcess(exec.Command(bin, confPath), filepath.Join(dir, "redis.log"))
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(&redis.Options{Addr: s.addr, Password: s.password, MaxRetries: -1})
	defer func() { _ = client.Close() }() // only asked
	if err := s.process.waitFor(ctx, func() bool { return client.Ping(ctx).Err() == nil }); err != nil {
		return nil, errors.Join(fmt.Errorf("redis-server did not come up, see %s: %w", filepath.Join(dir, "redis.log"), err), s.stop())
	}
	return s, nil
}

func (s *redisServer) stop() error { return s.process.stop(syscall.SIGTERM) }

// startTimeout bounds how long a server may take to come up.
const startTimeout = 60 * time.Second

// waitFor polls until the condition holds or the process has ended.
func (p *process) waitFor(ctx context.Context, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		select {
		case <-tick.C:
		case <-p.exited:
			return fmt.Errorf("process ended: %w", p.err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// freePort asks the kernel for a port that is free now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
