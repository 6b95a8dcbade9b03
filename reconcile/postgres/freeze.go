package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"tollgate/events"
	"tollgate/reconcile"
)

// maxEventCount is the largest count that an event may carry.
const maxEventCount = int64(1) << 53

// Freeze is a stop of automatic settlement for one tenant.
type Freeze struct {
	ID             int64     `json:"id"`
	TenantID       string    `json:"tenant_id"`
	WindowKind     string    `json:"window_kind"` // "hour", "day" or "manual"
	WindowStart    time.Time `json:"window_start"`
	WindowEnd      time.Time `json:"window_end"`
	GatewayTokens  int64     `json:"gateway_tokens"`
	ModelTokens    int64     `json:"model_tokens"`
	GatewayGPU     int64     `json:"gateway_gpu_ms"`
	MeterGPU       int64     `json:"meter_gpu_ms"`
	TokensPPM      int64     `json:"tokens_ppm"`
	GPUPPM         int64     `json:"gpu_ppm"`
	Author         string    `json:"author"`
	Reason         string    `json:"reason"`
	FrozenAt       time.Time `json:"frozen_at"`
	UnfrozenAt     time.Time `json:"unfrozen_at,omitzero"`
	UnfrozenBy     string    `json:"unfrozen_by,omitempty"`
	UnfreezeReason string    `json:"unfreeze_reason,omitempty"`
	Queued         int64     `json:"queued"` // settlements that wait for the unfreeze
}

// UnfreezeResult says what an unfreeze set free.
type UnfreezeResult struct {
	Freeze  Freeze `json:"freeze"`
	Applied int    `json:"applied"` // settlements that admission took, or had from somebody else
	Waiting int64  `json:"waiting"` // left to the reconciler at work, or failed
	// Published is false when the log did not take the event yet; the next run
	// sends it.
	Published bool `json:"published"`
}

// Freeze stops automatic settlement of a tenant by hand. It returns ErrFrozen
// or ErrReasonMissing.
func (r *Reconciler) Freeze(ctx context.Context, tenant, author, reason string) (Freeze, error) {
	if err := checkReason(author, reason); err != nil {
		return Freeze{}, err
	}
	now := r.now()
	f := Freeze{
		TenantID: tenant, WindowKind: "manual", WindowStart: now, WindowEnd: now,
		Author: author, Reason: reason, FrozenAt: now,
	}
	err := inTx(ctx, r.pool, func(tx pgx.Tx) error { return freeze(ctx, tx, &f) })
	if err != nil {
		return Freeze{}, err
	}
	r.tryPublish(ctx)
	return f, nil
}

// freeze writes the freeze and its event, and sets f.ID. No balance is touched.
func freeze(ctx context.Context, tx pgx.Tx, f *Freeze) error {
	err := tx.QueryRow(ctx, `
		INSERT INTO settlement_freezes (tenant_id, window_kind, window_start, window_end, gateway_tokens, model_tokens,
		    gateway_gpu_ms, meter_gpu_ms, tokens_ppm, gpu_ppm, author, reason, frozen_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
		ON CONFLICT (tenant_id) WHERE unfrozen_at IS NULL DO NOTHING
		RETURNING freeze_id`,
		f.TenantID, f.WindowKind, f.WindowStart, f.WindowEnd, f.GatewayTokens, f.ModelTokens,
		f.GatewayGPU, f.MeterGPU, f.TokensPPM, f.GPUPPM, f.Author, f.Reason, f.FrozenAt).Scan(&f.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return reconcile.ErrFrozen
	}
	if err != nil {
		return fmt.Errorf("freeze tenant %s: %w", f.TenantID, err)
	}
	return settlementEvent(ctx, tx, events.TypeFrozen, "reconcile-freeze", f, f.Author, f.Reason, f.FrozenAt)
}

// Unfreeze lets automatic settlement of a tenant go on and applies what was
// queued. It needs an author and a reason, and returns ErrReasonMissing or
// ErrNotFrozen. When another reconciler is at work, or this one has no settler,
// the queue is left to the next run; a crash after the unfreeze leaves it there
// too. Either way each settlement is applied once.
func (r *Reconciler) Unfreeze(ctx context.Context, tenant, author, reason string) (UnfreezeResult, error) {
	var res UnfreezeResult
	if err := checkReason(author, reason); err != nil {
		return res, err
	}
	now := r.now()
	err := inTx(ctx, r.pool, func(tx pgx.Tx) error {
		f, err := unfreeze(ctx, tx, tenant, author, reason, now)
		res.Freeze = f
		return err
	})
	if err != nil {
		return UnfreezeResult{}, err
	}
	res.Published = r.tryPublish(ctx)
	if r.opts.Settler != nil {
		res.Applied, err = r.applyTenant(ctx, tenant, now)
		if err != nil && !errors.Is(err, reconcile.ErrNotLeader) {
			r.log.Warn("applying the queue after an unfreeze; the next run goes on", "tenant", tenant, "error", err)
		}
	}
	err = r.pool.QueryRow(ctx, `SELECT count(*) FROM automatic_settlements WHERE tenant_id = $1 AND applied_at IS NULL`,
		tenant).Scan(&res.Waiting)
	if err != nil {
		return res, fmt.Errorf("tenant %s is unfrozen, but its queue could not be counted: %w", tenant, err)
	}
	return res, nil
}

func unfreeze(ctx context.Context, tx pgx.Tx, tenant, author, reason string, now time.Time) (Freeze, error) {
	rows, err := tx.Query(ctx, `
		UPDATE settlement_freezes f SET unfrozen_at = greatest($2, frozen_at), unfrozen_by = $3, unfreeze_reason = $4
		WHERE tenant_id = $1 AND unfrozen_at IS NULL RETURNING `+freezeColumns, tenant, now, author, reason)
	if err != nil {
		return Freeze{}, fmt.Errorf("unfreeze tenant %s: %w", tenant, err)
	}
	f, err := pgx.CollectExactlyOneRow(rows, scanFreeze)
	if errors.Is(err, pgx.ErrNoRows) {
		return Freeze{}, reconcile.ErrNotFrozen
	}
	if err != nil {
		return Freeze{}, fmt.Errorf("unfreeze tenant %s: %w", tenant, err)
	}
	return f, settlementEvent(ctx, tx, events.TypeUnfrozen, "reconcile-unfreeze", &f, author, reason, f.UnfrozenAt)
}

// applyTenant applies one tenant's queue under the leader's lock, so that no
// settlement is asked for twice at once.
func (r *Reconciler) applyTenant(ctx context.Context, tenant string, now time.Time) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.RunTimeout)
	defer cancel()
	var rep Report
	err := r.lead(ctx, func(conn *pgx.Conn) error {
		var at cursor
		for {
			more, err := r.applyPage(ctx, conn, tenant, &at, now, &rep)
			if err != nil || !more {
				return err
			}
		}
	})
	return rep.Applied + rep.AlreadyFinal + rep.ClosedInLog, err
}

// tryPublish sends the outbox now. What it cannot send the next run sends.
func (r *Reconciler) tryPublish(ctx context.Context) bool {
	if r.opts.Publisher == nil {
		return false
	}
	if _, err := r.publish(ctx, r.pool); err != nil {
		r.log.Warn("event not published yet; the next run sends it", "error", err)
		return false
	}
	return true
}

// settlementEvent notes the event of a freeze or unfreeze. Its id is made of
// the freeze's, so it is the same however often it is sent.
func settlementEvent(ctx context.Context, tx pgx.Tx, kind events.Type, prefix string, f *Freeze, author, reason string, at time.Time) error {
	v := events.Settlement{
		TenantID: f.TenantID, Author: author, Reason: reason,
		WindowStart: f.WindowStart.UTC(), WindowEnd: f.WindowEnd.UTC(),
		// An event carries counts of 0 to 2^53; the row keeps the figures as they are.
		GatewayCount: eventCount(f.GatewayTokens), ModelCount: eventCount(f.ModelTokens),
		GPUGateway: eventCount(f.GatewayGPU), GPUMeter: eventCount(f.MeterGPU),
	}
	data := events.AppendSettlement(nil, &v)
	if _, err := events.ParseSettlement(data); err != nil {
		return fmt.Errorf("make event %s: %w", kind, err)
	}
	at = at.UTC()
	return addEvent(ctx, tx, events.NewID(prefix, at, f.ID, 0), kind, f.TenantID, at, data)
}

func eventCount(n int64) int64 { return min(max(n, 0), maxEventCount) }

func checkReason(author, reason string) error {
	for _, s := range []struct {
		text  string
		limit int
	}{{author, 128}, {reason, 500}} {
		if strings.TrimSpace(s.text) == "" || len(s.text) > s.limit || !utf8.ValidString(s.text) || strings.ContainsRune(s.text, 0) {
			return reconcile.ErrReasonMissing
		}
	}
	return nil
}

// FreezeFilter narrows a list of freezes.
type FreezeFilter struct {
	TenantID string // empty: of all tenants
	Active   bool   // only those that still hold
	Limit    int    // 0 takes 100
}

// ListFreezes returns freezes, the newest first.
func (r *Reconciler) ListFreezes(ctx context.Context, filter FreezeFilter) ([]Freeze, error) {
	return listFreezes(ctx, r.pool, filter)
}

func listFreezes(ctx context.Context, q querier, filter FreezeFilter) ([]Freeze, error) {
	if filter.Limit <= 0 {
		filter.Limit = maxListed
	}
	rows, err := q.Query(ctx, `
		SELECT `+freezeColumns+` FROM settlement_freezes f
		WHERE ($1 = '' OR tenant_id = $1) AND (NOT $2 OR unfrozen_at IS NULL)
		ORDER BY freeze_id DESC LIMIT $3`, filter.TenantID, filter.Active, filter.Limit)
	if err != nil {
		return nil, fmt.Errorf("list freezes: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanFreeze)
	if err != nil {
		return nil, fmt.Errorf("list freezes: %w", err)
	}
	return list, nil
}

const freezeColumns = `
	freeze_id, tenant_id, window_kind, window_start, window_end, gateway_tokens, model_tokens, gateway_gpu_ms,
	meter_gpu_ms, tokens_ppm, gpu_ppm, author, reason, frozen_at, unfrozen_at,
	coalesce(unfrozen_by, ''), coalesce(unfreeze_reason, ''),
	(SELECT count(*) FROM automatic_settlements q WHERE q.tenant_id = f.tenant_id AND q.applied_at IS NULL)`

func scanFreeze(row pgx.CollectableRow) (Freeze, error) {
	var f Freeze
	var unfrozenAt *time.Time
	err := row.Scan(&f.ID, &f.TenantID, &f.WindowKind, &f.WindowStart, &f.WindowEnd, &f.GatewayTokens, &f.ModelTokens,
		&f.GatewayGPU, &f.MeterGPU, &f.TokensPPM, &f.GPUPPM, &f.Author, &f.Reason, &f.FrozenAt, &unfrozenAt,
		&f.UnfrozenBy, &f.UnfreezeReason, &f.Queued)
	f.WindowStart, f.WindowEnd, f.FrozenAt = f.WindowStart.UTC(), f.WindowEnd.UTC(), f.FrozenAt.UTC()
	if unfrozenAt != nil {
		f.UnfrozenAt = unfrozenAt.UTC()
	}
	return f, err
}

func (r *Reconciler) now() time.Time { return r.opts.Now().UTC().Truncate(time.Millisecond) }
