package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tollgate/admission"
	"tollgate/tenancy"
)

// Standing implements admission.Store.
func (s *Store) Standing(ctx context.Context, tenant *tenancy.Tenant, limits []admission.Constraint) (*admission.Standing, error) {
	if tenant == nil || !tenancy.ValidTenantID(tenant.ID) {
		return nil, fmt.Errorf("%w: tenant", admission.ErrInvalid)
	}
	if err := checkLimits(limits); err != nil {
		return nil, err
	}
	out := &admission.Standing{At: s.now().UTC()}
	if len(limits) > 0 {
		d, err := s.look(ctx, tenant, limits)
		if err != nil {
			return nil, err
		}
		var pool []string
		if s.cluster && hasPool(limits) {
			_, states, err := s.poolCall(ctx, 'L', "", "", 0, limits)
			if err != nil {
				return nil, err
			}
			pool = strings.Split(states, ";")
		}
		out.At = time.UnixMilli(d.now).UTC()
		out.Left = d.left(limits, pool)
	}
	var err error
	out.LastRefusals, err = s.lastRefusals(ctx, tenant.ID)
	return out, err
}

// look asks for the states of constraints without changing any.
func (s *Store) look(ctx context.Context, tenant *tenancy.Tenant, limits []admission.Constraint) (decision, error) {
	at := s.now()
	for range clockTries {
		o := newOp(ctx)
		var cal admission.Calendar
		cal, o.calendar = s.calendarFor(tenant, limits, at)
		o.kind, o.tenant = 'Q', tenant.ID
		o.template = appendTemplate(o.template, limits, false)
		if err := s.target(admission.Shard(tenant.ID, s.opts.Shards)).do(o); err != nil {
			return decision{}, err
		}
		reply, batch := o.reply, o.batch
		o.free()
		if reply[0] == 'K' {
			at = time.UnixMilli(batch.now)
			continue
		}
		n, err := strconv.Atoi(strings.TrimPrefix(reply, "P|"))
		if err != nil || n < 1 || n > len(batch.states) {
			return decision{}, verdictError(reply)
		}
		return decision{verdict: 'P', states: batch.states[n-1], now: batch.now, calendar: cal}, nil
	}
	return decision{}, fmt.Errorf("%w: Redis's clock and the calendar disagree", admission.ErrUnavailable)
}

// left turns the script's states into standings. pool holds the states of pool
// constraints where the script had none.
func (d *decision) left(limits []admission.Constraint, pool []string) []admission.Left {
	out := make([]admission.Left, len(limits))
	rest := d.states
	for i := range limits {
		var text string
		text, rest, _ = strings.Cut(rest, ";")
		if limits[i].Pool && len(pool) > 0 {
			text, pool = pool[0], pool[1:]
		}
		d.fill(&out[i], &limits[i], text)
	}
	return out
}

func (d *decision) fill(l *admission.Left, c *admission.Constraint, text string) {
	l.Constraint = *c
	v := numbers(text)
	var used, held int64
	switch c.Limit.Kind {
	case tenancy.KindRing: // head:sum:held:cur
		used, held = v[1], v[2]
		if used > 0 {
			width, slots := shape(&c.Limit)
			l.Reset = max(0, time.Duration((v[0]+slots)*width-d.now)*time.Millisecond)
		}
	case tenancy.KindCounter: // start:used:held
		used, held = v[1], v[2]
		if end := d.calendar.End(c.Limit.Period, d.now/1000); end > 0 {
			l.Reset = max(0, time.Duration(end*1000-d.now)*time.Millisecond)
		}
	case tenancy.KindRate: // theoretical arrival time in µs
		ahead := max(0, v[0]-d.now*1000)
		emission, burst := shape(&c.Limit)
		l.Remaining = max(0, (burst-ahead)/emission)
		l.Used = max(c.Limit.Burst, 1) - l.Remaining
		l.Reset = time.Duration(ahead) * time.Microsecond
		return
	default: // count
		used = v[0]
	}
	l.Used, l.Held = c.LimitUnits(used), c.LimitUnits(held)
	l.Remaining = max(0, c.Units-used-held)
	if c.Limit.Kind != tenancy.KindLease && c.Limit.Metric == tenancy.MetricTokens {
		l.Remaining /= admission.MilliPerUnit
	}
}

func numbers(text string) (v [4]int64) {
	n := 0
	for i := 0; i < len(text) && n < len(v); i++ {
		switch c := text[i]; {
		case c == ',':
			n++
		case c >= '0' && c <= '9':
			v[n] = v[n]*10 + int64(c-'0')
		}
	}
	return v
}

// zone caches the calendar of a time zone while it holds.
type zone struct {
	location *time.Location
	current  atomic.Pointer[dated]
}

type dated struct {
	admission.Calendar
	text string
}

// calendarFor returns no calendar where no limit needs one.
func (s *Store) calendarFor(tenant *tenancy.Tenant, limits []admission.Constraint, at time.Time) (admission.Calendar, string) {
	for i := range limits {
		if l := &limits[i].Limit; l.Kind == tenancy.KindCounter && l.Period != tenancy.PeriodNone {
			return s.calendarAt(tenant, at)
		}
	}
	return admission.Calendar{}, ""
}

// calendarAt returns the boundaries around at in the tenant's zone, and their
// text for the script. A zone that this machine does not know counts as UTC,
// as the tenant's document was refused with such a zone.
func (s *Store) calendarAt(tenant *tenancy.Tenant, at time.Time) (admission.Calendar, string) {
	v, ok := s.zones.Load(tenant.TimeZone)
	if !ok {
		loc, err := time.LoadLocation(tenant.TimeZone)
		if err != nil {
			s.log.Error("time zone is unknown here; counting in UTC", "tenant", tenant.ID, "time_zone", tenant.TimeZone)
			loc = time.UTC
		}
		v, _ = s.zones.LoadOrStore(tenant.TimeZone, &zone{location: loc})
	}
	z := v.(*zone)
	if d := z.current.Load(); d != nil && at.Unix() >= d.DayStart && at.Unix() < d.DayEnd {
		return d.Calendar, d.text
	}
	d := &dated{Calendar: admission.CalendarAt(at, z.location)}
	b := make([]byte, 0, 80)
	for i, v := range [...]int64{d.DayStart, d.DayEnd, d.DayNextEnd, d.MonthStart, d.MonthEnd, d.MonthNextEnd} {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	d.text = string(b)
	z.current.Store(d)
	return d.Calendar, d.text
}

// noter writes last refusals beside the request path, at most one a second for
// a tenant's limit.
type noter struct {
	mu      sync.Mutex
	last    map[string]time.Time
	pending map[string]map[string]string // key → limit → ms|reason
	writing bool
}

const (
	noteEvery = time.Second
	maxNotes  = 4096
)

func (s *Store) note(tenantID string, r *admission.Refusal) {
	name := r.Constraint.Limit.Name
	now := time.Now()
	id := tenantID + "|" + name
	n := &s.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last == nil {
		n.last, n.pending = map[string]time.Time{}, map[string]map[string]string{}
	}
	if now.Sub(n.last[id]) < noteEvery || s.stopping.Load() {
		return
	}
	if len(n.last) >= maxNotes {
		clear(n.last)
	}
	n.last[id] = now
	key := s.shardKey(admission.Shard(tenantID, s.opts.Shards), "f:"+tenantID)
	if n.pending[key] == nil {
		n.pending[key] = map[string]string{}
	}
	n.pending[key][name] = strconv.FormatInt(s.now().UnixMilli(), 10) + "|" + r.Reason
	if !n.writing {
		n.writing = true
		s.running.Add(1)
		go s.writeNotes()
	}
}

func (s *Store) writeNotes() {
	defer s.running.Done()
	n := &s.notes
	for {
		n.mu.Lock()
		pending := n.pending
		if len(pending) == 0 {
			n.writing = false
			n.mu.Unlock()
			return
		}
		n.pending = map[string]map[string]string{}
		n.mu.Unlock()

		ctx, cancel := context.WithTimeout(context.Background(), s.opts.Timeout)
		pipe := s.client.Pipeline()
		for key, values := range pending {
			pipe.HSet(ctx, key, values)
			pipe.PExpire(ctx, key, 30*24*time.Hour)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			s.metrics.notesDropped.Inc() // an observation: the next one may do
		}
		cancel()
	}
}

func (s *Store) lastRefusals(ctx context.Context, tenantID string) (map[string]admission.LastRefusal, error) {
	values, err := s.client.HGetAll(ctx, s.shardKey(admission.Shard(tenantID, s.opts.Shards), "f:"+tenantID)).Result()
	if err != nil {
		return nil, s.outOfReach(ctx, err)
	}
	out := make(map[string]admission.LastRefusal, len(values))
	for name, text := range values {
		ms, reason, _ := strings.Cut(text, "|")
		at, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			continue // an observation that cannot be read is none
		}
		out[name] = admission.LastRefusal{At: time.UnixMilli(at).UTC(), Reason: reason}
	}
	return out, nil
}
