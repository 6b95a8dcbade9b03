package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/migrations"
)

// templateLock is the advisory lock under which one process at a time makes
// the template database. The number is arbitrary and belongs to this package.
const templateLock = 0x746f6c6c

// template is made once a process, whatever its outcome.
var template struct {
	once sync.Once
	name string
	err  error
}

// Postgres returns a pool on a migrated database of the test's own.
func Postgres(t testing.TB) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(PostgresURL(t))
	if err != nil {
		t.Fatalf("testenv: parse the database's URL: %v", err)
	}
	config.MaxConns = 10
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("testenv: open the database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// PostgresURL returns the URL of a migrated database of the test's own. It is
// a copy of a template that is migrated once for all tests; the copy is
// dropped, with whoever is still connected, when the test ends.
func PostgresURL(t testing.TB) string {
	t.Helper()
	admin := address(t, EnvPostgres)
	template.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		template.name, template.err = prepareTemplate(ctx, admin)
	})
	if template.err != nil {
		t.Fatalf("testenv: make the template database: %v", template.err)
	}
	return createDatabase(t, admin, template.name)
}

// EmptyPostgresURL returns the URL of a database of the test's own in which
// nothing was migrated.
func EmptyPostgresURL(t testing.TB) string {
	t.Helper()
	return createDatabase(t, address(t, EnvPostgres), "template0")
}

func createDatabase(t testing.TB, admin, from string) string {
	t.Helper()
	name := "tollgate_test_" + unique()
	if err := execute(t.Context(), admin, "CREATE DATABASE "+name+" TEMPLATE "+from); err != nil {
		t.Fatalf("testenv: create a database: %v", err)
	}
	atEnd(t, "database "+name, func(ctx context.Context) error {
		return execute(ctx, admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	})
	address, err := withDatabase(admin, name)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return address
}

// prepareTemplate returns the name of a database that holds every migration.
// Its name carries a hash of the migrations, so a changed migration gets a new
// template. It stays when the tests end, for the next run. It is marked as a
// template only once it is whole, so one that a killed process left half made
// is made again.
func prepareTemplate(ctx context.Context, admin string) (name string, err error) {
	sum, err := hashFiles(migrations.FS)
	if err != nil {
		return "", err
	}
	name = "tollgate_template_" + sum[:16]

	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }() // also gives the advisory lock back
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return "", fmt.Errorf("take the template's lock: %w", err)
	}

	var whole bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)", name).Scan(&whole)
	if err != nil {
		return "", fmt.Errorf("look for the template: %w", err)
	}
	if whole {
		return name, nil
	}
	for _, statement := range []string{
		"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)",
		"CREATE DATABASE " + name + " TEMPLATE template0",
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return "", fmt.Errorf("%s: %w", statement, err)
		}
	}
	target, err := withDatabase(admin, name)
	if err != nil {
		return "", err
	}
	if err := migrations.Up(ctx, target); err != nil {
		return "", err
	}
	// A database with a connection cannot be copied, so none is allowed on it.
	if _, err := conn.Exec(ctx, "ALTER DATABASE "+name+" IS_TEMPLATE true ALLOW_CONNECTIONS false"); err != nil {
		return "", fmt.Errorf("mark the template: %w", err)
	}
	return name, nil
}

// hashFiles covers every file's name and content.
func hashFiles(files fs.FS) (string, error) {
	names, err := fs.Glob(files, "*.sql") // sorted
	if err != nil {
		return "", fmt.Errorf("list migrations: %w", err)
	}
	hash := sha256.New()
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return "", fmt.Errorf("read a migration: %w", err)
		}
		_, _ = fmt.Fprintf(hash, "%s %d\n%s", name, len(content), content) // a hash never fails
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// execute runs one statement on a connection of its own.
func execute(ctx context.Context, address, statement string) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// withDatabase returns the URL with another database's name.
func withDatabase(address, name string) (string, error) {
	parsed, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(parsed.Scheme, "postgres") {
		return "", fmt.Errorf("%s must be a postgres:// URL", EnvPostgres)
	}
	parsed.Path = "/" + name
	return parsed.String(), nil
}
