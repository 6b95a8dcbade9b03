package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

type postgresServer struct {
	url, kind string
	process   *process
	socketDir string
}

// startPostgresServer initialises dir when it is new, and runs a server that
// listens on a socket in a private directory only. As root it runs the server
// as the user "postgres", since PostgreSQL refuses to run as root.
func startPostgresServer(ctx context.Context, dir string) (*postgresServer, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	runAs, err := postgresUser()
	if err != nil {
		return nil, err
	}
	// A socket's path may have 107 bytes, so it does not go below dir.
	socketDir, err := os.MkdirTemp("", "tollgate-pg-")
	if err != nil {
		return nil, fmt.Errorf("make a socket directory: %w", err)
	}
	s := &postgresServer{socketDir: socketDir}
	if err := s.start(ctx, bin, dir, runAs); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *postgresServer) start(ctx context.Context, bin, dir string, runAs *account) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	if err := errors.Join(runAs.own(dir), runAs.own(s.socketDir)); err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	logPath := filepath.Join(dir, "..", "postgres.log")
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); os.IsNotExist(err) {
		initdb := runAs.command(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "tollgate",
			"-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions")
		if out, err := initdb.CombinedOutput(); err != nil {
			return fmt.Errorf("initdb: %w: %s", err, out)
		}
	}
	version, err := runAs.command(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	s.kind = strings.TrimSpace(strings.TrimPrefix(string(version), "postgres "))

	// Trust is for whoever may enter the socket's directory: mode 0700.
	server := runAs.command(context.WithoutCancel(ctx), filepath.Join(bin, "postgres"), "-D", data,
		"-c", "listen_addresses=", "-c", "unix_socket_directories="+s.socketDir, "-c", "max_connections=100",
		"-c", "shared_buffers=128MB")
	s.process, err = startProcess(server, logPath)
	if err != nil {
		return err
	}
	admin := socketURL(s.socketDir, "postgres")
	if err := s.process.waitFor(ctx, func() bool { return createDatabase(ctx, admin) == nil }); err != nil {
		return fmt.Errorf("PostgreSQL did not come up, see %s: %w", filepath.Clean(logPath), err)
	}
	s.url = socketURL(s.socketDir, "tollgate")
	return nil
}

func (s *postgresServer) stop() error {
	var err error
	if s.process != nil {
		err = s.process.stop(syscall.SIGINT) // fast shutdown
	}
	return errors.Join(err, os.RemoveAll(s.socketDir))
}

func socketURL(dir, database string) string {
	query := url.Values{"host": {dir}, "user": {"tollgate"}}
	return (&url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: query.Encode()}).String()
}

func createDatabase(ctx context.Context, admin string) error {
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var there bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'tollgate')`).Scan(&there); err != nil || there {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE DATABASE tollgate`)
	return err
}

// postgresBin finds the directory of initdb and postgres: on PATH, or where
// Debian keeps each version's.
func postgresBin() (string, error) {
	candidates, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", fmt.Errorf("look for PostgreSQL: %w", err)
	}
	slices.SortFunc(candidates, func(a, b string) int { return majorVersion(b) - majorVersion(a) })
	if path, err := exec.LookPath("initdb"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			candidates = append(candidates, filepath.Dir(target))
		}
	}
	for _, dir := range candidates {
		if executable(filepath.Join(dir, "initdb")) && executable(filepath.Join(dir, "postgres")) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("PostgreSQL's server: %w; install it (on Debian or Ubuntu: apt-get install postgresql) or use a server of your own with TOLLGATE_POSTGRES_URL", errNoBinary)
}

func majorVersion(bin string) int {
	n, err := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	if err != nil {
		return 0
	}
	return n
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&0o111 != 0
}

// account is the user that a server runs as; nil is this process's own.
type account struct{ uid, gid uint32 }

func postgresUser() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL refuses to run as root and there is no user \"postgres\" to run it as: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user postgres: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user postgres: %w", err)
	}
	return &account{uint32(uid), uint32(gid)}, nil
}

func (a *account) own(dir string) error {
	if a == nil {
		return nil
	}
	if err := os.Chown(dir, int(a.uid), int(a.gid)); err != nil {
		return fmt.Errorf("hand %s to the user postgres: %w", dir, err)
	}
	return nil
}

func (a *account) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/" // a directory that the other user may enter
	if a != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.uid, Gid: a.gid}}
	}
	return cmd
}
