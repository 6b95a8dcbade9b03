// Package reconcile ends what admission left open and compares the meters.
//
// It has three duties. A hold whose TTL passed is pending, and is ended by a
// deadline: at the model meter's figure when there is one, else at what was
// last reported. Gateway, model and GPU meters are set side by side for each
// tenant and hour; a lasting difference beyond the threshold freezes automatic
// settlement for that tenant until an operator unfreezes it with a reason. And
// the readings of model servers and GPU agents are taken in from the log.
//
// It never edits a balance. A hold is ended through admission, which decides
// and writes the event; a freeze is an event and a queue. The root holds the
// rules, which are pure, and the interfaces; the work is in reconcile/postgres.
package reconcile

import (
	"context"
	"errors"
	"time"

	"tollgate/events"
)

// Errors that callers branch on.
var (
	// ErrAlreadyFinal: the reservation was settled or cancelled before, with
	// other figures. The settlement is done, by somebody else.
	ErrAlreadyFinal = errors.New("reservation is already final")
	// ErrGone: admission has no record of the reservation and will not get one
	// back. The reservation is then closed in the log.
	ErrGone = errors.New("admission has no record of the reservation")
	// ErrUnavailable: admission cannot decide now. The run stops asking it.
	ErrUnavailable = errors.New("admission is out of reach")
	// ErrBehind: the ledger has not folded the log far enough to decide on.
	ErrBehind = errors.New("ledger is behind the log")
	// ErrNotLeader: another reconciler holds the lock.
	ErrNotLeader = errors.New("another reconciler is at work")
	// ErrNotFrozen: the tenant's settlement is not frozen.
	ErrNotFrozen = errors.New("tenant is not frozen")
	// ErrFrozen: the tenant's settlement is frozen already.
	ErrFrozen = errors.New("tenant is frozen already")
	// ErrReasonMissing: a freeze or unfreeze needs an author and a reason.
	ErrReasonMissing = errors.New("an author and a reason of 1 to 500 characters are required")
	// ErrFenced: another process has taken the partition over.
	ErrFenced = errors.New("partition was taken over by another process")
)

// Author is who the reconciler's own decisions are signed by.
const Author = "reconciler"

// Settler ends reservations. It is admission, which is the arbiter: it knows
// settlements that the ledger has not seen yet.
//
// Both methods may be called again with the same arguments: a repeat changes
// nothing and returns nil. They return ErrAlreadyFinal, ErrGone or
// ErrUnavailable; any other error concerns this reservation alone and is
// retried in a later run.
type Settler interface {
	// Settle replaces the hold by total, which is cumulative.
	Settle(ctx context.Context, tenantID, reservationID string, total events.Usage, estimated bool, author, reason string) error
	// Cancel ends the hold and charges total, what was consumed so far.
	Cancel(ctx context.Context, tenantID, reservationID string, total events.Usage, estimated bool, author, reason string) error
}

// Publisher appends events to the log. A nil error means that all are
// acknowledged; on an error some may be in the log, and the call is repeated
// with the same event ids.
type Publisher interface {
	Publish(ctx context.Context, topic string, batch []events.Event) error
}

// Execution is what is known of the work behind a hold.
type Execution string

// What ExecutionStatus answers.
const (
	ExecutionUnknown Execution = "unknown"
	ExecutionRunning Execution = "running"
	ExecutionEnded   Execution = "ended"
)

// ExecutionStatus asks whether the work of a request still runs. It is
// optional; an error counts as unknown.
type ExecutionStatus interface {
	Status(ctx context.Context, tenantID, requestID string) (Execution, error)
}

// LagChecker says how far the ledger has folded a topic. FoldedThrough returns
// a time t, not in the future: every record that the log had acknowledged
// before t is folded. It returns ErrBehind when it knows of no such time that
// is recent enough, and may wait a few seconds for the ledger to catch up.
//
// What is in admission's outbox and not yet in the log is not covered. There
// admission itself is the safeguard: it refuses to end what has ended, and it
// bounds the life of a hold well below the deadline of a pending one.
type LagChecker interface {
	FoldedThrough(ctx context.Context) (time.Time, error)
}

// DeadLetterer keeps a record that cannot be folded, with the reason. A nil
// error means that it is kept; a repeat is harmless.
type DeadLetterer interface {
	DeadLetter(ctx context.Context, record events.Record, reason string) error
}

// Source is one partition of the log. SeekTo is called before the first Fetch.
// Fetch returns up to limit records in offset order, or none after wait. Commit
// tells the offset of the next record to the group, for lag tools only.
type Source interface {
	SeekTo(offset int64)
	Fetch(ctx context.Context, limit int, wait time.Duration) ([]events.Record, error)
	Commit(offset int64) error
	HighWater() (int64, error)
}
