package redis

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/admission"
)

// metrics of a Store. They exist, unregistered, also without a registerer.
type metrics struct {
	batchSize    prometheus.Histogram
	duration     prometheus.Histogram
	retries      prometheus.Counter
	faults       prometheus.Counter
	notesDropped prometheus.Counter
	refusals     *prometheus.CounterVec
	backlog      prometheus.Gauge
	undecodable  prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tollgate_admission_batch_operations", Help: "Operations decided by one script call.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64},
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tollgate_admission_script_seconds", Help: "Duration of one script call, with its way to Redis and back.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 15),
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_admission_script_retries_total", Help: "Script calls sent again because no answer came.",
		}),
		faults: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_admission_script_faults_total", Help: "Script calls that failed in the script: state that cannot be read, or a mistake.",
		}),
		notesDropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_admission_refusal_notes_dropped_total", Help: "Batches of last-refusal notes that were not written.",
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_admission_refusals_total", Help: "Refused reserves by binding layer and reason.",
		}, []string{"layer", "reason"}),
		backlog: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_admission_outbox_records", Help: "Records in all outboxes when this gateway last looked.",
		}),
		undecodable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_admission_outbox_undecodable_total", Help: "Outbox records that could not be decoded.",
		}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.batchSize, m.duration, m.retries, m.faults, m.notesDropped, m.refusals, m.backlog, m.undecodable} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) batch(operations int)      { m.batchSize.Observe(float64(operations)) }
func (m *metrics) script(took time.Duration) { m.duration.Observe(took.Seconds()) }
func (m *metrics) refused(r *admission.Refusal) {
	m.refusals.WithLabelValues(r.Constraint.Limit.Layer, r.Reason).Inc()
}

// backlogGuard watches the sum of all outboxes. The script sees its own shard
// only, so a gateway looks at the sum once a second while it sends batches; in
// between the bound may be passed by what a second brings.
type backlogGuard struct {
	next    atomic.Int64 // Unix ms of the next look
	looking atomic.Bool
	full    atomic.Bool
}

const backlogEvery = time.Second

// bound is what the script may let a shard's outbox grow to.
func (g *backlogGuard) bound(s *Store) int64 {
	now := time.Now().UnixMilli()
	if now >= g.next.Load() && g.looking.CompareAndSwap(false, true) {
		g.next.Store(now + backlogEvery.Milliseconds())
		s.running.Add(1) // the batch that asks is counted, so Stop still waits
		go func() {
			defer s.running.Done()
			defer g.looking.Store(false)
			ctx, cancel := context.WithTimeout(context.Background(), s.opts.Timeout)
			defer cancel()
			if n, err := s.Backlog(ctx); err == nil {
				g.full.Store(n >= s.opts.MaxBacklog)
			}
		}()
	}
	if g.full.Load() {
		return 0
	}
	return s.opts.MaxBacklog
}
