package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// AuditRecord is one administrative change. Before and After are documents
// without secrets; Before is null for what was created.
type AuditRecord struct {
	ID      int64           `json:"id"`
	At      time.Time       `json:"at"`
	Author  string          `json:"author"`
	Reason  string          `json:"reason"`
	Action  string          `json:"action"`  // e.g. "quota.set"
	Subject string          `json:"subject"` // "tenant:<id>", "key:<id>" or "platform"
	Before  json.RawMessage `json:"before"`
	After   json.RawMessage `json:"after"`
}

// Changes returns the newest records first, at most limit (1 to 1000). An
// empty subject takes all.
func (s *Store) Changes(ctx context.Context, subject string, limit int) ([]AuditRecord, error) {
	rows, err := s.pool.Query(ctx,
		`SELECT id, at, author, reason, action, subject, before, after FROM admin_changes
		 WHERE $1 = '' OR subject = $1 ORDER BY id DESC LIMIT $2`, subject, min(max(limit, 1), 1000))
	if err != nil {
		return nil, fmt.Errorf("read the audit trail: %w", err)
	}
	records, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (AuditRecord, error) {
		var r AuditRecord
		var before, after []byte
		err := row.Scan(&r.ID, &r.At, &r.Author, &r.Reason, &r.Action, &r.Subject, &before, &after)
		r.At, r.Before, r.After = r.At.UTC(), before, after
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the audit trail: %w", err)
	}
	return records, nil
}
