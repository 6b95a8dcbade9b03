package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/reconcile"
)

// OffsetLag is a LagChecker that compares the log's high-water marks with
// fold_progress: once every partition is folded to the mark it had at time t,
// the ledger holds all that the log had acknowledged by t.
type OffsetLag struct {
	Pool  *pgxpool.Pool
	Topic string
	// HighWater returns, for every partition of the topic, the offset that its
	// next record will get.
	HighWater func(ctx context.Context) (map[int]int64, error)
	// Wait is how long to let the ledger reach the marks; it should be more
	// than two flush intervals. 0 takes 25 seconds.
	Wait time.Duration
	Now  func() time.Time // nil takes time.Now
}

// lagPoll is how often fold_progress is read while waiting.
const lagPoll = 250 * time.Millisecond

var _ reconcile.LagChecker = (*OffsetLag)(nil)

// FoldedThrough implements reconcile.LagChecker.
func (l *OffsetLag) FoldedThrough(ctx context.Context) (time.Time, error) {
	now, wait := l.Now, l.Wait
	if now == nil {
		now = time.Now
	}
	if wait <= 0 {
		wait = 25 * time.Second
	}
	asOf := now() // before the marks are read, so that they cover it
	marks, err := l.HighWater(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the high-water marks of %s: %w", l.Topic, err)
	}
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	poll := time.NewTicker(lagPoll)
	defer poll.Stop()
	for {
		behind, err := l.behind(ctx, marks)
		if err != nil {
			return time.Time{}, err
		}
		if behind == "" {
			return asOf, nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case <-deadline.C:
			return time.Time{}, fmt.Errorf("%w: %s after %s", reconcile.ErrBehind, behind, wait)
		case <-poll.C:
		}
	}
}

// behind says which partition lacks how much; "" when none does.
func (l *OffsetLag) behind(ctx context.Context, marks map[int]int64) (string, error) {
	rows, err := l.Pool.Query(ctx, `SELECT topic_partition, next_offset FROM fold_progress WHERE topic = $1`, l.Topic)
	if err != nil {
		return "", fmt.Errorf("read fold_progress: %w", err)
	}
	folded := make(map[int]int64)
	var partition int
	var next int64
	if _, err := pgx.ForEachRow(rows, []any{&partition, &next}, func() error {
		folded[partition] = next
		return nil
	}); err != nil {
		return "", fmt.Errorf("read fold_progress: %w", err)
	}
	var total, partitions int64
	for p, mark := range marks {
		if folded[p] < mark {
			total += mark - folded[p]
			partitions++
		}
	}
	if partitions == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d records of %d partitions of %s are not folded", total, partitions, l.Topic), nil
}
