package ledger

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// health knows whether the partitions of this process get on.
type health struct {
	stallAfter time.Duration

	mu         sync.Mutex
	partitions map[*partitionHealth]struct{}
	window     error
}

// partitionHealth is what is known of one partition.
type partitionHealth struct {
	partition int

	mu         sync.Mutex
	next, high int64
	progress   time.Time // last time something was folded or nothing waited
	err        error     // of the last attempt, nil after a success
	lagErr     error     // why the lag is not known
}

func (h *health) add(partition int) *partitionHealth {
	p := &partitionHealth{partition: partition, progress: time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.partitions == nil {
		h.partitions = make(map[*partitionHealth]struct{})
	}
	h.partitions[p] = struct{}{}
	return p
}

func (h *health) remove(_ int, p *partitionHealth) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.partitions, p)
}

func (h *health) windowFailed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.window = err
}

func (h *health) ready(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []error
	if h.window != nil {
		all = append(all, fmt.Errorf("close hours: %w", h.window))
	}
	for p := range h.partitions {
		if err := p.ready(now, h.stallAfter); err != nil {
			all = append(all, fmt.Errorf("partition %d: %w", p.partition, err))
		}
	}
	return errors.Join(all...)
}

func (p *partitionHealth) ready(now time.Time, stallAfter time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	if now.Sub(p.progress) < stallAfter {
		return nil
	}
	if p.lagErr != nil {
		return fmt.Errorf("lag is unknown since %s: %w", p.progress.UTC().Format(time.RFC3339), p.lagErr)
	}
	if p.high > p.next {
		return fmt.Errorf("%d records wait without progress since %s", p.high-p.next, p.progress.UTC().Format(time.RFC3339))
	}
	return nil
}

// moved: everything before next is folded.
func (p *partitionHealth) moved(next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.progress, p.err = next, time.Now(), nil
}

// looked: the log ends at high, or that could not be told.
func (p *partitionHealth) looked(high int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lagErr = err; err != nil {
		return
	}
	p.high = high
	if p.high <= p.next {
		p.progress = time.Now()
	}
}

func (p *partitionHealth) failing(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}
