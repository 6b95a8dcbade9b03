package postgres_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
	"tollgate/ledger/postgres"
)

// envCrashChild makes this test binary a ledger process that is killed: it
// holds "before" (the batch is taken, nothing is written), "within" (its
// transaction is open and has written) or "after" (the transaction is
// committed, the group offset is not).
const envCrashChild = "TOLLGATE_LEDGER_CRASH_AT"

const envCrashURL = "TOLLGATE_LEDGER_CRASH_URL"

func crashLog() []events.Record {
	return ledgerbench.Log(ledgerbench.LogOptions{Seed: 10, Events: 600, Start: start})[0]
}

// crashChild folds the log until the given point and waits to be killed.
func crashChild() {
	err := func() error {
		ctx := context.Background()
		pool, err := pgxpool.New(ctx, os.Getenv(envCrashURL))
		if err != nil {
			return err
		}
		crash := &crashingStore{Store: postgres.New(pool, postgres.Options{}), at: os.Getenv(envCrashChild)}
		r := ledger.NewRunner(crash, &deadLetters{}, ledger.Options{Owner: "child", FlushEvents: 100, MaxBatch: 100})
		return r.RunPartition(ctx, 0, ledgerbench.NewSource(crashLog()))
	}()
	fmt.Println("child ended:", err)
	os.Exit(3)
}

// crashingStore waits to be killed around the third flush.
type crashingStore struct {
	*postgres.Store
	at    string
	count int
}

func (c *crashingStore) Flush(ctx context.Context, lease ledger.Lease, b *ledger.Batch) (ledger.Lease, ledger.Counts, error) {
	c.count++
	if c.count < 3 {
		return c.Store.Flush(ctx, lease, b)
	}
	if c.at == "after" {
		if _, _, err := c.Store.Flush(ctx, lease, b); err != nil {
			return lease, ledger.Counts{}, err
		}
	}
	fmt.Println("waiting to be killed")
	if c.at == "within" {
		// The parent holds a reservation, so the flush stops with its journal
		// rows written and its transaction open.
		return c.Store.Flush(ctx, lease, b)
	}
	select {}
}

func TestCaseL10_KilledBetweenTakingABatchAndCommittingIt(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"before", "within", "after"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			url := testenv.PostgresURL(t)
			pool, err := pgxpool.New(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			log := crashLog()
			s := postgres.New(pool, postgres.Options{})

			release := func() {}
			if at == "within" {
				release = holdReservationOf(t, pool, log[250])
			}
			child := exec.Command(os.Args[0], "-test.run=^$")
			child.Env = append(os.Environ(), envCrashChild+"="+at, envCrashURL+"="+url)
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "waiting") {
				t.Fatalf("child says %q, %v", line, err)
			}
			if at == "within" {
				waitFor(t, "the child's transaction to hang", func() bool {
					return scalar[int](t, pool, `SELECT count(*) FROM pg_stat_activity
						WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
				})
			}
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = child.Wait() // killed
			release()

			want := map[string]int64{"before": 200, "within": 200, "after": 300}[at]
			src := ledgerbench.NewSource(log)
			r := ledger.NewRunner(s, &deadLetters{}, ledger.Options{Owner: "next", FlushInterval: 10 * time.Millisecond})
			defer r.Stop()
			waitFor(t, "the child's locks to be released", func() bool {
				next := scalar[int64](t, pool, "SELECT next_offset FROM fold_progress FOR UPDATE")
				return next == want || t.Failed()
			})
			runUntil(t, r, 0, src, int64(len(log)))
			check := mustAddUp(t, s)
			input, output, milli := wantTotals(t, log)
			if c := check.Counts; c.Folded != int64(len(log)) || c.Consumed != c.Folded {
				t.Errorf("counts are %+v, want each of %d records folded once", c, len(log))
			}
			if h := check.Hours; h.InputTokens != input || h.OutputTokens != output || h.MilliUnits != milli {
				t.Errorf("usage is %+v, want %d, %d, %d", h, input, output, milli)
			}
		})
	}
}

// holdReservationOf keeps whoever writes the record's reservation waiting. The
// row does not exist yet: an insert of it that is not committed holds its key.
func holdReservationOf(t *testing.T, pool *pgxpool.Pool, rec events.Record) (release func()) {
	t.Helper()
	v, err := events.ParseReservation(rec.Value)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(t.Context(), `INSERT INTO reservations SELECT $1, '', '', '', '', '', 0, '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false, now(), now(), now()`, v.ReservationID)
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.Background()) }
}
