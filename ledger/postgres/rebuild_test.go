package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"tollgate/events"
	"tollgate/ledger/postgres"
)

// What an emptied admission state is rebuilt from: one tenant's use by hour and
// by second, and its open and lately ended reservations.
func TestRebuildReadsWhatTheFoldWrote(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t)
	early := start.Add(-3 * time.Hour)
	records := []events.Record{
		settled("acme", "early", early, 100).record(0),
		reservation{tenant: "acme", id: "open", seq: 1, typ: events.TypeReserved, at: start}.record(1),
		reservation{tenant: "acme", id: "open", seq: 2, typ: events.TypeUsage, at: start.Add(300 * time.Millisecond), total: 7, delta: 7}.record(2),
		settled("acme", "late", start.Add(600*time.Millisecond), 5).record(3),
		settled("acme", "latest", start.Add(2*time.Second), 3).record(4),
		settled("other", "theirs", start, 1000).record(5),
	}
	fold(t, s, acquire(t, s, 0, "a"), records, 10)

	row := func(at time.Time, requests, tokens int64) postgres.UsageRow {
		return postgres.UsageRow{
			At: at, KeyID: "key", Endpoint: "chat", Model: "m", Requests: requests, MilliUnits: 1000 * tokens,
			Usage: events.Usage{OutputTokens: tokens},
		}
	}
	byTime := cmpopts.SortSlices(func(a, b postgres.UsageRow) bool { return a.At.Before(b.At) })
	hours, err := s.UsageByHour(t.Context(), "acme", early.Truncate(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	want := []postgres.UsageRow{row(early.Truncate(time.Hour), 1, 100), row(start.Truncate(time.Hour), 2, 15)}
	if diff := cmp.Diff(want, hours, byTime); diff != "" {
		t.Errorf("by hour (-want +got):\n%s", diff)
	}
	if hours, err = s.UsageByHour(t.Context(), "acme", start.Truncate(time.Hour)); err != nil || len(hours) != 1 {
		t.Errorf("from the later hour on: %v, %v", hours, err)
	}
	seconds, err := s.UsageBySecond(t.Context(), "acme", start)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]postgres.UsageRow{row(start, 1, 12), row(start.Add(2*time.Second), 1, 3)}, seconds, byTime); diff != "" {
		t.Errorf("by second (-want +got):\n%s", diff)
	}

	recent := func(since time.Time, limit int) map[string]events.Reservation {
		list, err := s.RecentReservations(t.Context(), "acme", since, limit)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]events.Reservation{}
		for _, r := range list {
			out[r.ReservationID] = r
		}
		return out
	}
	got := recent(start, 10)
	open := events.Reservation{
		TenantID: "acme", ReservationID: "open", RequestID: "req-open", KeyID: "key", Endpoint: "chat", Model: "m",
		Seq: 2, State: events.StateHeld, WeightMilli: 1000, ExpiresAt: start.Add(300 * time.Millisecond).Add(time.Minute),
		Total: events.Usage{OutputTokens: 7}, TotalMilliUnits: 7000,
	}
	if diff := cmp.Diff(open, got["open"]); diff != "" {
		t.Errorf("open reservation (-want +got):\n%s", diff)
	}
	if len(got) != 3 || got["late"].State != events.StateSettled || got["latest"].TotalMilliUnits != 3000 {
		t.Errorf("reservations are %+v", got)
	}
	if got = recent(start, 1); len(got) != 2 || got["latest"].Seq != 1 {
		t.Errorf("the open one and the one that ended last, not %+v", got)
	}
	if got = recent(start.Add(time.Hour), 10); len(got) != 1 || got["open"].Seq != 2 {
		t.Errorf("the open one alone, not %+v", got)
	}
}
