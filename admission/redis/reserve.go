package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tollgate/admission"
)

// attemptTTL bounds a pool lease whose reservation is not decided yet.
const attemptTTL = 10 * time.Second

// clockTries is how often a request is sent again because Redis's clock is
// outside the calendar that was sent with it.
const clockTries = 3

// Reserve implements admission.Store.
func (s *Store) Reserve(ctx context.Context, req *admission.ReserveRequest) (*admission.Reservation, error) {
	if err := checkReserve(req); err != nil {
		return nil, err
	}
	hash := admission.RequestHash(req.Tenant.ID, req.RequestID)
	var res *admission.Reservation
	var err error
	if s.cluster && hasPool(req.Limits) {
		res, err = s.reservePooled(ctx, req, hash)
	} else {
		var d decision
		if d, err = s.decideReserve(ctx, req, hash, false); err == nil {
			res, err = d.answer(req, hash, nil)
		}
	}
	if refusal, ok := err.(*admission.Refusal); ok { //nolint:errorlint // made here, never wrapped
		s.metrics.refused(refusal)
		s.note(req.Tenant.ID, refusal)
	}
	return res, err
}

func hasPool(limits []admission.Constraint) bool {
	for i := range limits {
		if limits[i].Pool {
			return true
		}
	}
	return false
}

// decision is a reserve operation's answer, before it is put into words.
type decision struct {
	verdict  byte // A admitted, Y replayed, F refused, P would be admitted
	rest     string
	states   string
	now      int64
	calendar admission.Calendar
}

// decideReserve sends one reserve operation; dry asks without reserving.
func (s *Store) decideReserve(ctx context.Context, req *admission.ReserveRequest, hash string, dry bool) (decision, error) {
	at := s.now()
	for range clockTries {
		cal, text := s.calendarFor(req.Tenant, req.Limits, at)
		o := newOp(ctx)
		o.calendar = text
		if err := encodeReserve(o, req, hash, dry); err != nil {
			o.free()
			return decision{}, err
		}
		if err := s.target(admission.Shard(req.Tenant.ID, s.opts.Shards)).do(o); err != nil {
			return decision{}, err // not freed: its batch may still hold it
		}
		reply, batch := o.reply, o.batch
		o.free()
		switch reply[0] {
		case 'K':
			at = time.UnixMilli(batch.now)
			continue
		case 'A', 'Y', 'F', 'P':
			index, rest, _ := strings.Cut(reply[2:], "|")
			n, err := strconv.Atoi(index)
			if err != nil || n < 1 || n > len(batch.states) {
				return decision{}, fmt.Errorf("%w: script answered %q", admission.ErrUnavailable, reply)
			}
			return decision{verdict: reply[0], rest: rest, states: batch.states[n-1], now: batch.now, calendar: cal}, nil
		}
		return decision{}, verdictError(reply)
	}
	return decision{}, fmt.Errorf("%w: Redis's clock and the calendar disagree", admission.ErrUnavailable)
}

// verdictError turns the one-letter answers into errors.
func verdictError(reply string) error {
	switch reply[0] {
	case 'E':
		return admission.ErrNotRebuilt
	case 'B':
		return admission.ErrBacklogFull
	case 'M':
		return admission.ErrBodyMismatch
	case 'T':
		return admission.ErrTombstone
	case 'N':
		return admission.ErrNotFound
	case 'V':
		return fmt.Errorf("%w: more than 2^52 milli-units", admission.ErrInvalid)
	}
	return fmt.Errorf("%w: script answered %q", admission.ErrUnavailable, reply)
}

// answer makes the reservation or the refusal of a decision. pool holds the
// states of pool constraints that another call decided, in their order.
func (d *decision) answer(req *admission.ReserveRequest, hash string, pool []string) (*admission.Reservation, error) {
	switch d.verdict {
	case 'A':
		created, deadline, ok := strings.Cut(d.rest, "|")
		c, err1 := strconv.ParseInt(created, 10, 64)
		e, err2 := strconv.ParseInt(deadline, 10, 64)
		if !ok || err1 != nil || err2 != nil {
			return nil, fmt.Errorf("%w: script answered %q", admission.ErrUnavailable, d.rest)
		}
		units, err := admission.Units(req.Hold, req.WeightMilli, req.ImageTokens)
		if err != nil {
			return nil, err
		}
		return &admission.Reservation{
			ID: admission.ReservationID(hash, c), RequestID: req.RequestID, State: "held", AdmittedUnits: units,
			CreatedAt: time.UnixMilli(c).UTC(), ExpiresAt: time.UnixMilli(e).UTC(),
			Left: d.left(req.Limits, pool),
		}, nil
	case 'Y':
		r, err := parseRecord(d.rest, hash)
		if err != nil {
			return nil, err
		}
		res, err := r.reservation()
		if err != nil {
			return nil, err
		}
		res.Replayed, res.Left = true, d.left(req.Limits, pool)
		return res, nil
	case 'F':
		r, err := d.ruling(req)
		if err != nil {
			return nil, err
		}
		return nil, r.refusal
	}
	return nil, fmt.Errorf("%w: unexpected verdict %q", admission.ErrUnavailable, string(d.verdict))
}

var reasons = map[string]string{
	"c": admission.ReasonConcurrency, "r": admission.ReasonRate, "h": admission.ReasonHeld,
	"s": admission.ReasonSpent, "w": admission.ReasonWindow, "l": admission.ReasonTooLarge,
}

// ruling is a refusal with its wait as the script gave it: ms, or -1 for never.
type ruling struct {
	refusal *admission.Refusal
	wait    int64
}

// parseRuling reads index,reason,used,held,cost,wait; at gives the constraint
// of an index below n.
func parseRuling(text string, at func(int) admission.Constraint, n int) (*ruling, error) {
	f := strings.Split(text, ",")
	bad := fmt.Errorf("%w: script refused with %q", admission.ErrUnavailable, text)
	if len(f) != 6 {
		return nil, bad
	}
	var v [6]int64
	for _, i := range [...]int{0, 2, 3, 4, 5} {
		var err error
		if v[i], err = strconv.ParseInt(f[i], 10, 64); err != nil {
			return nil, bad
		}
	}
	if v[0] < 0 || int(v[0]) >= n || reasons[f[1]] == "" {
		return nil, bad
	}
	c := at(int(v[0]))
	return &ruling{wait: v[5], refusal: &admission.Refusal{
		Constraint: c, Reason: reasons[f[1]],
		Used: c.LimitUnits(v[2]), Held: c.LimitUnits(v[3]), Requested: c.LimitUnits(v[4]),
		RetryAfter: retryAfter(&c, v[5]),
	}}, nil
}

// retryAfter rounds a wait up to whole seconds, at least one and at most the
// window. A negative wait means never.
func retryAfter(c *admission.Constraint, waitMillis int64) time.Duration {
	if waitMillis < 0 {
		return 0
	}
	wait := time.Duration(waitMillis) * time.Millisecond
	if window := time.Duration(c.Limit.Window); c.Limit.Kind == "ring" && window > 0 {
		wait = min(wait, window)
	}
	wait = (wait + time.Second - 1).Truncate(time.Second)
	return max(wait, time.Second)
}

// reservePooled is Reserve on a cluster: the pool is leased under the attempt's
// own name first, then the tenant's script decides, then the lease is kept
// under the reservation's name or given back. An attempt that is lost between
// frees its lease after attemptTTL, and its answer was never given.
func (s *Store) reservePooled(ctx context.Context, req *admission.ReserveRequest, hash string) (*admission.Reservation, error) {
	attempt := hash + "." + s.attemptID + "." + strconv.FormatUint(s.attempts.Add(1), 36)
	refusal, states, err := s.poolCall(ctx, 'P', attempt, "", 0, req.Limits)
	if err != nil {
		return nil, err
	}
	// A refusal by the pool does not end it: the request may be a repeat of one
	// that was admitted, or a narrower limit may bind harder.
	d, err := s.decideReserve(ctx, req, hash, refusal != nil)
	if err != nil {
		if refusal == nil {
			s.giveBack(ctx, attempt, req.Limits)
		}
		return nil, err
	}
	pool := strings.Split(states, ";")
	switch d.verdict {
	case 'P':
		return nil, refusal.refusal
	case 'F':
		if refusal == nil {
			s.giveBack(ctx, attempt, req.Limits)
		}
		narrow, err := d.ruling(req)
		if err != nil {
			return nil, err
		}
		return nil, bindsHarder(narrow, refusal).refusal
	}
	res, err := d.answer(req, hash, pool)
	if err != nil {
		return nil, err
	}
	if res.State != "held" {
		if refusal == nil {
			s.giveBack(ctx, attempt, req.Limits)
		}
		return res, nil
	}
	kind := byte('H')
	if refusal != nil {
		kind, attempt = 'J', "" // no room: only a lease that is there is kept
	}
	refused, _, err := s.poolCall(ctx, kind, attempt, hash, res.ExpiresAt.UnixMilli(), req.Limits)
	if err != nil {
		return nil, err // the caller repeats and meets the reservation
	}
	if refused != nil {
		return nil, refused.refusal
	}
	return res, nil
}

func (d *decision) ruling(req *admission.ReserveRequest) (*ruling, error) {
	return parseRuling(d.rest, func(i int) admission.Constraint { return req.Limits[i] }, len(req.Limits))
}

// bindsHarder chooses as the script does: a spent budget or what never passes
// before a wait, then the longer wait, then the narrower. Pool limits always
// have a wait.
func bindsHarder(narrow, pool *ruling) *ruling {
	if pool == nil || narrow.wait < 0 || narrow.wait >= pool.wait {
		return narrow
	}
	return pool
}

// poolCall runs one pool operation over the pool constraints of limits. It
// returns the pool's refusal and the states of those constraints.
func (s *Store) poolCall(ctx context.Context, kind byte, member, hash string, deadline int64, limits []admission.Constraint) (refusal *ruling, states string, err error) {
	o := newOp(ctx)
	o.template = appendTemplate(o.template, limits, true)
	encodePool(o, kind, member, hash, attemptTTL, deadline)
	if err := s.pool.do(o); err != nil {
		return nil, "", err
	}
	reply, batch := o.reply, o.batch
	o.free()
	index, rest, _ := strings.Cut(reply[2:], "|")
	n, convErr := strconv.Atoi(index)
	if convErr != nil || n < 1 || n > len(batch.states) {
		return nil, "", fmt.Errorf("%w: script answered %q", admission.ErrUnavailable, reply)
	}
	if reply[0] == 'F' {
		if refusal, err = parseRuling(rest, func(i int) admission.Constraint { return poolAt(limits, i) }, len(limits)); err != nil {
			return nil, "", err
		}
	}
	return refusal, batch.states[n-1], nil
}

// poolTemplateCall is poolCall for constraints that a record names.
func (s *Store) poolTemplateCall(ctx context.Context, kind byte, member, hash string, deadline int64, template string) error {
	o := newOp(ctx)
	o.template = append(o.template, template...)
	encodePool(o, kind, member, hash, attemptTTL, deadline)
	if err := s.pool.do(o); err != nil {
		return err
	}
	o.free()
	return nil
}

func poolAt(limits []admission.Constraint, n int) admission.Constraint {
	for i := range limits {
		if limits[i].Pool {
			if n == 0 {
				return limits[i]
			}
			n--
		}
	}
	return admission.Constraint{}
}

// giveBack returns an attempt's pool lease, also for a caller that has gone. A
// lease that cannot be given back ends by itself.
func (s *Store) giveBack(ctx context.Context, attempt string, limits []admission.Constraint) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Timeout)
	defer cancel()
	if _, _, err := s.poolCall(ctx, 'Z', attempt, "", 0, limits); err != nil {
		s.log.Warn("pool lease not given back; it ends by itself", "lease", attempt, "error", err)
	}
}
