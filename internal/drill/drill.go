package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/billing"
	"tollgate/internal/load"
	"tollgate/internal/trace"
)

// Backend is what a drill asks of the installation besides HTTP and SQL.
type Backend interface {
	// Backlog is the number of events that wait in the outbox.
	Backlog(ctx context.Context) (int64, error)
	// Lag is the number of records of the log that are not folded.
	Lag(ctx context.Context) (int64, error)
	// Reconcile looks at the open holds once, now.
	Reconcile(ctx context.Context) error
}

// Drill is one run.
type Drill struct {
	Pool     *pgxpool.Pool
	Backend  Backend
	Fleet    *Fleet
	Plan     *load.Plan
	Gateways []string // base URLs
	Client   *http.Client
	Workers  int
	Speed    float64
	HoldTTL  time.Duration
	Patience time.Duration // of one call of the driver
	// Settled bounds how long everything may take to end after the trace.
	DrainTimeout time.Duration
	Progress     func(done int)
	// Note is told what the drill is doing.
	Note func(format string, args ...any)
}

// Result is what came of a drill.
type Result struct {
	Seed         uint64        `json:"seed"`
	Trace        trace.Totals  `json:"trace"`
	NotGenerated trace.Totals  `json:"not_generated"`
	Expected     trace.Totals  `json:"expected"`
	Counts       []Count       `json:"counts"`
	Load         load.Report   `json:"load"`
	LoadTook     time.Duration `json:"load_ns"`
	Differences  []string      `json:"differences"`
	// FrontDoor is set where a Front was run, too.
	FrontDoor *FrontResult `json:"front_door,omitempty"`
	// Siege is set where one was run beside the trace.
	Siege *SiegeResult `json:"siege,omitempty"`
}

// Run waits until the gateway knows the fleet, drives the trace, waits until
// every reservation has ended and every event is folded, and asks every part.
// Differences are in the result, not an error.
func (d *Drill) Run(ctx context.Context) (*Result, error) {
	if err := d.waitForKeys(ctx); err != nil {
		return nil, err
	}
	driver := &load.Driver{
		Addresses: d.Gateways, MeterKey: d.Fleet.MeterKey, Workers: d.Workers, Endpoint: Endpoint, Model: Model,
		HoldTTL: d.HoldTTL, Patience: d.Patience, Speed: d.Speed, Client: d.Client, Progress: d.Progress,
	}
	for _, t := range d.Fleet.Tenants {
		driver.TenantKeys = append(driver.TenantKeys, t.Secret)
		driver.TenantIDs = append(driver.TenantIDs, t.ID)
	}
	began := time.Now()
	report, err := driver.Run(ctx, d.Plan)
	if err != nil {
		return nil, fmt.Errorf("drive the trace: %w", err)
	}
	res := &Result{
		Seed: d.Plan.Seed, Trace: d.Plan.Trace, NotGenerated: d.Plan.NotGenerated, Expected: d.Plan.Expected,
		Load: report, LoadTook: time.Since(began),
	}
	d.Note("%d requests in %s; %d settles were lost on purpose, waiting for their holds to end …",
		report.Done, res.LoadTook.Round(time.Millisecond), d.Plan.Lost)
	if err := d.drain(ctx); err != nil {
		return nil, err
	}
	totals := &Totals{Pool: d.Pool, Fleet: d.Fleet, Gateway: d.Gateways[0], Client: d.Client}
	if res.Counts, err = totals.Counts(ctx); err != nil {
		return nil, err
	}
	for _, c := range res.Counts {
		if c.Totals != res.Expected {
			res.Differences = append(res.Differences, fmt.Sprintf("%s has %+v, expected %+v", c.Part, c.Totals, res.Expected))
		}
	}
	return res, nil
}

// waitForKeys waits until every gateway accepts the newest key: from then on
// it knows all of the fleet.
func (d *Drill) waitForKeys(ctx context.Context) error {
	for _, gateway := range d.Gateways {
		totals := &Totals{Gateway: gateway, Client: d.Client}
		err := until(ctx, time.Minute, func() error {
			for _, t := range d.Fleet.Tenants {
				if _, err := totals.usage(ctx, t.Secret); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("gateway %s does not know the tenants: %w", gateway, err)
		}
	}
	return nil
}

var errNotYet = errors.New("not yet")

// drain waits until no event waits, nothing is left to fold and no reservation
// is open, in this order, and reconciles until that is so.
func (d *Drill) drain(ctx context.Context) error {
	err := until(ctx, d.DrainTimeout, func() error {
		backlog, err := d.Backend.Backlog(ctx)
		if err != nil {
			return err
		}
		lag, err := d.Backend.Lag(ctx)
		if err != nil {
			return err
		}
		var open int64
		err = d.Pool.QueryRow(ctx, `SELECT count(*) FROM reservations WHERE state IN ('held', 'expired')`).Scan(&open)
		if err != nil {
			return err
		}
		if backlog == 0 && lag == 0 && open == 0 {
			return nil
		}
		if open > 0 {
			if err := d.Backend.Reconcile(ctx); err != nil {
				return err
			}
		}
		return fmt.Errorf("%d events wait in the outbox, %d records are not folded, %d reservations are open: %w", backlog, lag, open, errNotYet)
	})
	if err != nil {
		return fmt.Errorf("the trace has not come to its end: %w", err)
	}
	return nil
}

// until repeats check, with a pause that grows to half a second, until it
// returns nil; after the time allowed it returns check's last error.
func until(ctx context.Context, allowed time.Duration, check func() error) error {
	deadline := time.Now().Add(allowed)
	pause := 20 * time.Millisecond
	for {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", allowed, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

// Bills drafts the bill of every tenant of the fleet.
func (d *Drill) Bills(ctx context.Context) ([]billing.Bill, error) {
	return (&Totals{Pool: d.Pool, Fleet: d.Fleet}).Bills(ctx)
}
