package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/reconcile"
)

// leaderLock is the advisory lock of the one reconciler at work. The number is
// arbitrary and belongs to this package.
const leaderLock = int64(0x746f6c6c_7265636f) // "tollreco"

// lead runs fn on a connection that holds the leader's lock, or returns
// ErrNotLeader at once. If the connection breaks, every later statement of fn
// fails. The lock is given back by name, since the server notices a closed
// connection only a little later, and by closing in any case.
func (r *Reconciler) lead(ctx context.Context, fn func(*pgx.Conn) error) error {
	conn, err := pgx.ConnectConfig(ctx, r.pool.Config().ConnConfig.Copy())
	if err != nil {
		return fmt.Errorf("connect for the leader's lock: %w", err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := conn.Close(clean); err != nil {
			r.log.Debug("closing the leader's connection", "error", err)
		}
	}()
	var got bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", leaderLock).Scan(&got); err != nil {
		return fmt.Errorf("take the leader's lock: %w", err)
	}
	if !got {
		return reconcile.ErrNotLeader
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if conn.IsClosed() {
			return
		}
		if _, err := conn.Exec(clean, "SELECT pg_advisory_unlock($1)", leaderLock); err != nil {
			r.log.Debug("giving the leader's lock back", "error", err)
		}
	}()
	return fn(conn)
}
