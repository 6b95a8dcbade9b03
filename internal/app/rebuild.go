package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/admission"
	admissionredis "tollgate/admission/redis"
	"tollgate/events"
	ledgerpg "tollgate/ledger/postgres"
	"tollgate/reconcile"
	"tollgate/tenancy"
	tenancypg "tollgate/tenancy/postgres"
)

// How the rebuilder goes about its work.
const (
	rebuildLock  = 0x746f6c6c_72656264 // advisory lock: one rebuilds
	rebuildPoll  = time.Second
	rebuildPause = 100 * time.Millisecond // between looks, whatever happens
	rebuildEnded = 100_000                // ended reservations of a tenant that are remembered
)

// rebuilder fills admission state that Redis has lost, or never had, from the
// ledger. A shard without an epoch refuses everything; the rebuilder looks for
// such shards, waits until what their outboxes have is in the log and folded,
// writes each tenant's use, open holds and recent requests, and opens the shard.
// Redis that comes back with an older copy of its state is treated as lost.
//
// What was in a lost outbox and not yet in the log is gone with Redis: how much
// that may be is the choice of Redis's persistence.
type rebuilder struct {
	store     *admissionredis.Store
	pool      *pgxpool.Pool
	ledger    *ledgerpg.Store
	tenancy   *tenancypg.Store
	lag       reconcile.LagChecker
	shards    int
	retention time.Duration
	log       *slog.Logger
	rebuilt   prometheus.Counter

	rolledBack prometheus.Counter
	connected  chan struct{} // a connection to Redis was opened
}

func (a *App) rebuilder() (*rebuilder, error) {
	pool, err := a.postgres()
	if err != nil {
		return nil, err
	}
	client, err := a.kafka()
	if err != nil {
		return nil, err
	}
	store, err := a.admission()
	if err != nil {
		return nil, err
	}
	connected := make(chan struct{}, 1)
	onDial(a.redisClient, connected)
	r := &rebuilder{
		connected: connected,
		store:     store, pool: pool, ledger: ledgerpg.New(pool, ledgerpg.Options{Log: a.log}), tenancy: tenancypg.New(pool),
		lag:    a.foldLag(pool, client, events.TopicEvents, 30*time.Second),
		shards: a.cfg.Redis.Shards, retention: a.cfg.Admission.IdempotencyRetention, log: a.log,
		rebuilt: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_admission_rebuilt_shards_total", Help: "Shards of admission state rebuilt from the ledger.",
		}),
		rolledBack: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_admission_rollbacks_total", Help: "Times that Redis had an older copy of the admission state, which was closed.",
		}),
	}
	return r, errors.Join(a.metrics.Register(r.rebuilt), a.metrics.Register(r.rolledBack))
}

// run looks for shards to rebuild until ctx ends.
func (r *rebuilder) run(ctx context.Context) error {
	tick := time.NewTicker(rebuildPoll)
	defer tick.Stop()
	last := ""
	for {
		open, err := r.compare(ctx)
		if err == nil && !open {
			err = r.once(ctx)
		}
		if err != nil && ctx.Err() == nil {
			if err.Error() != last { // the same trouble is told once
				r.log.Warn("admission state is not watched, or not rebuilt yet", "error", err)
			}
			last = err.Error()
		} else {
			last = ""
		}
		select {
		case <-time.After(rebuildPause):
		case <-ctx.Done():
			return nil
		}
		select {
		case <-tick.C:
		case <-r.connected:
		case <-ctx.Done():
			return nil
		}
	}
}

// once rebuilds the shards that have no epoch, if this process gets the lock.
func (r *rebuilder) once(ctx context.Context) error {
	missing, err := r.missing(ctx)
	if err != nil || len(missing) == 0 {
		return err
	}
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Release()
	var locked bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(rebuildLock)).Scan(&locked); err != nil || !locked {
		return err
	}
	defer func() {
		// The connection goes back to the pool: it must not keep the lock.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, int64(rebuildLock)); err != nil {
			_ = conn.Conn().Close(ctx) // which gives the lock up as well
		}
	}()
	if missing, err = r.missing(ctx); err != nil || len(missing) == 0 {
		return err
	}
	r.log.Info("rebuilding admission state from the ledger", "shards", len(missing))
	if err := r.drained(ctx, missing); err != nil {
		return err
	}
	if _, err := r.lag.FoldedThrough(ctx); err != nil {
		return fmt.Errorf("wait for the ledger: %w", err)
	}
	return r.rebuild(ctx, missing)
}

func (r *rebuilder) missing(ctx context.Context) (map[int]bool, error) {
	epochs, err := r.store.Epoch(ctx)
	if err != nil {
		return nil, err
	}
	missing := map[int]bool{}
	for shard := range r.shards {
		if epochs[shard] == "" {
			missing[shard] = true
		}
	}
	return missing, nil
}

func (r *rebuilder) rebuild(ctx context.Context, shards map[int]bool) error {
	tenants, err := r.tenancy.ListTenants(ctx)
	if err != nil {
		return err
	}
	platform, err := r.tenancy.GetPlatform(ctx)
	if err != nil {
		return err
	}
	keys, err := r.tenancy.ListKeys(ctx, "")
	if err != nil {
		return err
	}
	byID := make(map[string]*tenancy.Key, len(keys))
	for i := range keys {
		byID[keys[i].ID] = &keys[i]
	}
	ofShard := map[int][]*tenancy.Tenant{}
	for i := range tenants {
		shard := admission.Shard(tenants[i].ID, r.shards)
		ofShard[shard] = append(ofShard[shard], &tenants[i])
	}
	seen, err := r.seen(ctx)
	if err != nil {
		return err
	}
	epoch := newEpoch(seen)
	for shard := range shards {
		var seeds []admissionredis.TenantSeed
		for _, tenant := range ofShard[shard] {
			seed, err := r.seed(ctx, tenant, byID, platform)
			if err != nil {
				return fmt.Errorf("seed of tenant %s: %w", tenant.ID, err)
			}
			seeds = append(seeds, seed)
		}
		if _, err := r.store.Seed(ctx, shard, epoch, seeds); err != nil {
			return fmt.Errorf("seed shard %d: %w", shard, err)
		}
		r.rebuilt.Inc()
	}
	r.log.Info("admission state is rebuilt", "shards", len(shards), "tenants", len(tenants), "epoch", epoch)
	return nil
}

// seed gathers a tenant's state from the ledger. Which counters use belongs to
// is decided by the same rule that admission applies to a request of the same
// key, endpoint and model.
func (r *rebuilder) seed(ctx context.Context, tenant *tenancy.Tenant, keys map[string]*tenancy.Key, platform *tenancy.Platform) (admissionredis.TenantSeed, error) {
	now := time.Now().UTC()
	s := &seedSums{tenant: tenant, keys: keys, platform: platform, now: now, rings: map[string]*admissionredis.RingSeed{}, counters: map[string]*admissionredis.CounterSeed{}}
	if loc, err := time.LoadLocation(tenant.TimeZone); err == nil {
		s.calendar = admission.CalendarAt(now, loc)
	}
	out := admissionredis.TenantSeed{Tenant: tenant}

	hours, err := r.ledger.UsageByHour(ctx, tenant.ID, time.Time{})
	if err != nil {
		return out, err
	}
	for i := range hours {
		s.add(&hours[i], time.Hour)
	}
	if fine := s.fineFrom(); !fine.IsZero() {
		seconds, err := r.ledger.UsageBySecond(ctx, tenant.ID, fine)
		if err != nil {
			return out, err
		}
		for i := range seconds {
			s.add(&seconds[i], time.Second)
		}
	}
	reservations, err := r.ledger.RecentReservations(ctx, tenant.ID, now.Add(-r.retention), rebuildEnded)
	if err != nil {
		return out, err
	}
	for i := range reservations {
		res := &reservations[i]
		s.addOpen(res)
		out.Reservations = append(out.Reservations, admissionredis.ReservationSeed{
			Reservation: *res,
			Limits:      admission.Constraints(tenant, keys[res.KeyID], res.Endpoint, res.Model, platform),
			MaxHold:     time.Duration(platform.MaxHold),
		})
	}
	for _, ring := range s.rings {
		out.Rings = append(out.Rings, *ring)
	}
	for _, counter := range s.counters {
		out.Counters = append(out.Counters, *counter)
	}
	return out, nil
}

// seedSums sums use into the counters it belongs to.
type seedSums struct {
	tenant   *tenancy.Tenant
	keys     map[string]*tenancy.Key
	platform *tenancy.Platform
	calendar admission.Calendar
	now      time.Time
	rings    map[string]*admissionredis.RingSeed
	counters map[string]*admissionredis.CounterSeed
}

// add takes one row, which is an hour's or a second's sum. A ring of slots that
// are shorter than an hour, and a period that begins inside an hour, are summed
// from seconds; everything else from hours.
func (s *seedSums) add(row *ledgerpg.UsageRow, width time.Duration) {
	for _, c := range admission.Constraints(s.tenant, s.keys[row.KeyID], row.Endpoint, row.Model, s.platform) {
		switch c.Limit.Kind {
		case tenancy.KindRing:
			fine := admission.SlotWidth(&c.Limit) < time.Hour
			if fine != (width == time.Second) {
				continue
			}
			ring := s.ring(c)
			ring.Slots = append(ring.Slots, admissionredis.SlotSum{Start: row.At, Units: unitsOf(row, c.Limit.Metric)})
		case tenancy.KindCounter:
			start := s.periodStart(c.Limit.Period)
			split := start.Truncate(time.Hour) // the hour that the period begins in
			inside := width == time.Hour && !row.At.Before(start)
			if width == time.Second {
				inside = !split.Equal(start) && !row.At.Before(start) && row.At.Before(split.Add(time.Hour))
			}
			if !inside {
				continue
			}
			counter := s.counter(c, start)
			counter.Used = admission.AddCount(counter.Used, unitsOf(row, c.Limit.Metric))
		}
	}
}

// addOpen counts the request of an open reservation: admission counts a request
// when it is admitted, the ledger's sums have it when it has ended.
func (s *seedSums) addOpen(r *events.Reservation) {
	if r.State != events.StateHeld && r.State != events.StateExpired {
		return
	}
	_, created, err := admission.ParseReservationID(r.ReservationID)
	if err != nil {
		return // the seed refuses it, and says why
	}
	at := time.UnixMilli(created).UTC()
	for _, c := range admission.Constraints(s.tenant, s.keys[r.KeyID], r.Endpoint, r.Model, s.platform) {
		if c.Limit.Metric != tenancy.MetricRequests {
			continue
		}
		switch c.Limit.Kind {
		case tenancy.KindRing:
			ring := s.ring(c)
			ring.Slots = append(ring.Slots, admissionredis.SlotSum{Start: at, Units: 1})
		case tenancy.KindCounter:
			if start := s.periodStart(c.Limit.Period); !at.Before(start) {
				counter := s.counter(c, start)
				counter.Used = admission.AddCount(counter.Used, 1)
			}
		}
	}
}

func (s *seedSums) ring(c admission.Constraint) *admissionredis.RingSeed {
	ring := s.rings[c.Field]
	if ring == nil {
		ring = &admissionredis.RingSeed{Constraint: c}
		s.rings[c.Field] = ring
	}
	return ring
}

func (s *seedSums) counter(c admission.Constraint, start time.Time) *admissionredis.CounterSeed {
	counter := s.counters[c.Field]
	if counter == nil {
		counter = &admissionredis.CounterSeed{Constraint: c, PeriodStart: start}
		s.counters[c.Field] = counter
	}
	return counter
}

// fineFrom is the earliest time from which seconds are needed; zero when hours
// do for everything.
func (s *seedSums) fineFrom() time.Time {
	var from time.Time
	earlier := func(t time.Time) {
		if from.IsZero() || t.Before(from) {
			from = t
		}
	}
	limits := s.tenant.Quota.Limits
	for _, k := range s.keys {
		if k.TenantID == s.tenant.ID {
			limits = append(limits[:len(limits):len(limits)], k.Limits...)
		}
	}
	for i := range limits {
		l := &limits[i]
		switch l.Kind {
		case tenancy.KindRing:
			if admission.SlotWidth(l) < time.Hour {
				earlier(s.now.Add(-time.Duration(l.Window)))
			}
		case tenancy.KindCounter:
			if start := s.periodStart(l.Period); !start.Equal(start.Truncate(time.Hour)) {
				earlier(start)
			}
		}
	}
	return from
}

// periodStart is when the current period began; the zero time for a budget
// without period.
func (s *seedSums) periodStart(p tenancy.Period) time.Time {
	switch p {
	case tenancy.PeriodDay:
		return time.Unix(s.calendar.DayStart, 0).UTC()
	case tenancy.PeriodMonth:
		return time.Unix(s.calendar.MonthStart, 0).UTC()
	}
	return time.Time{}
}

func unitsOf(row *ledgerpg.UsageRow, metric tenancy.Metric) int64 {
	switch metric {
	case tenancy.MetricTokens:
		return row.MilliUnits
	case tenancy.MetricRequests:
		return row.Requests
	case tenancy.MetricInputTokens:
		return row.InputTokens
	case tenancy.MetricOutputTokens:
		return row.OutputTokens
	case tenancy.MetricImages:
		return row.Images
	case tenancy.MetricToolCalls:
		return row.ToolCalls
	case tenancy.MetricAudioMillis:
		return row.AudioMillis
	case tenancy.MetricGPUMillis:
		return row.GPUMillis
	}
	return 0
}
