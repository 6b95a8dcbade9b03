package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/events"
)

// source names the reconciler in the envelope of its events.
const source = "tollgate/reconcile"

// publishBatch bounds the events of one call to the Publisher, publishTimeout
// its time: a publisher keeps trying while the log is away.
const (
	publishBatch   = 100
	publishTimeout = 15 * time.Second
)

// addEvent writes an event to the outbox with the change it tells of. The same
// id again changes nothing.
func addEvent(ctx context.Context, tx pgx.Tx, id string, kind events.Type, tenant string, at time.Time, data []byte) error {
	e := events.Event{ID: id, Source: source, Type: kind, Subject: tenant, Time: at, Data: data}
	if err := e.Validate(); err != nil {
		return fmt.Errorf("event %s: %w", kind, err)
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO reconcile_outbox (event_id, source, type, tenant_id, event_time, data)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (event_id) DO NOTHING`,
		e.ID, e.Source, string(e.Type), e.Subject, e.Time, e.Data)
	if err != nil {
		return fmt.Errorf("note event %s: %w", kind, err)
	}
	return nil
}

// publishWaiting sends the outbox in order and marks what the log acknowledged.
// A crash in between, or two publishers at once, sends an event again under the
// same id, which the ledger recognises.
func (r *Reconciler) publishWaiting(ctx context.Context, conn *pgx.Conn, _ time.Time, rep *Report) error {
	n, err := r.publish(ctx, conn)
	rep.Published += n
	return err
}

func (r *Reconciler) publish(ctx context.Context, q querier) (int, error) {
	published := 0
	for {
		rows, err := q.Query(ctx, `
			SELECT seq, event_id, source, type, tenant_id, event_time, data
			FROM reconcile_outbox WHERE published_at IS NULL ORDER BY seq LIMIT $1`, publishBatch)
		if err != nil {
			return published, fmt.Errorf("read the outbox: %w", err)
		}
		var seqs []int64
		batch, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (events.Event, error) {
			var e events.Event
			var seq int64
			err := row.Scan(&seq, &e.ID, &e.Source, &e.Type, &e.Subject, &e.Time, &e.Data)
			e.Time = e.Time.UTC()
			seqs = append(seqs, seq)
			return e, err
		})
		if err != nil {
			return published, fmt.Errorf("read the outbox: %w", err)
		}
		if len(batch) == 0 {
			return published, nil
		}
		callCtx, cancel := context.WithTimeout(ctx, publishTimeout)
		err = r.opts.Publisher.Publish(callCtx, r.opts.Topic, batch)
		cancel()
		if err != nil {
			return published, fmt.Errorf("publish %d events: %w", len(batch), err)
		}
		if _, err := q.Exec(ctx, `UPDATE reconcile_outbox SET published_at = now() WHERE seq = ANY ($1)`, seqs); err != nil {
			return published, fmt.Errorf("mark published events: %w", err)
		}
		published += len(batch)
	}
}

// toText drops what PostgreSQL's text cannot hold.
func toText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
