package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/reconcile"
)

const metersTopic = "test.meters"

// deadFake keeps dead letters.
type deadFake struct {
	mu   sync.Mutex
	got  map[int64]string // offset → reason
	fail error
}

func (d *deadFake) DeadLetter(_ context.Context, r events.Record, reason string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return d.fail
	}
	if d.got == nil {
		d.got = make(map[int64]string)
	}
	d.got[r.Offset] = reason
	return nil
}

// meterRecord is a record with a well-formed reading; n goes into its figures.
func meterRecord(offset int64, id string, n int64) events.Record {
	m := meterOf(n)
	return recordOf(offset, id, events.TypeModelMeter, &m)
}

func meterOf(n int64) events.Meter {
	return events.Meter{
		TenantID: "acme", ReservationID: "rsv_1", Pool: "p", Model: "model-a",
		From: hour0, To: hour0.Add(time.Second), InputTokens: n, OutputTokens: 2, Final: true,
	}
}

func recordOf(offset int64, id string, kind events.Type, m *events.Meter) events.Record {
	e := events.Event{
		ID: id, Source: "model-server", Type: kind, Subject: m.TenantID, Time: hour0.Add(time.Second),
		Data: events.AppendMeter(nil, m),
	}
	r := events.ToRecord(metersTopic, &e)
	r.Offset, r.Time = offset, hour0.Add(2*time.Second)
	return r
}

func progress(t testing.TB, pool *pgxpool.Pool) (MeterResult, int64) {
	t.Helper()
	var r MeterResult
	var next int64
	err := pool.QueryRow(context.Background(), `SELECT consumed, folded, duplicates, dead_lettered, conflicts, next_offset FROM fold_progress
		WHERE topic = $1 AND topic_partition = 3`, metersTopic).Scan(&r.Consumed, &r.Folded, &r.Duplicates, &r.DeadLettered, &r.Conflicts, &next)
	if err != nil {
		t.Fatal(err)
	}
	return r, next
}

func TestMetersDuplicatesConflictsGarbage(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	dead := &deadFake{}
	folder := NewMeterFolder(pool, dead)
	claim, err := folder.Acquire(t.Context(), metersTopic, 3, "me")
	if err != nil {
		t.Fatal(err)
	}

	first := []events.Record{meterRecord(0, "a", 1), meterRecord(1, "b", 2), meterRecord(2, "a", 1), meterRecord(3, "b", 99)}
	res, err := folder.Fold(t.Context(), claim, first)
	if want := (MeterResult{Consumed: 4, Folded: 2, Duplicates: 1, Conflicts: 1}); err != nil || res != want {
		t.Fatalf("first batch %+v, %v; want %+v", res, err, want)
	}

	badJSON := meterRecord(5, "c", 1)
	badJSON.Value = []byte(`{"tenant_id":`)
	nul := meterRecord(6, "d", 1)
	nul.Value = []byte(`{"tenant_id":"acme","model":"a\u0000b","from":"2026-03-10T09:00:00Z","to":"2026-03-10T09:00:01Z"}`)
	wrongTenant := meterRecord(7, "e", 1)
	wrongTenant.Value = events.AppendMeter(nil, &events.Meter{TenantID: "beta", ReservationID: "r", From: hour0, To: hour0})
	notAMeter := meterRecord(8, "f", 1)
	for i, h := range notAMeter.Headers {
		if h.Key == "ce_type" {
			notAMeter.Headers[i].Value = []byte(events.TypeSettled)
		}
	}
	bare := events.Record{Topic: metersTopic, Offset: 9, Value: []byte("hello")}
	huge := meterRecord(10, "g", 1)
	huge.Value = make([]byte, events.MaxDataBytes+1)
	early := recordOf(11, "h", events.TypeModelMeter, &events.Meter{TenantID: "acme", From: hour0, To: hour0.Add(time.Hour)})
	kept := meterOf(1)
	second := []events.Record{
		meterRecord(4, "a", 7), // conflict with the first batch
		badJSON, nul, wrongTenant, notAMeter, bare, huge, early,
		recordOf(12, "i", events.TypeGPUMeter, &events.Meter{TenantID: "acme", From: hour0, To: hour0.Add(time.Second), GPUMillis: 5}),
		recordOf(13, "a", events.TypeGPUMeter, &kept), // what is stored, but as another kind
		meterRecord(14, "b", 2),                       // duplicate from the first batch
	}
	res, err = folder.Fold(t.Context(), claim, second)
	if want := (MeterResult{Consumed: 11, Folded: 1, Duplicates: 1, DeadLettered: 7, Conflicts: 2}); err != nil || res != want {
		t.Fatalf("second batch %+v, %v; want %+v", res, err, want)
	}
	wantDead := map[int64]string{
		5: "bad_json", 6: "nul_in_string", 7: "tenant_mismatch", 8: "wrong_topic", 9: "missing_field", 10: "oversize", 11: "clock_skew",
	}
	if diff := cmp.Diff(wantDead, dead.got); diff != "" {
		t.Errorf("dead letters (-want +got):\n%s", diff)
	}
	all, next := progress(t, pool)
	if want := (MeterResult{Consumed: 15, Folded: 3, Duplicates: 2, DeadLettered: 7, Conflicts: 3}); all != want || next != 15 {
		t.Errorf("progress %+v at %d; want %+v at 15", all, next, want)
	}
	var figure int64
	var offsets []int64
	if err := pool.QueryRow(t.Context(), `SELECT (SELECT input_tokens FROM meter_readings WHERE event_id = 'b'),
		(SELECT array_agg(topic_offset ORDER BY topic_offset) FROM meter_conflicts)`).Scan(&figure, &offsets); err != nil {
		t.Fatal(err)
	}
	if figure != 2 || !slices.Equal(offsets, []int64{3, 4, 13}) {
		t.Errorf("kept %d, conflicts at %v; want the first figure and 3, 4, 13", figure, offsets)
	}
}

func TestMetersFence(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	folder := NewMeterFolder(pool, &deadFake{})
	old, err := folder.Acquire(t.Context(), metersTopic, 3, "old")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := folder.Fold(t.Context(), old, []events.Record{meterRecord(0, "a", 1)}); err != nil {
		t.Fatal(err)
	}
	heir, err := folder.Acquire(t.Context(), metersTopic, 3, "new")
	if err != nil || heir.NextOffset != 1 {
		t.Fatalf("heir at %+v, %v; want offset 1", heir, err)
	}
	if _, err := folder.Fold(t.Context(), old, []events.Record{meterRecord(1, "b", 1)}); !errors.Is(err, reconcile.ErrFenced) {
		t.Fatalf("the old owner's late fold: %v; want ErrFenced", err)
	}
	if err := folder.Resume(t.Context(), old); !errors.Is(err, reconcile.ErrFenced) {
		t.Errorf("the old owner resumes: %v; want ErrFenced", err)
	}
	// The commit went through and its answer was lost: the claim is behind.
	behind := *heir
	if _, err := folder.Fold(t.Context(), heir, []events.Record{meterRecord(1, "b", 1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := folder.Fold(t.Context(), &behind, []events.Record{meterRecord(1, "b", 1)}); !errors.Is(err, reconcile.ErrFenced) {
		t.Fatalf("a claim that is behind: %v; want ErrFenced", err)
	}
	if err := folder.Resume(t.Context(), &behind); err != nil || behind.NextOffset != 2 {
		t.Fatalf("resumed at %d, %v; want 2", behind.NextOffset, err)
	}
	res, err := folder.Fold(t.Context(), &behind, []events.Record{meterRecord(1, "b", 1), meterRecord(2, "c", 1)})
	if want := (MeterResult{Consumed: 1, Folded: 1}); err != nil || res != want {
		t.Errorf("after resuming %+v, %v; want only the new record", res, err)
	}
	if all, next := progress(t, pool); all.Folded != 3 || all.Consumed != 3 || next != 3 {
		t.Errorf("progress %+v at %d; want 3 of 3", all, next)
	}
}

// A dead letter that cannot be kept holds the batch: nothing is lost.
func TestMetersDeadLetterFirst(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	dead := &deadFake{fail: errBoom}
	folder := NewMeterFolder(pool, dead)
	claim, err := folder.Acquire(t.Context(), metersTopic, 3, "me")
	if err != nil {
		t.Fatal(err)
	}
	bad := meterRecord(1, "b", 1)
	bad.Value = []byte("{")
	batch := []events.Record{meterRecord(0, "a", 1), bad}
	if _, err := folder.Fold(t.Context(), claim, batch); !errors.Is(err, errBoom) {
		t.Fatalf("fold: %v; want the dead letter's error", err)
	}
	if all, next := progress(t, pool); all != (MeterResult{}) || next != 0 {
		t.Fatalf("progress %+v at %d; want nothing", all, next)
	}
	dead.fail = nil
	if res, err := folder.Fold(t.Context(), claim, batch); err != nil || res.Folded != 1 || res.DeadLettered != 1 {
		t.Errorf("again: %+v, %v", res, err)
	}
}

// TestMetersAnyBatchCut: a log with repeats and conflicts gives the same
// readings and counts however it is cut, re-fetched and taken over.
func TestMetersAnyBatchCut(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		if _, err := pool.Exec(ctx, `DELETE FROM meter_readings; DELETE FROM meter_conflicts; DELETE FROM fold_progress`); err != nil {
			rt.Fatal(err)
		}
		n := rapid.IntRange(1, 20).Draw(rt, "records")
		log := make([]events.Record, n)
		kept := make(map[string]int64)
		var want MeterResult
		for i := range log {
			id, figure := fmt.Sprint("e", rapid.IntRange(0, 6).Draw(rt, "id")), rapid.Int64Range(1, 2).Draw(rt, "figure")
			log[i] = meterRecord(int64(i), id, figure)
			want.Consumed++
			switch was, ok := kept[id]; {
			case !ok:
				kept[id] = figure
				want.Folded++
			case was == figure:
				want.Duplicates++
			default:
				want.Conflicts++
			}
		}
		folder := NewMeterFolder(pool, &deadFake{})
		var claim *MeterClaim
		for claim == nil || claim.NextOffset < int64(n) {
			if claim == nil || rapid.Bool().Draw(rt, "take over") {
				var err error
				if claim, err = folder.Acquire(ctx, metersTopic, 3, "owner"); err != nil {
					rt.Fatal(err)
				}
			}
			from := max(0, int(claim.NextOffset)-rapid.IntRange(0, 3).Draw(rt, "again"))
			to := min(n, int(claim.NextOffset)+rapid.IntRange(1, 8).Draw(rt, "batch"))
			if _, err := folder.Fold(ctx, claim, log[from:to]); err != nil {
				rt.Fatal(err)
			}
		}
		if got, _ := progress(t, pool); got != want {
			rt.Fatalf("counts %+v; want %+v", got, want)
		}
		var rows, sum, wantSum int64
		if err := pool.QueryRow(ctx, `SELECT count(*), sum(input_tokens)::bigint FROM meter_readings`).Scan(&rows, &sum); err != nil {
			rt.Fatal(err)
		}
		for _, figure := range kept {
			wantSum += figure
		}
		if rows != int64(len(kept)) || sum != wantSum {
			rt.Fatalf("%d readings of %d tokens; want %d of %d", rows, sum, len(kept), wantSum)
		}
	})
}

// sourceFake is a partition in memory that fails now and then.
type sourceFake struct {
	mu        sync.Mutex
	log       []events.Record
	next      int64
	committed int64
	fail      func(fetch int) error
	fetches   int
	drained   chan struct{} // closed when a fetch finds nothing more
}

func (s *sourceFake) SeekTo(offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = offset
}

func (s *sourceFake) Fetch(ctx context.Context, limit int, _ time.Duration) ([]events.Record, error) {
	s.mu.Lock()
	s.fetches++
	if s.fail != nil {
		if err := s.fail(s.fetches); err != nil {
			s.mu.Unlock()
			return nil, err
		}
	}
	if s.next < int64(len(s.log)) {
		end := min(int(s.next)+limit, len(s.log))
		batch := s.log[s.next:end]
		s.next = int64(end)
		s.mu.Unlock()
		return batch, nil
	}
	if s.drained != nil {
		close(s.drained)
		s.drained = nil
	}
	s.mu.Unlock()
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *sourceFake) Commit(offset int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committed = offset
	return nil
}

func (s *sourceFake) HighWater() (int64, error) { return int64(len(s.log)), nil }

func TestIntakeGoesOnAfterErrors(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	dead := &deadFake{}
	in, err := NewIntake(NewMeterFolder(pool, dead), IntakeOptions{Owner: "me", MaxRecords: 4, MaxBackoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	src := &sourceFake{drained: make(chan struct{})}
	for i := range 10 {
		src.log = append(src.log, meterRecord(int64(i), fmt.Sprint("e", i), 1))
	}
	src.log[6].Value = []byte("{")
	src.fail = func(fetch int) error {
		switch fetch {
		case 1: // the log is away
			return errBoom
		case 3: // the next batch meets a dead-letter topic that is away
			dead.mu.Lock()
			dead.fail = errBoom
			dead.mu.Unlock()
		case 4:
			dead.mu.Lock()
			dead.fail = nil
			dead.mu.Unlock()
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	drained := src.drained
	go func() { done <- in.RunPartition(ctx, metersTopic, 3, src) }()
	<-drained
	if err := in.Healthy(); err != nil {
		t.Errorf("healthy: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("run: %v; want nil when its context ends", err)
	}
	all, next := progress(t, pool)
	if want := (MeterResult{Consumed: 10, Folded: 9, DeadLettered: 1}); all != want || next != 10 {
		t.Errorf("progress %+v at %d; want %+v at 10", all, next, want)
	}
	if src.committed != 10 {
		t.Errorf("group offset %d; want 10", src.committed)
	}
}

func TestIntakeEndsWhenTakenOver(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	folder := NewMeterFolder(pool, &deadFake{})
	in, err := NewIntake(folder, IntakeOptions{Owner: "me", MaxRecords: 1})
	if err != nil {
		t.Fatal(err)
	}
	src := &sourceFake{log: []events.Record{meterRecord(0, "a", 1), meterRecord(1, "b", 1)}}
	src.fail = func(fetch int) error {
		if fetch == 2 {
			_, err := folder.Acquire(t.Context(), metersTopic, 3, "other")
			return err
		}
		return nil
	}
	if err := in.RunPartition(t.Context(), metersTopic, 3, src); !errors.Is(err, reconcile.ErrFenced) {
		t.Fatalf("run: %v; want ErrFenced", err)
	}
	if all, next := progress(t, pool); all.Folded != 1 || next != 1 {
		t.Errorf("progress %+v at %d; want the one before the takeover", all, next)
	}
}

func TestIntakeComplainsWhenStalled(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	in, err := NewIntake(NewMeterFolder(pool, &deadFake{}), IntakeOptions{Owner: "me", MaxBackoff: time.Millisecond, StallAfter: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	tried := make(chan struct{}, 1)
	src := &sourceFake{fail: func(fetch int) error {
		if fetch == 2 {
			tried <- struct{}{}
		}
		return errBoom
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- in.RunPartition(ctx, metersTopic, 3, src) }()
	<-tried
	if err := in.Healthy(); !errors.Is(err, errBoom) {
		t.Errorf("healthy: %v; want the cause of the stall", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: %v; want nil when its context ends", err)
	}
	if err := in.Healthy(); err != nil {
		t.Errorf("healthy after its end: %v", err)
	}
}
