package redis

import (
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// model is the plain reading of the rules: it keeps every use with its time and
// counts by looking at all of them. It shares no code with the script.
type model struct {
	now     int64 // ms
	tenants map[string]*modelTenant
	pool    map[string]map[string]*modelReservation // field → open reservations
}

type modelTenant struct {
	rings    map[string]*modelRing
	counters map[string]*modelCounter
	rates    map[string]int64 // field → theoretical arrival, µs
	byHash   map[string]*modelReservation
}

type modelRing struct {
	uses map[int64]int64 // slot → units
	held int64
}

type modelCounter struct {
	start, used, held int64
}

type modelReservation struct {
	hash, request    string
	state            events.State
	tombstone        bool
	created          int64
	deadline, latest int64
	body             [16]byte
	hold, total      events.Usage
	weight, image    int64
	limits           []admission.Constraint
	tenant           *modelTenant
}

func newModel() *model {
	return &model{tenants: map[string]*modelTenant{}, pool: map[string]map[string]*modelReservation{}}
}

func (m *model) tenant(id string) *modelTenant {
	if m.tenants[id] == nil {
		m.tenants[id] = &modelTenant{
			rings: map[string]*modelRing{}, counters: map[string]*modelCounter{},
			rates: map[string]int64{}, byHash: map[string]*modelReservation{},
		}
	}
	return m.tenants[id]
}

func (t *modelTenant) ring(c *admission.Constraint) *modelRing {
	if t.rings[c.Field] == nil {
		t.rings[c.Field] = &modelRing{uses: map[int64]int64{}}
	}
	return t.rings[c.Field]
}

func slotOf(c *admission.Constraint, ms int64) int64 {
	return ms / (time.Duration(c.Limit.Window).Milliseconds() / int64(c.Limit.Slots))
}

func (m *model) ringSum(r *modelRing, c *admission.Constraint) int64 {
	head := slotOf(c, m.now)
	var sum int64
	for slot, units := range r.uses {
		if slot > head-int64(c.Limit.Slots) {
			sum += units
		}
	}
	return sum
}

// ringWait is when need units have left, by trying every slot's end.
func (m *model) ringWait(r *modelRing, c *admission.Constraint, need int64) int64 {
	width := time.Duration(c.Limit.Window).Milliseconds() / int64(c.Limit.Slots)
	head := slotOf(c, m.now)
	var left int64
	for slot := head - int64(c.Limit.Slots) + 1; slot <= head; slot++ {
		left += r.uses[slot]
		if left >= need || slot == head {
			return (slot+int64(c.Limit.Slots))*width - m.now
		}
	}
	return 0
}

func (m *model) counter(t *modelTenant, c *admission.Constraint) *modelCounter {
	if t.counters[c.Field] == nil {
		t.counters[c.Field] = &modelCounter{}
	}
	n := t.counters[c.Field]
	at := time.UnixMilli(m.now).UTC()
	var start time.Time
	switch c.Limit.Period {
	case tenancy.PeriodDay:
		start = time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, time.UTC)
	case tenancy.PeriodMonth:
		start = time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
	default:
		return n
	}
	if start.Unix() > n.start {
		n.start, n.used = start.Unix(), 0
	}
	return n
}

func (m *model) periodEnd(p tenancy.Period) int64 {
	at := time.UnixMilli(m.now).UTC()
	if p == tenancy.PeriodDay {
		return time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, time.UTC).UnixMilli()
	}
	return time.Date(at.Year(), at.Month()+1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
}

// inUse counts live leases of a constraint, and the soonest end in ms.
func (m *model) inUse(t *modelTenant, c *admission.Constraint) (n, soonest int64) {
	soonest = 5000
	count := func(r *modelReservation) {
		if r.state == events.StateHeld && r.deadline > m.now {
			n++
			soonest = min(soonest, r.deadline-m.now)
		}
	}
	if c.Pool {
		for _, r := range m.pool[c.Field] {
			count(r)
		}
		return n, soonest
	}
	for _, r := range t.byHash {
		for i := range r.limits {
			if c.Field == admission.TenantLeases || r.limits[i].Field == c.Field {
				count(r)
				break
			}
		}
		if c.Field == admission.TenantLeases && len(r.limits) == 0 {
			count(r)
		}
	}
	return n, soonest
}

func figure(u events.Usage, weight, image int64, metric tenancy.Metric) int64 {
	switch metric {
	case tenancy.MetricTokens:
		return (u.InputTokens + u.OutputTokens + u.Images*image) * weight
	case tenancy.MetricInputTokens:
		return u.InputTokens
	case tenancy.MetricOutputTokens:
		return u.OutputTokens
	case tenancy.MetricImages:
		return u.Images
	case tenancy.MetricRequests:
		return 1
	}
	return 0
}

// verdict is what the model expects of a refusal.
type verdict struct {
	name, reason string
	wait         time.Duration
}

func wholeSeconds(ms int64) time.Duration {
	return time.Duration(max(1, (ms+999)/1000)) * time.Second
}

// why says how a constraint refuses cost on top of used and held, or "".
func (m *model) why(t *modelTenant, c *admission.Constraint, cost int64) (reason string, wait int64) {
	var used, held int64
	switch c.Limit.Kind {
	case tenancy.KindLease:
		n, soonest := m.inUse(t, c)
		if n+1 > c.Units {
			return admission.ReasonConcurrency, soonest
		}
		return "", 0
	case tenancy.KindRate:
		emission := time.Duration(c.Limit.Window).Microseconds() / c.Limit.Limit
		late := max(t.rates[c.Field], m.now*1000) + emission - emission*c.Limit.Burst - m.now*1000
		if late > 0 {
			return admission.ReasonRate, (late + 999) / 1000
		}
		return "", 0
	case tenancy.KindRing:
		r := t.ring(c)
		used, held = m.ringSum(r, c), r.held
	default:
		n := m.counter(t, c)
		used, held = n.used, n.held
	}
	if used+held+cost <= c.Units {
		return "", 0
	}
	switch {
	case cost > c.Units:
		reason = admission.ReasonTooLarge
	case used+cost <= c.Units:
		_, soonest := m.inUse(t, &admission.Constraint{Field: admission.TenantLeases})
		return admission.ReasonHeld, soonest
	case c.Limit.Budget:
		return admission.ReasonSpent, -1
	default:
		reason = admission.ReasonWindow
	}
	if c.Limit.Budget || c.Limit.Period == tenancy.PeriodNone {
		return reason, -1
	}
	if c.Limit.Kind == tenancy.KindCounter {
		return reason, m.periodEnd(c.Limit.Period) - m.now
	}
	if reason == admission.ReasonTooLarge {
		return reason, m.ringWait(t.ring(c), c, max(1, used))
	}
	return reason, m.ringWait(t.ring(c), c, used+cost-c.Units)
}

func (m *model) binding(t *modelTenant, limits []admission.Constraint, cost func(*admission.Constraint) int64, skip func(*admission.Constraint) bool) *verdict {
	var worst *verdict
	worstRank, worstWait := 0, int64(0)
	for i := range limits {
		c := &limits[i]
		if skip(c) {
			continue
		}
		reason, wait := m.why(t, c, cost(c))
		if reason == "" {
			continue
		}
		rank := 1
		if wait < 0 {
			rank = 2
		}
		if reason == admission.ReasonSpent {
			rank = 3
		}
		if worst == nil || rank > worstRank || rank == worstRank && wait > worstWait {
			worst = &verdict{c.Limit.Name, reason, 0}
			if wait >= 0 {
				worst.wait = wholeSeconds(wait)
			}
			worstRank, worstWait = rank, wait
		}
	}
	return worst
}

func (m *model) reserve(req *admission.ReserveRequest) (r *modelReservation, replayed bool, refusal *verdict, err error) {
	t := m.tenant(req.Tenant.ID)
	hash := admission.RequestHash(req.Tenant.ID, req.RequestID)
	if r := t.byHash[hash]; r != nil {
		switch {
		case r.tombstone:
			return nil, false, nil, admission.ErrTombstone
		case r.body != req.BodyHash:
			return nil, false, nil, admission.ErrBodyMismatch
		}
		return r, true, nil, nil
	}
	cost := func(c *admission.Constraint) int64 {
		return figure(req.Hold, req.WeightMilli, req.ImageTokens, c.Limit.Metric)
	}
	free := func(c *admission.Constraint) bool {
		return (c.Limit.Kind == tenancy.KindRing || c.Limit.Kind == tenancy.KindCounter) && cost(c) == 0
	}
	if v := m.binding(t, req.Limits, cost, free); v != nil {
		return nil, false, v, nil
	}
	r = &modelReservation{
		hash: hash, request: req.RequestID, state: events.StateHeld, created: m.now, body: req.BodyHash, hold: req.Hold,
		weight: req.WeightMilli, image: req.ImageTokens, limits: req.Limits, tenant: t,
		latest: m.now + req.MaxHold.Milliseconds(), deadline: m.now + min(req.TTL, req.MaxHold).Milliseconds(),
	}
	t.byHash[hash] = r
	for i := range req.Limits {
		c := &req.Limits[i]
		switch c.Limit.Kind {
		case tenancy.KindRate:
			t.rates[c.Field] = max(t.rates[c.Field], m.now*1000) + time.Duration(c.Limit.Window).Microseconds()/c.Limit.Limit
		case tenancy.KindLease:
			if c.Pool {
				if m.pool[c.Field] == nil {
					m.pool[c.Field] = map[string]*modelReservation{}
				}
				m.pool[c.Field][hash] = r
			}
		case tenancy.KindRing:
			if c.Limit.Metric == tenancy.MetricRequests {
				t.ring(c).uses[slotOf(c, m.now)]++
			} else {
				t.ring(c).held += cost(c)
			}
		case tenancy.KindCounter:
			if c.Limit.Metric == tenancy.MetricRequests {
				m.counter(t, c).used++
			} else {
				m.counter(t, c).held += cost(c)
			}
		}
	}
	return r, false, nil, nil
}

// move brings a reservation from one total to the next.
func (m *model) move(r *modelReservation, total events.Usage, ended bool) {
	for i := range r.limits {
		c := &r.limits[i]
		if c.Limit.Kind != tenancy.KindRing && c.Limit.Kind != tenancy.KindCounter || c.Limit.Metric == tenancy.MetricRequests {
			continue
		}
		of := func(u events.Usage) int64 { return figure(u, r.weight, r.image, c.Limit.Metric) }
		held := max(0, of(r.hold)-of(r.total))
		rest := max(0, of(r.hold)-of(total))
		if ended {
			rest = 0
		}
		delta := of(total) - of(r.total)
		if c.Limit.Kind == tenancy.KindCounter {
			n := m.counter(r.tenant, c)
			n.held += rest - held
			n.used = max(0, n.used+delta)
			continue
		}
		ring := r.tenant.ring(c)
		ring.held += rest - held
		head := slotOf(c, m.now)
		if delta > 0 {
			ring.uses[head] += delta
		}
		for slot := head; delta < 0 && slot > head-int64(c.Limit.Slots); slot-- {
			part := min(-delta, ring.uses[slot])
			ring.uses[slot] -= part
			delta += part
		}
	}
	r.total = total
}

func larger(a, b events.Usage) events.Usage {
	return events.Usage{
		InputTokens: max(a.InputTokens, b.InputTokens), OutputTokens: max(a.OutputTokens, b.OutputTokens),
		Images: max(a.Images, b.Images),
	}
}

func (m *model) report(r *modelReservation, total events.Usage, ttl time.Duration) (stop *verdict, err error) {
	total = larger(r.total, total)
	if r.state == events.StateSettled || r.state == events.StateCancelled {
		if total != r.total {
			return nil, admission.ErrAlreadyFinal
		}
		return nil, nil
	}
	if r.deadline <= m.now {
		r.state = events.StateExpired
	}
	m.move(r, total, false)
	if r.state == events.StateExpired {
		return &verdict{reason: admission.ReasonExpired}, nil
	}
	if ttl > 0 {
		r.deadline = max(r.deadline, min(m.now+ttl.Milliseconds(), r.latest))
	}
	within := func(c *admission.Constraint) bool {
		if c.Limit.Kind != tenancy.KindRing && c.Limit.Kind != tenancy.KindCounter || c.Limit.Metric == tenancy.MetricRequests {
			return true
		}
		return figure(r.total, r.weight, r.image, c.Limit.Metric) <= figure(r.hold, r.weight, r.image, c.Limit.Metric)
	}
	return m.binding(r.tenant, r.limits, func(*admission.Constraint) int64 { return 0 }, within), nil
}

func (m *model) finish(r *modelReservation, state events.State, total events.Usage, soFar bool) error {
	if r.tombstone {
		if state == events.StateCancelled {
			return nil
		}
		return admission.ErrTombstone
	}
	if soFar {
		total = r.total
	}
	if r.state == events.StateSettled || r.state == events.StateCancelled {
		if r.state == state && r.total == total {
			return nil
		}
		return admission.ErrAlreadyFinal
	}
	m.move(r, total, true)
	r.state = state
	return nil
}

func (m *model) sweep() (expired int) {
	for _, t := range m.tenants {
		for _, r := range t.byHash {
			if r.state == events.StateHeld && r.deadline <= m.now {
				r.state = events.StateExpired
				expired++
			}
		}
	}
	return expired
}
