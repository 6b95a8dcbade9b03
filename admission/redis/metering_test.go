package redis

import (
	"context"
	"errors"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// M1: usage is cumulative in every chunk of a stream, and repeated in the last.
func TestCaseM1_CumulativeUsageCountsOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(1_000, tenancy.PeriodMonth))
		r := w.mustReserve(ask(acme, "stream", 200))
		for i, chunk := range []struct{ in, out int64 }{{13, 0}, {13, 5}, {13, 5}, {13, 21}, {13, 33}, {13, 33}} {
			got, err := w.stores[i%len(w.stores)].Report(t.Context(), used(acme, r.ID, chunk.in, chunk.out))
			if err != nil {
				t.Fatal(err)
			}
			if got.Total.InputTokens != chunk.in || got.Total.OutputTokens != chunk.out {
				t.Errorf("chunk %d: total is %+v", i, got.Total)
			}
		}
		w.mustSettle(used(acme, r.ID, 13, 33))
		w.wantLeft(acme, "budget", 46, 0)
		if got := w.fold()[r.ID]; got.TotalMilliUnits != 46_000 {
			t.Errorf("the log sums to %d milli-units, want 46000", got.TotalMilliUnits)
		}
	})
}

// M3: a cancel with the provider's 0/0/0 charges nothing.
func TestCaseM3_CancelWithNothingConsumedIsFree(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(1_000, tenancy.PeriodMonth))
		r := w.mustReserve(ask(acme, "stopped", 900))
		got, err := w.stores[0].Cancel(t.Context(), used(acme, r.ID, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		if got.State != events.StateCancelled || got.TotalUnits != 0 {
			t.Errorf("cancel gave %+v", got)
		}
		w.wantLeft(acme, "budget", 0, 0)
		w.mustReserve(ask(acme, "next", 1_000))
	})
}

// A reservation that was made on a client's behalf is not the client's to report
// on or to end, whatever it knows of it.
func TestClientsCannotEndWhatRunsForThem(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(1000, tenancy.PeriodNone))
		r := w.mustReserve(ask(acme, "key~1", 100))
		own := ask(acme, "own", 10)
		own.Model = "a~model" // a sign in another field means nothing
		mine := w.mustReserve(own)

		by := func(author, id string) *admission.UsageReport {
			report := used(acme, id, 1, 1)
			report.Author, report.TTL = author, time.Minute
			return report
		}
		for name, call := range map[string]func(context.Context, *admission.UsageReport) (*admission.Reservation, error){
			"report": w.stores[0].Report, "settle": w.stores[1].Settle, "cancel": w.stores[2].Cancel,
		} {
			if _, err := call(t.Context(), by("client", r.ID)); !errors.Is(err, admission.ErrNotFound) {
				t.Errorf("%s by a client: %v", name, err)
			}
		}
		w.wantLeft(acme, "budget", 0, 110)
		if _, err := w.stores[0].Report(t.Context(), by("client", mine.ID)); err != nil {
			t.Error(err)
		}
		if _, err := w.stores[0].Settle(t.Context(), by("proxy", r.ID)); err != nil {
			t.Error(err)
		}
		w.wantLeft(acme, "budget", 4, 8)
	})
}
