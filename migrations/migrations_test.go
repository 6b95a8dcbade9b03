package migrations_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/migrations"
)

// freshDatabase makes an empty database; it does not use the test
// environment's template, because that is made with the code under test.
func freshDatabase(t *testing.T) string {
	t.Helper()
	admin := os.Getenv("TOLLGATE_TEST_POSTGRES")
	if admin == "" {
		t.Skip("TOLLGATE_TEST_POSTGRES is not set")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(ctx) })
	name := fmt.Sprintf("migrations_test_%d_%d", os.Getpid(), time.Now().UnixNano())
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	base, query, _ := strings.Cut(admin, "?")
	return base[:strings.LastIndex(base, "/")+1] + name + "?" + query
}

func TestUpFromManyProcessesAtOnceAppliesEachOnce(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t)
	ctx := t.Context()

	before, err := migrations.Status(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range before {
		if s.Applied {
			t.Errorf("%s is applied in an empty database", s.File)
		}
	}

	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := migrations.Up(ctx, url); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	after, err := migrations.Status(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	if len(after) == 0 || len(after) != len(before) {
		t.Fatalf("%d migrations after, %d before", len(after), len(before))
	}
	for _, s := range after {
		if !s.Applied || s.AppliedAt.IsZero() {
			t.Errorf("%s is not applied", s.File)
		}
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var rows int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM journal").Scan(&rows); err != nil || rows != 0 {
		t.Fatalf("journal: %d rows, %v", rows, err)
	}
}
