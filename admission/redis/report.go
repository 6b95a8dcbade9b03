package redis

import (
	"context"
	"fmt"
	"strings"
	"time"

	"tollgate/admission"
)

// Report implements admission.Store.
func (s *Store) Report(ctx context.Context, rep *admission.UsageReport) (*admission.Reservation, error) {
	return s.report(ctx, 'U', rep)
}

// Settle implements admission.Store.
func (s *Store) Settle(ctx context.Context, rep *admission.UsageReport) (*admission.Reservation, error) {
	return s.report(ctx, 'S', rep)
}

// Cancel implements admission.Store.
func (s *Store) Cancel(ctx context.Context, rep *admission.UsageReport) (*admission.Reservation, error) {
	return s.report(ctx, 'C', rep)
}

func (s *Store) report(ctx context.Context, kind byte, rep *admission.UsageReport) (*admission.Reservation, error) {
	if err := checkReport(rep); err != nil {
		return nil, err
	}
	hash, created := "", int64(0)
	if rep.ReservationID != "" {
		var err error
		if hash, created, err = admission.ParseReservationID(rep.ReservationID); err != nil {
			return nil, err
		}
	} else {
		if !plain(rep.RequestID, 1, maxIDBytes) {
			return nil, fmt.Errorf("%w: neither a reservation nor a request id", admission.ErrInvalid)
		}
		hash = admission.RequestHash(rep.Tenant.ID, rep.RequestID)
	}
	at := s.now()
	for range clockTries {
		o := newOp(ctx)
		_, o.calendar = s.calendarAt(rep.Tenant, at)
		encodeReport(o, kind, rep, hash, created)
		if err := s.target(admission.Shard(rep.Tenant.ID, s.opts.Shards)).do(o); err != nil {
			return nil, err
		}
		reply, batch := o.reply, o.batch
		o.free()
		switch reply[0] {
		case 'K':
			at = time.UnixMilli(batch.now)
			continue
		case 'D':
			r, err := parseRecord(reply[2:], hash)
			if err != nil {
				return nil, err
			}
			res, err := r.reservation()
			if err != nil {
				return nil, err
			}
			return res, admission.ErrAlreadyFinal
		case 'O':
			return s.reported(ctx, rep, reply, hash)
		}
		return nil, verdictError(reply)
	}
	return nil, fmt.Errorf("%w: Redis's clock and the calendar disagree", admission.ErrUnavailable)
}

// reported reads O|replayed|stop|pool template|record and, on a cluster, brings
// the pool's leases in line.
func (s *Store) reported(ctx context.Context, rep *admission.UsageReport, reply, hash string) (*admission.Reservation, error) {
	f := strings.SplitN(reply, "|", 5)
	if len(f) != 5 {
		return nil, fmt.Errorf("%w: script answered %q", admission.ErrUnavailable, reply)
	}
	r, err := parseRecord(f[4], hash)
	if err != nil {
		return nil, err
	}
	res, err := r.reservation()
	if err != nil {
		return nil, err
	}
	res.Replayed = f[1] == "1"
	if f[2] == "e" {
		res.Stop = &admission.Refusal{Reason: admission.ReasonExpired}
	} else if f[2] != "" {
		stop, err := parseRuling(f[2], func(i int) admission.Constraint { return constraintAt(r.template, i, rep.Tenant) }, strings.Count(r.template, ";"))
		if err != nil {
			return nil, err
		}
		res.Stop = stop.refusal
	}
	if f[3] != "" && s.pool != nil {
		s.followPool(ctx, r, f[3])
	}
	return res, nil
}

// followPool extends or releases a reservation's pool leases after the tenant's
// script has decided. It is done and recorded; a failure here only makes a
// lease end at its deadline instead of now.
func (s *Store) followPool(ctx context.Context, r *record, template string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Timeout)
	defer cancel()
	var err error
	switch r.state {
	case 'h':
		err = s.poolTemplateCall(ctx, 'H', "", r.hash, r.deadline, template)
	case 's', 'c':
		err = s.poolTemplateCall(ctx, 'Z', r.hash, "", 0, template)
	}
	if err != nil {
		s.log.Warn("pool lease not brought in line; it ends at its deadline", "reservation", admission.ReservationID(r.hash, r.created), "error", err)
	}
}
