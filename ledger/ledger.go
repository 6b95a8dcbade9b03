// Package ledger folds the log into the ledger: every event once, into a
// journal, reservations and usage by hour, whatever the log repeats, in
// whatever order it comes and however often a process dies on the way.
//
// The root is pure: it turns records into a Batch (rows, sums, dead letters,
// hashes) and says what a flush must do. The database is in ledger/postgres.
// The Runner joins a partition of the log to a Store.
//
// The fold is commutative. An event carries its delta, so buckets add; a
// reservation adds deltas and takes its state and hold from the event with the
// highest sequence number, of those that end it where there is one. No decision
// depends on the reader's clock.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tollgate/events"
)

// ErrFenced says that another owner has taken the partition since the lease
// was acquired. What was flushed with it is rolled back; the batch belongs to
// the new owner.
var ErrFenced = errors.New("partition is owned by another process")

// PoisonError says that the database refuses the content of a batch, and will
// refuse it again however often it is tried: a sum that leaves its type's
// range, for example. The Runner finds the record by halving the batch.
type PoisonError struct{ Err error }

// Error implements error.
func (e *PoisonError) Error() string { return "database refuses the batch's content: " + e.Err.Error() }

// Unwrap returns the database's error.
func (e *PoisonError) Unwrap() error { return e.Err }

// Lease is the right to fold a partition, until somebody else acquires it.
type Lease struct {
	Topic     string
	Partition int
	Owner     string
	Epoch     int64 // grows with each Acquire
	Next      int64 // the first offset that is not folded yet
}

// Counts says what became of the records of a batch, or of a partition.
// Consumed is the sum of the other four, always.
type Counts struct {
	Consumed     int64 `json:"consumed"`
	Folded       int64 `json:"folded"`
	Duplicates   int64 `json:"duplicates"`
	DeadLettered int64 `json:"dead_lettered"`
	Conflicts    int64 `json:"conflicts"`
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	c.Consumed += o.Consumed
	c.Folded += o.Folded
	c.Duplicates += o.Duplicates
	c.DeadLettered += o.DeadLettered
	c.Conflicts += o.Conflicts
}

// Check returns an error when records are unaccounted for.
func (c Counts) Check() error {
	if c.Consumed != c.Folded+c.Duplicates+c.DeadLettered+c.Conflicts {
		return fmt.Errorf("consumed %d is not folded %d + duplicates %d + dead-lettered %d + conflicts %d",
			c.Consumed, c.Folded, c.Duplicates, c.DeadLettered, c.Conflicts)
	}
	return nil
}

// Store keeps the ledger. It is safe for concurrent use.
type Store interface {
	// Acquire makes owner the owner of the partition and returns where to go
	// on. A flush with an earlier lease fails with ErrFenced from then on; one
	// that is under way is waited for.
	Acquire(ctx context.Context, topic string, partition int, owner string) (Lease, error)
	// Flush writes a batch in one transaction and returns the lease moved
	// behind it. Repeating a flush whose outcome is unknown is safe: if the
	// first attempt committed, its counts are returned and nothing is written.
	//
	// Errors: ErrFenced; *PoisonError, which repeating does not help; any other
	// error left the ledger as it was, or committed unseen, and the flush
	// should be repeated with the same lease and batch.
	Flush(ctx context.Context, lease Lease, batch *Batch) (Lease, Counts, error)
	// CloseHours moves the rolling window up to now's hour and returns how many
	// hours were closed. Any number of processes may call it.
	CloseHours(ctx context.Context, now time.Time) (int, error)
}

// Source is one partition of the log.
type Source interface {
	// SeekTo makes offset the next to be fetched. It is called before the first
	// Fetch.
	SeekTo(offset int64)
	// Fetch returns up to limit records in order of their offsets, as soon as
	// there are some; none when wait has passed without any. Their memory is
	// not used again by later calls.
	Fetch(ctx context.Context, limit int, wait time.Duration) ([]events.Record, error)
	// Commit tells the consumer group that everything before offset is done.
	// Only lag tools read it: the ledger keeps its own position.
	Commit(offset int64) error
	// HighWater returns the offset that the next appended record will get.
	HighWater() (int64, error)
}

// DeadLetterer publishes a record that cannot be folded, with the reason. It
// returns after the record is safe. It may be called again for one record.
type DeadLetterer interface {
	DeadLetter(ctx context.Context, r events.Record, reason string) error
}

// WindowHours is the length of the rolling window: the open hour and the
// closed hours before it.
const WindowHours = 720

// Window says which closed hours usage_30d sums: those in [Start, ClosedThrough).
type Window struct {
	Start         time.Time `json:"window_start"`
	ClosedThrough time.Time `json:"closed_through"`
}

// WindowAt returns the window as it should stand at now.
func WindowAt(now time.Time) Window {
	open := now.UTC().Truncate(time.Hour)
	return Window{Start: open.Add(-(WindowHours - 1) * time.Hour), ClosedThrough: open}
}
