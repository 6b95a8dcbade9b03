package drill

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"tollgate/internal/trace"
	"tollgate/reconcile"
)

// SiegeResult is what came of a siege.
type SiegeResult struct {
	Clients SiegeClients `json:"clients"`
	// Generated is the model server's own log; a request is a reservation that
	// reached it.
	Generated trace.Totals `json:"generated"`
	// Unreached are reservations whose gateway was gone, or could not tell that it
	// held, before the model server was asked. They are charged nothing.
	Unreached trace.Totals `json:"unreached"`
	// EstimatedGenerated is of Generated what is charged by another count than the
	// model server's, Estimated what is charged for it, and EstimatedBound the
	// most that its reservations held, in milli-units.
	EstimatedGenerated trace.Totals `json:"estimated_generated"`
	Estimated          trace.Totals `json:"estimated"`
	EstimatedUnits     int64        `json:"estimated_milli_units"`
	EstimatedBound     int64        `json:"estimated_bound_milli_units"`
	// EstimatedWhy counts the reasons of the estimated.
	EstimatedWhy map[string]int64 `json:"estimated_why,omitempty"`
	// Reconciled is what the reconciler ended at the model meter's figure, as its
	// gateway did not live to.
	Reconciled trace.Totals `json:"reconciled"`
	// Expected is what every part must have: what was generated, but what is
	// charged where that is estimated.
	Expected trace.Totals `json:"expected"`
	Counts   []Count      `json:"counts"`
	// What the gateway holds at the end, for all tenants of the drill.
	InFlight    int64    `json:"in_flight"`
	Held        int64    `json:"held"`
	Differences []string `json:"differences"`
}

// charge is a reservation of the tenant as the ledger has it.
type charge struct {
	id          string
	open        bool
	tokens      trace.Totals
	estimated   bool
	reconciled  bool   // ended by the reconciler
	why         string // it ended, where somebody said so
	units, held int64  // milli-units: charged, and the most that were held
}

// Finish waits until everything has ended and is folded, and asks every part.
// Other is the drill beside it; its tenants must hold nothing either.
func (s *Siege) Finish(ctx context.Context, other *Drill) (*SiegeResult, error) {
	if err := until(ctx, other.DrainTimeout, func() error { return s.reported(ctx) }); err != nil {
		return nil, err
	}
	if err := other.drain(ctx); err != nil {
		return nil, err
	}
	c := &s.met
	r := &SiegeResult{Clients: SiegeClients{
		Asked: c.asked.Load(), Answered: c.answered.Load(), Broken: c.broken.Load(), Refused: c.refused.Load(),
		Repeated: c.repeated.Load(), Already: c.already.Load(), Dropped: c.dropped.Load(),
	}}
	did, err := s.generated()
	if err != nil {
		return nil, err
	}
	charges, err := s.charges(ctx)
	if err != nil {
		return nil, err
	}
	totals := &Totals{Pool: s.Pool, Fleet: s.fleet, Gateway: s.Gateways[0], Client: s.Client}
	if r.Counts, err = totals.Counts(ctx); err != nil {
		return nil, err
	}
	for _, tenant := range slices.Concat(s.fleet.Tenants, other.Fleet.Tenants) {
		u, err := totals.usage(ctx, tenant.Secret)
		if err != nil {
			return nil, err
		}
		inFlight, held := u.open()
		r.InFlight += inFlight
		r.Held += held
	}
	r.compare(did, charges)
	return r, nil
}

// charges are the tenant's reservations.
func (s *Siege) charges(ctx context.Context) ([]charge, error) {
	rows, err := s.Pool.Query(ctx, `
		SELECT r.reservation_id, r.state IN ('held', 'expired'), r.input_tokens, r.output_tokens, r.estimated, j.reconciled, j.why, r.milli_units, j.held
		FROM reservations r JOIN (
			SELECT reservation_id, bool_or(author = $2) AS reconciled, max(held_milli_units) AS held,
			       (array_agg(reason ORDER BY seq DESC))[1] AS why
			FROM journal WHERE tenant_id = $1 AND NOT tombstone GROUP BY reservation_id) j USING (reservation_id)
		WHERE r.tenant_id = $1 ORDER BY r.reservation_id`, s.fleet.Tenants[0].ID, reconcile.Author)
	if err != nil {
		return nil, fmt.Errorf("read the reservations: %w", err)
	}
	defer rows.Close()
	var all []charge
	for rows.Next() {
		c := charge{tokens: trace.Totals{Requests: 1}}
		if err := rows.Scan(&c.id, &c.open, &c.tokens.InputTokens, &c.tokens.OutputTokens, &c.estimated, &c.reconciled, &c.why, &c.units, &c.held); err != nil {
			return nil, fmt.Errorf("read the reservations: %w", err)
		}
		all = append(all, c)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the reservations: %w", err)
	}
	return all, nil
}

// compare adds up and finds what is not as it must be. A reservation is charged
// what the model server did for it, to the token; where its figure is marked as
// estimated, no more than was held. What never reached the model server costs
// nothing. Then all parts have the same.
func (r *SiegeResult) compare(did map[string]trace.Totals, charges []charge) {
	differ := func(format string, args ...any) { r.Differences = append(r.Differences, fmt.Sprintf(format, args...)) }
	unknown := maps.Clone(did)
	for _, c := range charges {
		work, reached := did[c.id]
		delete(unknown, c.id)
		work.Requests = 1
		if c.open {
			differ("front door: reservation %s is still open", c.id)
		}
		if reached && c.estimated {
			r.Expected = add(r.Expected, c.tokens)
		} else {
			r.Expected = add(r.Expected, work)
		}
		if reached {
			r.Generated = add(r.Generated, work)
		} else {
			r.Unreached = add(r.Unreached, trace.Totals{Requests: 1})
		}
		switch {
		case reached && c.estimated:
			r.EstimatedGenerated, r.Estimated = add(r.EstimatedGenerated, work), add(r.Estimated, c.tokens)
			if r.EstimatedWhy == nil {
				r.EstimatedWhy = map[string]int64{}
			}
			r.EstimatedWhy[c.why]++
			r.EstimatedUnits += c.units
			r.EstimatedBound += c.held
			if c.units > c.held {
				differ("front door: reservation %s is charged %d estimated milli-units and held %d", c.id, c.units, c.held)
			}
		case c.tokens != work:
			differ("front door: reservation %s is charged %+v, the model server did %+v", c.id, c.tokens, work)
		}
		if reached && c.reconciled && !c.estimated {
			r.Reconciled = add(r.Reconciled, c.tokens)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(unknown)) {
		differ("front door: the model server did %+v for reservation %q, which the ledger does not know", did[id], id)
	}
	for _, c := range r.Counts {
		if want := r.Want(c.Part); c.Totals != want {
			differ("front door: %s has %+v, expected %+v", c.Part, c.Totals, want)
		}
	}
	if r.InFlight != 0 || r.Held != 0 {
		differ("front door: at the end %d requests are in flight and %d is held", r.InFlight, r.Held)
	}
	if r.Clients.Answered == 0 || r.Generated.OutputTokens == 0 {
		differ("front door: no request was answered")
	}
}

// Want is what a part must have: the model meter what was generated, every other
// one what is expected.
func (r *SiegeResult) Want(part string) trace.Totals {
	if part == modelMeter {
		return r.Generated
	}
	return r.Expected
}

func add(a, b trace.Totals) trace.Totals {
	return trace.Totals{Requests: a.Requests + b.Requests, InputTokens: a.InputTokens + b.InputTokens, OutputTokens: a.OutputTokens + b.OutputTokens}
}
