package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// TenantSeed is what a tenant's state is rebuilt from after Redis was lost. A
// caller that has only the ledger can fill it.
type TenantSeed struct {
	Tenant   *tenancy.Tenant
	Rings    []RingSeed
	Counters []CounterSeed
	// Reservations that are open (held or expired), and those that ended
	// recently enough that a repeat may still come.
	Reservations []ReservationSeed
}

// RingSeed is the use inside a sliding window. Units are the script's:
// milli-units for tokens, else the limit's own.
type RingSeed struct {
	Constraint admission.Constraint
	Slots      []SlotSum
}

// SlotSum is use in the slot that Start lies in; sums of one slot add up, to
// admission.MaxCount at most.
type SlotSum struct {
	Start time.Time
	Units int64
}

// CounterSeed is the use since PeriodStart (ignored for a counter without
// period), in the script's units.
type CounterSeed struct {
	Constraint  admission.Constraint
	PeriodStart time.Time
	Used        int64
}

// ReservationSeed is a reservation as its latest event left it. Its hold is
// taken from HeldMilliUnits, its limits from the caller. The body's hash is not
// in the log: a repeat of its reserve is answered whatever its body.
type ReservationSeed struct {
	Reservation events.Reservation
	Limits      []admission.Constraint
	MaxHold     time.Duration // from its creation
}

// unknownBody stands for a body hash that is not known; the script knows it.
var unknownBody = strings.Repeat("0", 32)

// Epoch returns the epoch of each shard that has been rebuilt.
func (s *Store) Epoch(ctx context.Context) (map[int]string, error) {
	pipe := s.client.Pipeline()
	gets := make([]*redis.StringCmd, s.opts.Shards)
	for shard := range gets {
		gets[shard] = pipe.Get(ctx, s.shardKey(shard, "epoch"))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, s.outOfReach(ctx, err)
	}
	out := make(map[int]string, len(gets))
	for shard, get := range gets {
		switch epoch, err := get.Result(); {
		case err == nil:
			out[shard] = epoch
		case !errors.Is(err, redis.Nil):
			return nil, s.outOfReach(ctx, err)
		}
	}
	return out, nil
}

// Seed rebuilds one shard: its tenants' state, then the epoch that opens it. A
// shard that has an epoch is left alone, and so is a tenant that was seeded
// under the same epoch; several callers at once give each value once, because
// values are written, never added. It returns the epoch in force.
func (s *Store) Seed(ctx context.Context, shard int, epoch string, tenants []TenantSeed) (string, error) {
	if !plain(epoch, 1, 64) || strings.ContainsAny(epoch, "-. /") {
		return "", fmt.Errorf("%w: epoch %q", admission.ErrInvalid, epoch)
	}
	for i := range tenants {
		if err := s.seedTenant(ctx, shard, epoch, &tenants[i]); err != nil {
			return "", err
		}
	}
	inForce, err := s.seed.Run(ctx, s.client, []string{s.shardKey(shard, "epoch")}, "finish", epoch).Text()
	if err != nil {
		return "", s.outOfReach(ctx, err)
	}
	return inForce, nil
}

func (s *Store) seedTenant(ctx context.Context, shard int, epoch string, t *TenantSeed) error {
	if t.Tenant == nil || !tenancy.ValidTenantID(t.Tenant.ID) || admission.Shard(t.Tenant.ID, s.opts.Shards) != shard {
		return fmt.Errorf("%w: tenant does not belong to shard %d", admission.ErrInvalid, shard)
	}
	id := t.Tenant.ID
	p := &seedPlan{store: s, shard: shard, tenant: id, held: map[string]int64{}, used: map[string]string{}}
	args := []any{"tenant", epoch, id}
	pool := map[string][]poolSeed{}
	for i := range t.Reservations {
		more, err := p.reservation(&t.Reservations[i], pool)
		if err != nil {
			return err
		}
		args = append(args, more...)
	}
	more, err := p.counters(t)
	if err != nil {
		return err
	}
	args = append(args, more...)
	keys := []string{s.shardKey(shard, "epoch"), s.shardKey(shard, "t:"+id), s.shardKey(shard, "l:"+id), s.shardKey(shard, "tenants")}
	done, err := s.seed.Run(ctx, s.client, keys, args...).Int()
	if err != nil {
		return s.outOfReach(ctx, err)
	}
	if done == 0 || s.pool == nil {
		return nil
	}
	for template, list := range pool {
		for _, l := range list {
			if err := s.poolTemplateCall(ctx, 'H', "", l.hash, l.deadline, template); err != nil {
				return err
			}
		}
	}
	return nil
}

type poolSeed struct {
	hash     string
	deadline int64
}

// seedPlan gathers a tenant's commands for seed.lua.
type seedPlan struct {
	store  *Store
	shard  int
	tenant string
	held   map[string]int64 // by field
	used   map[string]string
}

func (p *seedPlan) reservation(seed *ReservationSeed, pool map[string][]poolSeed) ([]any, error) {
	r := &seed.Reservation
	hash, created, err := admission.ParseReservationID(r.ReservationID)
	if err != nil {
		return nil, fmt.Errorf("seed reservation %.64q: %w", r.ReservationID, err)
	}
	if err := checkLimits(seed.Limits); err != nil {
		return nil, err
	}
	rec := &record{
		hash: hash, tenant: p.tenant, seq: r.Seq, created: created, deadline: r.ExpiresAt.UnixMilli(),
		latest: created + seed.MaxHold.Milliseconds(), body: unknownBody, total: r.Total, hold: r.Total,
		estimated: r.Estimated, weight: max(r.WeightMilli, 1), image: imageTokens(r),
		request: r.RequestID, key: r.KeyID, endpoint: r.Endpoint, model: r.Model,
	}
	rec.latest = max(rec.latest, rec.deadline)
	// The log has the hold in milli-units, which are whole tokens × weight: as
	// output tokens they hold the same.
	rec.hold.OutputTokens += r.HeldMilliUnits / rec.weight
	key := p.store.shardKey(p.shard, "r:"+p.tenant+":"+hash)
	retention := p.store.opts.Retention.Milliseconds()
	switch r.State {
	case events.StateHeld:
		rec.state = 'h'
	case events.StateExpired:
		rec.state = 'x'
	case events.StateSettled:
		rec.state = 's'
	case events.StateCancelled:
		rec.state = 'c'
		if r.Tombstone {
			rec.state = 't'
		}
	default:
		return nil, fmt.Errorf("%w: reservation %s in state %q", admission.ErrInvalid, r.ReservationID, r.State)
	}
	if rec.state != 'h' && rec.state != 'x' {
		return []any{"R", key, string(rec.append(nil)), retention}, nil
	}
	rec.template = string(appendTemplate(nil, seed.Limits, false))
	args := []any{"R", key, string(rec.append(nil)), 0}
	for i := range seed.Limits {
		p.hold(&seed.Limits[i], rec)
	}
	if rec.state == 'x' {
		return args, nil
	}
	args = append(args, "Z", p.store.shardKey(p.shard, "l:"+p.tenant), rec.deadline, hash)
	for i := range seed.Limits {
		c := &seed.Limits[i]
		switch {
		case c.Limit.Kind != tenancy.KindLease || c.Field == admission.TenantLeases:
		case !c.Pool:
			args = append(args, "Z", p.store.shardKey(p.shard, "l:"+p.tenant+":"+c.Field), rec.deadline, hash)
		case !p.store.cluster:
			args = append(args, "Z", p.store.opts.Prefix+"{pool}:l:"+c.Field, rec.deadline, hash)
		}
	}
	if t := poolTemplate(rec.template); t != "" {
		pool[t] = append(pool[t], poolSeed{hash: hash, deadline: rec.deadline})
	}
	return args, nil
}

// imageTokens recovers the quota tokens of an image from a total.
func imageTokens(r *events.Reservation) int64 {
	if r.Total.Images <= 0 || r.WeightMilli <= 0 {
		return 0
	}
	return max(0, (r.TotalMilliUnits/r.WeightMilli-r.Total.InputTokens-r.Total.OutputTokens)/r.Total.Images)
}

// hold adds what an open reservation holds of a limit.
func (p *seedPlan) hold(c *admission.Constraint, r *record) {
	if c.Limit.Kind != tenancy.KindRing && c.Limit.Kind != tenancy.KindCounter {
		return
	}
	var v int64
	switch c.Limit.Metric {
	case tenancy.MetricTokens:
		v = (r.hold.OutputTokens - r.total.OutputTokens) * r.weight
	case tenancy.MetricOutputTokens:
		v = r.hold.OutputTokens - r.total.OutputTokens
	}
	p.held[c.Field] = admission.AddCount(p.held[c.Field], max(0, v))
	if c.Limit.Kind == tenancy.KindRing && p.used[c.Field] == "" {
		width, _ := shape(&c.Limit)
		p.used[c.Field] = strconv.FormatInt(p.store.now().UnixMilli()/width, 10) + ",0,%,0"
	}
	if c.Limit.Kind == tenancy.KindCounter && p.used[c.Field] == "" {
		// Period 0 is before every period: the first use starts the right one.
		p.used[c.Field] = "0,0,%"
	}
}

// counters returns the commands for rings and counters. The place of what is
// held is marked '%' until all holds are known.
func (p *seedPlan) counters(t *TenantSeed) ([]any, error) {
	var args []any
	for i := range t.Rings {
		r := &t.Rings[i]
		if err := checkLimits([]admission.Constraint{r.Constraint}); err != nil || r.Constraint.Limit.Kind != tenancy.KindRing {
			return nil, fmt.Errorf("%w: %q is not a ring", admission.ErrInvalid, r.Constraint.Limit.Name)
		}
		args = append(args, p.ring(r)...)
	}
	for i := range t.Counters {
		c := &t.Counters[i]
		start := c.PeriodStart.Unix()
		if c.Constraint.Limit.Period == tenancy.PeriodNone {
			start = 0
		}
		p.used[c.Constraint.Field] = strconv.FormatInt(start, 10) + "," + strconv.FormatInt(min(max(0, c.Used), admission.MaxCount), 10) + ",%"
	}
	for field, text := range p.used {
		args = append(args, "H", field, strings.Replace(text, "%", strconv.FormatInt(p.held[field], 10), 1))
	}
	return args, nil
}

func (p *seedPlan) ring(r *RingSeed) []any {
	width, slots := shape(&r.Constraint.Limit)
	head := p.store.now().UnixMilli() / width
	sums := map[int64]int64{}
	for _, slot := range r.Slots {
		number := min(slot.Start.UnixMilli()/width, head)
		if number > head-slots {
			sums[number] = admission.AddCount(sums[number], slot.Units)
		}
	}
	field := r.Constraint.Field
	var args []any
	var sum int64
	for number, units := range sums {
		if units <= 0 {
			continue
		}
		sum = admission.AddCount(sum, units)
		if number != head {
			args = append(args, "H", field+"#"+strconv.FormatInt(number%slots, 10),
				strconv.FormatInt(number, 10)+":"+strconv.FormatInt(units, 10))
		}
	}
	p.used[field] = strconv.FormatInt(head, 10) + "," + strconv.FormatInt(sum, 10) + ",%," + strconv.FormatInt(max(0, sums[head]), 10)
	return args
}
