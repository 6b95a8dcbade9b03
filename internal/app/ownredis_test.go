package app

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"

	"tollgate/internal/testenv"
)

// ownRedis is a Redis of a test's own, which it may configure and kill.
type ownRedis struct {
	t      *testing.T
	dir    string
	addr   string
	args   []string
	server *exec.Cmd
	client *redis.Client
}

func newOwnRedis(t *testing.T, args ...string) *ownRedis {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		testenv.Missing(t, "redis-server is not on PATH")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &ownRedis{t: t, dir: t.TempDir(), addr: l.Addr().String(), args: args}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r.client = redis.NewClient(&redis.Options{Addr: r.addr})
	t.Cleanup(func() { _ = r.client.Close() })
	r.start()
	t.Cleanup(r.kill)
	return r
}

func (r *ownRedis) start() {
	r.t.Helper()
	host, port, err := net.SplitHostPort(r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.server = exec.Command("redis-server", append([]string{"--bind", host, "--port", port, "--dir", r.dir, "--save", ""}, r.args...)...)
	r.server.Stdout, r.server.Stderr = io.Discard, io.Discard
	if err := r.server.Start(); err != nil {
		r.t.Fatal(err)
	}
	until(r.t, func() string {
		if err := r.client.Ping(r.t.Context()).Err(); err != nil {
			return "Redis does not answer: " + err.Error()
		}
		return ""
	})
}

// kill ends the server as a loss of power would.
func (r *ownRedis) kill() {
	if r.server == nil {
		return
	}
	_ = r.server.Process.Kill()
	_ = r.server.Wait() // says that it was killed
	r.server = nil
}

// copyTo copies the server's files, which it may be writing to.
func (r *ownRedis) copyTo(dir string) {
	r.t.Helper()
	if err := os.CopyFS(dir, os.DirFS(r.dir)); err != nil {
		r.t.Fatal(err)
	}
}

// restore replaces the server's files by a copy.
func (r *ownRedis) restore(dir string) {
	r.t.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(r.dir, e.Name())); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := os.CopyFS(r.dir, os.DirFS(dir)); err != nil {
		r.t.Fatal(err)
	}
}
