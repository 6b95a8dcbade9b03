package postgres_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
	"tollgate/ledger/postgres"
)

// An auditor needs nothing but SQL to compute a leaf.
func TestLeafCanBeComputedInSQL(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	fold(t, s, acquire(t, s, 0, "a"), ledgerbench.Log(ledgerbench.LogOptions{Seed: 1, Events: 50, Start: start})[0], 50)
	send := map[string]string{
		"day": "date_send", "topic_partition": "int4send", "event_time": "timestamptz_send", "expires_at": "timestamptz_send",
		"estimated": "boolsend", "tombstone": "boolsend",
	}
	for _, c := range []string{"event_id", "type", "tenant_id", "reservation_id", "request_id", "key_id", "endpoint", "model", "state", "author", "reason"} {
		send[c] = "textsend"
	}
	data := `'\x0001'::bytea`
	for _, c := range ledger.Columns[:ledger.ColumnLeaf] {
		f := send[c]
		if f == "" {
			f = "int8send"
		}
		data += fmt.Sprintf(" || int4send(length(%[1]s(%[2]s))) || %[1]s(%[2]s)", f, c)
	}
	if n := scalar[int](t, pool, "SELECT count(*) FROM journal WHERE leaf <> sha256("+data+")"); n != 0 {
		t.Errorf("%d leaves are not what SQL computes", n)
	}
	if n := scalar[int](t, pool, "SELECT count(*) FROM journal WHERE leaf = sha256("+data+")"); n < 50 {
		t.Errorf("%d leaves are what SQL computes, want all", n)
	}
}

// The tables and the tree do not depend on how the log was cut into batches,
// nor the tables on the order in which it was folded or on repeats.
func TestPropertyFoldIsCommutativeAndCutsDoNotMatter(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		log := ledgerbench.Log(ledgerbench.LogOptions{Seed: seed, Events: rapid.IntRange(1, 120).Draw(rt, "events"), Tenants: 3, Start: start, Step: 10 * time.Minute})[0]
		now := log[len(log)-1].Time.Add(2 * time.Hour)
		foldAnew := func(records []events.Record, size func() int) (tables, sums string, root []byte) {
			empty(t, pool)
			lease, err := s.Acquire(t.Context(), events.TopicEvents, 0, "a")
			if err != nil {
				rt.Fatal(err)
			}
			for rest := records; len(rest) > 0; {
				n := min(size(), len(rest))
				b, err := ledger.NewBatch(events.TopicEvents, 0, rest[:n])
				if err != nil {
					rt.Fatal(err)
				}
				if lease, _, err = s.Flush(t.Context(), lease, b); err != nil {
					rt.Fatal(err)
				}
				rest = rest[n:]
			}
			if _, err := s.CloseHours(t.Context(), now); err != nil {
				rt.Fatal(err)
			}
			v, err := s.Verify(t.Context(), postgres.VerifyOptions{}, nil)
			if err != nil {
				rt.Fatal(err)
			}
			if err := v.Err(); err != nil {
				rt.Fatal(err)
			}
			p, err := s.Progress(t.Context())
			if err != nil {
				rt.Fatal(err)
			}
			sums = dumpTables(t, pool, "reservations", "usage_hour", "usage_30d")
			return dumpTables(t, pool, "journal") + sums, sums, p[0].TreeRoot
		}
		tables, sums, root := foldAnew(log, func() int { return 1000 })

		cutTables, _, cutRoot := foldAnew(log, func() int { return rapid.IntRange(1, 40).Draw(rt, "cut") })
		if cutTables != tables {
			rt.Fatal("tables depend on where batches are cut")
		}
		if !bytes.Equal(cutRoot, root) {
			rt.Fatal("tree root depends on where batches are cut")
		}

		rnd := rand.New(rand.NewPCG(seed, 1))
		shuffled := slices.Clone(log)
		for range rapid.IntRange(0, 30).Draw(rt, "repeats") {
			shuffled = append(shuffled, log[rnd.IntN(len(log))])
		}
		rnd.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i := range shuffled {
			shuffled[i].Offset = int64(i)
		}
		_, shuffledSums, _ := foldAnew(shuffled, func() int { return rapid.IntRange(1, 40).Draw(rt, "cut of the shuffled") })
		if shuffledSums != sums {
			rt.Fatal("sums depend on the order of events or on repeats")
		}
	})
}

// folded is a ledger of a few batches in two partitions, with a duplicate, a
// dead letter and a conflict.
func folded(t *testing.T) (*postgres.Store, *pgxpool.Pool, [][]events.Record) {
	t.Helper()
	s, pool := openStore(t)
	log := ledgerbench.Log(ledgerbench.LogOptions{Seed: 21, Events: 240, Partitions: 2, Tenants: 4, Start: start})
	last := log[1][len(log[1])-1]
	broken := moved(last, last.Offset+2)
	broken.Value = []byte("{")
	other := moved(log[1][5], last.Offset+3)
	other.Value = bytes.Replace(other.Value, []byte(`"author":"client"`), []byte(`"author":"somebody"`), 1)
	log[1] = append(log[1], moved(log[1][3], last.Offset+1), broken, other)
	for p := range log {
		fold(t, s, acquire(t, s, p, "a"), log[p], 25)
	}
	if _, err := s.CloseHours(t.Context(), last.Time.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if c := mustAddUp(t, s).Counts; c.Duplicates != 1 || c.DeadLettered != 1 || c.Conflicts != 1 {
		t.Fatalf("counts are %+v", c)
	}
	return s, pool, log
}

// Whatever is changed behind the ledger's back is found, and the first wrong
// batch named; the row where the hashes can tell.
func TestVerifyFindsWhatWasChanged(t *testing.T) {
	t.Parallel()
	s, pool, _ := folded(t)
	const row = "topic_partition = 1 AND topic_offset = 40" // in batch 2 of partition 1
	eventID := scalar[string](t, pool, "SELECT event_id FROM journal WHERE "+row)

	type tampering struct {
		name, sql string
		batch     int64
		eventID   string
		offset    int64 // -1: not named
	}
	var cases []tampering
	types := map[string]string{}
	for _, c := range ledger.Columns {
		types[c] = scalar[string](t, pool, "SELECT data_type FROM information_schema.columns WHERE table_name = 'journal' AND column_name = $1", c)
	}
	for _, c := range ledger.Columns {
		change := map[string]string{
			"bigint": c + " + 1", "text": c + " || 'x'", "timestamp with time zone": c + " + interval '1 microsecond'",
			"boolean": "NOT " + c, "date": c + " + 40", "integer": c + " + 7", "bytea": "set_byte(leaf, 31, 255 - get_byte(leaf, 31))",
		}[types[c]]
		if change == "" {
			t.Fatalf("column %s has a type that this test does not know: %s", c, types[c])
		}
		want := tampering{name: "journal." + c, sql: fmt.Sprintf("UPDATE journal SET %s = %s WHERE %s", c, change, row), batch: 2, eventID: eventID, offset: 40}
		switch c {
		case "event_id":
			want.eventID += "x"
		case "topic_offset":
			// The row below it has the next offset: two at one, none at 40.
			want.offset = 41
		case "topic_partition":
			want.eventID = "" // the row is missing where it was
		}
		cases = append(cases, want)
	}
	cases = append(cases,
		tampering{name: "row removed", sql: "DELETE FROM journal WHERE " + row, batch: 2, offset: 40},
		tampering{
			name: "row and leaf changed together", batch: 2, offset: -1,
			sql: "UPDATE journal SET output_tokens = 0, leaf = sha256('forged') WHERE " + row,
		},
		tampering{
			name: "row added", batch: 2, eventID: "added", offset: 40,
			sql: "INSERT INTO journal SELECT (jsonb_populate_record(j, '{\"event_id\": \"added\"}')).* FROM journal j WHERE " + row,
		},
		tampering{
			name: "row added behind the end", batch: 0, eventID: "added", offset: 4000,
			sql: "INSERT INTO journal SELECT (jsonb_populate_record(j, '{\"event_id\": \"added\", \"topic_offset\": 4000}')).* FROM journal j WHERE " + row,
		},
		tampering{name: "batch removed", sql: "DELETE FROM batches WHERE topic_partition = 1 AND batch = 2", batch: 2, offset: -1},
		tampering{name: "last batch removed", sql: "DELETE FROM batches WHERE topic_partition = 1 AND batch = (SELECT max(batch) FROM batches WHERE topic_partition = 1)", batch: 0, offset: -1},
		tampering{name: "progress", sql: "UPDATE fold_progress SET next_offset = next_offset - 1 WHERE topic_partition = 1", batch: 0, offset: -1},
		tampering{name: "progress tree", sql: "UPDATE fold_progress SET tree_range = set_byte(tree_range, 0, 255 - get_byte(tree_range, 0)) WHERE topic_partition = 1", batch: 0, offset: -1},
		tampering{name: "progress removed", sql: "DELETE FROM fold_progress WHERE topic_partition = 1", batch: -1, offset: -1},
	)
	for _, c := range []string{
		"first_offset", "last_offset", "consumed", "folded", "duplicates", "dead_lettered", "conflicts", "tree_size",
	} {
		cases = append(cases, tampering{name: "batches." + c, sql: fmt.Sprintf("UPDATE batches SET %[1]s = %[1]s + 1 WHERE topic_partition = 1 AND batch = 2", c), batch: 2, offset: -1})
	}
	for _, c := range []string{"batch_root", "prev_hash", "chain_hash", "tree_root"} {
		cases = append(cases, tampering{name: "batches." + c, sql: fmt.Sprintf("UPDATE batches SET %[1]s = set_byte(%[1]s, 5, 255 - get_byte(%[1]s, 5)) WHERE topic_partition = 1 AND batch = 2", c), batch: 2, offset: -1})
	}
	cases = append(cases, tampering{name: "batches.committed_at", sql: "UPDATE batches SET committed_at = committed_at + interval '1 microsecond' WHERE topic_partition = 1 AND batch = 2", batch: 2, offset: -1})

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			restore := savepoint(t, pool)
			defer restore()
			run(t, pool, c.sql)
			r, err := s.Verify(t.Context(), postgres.VerifyOptions{SkipCheck: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var first *postgres.Fault
			for i := range r.Faults {
				if r.Faults[i].Partition == 1 {
					first = &r.Faults[i]
					break
				}
			}
			if first == nil {
				t.Fatalf("nothing was found; faults are %v", r.Faults)
			}
			if c.batch >= 0 && first.Batch != c.batch {
				t.Errorf("first wrong batch is %d, want %d: %s", first.Batch, c.batch, first)
			}
			if c.offset < 0 {
				return
			}
			named := slices.ContainsFunc(r.Faults, func(f postgres.Fault) bool {
				return f.Offset != nil && *f.Offset == c.offset && f.EventID == c.eventID
			})
			if !named {
				t.Errorf("no fault names offset %d event %q: %v", c.offset, c.eventID, r.Faults)
			}
		})
	}
}

// savepoint keeps copies of what a tampering may change.
func savepoint(t *testing.T, pool *pgxpool.Pool) (restore func()) {
	t.Helper()
	tables := []string{"journal", "batches", "fold_progress", "reservations", "usage_hour", "usage_30d", "event_conflicts"}
	for _, table := range tables {
		run(t, pool, "CREATE TABLE saved_"+table+" AS TABLE "+table)
	}
	return func() {
		for _, table := range tables {
			run(t, pool, "TRUNCATE "+table)
			run(t, pool, "INSERT INTO "+table+" TABLE saved_"+table)
			run(t, pool, "DROP TABLE saved_"+table)
		}
	}
}

func TestCaseR2_ReplayGivesTheSameLedger(t *testing.T) {
	t.Parallel()
	original, pool, log := folded(t)
	target := testenv.Postgres(t)
	url := target.Config().ConnString()
	r, err := postgres.Replay(t.Context(), ledgerbench.Reader(log), url, postgres.ReplayOptions{Original: original}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil || !r.Compared {
		t.Fatalf("compared %v: %v", r.Compared, err)
	}
	want := dumpTables(t, pool, "journal", "reservations", "usage_hour", "usage_30d")
	if got := dumpTables(t, target, "journal", "reservations", "usage_hour", "usage_30d"); got != want {
		t.Error("rows of the replay are not the original's")
	}
	replayed := postgres.New(target, postgres.Options{})
	mustAddUp(t, replayed)
	a, err := original.Progress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := replayed.Progress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range a {
		if !bytes.Equal(a[i].TreeRoot, b[i].TreeRoot) || a[i].Counts != b[i].Counts || a[i].Next != b[i].Next {
			t.Errorf("partition %d stands at %+v, the replay at %+v", i, a[i], b[i])
		}
	}
	// The replayed ledger is a ledger: folding goes on, and it has its indexes.
	lease := acquire(t, replayed, 0, "next")
	more := settled("acme", "later", start.Add(time.Hour), 5).record(lease.Next)
	if _, counts := fold(t, replayed, lease, []events.Record{more, moved(more, lease.Next+1)}, 1); counts.Folded != 1 || counts.Duplicates != 1 {
		t.Errorf("after the replay: %+v", counts)
	}
	mustAddUp(t, replayed)
	// And a second replay into it is refused.
	if _, err := postgres.Replay(t.Context(), ledgerbench.Reader(log), url, postgres.ReplayOptions{}, nil); !errors.Is(err, postgres.ErrNotEmpty) {
		t.Errorf("replay into a ledger: %v, want ErrNotEmpty", err)
	}
}

func TestCaseR2_DryRunWritesNothingAndLocatesAChangedByte(t *testing.T) {
	t.Parallel()
	original, pool, log := folded(t)
	dry := func() *postgres.ReplayReport {
		r, err := postgres.Replay(t.Context(), ledgerbench.Reader(log), "", postgres.ReplayOptions{DryRun: true, Original: original}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	before := dumpTables(t, pool, "journal", "reservations", "usage_hour", "usage_30d")
	if r := dry(); !r.OK() {
		t.Fatal(r.Err())
	}
	if dumpTables(t, pool, "journal", "reservations", "usage_hour", "usage_30d") != before {
		t.Error("a dry run changed the original")
	}
	for _, c := range []struct{ name, sql, table, row string }{
		{"journal", "UPDATE journal SET reason = 'X' WHERE topic_partition = 1 AND topic_offset = 40", "journal", "partition 1 offset 40"},
		{"journal row removed", "DELETE FROM journal WHERE topic_partition = 0 AND topic_offset = 7", "journal", "partition 0 offset 7"},
		{"reservation", "UPDATE reservations SET model = model || 'x' WHERE reservation_id = (SELECT min(reservation_id) FROM reservations)", "reservations", "reservation_id"},
		{"reservation removed", "DELETE FROM reservations WHERE reservation_id = (SELECT max(reservation_id) FROM reservations)", "reservations", "reservation_id"},
		{"hour", "UPDATE usage_hour SET audio_ms = 1 WHERE ctid = (SELECT max(ctid) FROM usage_hour)", "usage_hour", "tenant_id"},
		{"window", "UPDATE usage_30d SET images = 1 WHERE tenant_id = 'tenant-001'", "usage_30d", `tenant "tenant-001"`},
		{"standing", "UPDATE fold_progress SET duplicates = 9 WHERE topic_partition = 1", "fold_progress", "partition 1"},
	} {
		restore := savepoint(t, pool)
		run(t, pool, c.sql)
		r := dry()
		restore()
		if !slices.ContainsFunc(r.Differences, func(d postgres.Difference) bool { return d.Table == c.table && strings.Contains(d.Row, c.row) }) {
			t.Errorf("%s: no difference names %s (%s): %v", c.name, c.table, c.row, r.Differences)
		}
	}
	// The whole history forged so that it verifies: only the log can tell.
	restore := savepoint(t, pool)
	defer restore()
	for _, table := range []string{"journal", "reservations", "usage_hour", "usage_30d", "batches", "fold_progress"} {
		run(t, pool, "TRUNCATE "+table)
	}
	fold(t, original, acquire(t, original, 0, "forger"), log[0][:20], 20)
	fold(t, original, acquire(t, original, 1, "forger"), append(slices.Clone(log[1][:5]), log[1][6:]...), 1000) // the event at offset 5 left out
	if v, err := original.Verify(t.Context(), postgres.VerifyOptions{SkipCheck: true}, nil); err != nil || !v.OK() {
		t.Fatalf("the forged ledger should verify by itself: %v %v", v.Err(), err)
	}
	r := dry()
	if !slices.ContainsFunc(r.Differences, func(d postgres.Difference) bool {
		return d.Table == "journal" && strings.Contains(d.Row, "partition 1 offset 5")
	}) {
		t.Errorf("the removed event is not named: %v", r.Differences)
	}
	if r.Skipped == 0 {
		t.Error("what the original has not folded should be skipped, not missed")
	}
}
