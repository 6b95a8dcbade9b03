package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"tollgate/events"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
	"tollgate/ledger/postgres"
)

func TestFoldAddsUpToTheLogsOwnTotals(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t)
	log := ledgerbench.Log(ledgerbench.LogOptions{Seed: 7, Events: 3000, Start: start})[0]
	_, counts := fold(t, s, acquire(t, s, 0, "a"), log, 500)
	if want := (ledger.Counts{Consumed: int64(len(log)), Folded: int64(len(log))}); counts != want {
		t.Errorf("counts are %+v, want %+v", counts, want)
	}
	r := mustAddUp(t, s)
	input, output, milli := wantTotals(t, log)
	if r.Hours.InputTokens != input || r.Hours.OutputTokens != output || r.Hours.MilliUnits != milli {
		t.Errorf("usage_hour adds up to %d, %d, %d; the log to %d, %d, %d",
			r.Hours.InputTokens, r.Hours.OutputTokens, r.Hours.MilliUnits, input, output, milli)
	}
	if r.Incomplete != 0 {
		t.Errorf("%d reservations are incomplete", r.Incomplete)
	}
}

func TestCaseL1_SameIDWithAnotherAmountIsAConflict(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	first := settled("acme", "r1", start, 100)
	other := settled("acme", "r1", start, 900)
	// Once in one batch with the event it contradicts, once in a later batch,
	// where it also stands beside a new event.
	lease, counts := fold(t, s, acquire(t, s, 0, "a"), []events.Record{first.record(0), other.record(1)}, 10)
	if counts.Folded != 1 || counts.Conflicts != 1 {
		t.Errorf("in one batch: %+v", counts)
	}
	_, counts = fold(t, s, lease, []events.Record{other.record(2), settled("acme", "r2", start, 5).record(3)}, 10)
	if counts.Folded != 1 || counts.Conflicts != 1 {
		t.Errorf("in a later batch: %+v", counts)
	}
	r := mustAddUp(t, s)
	if r.Hours.OutputTokens != 105 {
		t.Errorf("usage is %d, want the first amount and the new event's, 105", r.Hours.OutputTokens)
	}
	if n := scalar[int](t, pool, `SELECT count(*) FROM event_conflicts
		WHERE kept_leaf = (SELECT leaf FROM journal WHERE reservation_id = 'r1') AND other_leaf <> kept_leaf
		AND (other_event->'delta'->>'output_tokens')::int = 900`); n != 2 {
		t.Errorf("%d conflicts are recorded with what they said, want 2", n)
	}
}

func TestCaseL2_SameIDOneMillisecondLaterIsOneEvent(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t)
	first := settled("acme", "r1", start, 100)
	late := first
	late.at = start.Add(time.Millisecond)
	again := first.record(1)
	again.Headers = late.record(1).Headers // the envelope's time only
	_, counts := fold(t, s, acquire(t, s, 0, "a"), []events.Record{first.record(0), again, moved(again, 2)}, 1)
	if want := (ledger.Counts{Consumed: 3, Folded: 1, Duplicates: 2}); counts != want {
		t.Errorf("counts are %+v, want %+v", counts, want)
	}
	if r := mustAddUp(t, s); r.Hours.OutputTokens != 100 || r.Hours.Requests != 1 {
		t.Errorf("usage is %+v, want 100 tokens of one request", r.Hours)
	}
}

func TestDuplicatesAcrossDaysAndPartitionsAreOneEvent(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t)
	// The time says another day; the id decides.
	first := settled("acme", "r1", start, 100)
	late := first
	late.at = start.Add(24 * time.Hour)
	again := first.record(0)
	again.Headers, again.Time = late.record(0).Headers, late.at
	fold(t, s, acquire(t, s, 0, "a"), []events.Record{first.record(0)}, 1)
	again.Partition = 1
	_, counts := fold(t, s, acquire(t, s, 1, "a"), []events.Record{again}, 1)
	if counts.Duplicates != 1 || counts.Folded != 0 {
		t.Errorf("counts are %+v, want one duplicate", counts)
	}
	mustAddUp(t, s)
}

func TestCaseL3_RecordsThatComeAgainAfterACrashChangeNothing(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	log := ledgerbench.Log(ledgerbench.LogOptions{Seed: 3, Events: 400, Start: start})[0]
	fold(t, s, acquire(t, s, 0, "a"), log[:200], 50)
	// The process dies between the database's commit and the group's: the group
	// would go on at 0, the ledger's own position says 200.
	src := ledgerbench.NewSource(log)
	r := ledger.NewRunner(s, &deadLetters{}, ledger.Options{Owner: "b", FlushEvents: 50, FlushInterval: 10 * time.Millisecond})
	defer r.Stop()
	runUntil(t, r, 0, src, int64(len(log)))
	if n := scalar[int64](t, pool, "SELECT consumed FROM fold_progress"); n != int64(len(log)) {
		t.Errorf("%d records were consumed, want each once: %d", n, len(log))
	}
	check := mustAddUp(t, s)
	if input, _, _ := wantTotals(t, log); check.Hours.InputTokens != input {
		t.Errorf("usage is %d, want %d", check.Hours.InputTokens, input)
	}
}

func TestCaseL3_FlushWhoseAnswerWasLostMayBeRepeated(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t)
	log := ledgerbench.Log(ledgerbench.LogOptions{Seed: 4, Events: 100, Start: start})[0]
	lease := acquire(t, s, 0, "a")
	b := newBatch(t, 0, log)
	next, first, err := s.Flush(t.Context(), lease, b)
	if err != nil {
		t.Fatal(err)
	}
	again, second, err := s.Flush(t.Context(), lease, b)
	if err != nil || again != next || second != first {
		t.Fatalf("repeated flush gives %+v %+v %v, want %+v %+v", again, second, err, next, first)
	}
	mustAddUp(t, s)
}

func TestCaseL4_OldOwnersLateFlushIsFenced(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	log := ledgerbench.Log(ledgerbench.LogOptions{Seed: 5, Events: 300, Start: start})[0]
	old := acquire(t, s, 0, "old")
	old, _ = fold(t, s, old, log[:100], 100)
	// The partition moves while the old owner holds a batch.
	late := newBatch(t, 0, log[100:200])
	lease := acquire(t, s, 0, "new")
	if lease.Next != 100 {
		t.Fatalf("new owner goes on at %d, want 100", lease.Next)
	}
	before := dumpTables(t, pool, "journal", "reservations", "usage_hour")
	if _, _, err := s.Flush(t.Context(), old, late); !errors.Is(err, ledger.ErrFenced) {
		t.Fatalf("late flush before the new owner's first: %v, want ErrFenced", err)
	}
	if after := dumpTables(t, pool, "journal", "reservations", "usage_hour"); after != before {
		t.Error("fenced flush left something behind")
	}
	// The new owner cuts otherwise, so that the old batch's end is a position
	// that the partition passed.
	lease, _ = fold(t, s, lease, log[100:200], 60)
	if _, _, err := s.Flush(t.Context(), old, late); !errors.Is(err, ledger.ErrFenced) {
		t.Fatalf("late flush of what is folded: %v, want ErrFenced", err)
	}
	if next := scalar[int64](t, pool, "SELECT next_offset FROM fold_progress"); next != 200 {
		t.Errorf("position is %d, want 200: it must not go back", next)
	}
	// Nor may the owner itself flush from a position that it has passed.
	passed := lease
	passed.Next = 100
	if _, _, err := s.Flush(t.Context(), passed, newBatch(t, 0, log[100:230])); !errors.Is(err, ledger.ErrFenced) {
		t.Fatalf("flush from a passed position: %v, want ErrFenced", err)
	}
	fold(t, s, lease, log[200:], 100)
	if r := mustAddUp(t, s); r.Counts.Folded != int64(len(log)) {
		t.Errorf("%d events folded, want %d", r.Counts.Folded, len(log))
	}
	// The same name is not the same owner.
	stale := old
	stale.Owner = "new"
	if _, _, err := s.Flush(t.Context(), stale, late); !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("flush with the owner's name and an old epoch: %v, want ErrFenced", err)
	}
}

func TestCaseL4_TwoRunnersFightForOnePartition(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t)
	log := ledgerbench.Log(ledgerbench.LogOptions{Seed: 6, Events: 600, Start: start})[0]
	opts := ledger.Options{FlushEvents: 20, FlushInterval: time.Millisecond}
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, owner := range []string{"a", "b", "c"} {
		opts.Owner = owner
		r := ledger.NewRunner(s, &deadLetters{}, opts)
		defer r.Stop()
		wg.Go(func() {
			src := &stopAt{Source: ledgerbench.NewSource(log), next: int64(len(log)), stop: cancel}
			if err := r.RunPartition(ctx, 0, src); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if r := mustAddUp(t, s); r.Counts.Folded != int64(len(log)) || r.Counts.Consumed != int64(len(log)) {
		t.Errorf("counts are %+v, want every one of %d records once", r.Counts, len(log))
	}
}

func TestCaseL7_RecordsThatAreNoEventsAreDeadLettersAndTheOthersCommit(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	good := func(i int64) events.Record { return settled("acme", "r"+string(rune('a'+i)), start, 10).record(i) }
	broken := func(i int64, change func(*events.Record)) events.Record {
		r := good(i)
		change(&r)
		return r
	}
	value := func(old, other string) func(*events.Record) {
		return func(r *events.Record) { r.Value = []byte(strings.Replace(string(r.Value), old, other, 1)) }
	}
	log := []events.Record{
		good(0),
		broken(1, func(r *events.Record) { r.Value = []byte(`{"tenant_id": "acme"`) }),
		broken(2, value(`"req-rc"`, `"req-\u0000"`)),
		broken(3, func(r *events.Record) { r.Value = make([]byte, events.MaxDataBytes+1) }),
		good(4),
		broken(5, func(r *events.Record) { r.Headers = nil }),
		broken(6, func(r *events.Record) { r.Key = []byte("other") }),
		broken(7, value(`"seq":1,`, `"seq":1e400,`)),
		broken(8, func(r *events.Record) { r.Value = nil }),
		good(9),
	}
	want := map[int64]string{1: "bad_json", 2: "nul_in_string", 3: "oversize", 5: "missing_field", 6: "tenant_mismatch", 8: "missing_field"}
	dead := &deadLetters{}
	r := ledger.NewRunner(s, dead, ledger.Options{Owner: "a", FlushInterval: 10 * time.Millisecond})
	defer r.Stop()
	runUntil(t, r, 0, ledgerbench.NewSource(log), 10)
	for offset, reason := range want {
		if dead.kept[offset] != reason {
			t.Errorf("offset %d is a dead letter because of %q, want %q", offset, dead.kept[offset], reason)
		}
	}
	if _, ok := dead.kept[7]; !ok || len(dead.kept) != len(want)+1 {
		t.Errorf("dead letters are %v", dead.kept)
	}
	check := mustAddUp(t, s)
	if want := (ledger.Counts{Consumed: 10, Folded: 3, DeadLettered: 7}); check.Counts != want {
		t.Errorf("counts are %+v, want %+v", check.Counts, want)
	}
	if n := scalar[int](t, pool, "SELECT count(*) FROM journal"); n != 3 || check.Hours.OutputTokens != 30 {
		t.Errorf("journal has %d rows and %d tokens, want the 3 good events", n, check.Hours.OutputTokens)
	}
}

func TestCaseT5_EventsFarFromTheirArrivalAreQuarantined(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t)
	at := func(id string, offset int64, skew time.Duration) events.Record {
		r := settled("acme", id, start.Add(skew), 10).record(offset)
		r.Time = start
		return r
	}
	log := []events.Record{
		at("now", 0, 0),
		at("future", 1, 6*time.Minute),
		at("past", 2, -36*24*time.Hour),
		at("soon", 3, 4*time.Minute),
		at("old", 4, -34*24*time.Hour),
	}
	dead := &deadLetters{}
	r := ledger.NewRunner(s, dead, ledger.Options{Owner: "a", FlushInterval: 10 * time.Millisecond})
	defer r.Stop()
	runUntil(t, r, 0, ledgerbench.NewSource(log), 5)
	if len(dead.kept) != 2 || dead.kept[1] != "clock_skew" || dead.kept[2] != "clock_skew" {
		t.Errorf("dead letters are %v, want offsets 1 and 2 for clock_skew", dead.kept)
	}
	if c := mustAddUp(t, s); c.Counts.Folded != 3 || c.Hours.OutputTokens != 30 {
		t.Errorf("folded %+v with %d tokens, want the other three", c.Counts, c.Hours.OutputTokens)
	}
}

// Two processes fold partitions of overlapping tenants in opposite order.
func TestCaseL9_TwoWritersOfTheSameTenantsLoseNothing(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	tenants := []string{"a", "b", "c", "d", "e"}
	var wg sync.WaitGroup
	for writer := range 2 {
		wg.Go(func() {
			lease, err := s.Acquire(t.Context(), events.TopicEvents, writer, "w")
			if err != nil {
				t.Error(err)
				return
			}
			for round := range *rounds {
				var records []events.Record
				for i := range tenants {
					tenant := tenants[i]
					if writer == 1 {
						tenant = tenants[len(tenants)-1-i]
					}
					// Both writers also meet on reservations, and sometimes on an
					// event, as after a change of the partition count.
					v := reservation{tenant: tenant, id: tenant, seq: int64(2*round + writer + 1), typ: events.TypeUsage, at: start, delta: 1, total: 0}
					if round%7 == 0 {
						v.eventID = events.NewID("e1-both-"+tenant, start, int64(round), 0)
						v.seq = int64(2*round + 1)
					}
					rec := v.record(lease.Next + int64(i))
					rec.Partition = writer
					records = append(records, rec)
				}
				b, err := ledger.NewBatch(events.TopicEvents, writer, records)
				if err != nil {
					t.Error(err)
					return
				}
				if lease, _, err = s.Flush(t.Context(), lease, b); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	both := (*rounds + 6) / 7
	want := int64(len(tenants) * (2**rounds - both))
	if got := scalar[int64](t, pool, "SELECT sum(output_tokens)::bigint FROM usage_hour"); got != want {
		t.Errorf("usage is %d, want %d", got, want)
	}
	r, err := s.Verify(t.Context(), postgres.VerifyOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Faults) > 0 || r.Check.Counts.Duplicates != int64(len(tenants)*both) || r.Check.Counts.Conflicts != 0 {
		t.Errorf("faults %v, counts %+v", r.Faults, r.Check.Counts)
	}
	for _, d := range r.Check.Differences {
		t.Error(d)
	}
}

// The same pair of flushes taken apart so that PostgreSQL must find a deadlock:
// one waits for the other's row of the journal while that waits for its first.
func TestDeadlockedFlushIsRepeated(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	lease := acquire(t, s, 0, "a")
	fold(t, s, lease, []events.Record{settled("acme", "r1", start, 1).record(0)}, 1)
	lease.Next = 1

	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	// This transaction holds the reservation and will ask for the partition.
	if _, err := tx.Exec(t.Context(), "UPDATE reservations SET seq = seq WHERE reservation_id = 'r1'"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		v := reservation{tenant: "acme", id: "r1", seq: 2, typ: events.TypeUsage, at: start, delta: 1, total: 2}
		b, err := ledger.NewBatch(events.TopicEvents, 0, []events.Record{v.record(1)})
		if err == nil {
			_, _, err = s.Flush(context.WithoutCancel(t.Context()), lease, b)
		}
		done <- err
	}()
	waitFor(t, "the flush to wait for the reservation", func() bool {
		return scalar[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
	})
	_, mine := tx.Exec(t.Context(), "SELECT 1 FROM fold_progress FOR UPDATE")
	// One of the two was chosen; if it is this one, its locks are gone now.
	_ = tx.Rollback(t.Context())
	if err := <-done; err != nil {
		t.Fatalf("flush: %v (the other: %v)", err, mine)
	}
	if got := scalar[int64](t, pool, "SELECT output_tokens FROM reservations"); got != 2 {
		t.Errorf("usage is %d, want 2", got)
	}
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestEventThatOverflowsASumIsADeadLetterAndTheOthersCommit(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	var log []events.Record
	add := func(id string, tokens int64) {
		log = append(log, settled("acme", id, start, tokens).record(int64(len(log))))
	}
	// milli_units is a thousand times the tokens: near the range of a bigint.
	for i := range 1100 {
		add("big-"+string(rune('a'+i%26))+time.Duration(i).String(), 1<<43)
	}
	add("small", 7)
	dead := &deadLetters{}
	// All in one batch, so that already its own sums overflow.
	r := ledger.NewRunner(s, dead, ledger.Options{Owner: "a", FlushEvents: 2000, FlushInterval: 10 * time.Millisecond})
	defer r.Stop()
	runUntil(t, r, 0, ledgerbench.NewSource(log), int64(len(log)))
	if len(dead.kept) == 0 {
		t.Fatal("nothing was refused: the test does not reach the range's end")
	}
	for offset, reason := range dead.kept {
		if reason != ledger.ReasonRefused {
			t.Errorf("offset %d was refused because of %q", offset, reason)
		}
	}
	if n := scalar[int](t, pool, "SELECT count(*) FROM journal WHERE reservation_id = 'small'"); n != 1 {
		t.Error("the event behind the refused ones was not folded")
	}
	c, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Err(), c.Counts.Check()); err != nil {
		t.Error(err)
	}
	if c.Counts.DeadLettered != int64(len(dead.kept)) {
		t.Errorf("%d counted, %d published", c.Counts.DeadLettered, len(dead.kept))
	}
}

func TestFreezesAreJournalledInTheChainAndAddNothing(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	v := events.Settlement{
		TenantID: "acme", Author: "reconciler", Reason: "drift of 12 % over the hour", GatewayCount: 112, ModelCount: 100,
		WindowStart: start.Truncate(time.Hour), WindowEnd: start.Truncate(time.Hour).Add(time.Hour),
	}
	freeze := func(id string, offset int64) events.Record {
		e := events.Event{ID: id, Source: "tollgate/reconcile", Type: events.TypeFrozen, Subject: "acme", Time: start, Data: events.AppendSettlement(nil, &v)}
		r := events.ToRecord(events.TopicEvents, &e)
		r.Offset, r.Time = offset, start
		return r
	}
	_, counts := fold(t, s, acquire(t, s, 0, "a"), []events.Record{
		freeze(events.NewID("freeze-acme", start, 1, 0), 0),
		freeze("freeze-of-another-form", 1),
		freeze("freeze-of-another-form", 2),
		settled("acme", "r1", start, 10).record(3),
	}, 2)
	if want := (ledger.Counts{Consumed: 4, Folded: 3, Duplicates: 1}); counts != want {
		t.Errorf("counts are %+v, want %+v", counts, want)
	}
	if r := mustAddUp(t, s); r.Hours.Requests != 1 || r.Hours.OutputTokens != 10 {
		t.Errorf("usage is %+v, want the settled request alone", r.Hours)
	}
	if n := scalar[int](t, pool, "SELECT count(*) FROM reservations"); n != 1 {
		t.Errorf("%d reservations, want 1", n)
	}
	if n := scalar[int](t, pool, "SELECT count(*) FROM journal WHERE type = $1 AND reason LIKE 'drift%'", string(events.TypeFrozen)); n != 2 {
		t.Errorf("%d freezes in the journal, want 2", n)
	}
}
