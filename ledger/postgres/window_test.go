package postgres_test

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tollgate/events"
	"tollgate/ledger"
)

func TestCaseL11_LateEventGoesIntoItsOwnHourAndTheWindow(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	nine := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	lease := acquire(t, s, 0, "a")
	lease, _ = fold(t, s, lease, []events.Record{settled("acme", "r1", nine.Add(10*time.Minute), 100).record(0)}, 1)
	if _, err := s.CloseHours(t.Context(), nine.Add(time.Hour+time.Minute)); err != nil {
		t.Fatal(err)
	}
	closed := func() int64 {
		return scalar[int64](t, pool, "SELECT output_tokens FROM usage_30d WHERE tenant_id = 'acme'")
	}
	if got := closed(); got != 100 {
		t.Fatalf("closed hours hold %d, want 100", got)
	}
	// 09:59:59.9 arrives at 10:05.
	late := settled("acme", "r2", nine.Add(time.Hour-100*time.Millisecond), 23).record(1)
	late.Time = nine.Add(65 * time.Minute)
	lease, _ = fold(t, s, lease, []events.Record{late}, 1)
	if got := scalar[int64](t, pool, "SELECT sum(output_tokens)::bigint FROM usage_hour WHERE hour = $1", nine); got != 123 {
		t.Errorf("the hour of nine holds %d, want 123", got)
	}
	if got := closed(); got != 123 {
		t.Errorf("closed hours hold %d, want 123", got)
	}
	mustAddUp(t, s)
	// An event of the open hour waits for the close.
	fold(t, s, lease, []events.Record{settled("acme", "r3", nine.Add(70*time.Minute), 1000).record(2)}, 1)
	if got := closed(); got != 123 {
		t.Errorf("closed hours hold %d before the close, want 123", got)
	}
	u, err := s.Usage30d(t.Context(), "acme")
	if err != nil || u.Total.OutputTokens != 1123 || u.Open.OutputTokens != 1000 {
		t.Errorf("rolling use is %+v, %v, want 1123 of which 1000 are open", u, err)
	}
	mustAddUp(t, s)
}

func TestHoursLeaveTheWindowAfter30Days(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	at := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	fold(t, s, acquire(t, s, 0, "a"), []events.Record{settled("acme", "r1", at, 100).record(0)}, 1)
	for _, step := range []struct {
		after time.Duration
		want  int64
	}{
		{time.Hour, 100},
		{500 * time.Hour, 100},
		{719 * time.Hour, 100}, // the oldest of 719 closed hours
		{700 * time.Hour, 100}, // a clock that goes back changes nothing
		{720 * time.Hour, 0},
		{5000 * time.Hour, 0},
	} {
		if _, err := s.CloseHours(t.Context(), at.Add(step.after)); err != nil {
			t.Fatal(err)
		}
		if got := scalar[int64](t, pool, "SELECT output_tokens FROM usage_30d"); got != step.want {
			t.Errorf("%s later the window holds %d, want %d", step.after, got, step.want)
		}
		mustAddUp(t, s)
	}
}

func TestManyProcessesCloseAnHourOnce(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	at := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	lease := acquire(t, s, 0, "a")
	if _, err := s.CloseHours(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	closed := 0
	for range 4 {
		wg.Go(func() {
			n, err := s.CloseHours(t.Context(), at.Add(3*time.Hour))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			closed += n
			mu.Unlock()
		})
	}
	for i := range 10 { // folds go on meanwhile
		lease, _ = fold(t, s, lease, []events.Record{settled("acme", string(rune('a'+i)), at.Add(time.Duration(i)*20*time.Minute), 10).record(int64(i))}, 1)
	}
	wg.Wait()
	if closed != 3 {
		t.Errorf("three hours were closed %d times", closed)
	}
	mustAddUp(t, s)
	if got := scalar[int64](t, pool, "SELECT output_tokens FROM usage_30d"); got != 90 {
		t.Errorf("closed hours hold %d, want the 90 of nine events", got)
	}
}

// usage_30d is the sum of the window's hours at every moment, whatever comes
// late and however the hours are closed.
func TestPropertyWindowIsTheSumOfItsHours(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t)
	rapid.Check(t, func(rt *rapid.T) {
		empty(t, pool)
		lease, err := s.Acquire(t.Context(), events.TopicEvents, 0, "a")
		if err != nil {
			rt.Fatal(err)
		}
		now := start
		offset := int64(0)
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "close") {
				now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 1, 2, 30, 700, 800}).Draw(rt, "hours")) * time.Hour)
				if _, err := s.CloseHours(t.Context(), now); err != nil {
					rt.Fatal(err)
				}
			} else {
				var records []events.Record
				for range rapid.IntRange(1, 5).Draw(rt, "events") {
					late := time.Duration(rapid.IntRange(0, 34*24*60).Draw(rt, "minutes late")) * time.Minute
					tenant := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "tenant")
					id := "r" + time.Duration(offset).String()
					r := settled(tenant, id, now.Add(-late), rapid.Int64Range(-50, 100).Draw(rt, "tokens"))
					r.total = max(r.total, 0)
					rec := r.record(offset)
					rec.Time = now
					records = append(records, rec)
					offset++
				}
				b, err := ledger.NewBatch(events.TopicEvents, 0, records)
				if err != nil {
					rt.Fatal(err)
				}
				if len(b.DeadLetters) > 0 {
					rt.Fatal(b.DeadLetters[0].Reason, b.DeadLetters[0].Detail)
				}
				if lease, _, err = s.Flush(t.Context(), lease, b); err != nil {
					rt.Fatal(err)
				}
			}
			c, err := s.Check(t.Context())
			if err != nil {
				rt.Fatal(err)
			}
			for _, d := range c.Differences {
				// Negative amounts make totals that no reservation has.
				if d.Table != "reservations" {
					rt.Fatal(d)
				}
			}
			sum := c.Rolling30d()
			sum.Add(c.BeforeWindow)
			if sum != c.Journal || c.Hours != c.Journal {
				rt.Fatalf("window and before give %+v, the journal %+v", sum, c.Journal)
			}
		}
	})
}
