package ledger

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	records     *prometheus.CounterVec
	dead        *prometheus.CounterVec
	retries     *prometheus.CounterVec
	next        *prometheus.GaugeVec
	flushTime   prometheus.Histogram
	batchSize   prometheus.Histogram
	fenced      prometheus.Counter
	hoursClosed prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_ledger_records_total", Help: "Records of the log by what became of them.",
		}, []string{"outcome"}),
		dead: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_ledger_dead_letters_total", Help: "Records that could not be folded, by reason.",
		}, []string{"reason"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_ledger_retries_total", Help: "Attempts that failed and were repeated.",
		}, []string{"doing"}),
		next: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tollgate_ledger_next_offset", Help: "First offset of a partition that is not folded yet.",
		}, []string{"partition"}),
		flushTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tollgate_ledger_flush_seconds", Help: "Time of a batch's transaction, retries included.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 14),
		}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tollgate_ledger_batch_records", Help: "Records in a batch.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 8),
		}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_ledger_fenced_total", Help: "Times a partition was taken by another process.",
		}),
		hoursClosed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_ledger_hours_closed_total", Help: "Hours that this process moved into the rolling window.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.records, m.dead, m.retries, m.next, m.flushTime, m.batchSize, m.fenced, m.hoursClosed)
	}
	return m
}

func (m *metrics) flushed(b *Batch, c Counts, took time.Duration) {
	m.records.WithLabelValues("folded").Add(float64(c.Folded))
	m.records.WithLabelValues("duplicate").Add(float64(c.Duplicates))
	m.records.WithLabelValues("dead_lettered").Add(float64(c.DeadLettered))
	m.records.WithLabelValues("conflict").Add(float64(c.Conflicts))
	for i := range b.DeadLetters {
		m.dead.WithLabelValues(b.DeadLetters[i].Reason).Inc()
	}
	m.next.WithLabelValues(strconv.Itoa(b.Partition)).Set(float64(b.Last + 1))
	m.flushTime.Observe(took.Seconds())
	m.batchSize.Observe(float64(b.Consumed))
}

func (m *metrics) forget(partition int) { m.next.DeleteLabelValues(strconv.Itoa(partition)) }
