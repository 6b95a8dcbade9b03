package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/reconcile"
)

// IntakeOptions say how a partition of the meters' topic is read.
type IntakeOptions struct {
	Owner      string        // of this process, unique
	MaxRecords int           // of a batch; 0 takes 1024
	Wait       time.Duration // for a batch to fill; 0 takes 1 s
	MaxBackoff time.Duration // between tries while PostgreSQL or Kafka is away; 0 takes 10 s
	StallAfter time.Duration // with records waiting, before Healthy complains; 0 takes 60 s
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
}

// Intake reads partitions of the meters' topic into a MeterFolder. Whoever
// assigns partitions calls RunPartition for each; Intake starts no goroutine.
type Intake struct {
	folder  *MeterFolder
	opts    IntakeOptions
	records *prometheus.CounterVec

	mu      sync.Mutex
	stalled map[int]*stall // by partition that is being read
}

// stall remembers since when a partition has had trouble.
type stall struct {
	since atomic.Pointer[time.Time]
	cause atomic.Pointer[error]
}

// NewIntake makes an intake.
func NewIntake(folder *MeterFolder, opts IntakeOptions) (*Intake, error) {
	if opts.Owner == "" {
		return nil, errors.New("meter intake: an owner is required, unique to this process")
	}
	if opts.MaxRecords <= 0 {
		opts.MaxRecords = 1024
	}
	if opts.Wait <= 0 {
		opts.Wait = time.Second
	}
	if opts.MaxBackoff <= 0 {
		opts.MaxBackoff = 10 * time.Second
	}
	if opts.StallAfter <= 0 {
		opts.StallAfter = time.Minute
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	in := &Intake{folder: folder, opts: opts, stalled: make(map[int]*stall), records: prometheus.NewCounterVec(
		prometheus.CounterOpts{
			Namespace: "tollgate", Subsystem: "meters", Name: "records_total",
			Help: "Records of the meters' topic by what became of them.",
		}, []string{"result"})}
	if opts.Registerer != nil {
		if err := opts.Registerer.Register(in.records); err != nil {
			return nil, fmt.Errorf("register the intake's metrics: %w", err)
		}
	}
	return in, nil
}

// RunPartition folds one partition until ctx ends, which returns nil, or until
// another process takes it over, which returns ErrFenced. While PostgreSQL, the
// log or the dead-letter topic is away it keeps trying and consumes nothing.
func (in *Intake) RunPartition(ctx context.Context, topic string, partition int, src reconcile.Source) error {
	trouble := in.enter(partition)
	defer in.leave(partition, trouble)
	log := in.opts.Logger.With("topic", topic, "partition", partition)

	var claim *MeterClaim
	positioned := false
	backoff := 100 * time.Millisecond
	for {
		err := func() error {
			var err error
			if claim == nil {
				if claim, err = in.folder.Acquire(ctx, topic, partition, in.opts.Owner); err != nil {
					return err
				}
			}
			if !positioned {
				// After any error the position is what the database says.
				if err := in.folder.Resume(ctx, claim); err != nil {
					return err
				}
				src.SeekTo(claim.NextOffset)
				positioned = true
			}
			return in.step(ctx, claim, src, log)
		}()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, reconcile.ErrFenced):
			return err
		case err == nil:
			trouble.clear()
			backoff = 100 * time.Millisecond
			continue
		}
		positioned = false
		if trouble.note(err) {
			log.Warn("meter intake has stopped; it keeps trying", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, in.opts.MaxBackoff)
	}
}

// step fetches and folds one batch.
func (in *Intake) step(ctx context.Context, claim *MeterClaim, src reconcile.Source, log *slog.Logger) error {
	records, err := src.Fetch(ctx, in.opts.MaxRecords, in.opts.Wait)
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	if len(records) == 0 {
		return nil
	}
	res, err := in.folder.Fold(ctx, claim, records)
	if err != nil {
		return err
	}
	in.records.WithLabelValues("folded").Add(float64(res.Folded))
	in.records.WithLabelValues("duplicate").Add(float64(res.Duplicates))
	in.records.WithLabelValues("dead_lettered").Add(float64(res.DeadLettered))
	in.records.WithLabelValues("conflict").Add(float64(res.Conflicts))
	if res.DeadLettered+res.Conflicts > 0 {
		log.Warn("meter records refused", "dead_lettered", res.DeadLettered, "conflicts", res.Conflicts, "before_offset", claim.NextOffset)
	}
	// The group's offset is for lag tools; the position that counts is stored.
	if err := src.Commit(claim.NextOffset); err != nil {
		log.Debug("committing the group's offset", "error", err)
	}
	return nil
}

// Healthy returns an error when a partition has made no progress for
// StallAfter because something is away.
func (in *Intake) Healthy() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for partition, s := range in.stalled {
		since, cause := s.since.Load(), s.cause.Load()
		if since != nil && cause != nil && time.Since(*since) > in.opts.StallAfter {
			return fmt.Errorf("meters of partition %d have not moved since %s: %w", partition, since.Format(time.RFC3339), *cause)
		}
	}
	return nil
}

func (in *Intake) enter(partition int) *stall {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := &stall{}
	in.stalled[partition] = s
	return s
}

// leave forgets the partition unless a newer run has it already.
func (in *Intake) leave(partition int, s *stall) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.stalled[partition] == s {
		delete(in.stalled, partition)
	}
}

// note returns true for the first error of a row.
func (s *stall) note(err error) bool {
	s.cause.Store(&err)
	now := time.Now()
	return s.since.CompareAndSwap(nil, &now)
}

func (s *stall) clear() {
	s.since.Store(nil)
	s.cause.Store(nil)
}
