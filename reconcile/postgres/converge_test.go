package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/reconcile"
)

// TestEverythingEnds plays histories of holds, readings, late clients, freezes,
// unfreezes, an admission that fails and leaders that die, and checks that a
// frozen tenant's holds are left alone and that in the end every hold has ended
// once, with nothing left waiting.
func TestEverythingEnds(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := setUpOn(t, pool, newAdmission(), func(o *Options) {
			o.PageSize = rapid.IntRange(1, 7).Draw(rt, "page")
			o.Policy.MinTokens = 1 << 40 // who is frozen is the history's choice
		})
		f.exec(`DELETE FROM reservations; DELETE FROM meter_readings; DELETE FROM automatic_settlements;
		        DELETE FROM settlement_freezes; DELETE FROM reconcile_outbox; DELETE FROM reconcile_runs; DELETE FROM drift_reports`)
		p := f.opts.Policy
		tenants := []string{"acme", "beta", "zeta"}
		frozen := make(map[string]bool)
		tenantOf := make(map[string]string)
		var ids []string
		now := hour0
		flaky := 0 // one call in flaky fails; 0: none
		f.admission.before = func(call int, tenant, _ string) error {
			if frozen[tenant] {
				return fmt.Errorf("tenant %s is frozen and was settled", tenant)
			}
			if flaky > 0 && call%flaky == 0 {
				return errBoom
			}
			return nil
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(rt, "minutes")) * time.Minute)
			*f.clock = now
			tenant := rapid.SampledFrom(tenants).Draw(rt, "tenant")
			switch what := rapid.IntRange(0, 6).Draw(rt, "what"); {
			case what <= 1 || len(ids) == 0:
				id := fmt.Sprint("rsv_", len(ids))
				ids, tenantOf[id] = append(ids, id), tenant
				used := events.Usage{InputTokens: rapid.Int64Range(0, 99).Draw(rt, "used")}
				f.reservation(tenant, id, events.StateExpired, used, now, now.Add(time.Duration(rapid.IntRange(-300, 30).Draw(rt, "ttl"))*time.Minute))
			case what == 2:
				id := rapid.SampledFrom(ids).Draw(rt, "read")
				f.reading("model", events.Meter{
					TenantID: tenantOf[id], ReservationID: id, From: now, To: now,
					InputTokens: rapid.Int64Range(0, 99).Draw(rt, "count"), Final: rapid.Bool().Draw(rt, "final"),
				})
			case what == 3: // a client settles late; its event reaches the ledger
				id := rapid.SampledFrom(ids).Draw(rt, "late")
				f.admission.mu.Lock()
				if _, ok := f.admission.ended[id]; !ok {
					f.admission.ended[id] = ending{tenant: tenantOf[id], author: "client"}
				}
				f.admission.mu.Unlock()
				f.exec(`UPDATE reservations SET state = 'settled' WHERE reservation_id = $1`, id)
			case what == 4 && !frozen[tenant]:
				if _, err := f.Freeze(context.Background(), tenant, "ops", "test"); err != nil {
					rt.Fatal(err)
				}
				frozen[tenant] = true
			case what == 5 && frozen[tenant]:
				frozen[tenant] = false
				if _, err := f.Unfreeze(context.Background(), tenant, "ops", "test"); err != nil {
					rt.Fatal(err)
				}
			case what == 6:
				flaky = rapid.IntRange(0, 3).Draw(rt, "flaky")
			}
			rep, err := f.RunOnce(context.Background(), now)
			if err != nil {
				rt.Fatal(err)
			}
			for _, text := range rep.Errors {
				if flaky == 0 {
					rt.Fatalf("run: %s", text)
				}
			}
		}

		// The operators unfreeze, admission recovers, the last deadline passes.
		flaky = 0
		for _, tenant := range tenants {
			if frozen[tenant] {
				frozen[tenant] = false
				if _, err := f.Unfreeze(context.Background(), tenant, "ops", "test"); err != nil {
					rt.Fatal(err)
				}
			}
		}
		now = now.Add(p.PendingDeadline + time.Hour)
		for range 2 {
			now = now.Add(65 * time.Minute) // the longest pause between two tries
			if rep := f.run(now); rep.Failures > 0 || rep.Pending > 0 {
				rt.Fatalf("at the end: %+v", rep)
			}
		}
		for _, id := range ids {
			e, ok := f.admission.ended[id]
			if !ok {
				rt.Fatalf("%s has not ended", id)
			}
			if e.author != "client" && (e.author != reconcile.Author || e.reason == "") {
				rt.Fatalf("%s ended in silence: %+v", id, e)
			}
		}
		if n := scan[int](f, `SELECT count(*) FROM automatic_settlements WHERE applied_at IS NULL`); n != 0 {
			rt.Fatalf("%d settlements still wait", n)
		}
	})
}
