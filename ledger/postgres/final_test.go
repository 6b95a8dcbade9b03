package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
	"tollgate/ledger/postgres"
	"tollgate/migrations"
)

// standing is what a reservation's row says.
func standing(t *testing.T, pool *pgxpool.Pool, id string) string {
	t.Helper()
	return scalar[string](t, pool, "SELECT state || ' seq ' || seq || ' adds ' || output_tokens || ' events ' || events FROM reservations WHERE reservation_id = $1", id)
}

// open counts reservations as the reconciler looks for those it has to end.
func open(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return scalar[int](t, pool, "SELECT count(*) FROM reservations WHERE state IN ('held', 'expired')")
}

// relapse is the history of a reservation that admission forgot the end of: it
// settled with 20, then came back as held and expired.
func relapse() []reservation {
	r := func(seq int64, typ events.Type, total, delta int64, id string) reservation {
		return reservation{
			tenant: "acme", id: "r", seq: seq, typ: typ, total: total, delta: delta,
			at: start.Add(time.Duration(seq) * time.Second), eventID: events.NewID(id, start, seq, 0),
		}
	}
	return []reservation{
		r(1, events.TypeReserved, 0, 0, "a"),
		r(2, events.TypeUsage, 12, 12, "a"),
		r(3, events.TypeSettled, 20, 8, "a"),
		r(3, events.TypeExpired, 12, 0, "z"), // the greater id
		r(4, events.TypeExpired, 12, 0, "z"),
	}
}

func records(list []reservation) []events.Record {
	out := make([]events.Record, len(list))
	for i, r := range list {
		out[i] = r.record(int64(i))
	}
	return out
}

func TestOnceFinalAlwaysFinal(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	for _, size := range []int{1, 2, 10} {
		for _, reversed := range []bool{false, true} {
			empty(t, pool)
			history := relapse()
			if reversed {
				slices.Reverse(history)
			}
			log := records(history)
			fold(t, s, acquire(t, s, 0, "a"), log, size)
			if got, want := standing(t, pool, "r"), "settled seq 3 adds 20 events 5"; got != want {
				t.Errorf("batches of %d, reversed %v: %s, want %s", size, reversed, got, want)
			}
			if n := open(t, pool); n != 0 {
				t.Errorf("batches of %d, reversed %v: the reconciler would end it again", size, reversed)
			}
			verifyFindsTheSame(t, s, mustAddUp(t, s))
			r, err := postgres.Replay(t.Context(), ledgerbench.Reader([][]events.Record{log}), "", postgres.ReplayOptions{DryRun: true, Original: s}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Err(); err != nil {
				t.Error(err)
			}
		}
	}
	// A row that took its state from an event after the end is found.
	run(t, pool, "UPDATE reservations SET state = 'expired', seq = 4, head_event_id = $1, total_milli_units = 12000, expires_at = expires_at + interval '1 second'",
		events.NewID("z", start, 4, 0))
	want, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(want.Differences, func(d postgres.Difference) bool { return d.Figure == "state" && d.Want == "settled" }) {
		t.Errorf("the open row is not named: %v", want.Differences)
	}
	verifyFindsTheSame(t, s, want)
	// Ledgers from before this rule are brought under it.
	file, err := migrations.FS.ReadFile("00006_ledger_heads.sql")
	if err != nil {
		t.Fatal(err)
	}
	_, repair, _ := strings.Cut(string(file), "UPDATE reservations r")
	repair, _, _ = strings.Cut(repair, ";")
	run(t, pool, "UPDATE reservations r"+repair)
	mustAddUp(t, s)
}

func TestReservationThatEndedTwiceWithUseIsNamed(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	ended := func(seq int64, typ events.Type, delta int64, id string) reservation {
		return reservation{
			tenant: "acme", id: "r", seq: seq, typ: typ, total: 20, delta: delta,
			at: start.Add(time.Minute), eventID: events.NewID(id, start, seq, 0),
		}
	}
	for _, c := range []struct {
		name  string
		again reservation
		state string // after it
		twice bool
	}{
		{"cancelled later", ended(5, events.TypeCancelled, 7, "z"), "cancelled seq 5 adds 27 events 6", true},
		{"settled at the same seq", ended(3, events.TypeSettled, 7, "y"), "settled seq 3 adds 27 events 6", true},
		{"cancelled with nothing", ended(5, events.TypeCancelled, 0, "z"), "cancelled seq 5 adds 20 events 6", false},
	} {
		for _, partition := range []int{0, 1} { // the second end's
			t.Run(fmt.Sprintf("%s in partition %d", c.name, partition), func(t *testing.T) {
				empty(t, pool)
				log := [][]events.Record{records(relapse()), nil}
				// Another reservation has one end with use, and one is open.
				other := settled("acme", "other", start, 5).record(int64(len(log[0])))
				log[0] = append(log[0], other)
				again := c.again.record(int64(len(log[partition])))
				again.Partition = partition
				log[partition] = append(log[partition], again)
				for p := range log {
					fold(t, s, acquire(t, s, p, "a"), log[p], 3)
				}
				if got := standing(t, pool, "r"); got != c.state || open(t, pool) != 0 {
					t.Errorf("%s, want %s", got, c.state)
				}
				want, err := s.Check(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				verifyFindsTheSame(t, s, want)
				if !c.twice {
					if err := want.Err(); err != nil {
						t.Error(err)
					}
					return
				}
				if len(want.Differences) != 1 || want.OK() || want.Err() == nil {
					t.Fatalf("one reservation should be named: %v", want.Differences)
				}
				d := want.Differences[0]
				for _, part := range []string{`"r"`, "settled " + events.NewID("a", start, 3, 0), c.again.eventID, "7000 milli-units"} {
					if !strings.Contains(d.String(), part) {
						t.Errorf("%q does not name %s", d, part)
					}
				}
				if v, err := s.Verify(t.Context(), postgres.VerifyOptions{}, nil); err != nil || v.OK() || len(v.Faults) > 0 {
					t.Errorf("verify: %v, faults %v, %v", v.OK(), v.Faults, err)
				}
			})
		}
	}
}

// One tenant's figures at the end of a bigint's range, which its sums refuse one
// by one, stop neither an hour's close nor an audit of the others.
func TestFiguresAtTheEndOfTheRangeStopNobody(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	const most = int64(1) << 43 // a thousand times as many milli-units are near 2^53
	log := make([][]events.Record, 2)
	for p, tenant := range []string{"huge", "other"} {
		add := func(r reservation) {
			rec := r.record(int64(len(log[p])))
			rec.Partition = p
			log[p] = append(log[p], rec)
		}
		for i := range 2160 { // 1,049 of them fill a bucket
			hour := time.Duration(i%2) * time.Hour
			add(settled(tenant, fmt.Sprintf("%s-%d", tenant, i), start.Add(hour), most))
		}
		again := log[p][len(log[p])-1] // a repeat of one that was refused
		again.Offset++
		log[p] = append(log[p], again)
		// A refused event's id comes again with figures that fit: it is no repeat.
		less := settled(tenant, tenant+"-less", start, most)
		add(less)
		less.total, less.delta = 3, 3
		add(less)
		add(settled(tenant, tenant+"-small", start, 7))
	}
	add := settled("small", "fair", start, 11).record(int64(len(log[1])))
	add.Partition = 1
	log[1] = append(log[1], add)

	dead := make([]*deadLetters, 2)
	for p := range log {
		dead[p] = &deadLetters{}
		r := ledger.NewRunner(s, dead[p], ledger.Options{Owner: "a", FlushEvents: 1000, FlushInterval: 10 * time.Millisecond})
		runUntil(t, r, p, ledgerbench.NewSource(log[p]), int64(len(log[p])))
		r.Stop()
		if len(dead[p].kept) < 50 {
			t.Fatalf("partition %d: %d were refused: the test does not reach the range's end", p, len(dead[p].kept))
		}
	}
	audit := func(moment string) *postgres.CheckReport {
		t.Helper()
		want, err := s.Check(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", moment, err)
		}
		if err := want.Err(); err != nil {
			t.Fatalf("%s: %v", moment, err)
		}
		verifyFindsTheSame(t, s, want)
		return want
	}
	replay := func(moment string) {
		t.Helper()
		target := testenv.Postgres(t)
		r, err := postgres.Replay(t.Context(), ledgerbench.Reader(log), target.Config().ConnString(), postgres.ReplayOptions{Original: s}, nil)
		if err != nil {
			t.Fatalf("%s: %v", moment, err)
		}
		if err := r.Err(); err != nil {
			t.Fatalf("%s: %v", moment, err)
		}
		if n := int64(len(dead[0].kept) + len(dead[1].kept)); r.Counts.DeadLettered != n {
			t.Errorf("%s: replay refused %d, the fold %d", moment, r.Counts.DeadLettered, n)
		}
		tables := []string{"journal", "reservations", "usage_hour", "usage_30d"}
		if dumpTables(t, pool, tables...) != dumpTables(t, target, tables...) {
			t.Errorf("%s: rows of the replay are not the original's", moment)
		}
	}
	if n := scalar[int](t, pool, "SELECT count(*) FROM journal WHERE reservation_id LIKE '%-less' AND output_tokens = 3"); n != 2 {
		t.Errorf("%d events were folded under an id that was refused before, want 2", n)
	}
	if r := audit("open hours"); r.Hours.MilliUnits != 1<<63-1 {
		t.Errorf("total is %d, should be the range's end", r.Hours.MilliUnits)
	}

	if n, err := s.CloseHours(t.Context(), start.Add(10*time.Hour)); err != nil || n == 0 {
		t.Fatalf("%d hours closed: %v", n, err)
	}
	audit("closed hours")
	replay("closed hours")
	if u, err := s.Usage30d(t.Context(), "huge"); err != nil || u.Total.MilliUnits != 1<<63-1 || u.Total.Requests == 0 {
		t.Errorf("huge: %+v, %v", u.Total, err)
	}
	if u, err := s.Usage30d(t.Context(), "small"); err != nil || u.Total.MilliUnits != 11_000 {
		t.Errorf("small: %+v, %v", u.Total, err)
	}
	if rows, err := s.UsageBySecond(t.Context(), "huge", start); err != nil || len(rows) != 2 {
		t.Errorf("by second: %d rows, %v", len(rows), err)
	}
	// What late events add to a sum beyond the range comes off it again.
	late := settled("huge", "late", start.Add(-2*time.Hour), most).record(int64(len(log[0])))
	log[0] = append(log[0], late)
	fold(t, s, acquire(t, s, 0, "b"), log[0][len(log[0])-1:], 1)
	audit("late event")
	replay("late event")
	if _, err := s.CloseHours(t.Context(), start.Add(40*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	audit("hours left the window")
	if u, err := s.Usage30d(t.Context(), "huge"); err != nil || u.Total != (ledger.Amount{}) {
		t.Errorf("30 days later: %+v, %v", u.Total, err)
	}
}
