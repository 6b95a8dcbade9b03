package relay

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	events         *prometheus.CounterVec
	entries        prometheus.Counter
	deadLetters    *prometheus.CounterVec
	failures       *prometheus.CounterVec
	expired        prometheus.Counter
	backlog        prometheus.Gauge
	owned          prometheus.Gauge
	publishSeconds prometheus.Histogram
}

func newMetrics() *metrics {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "tollgate", Subsystem: "relay", Name: name, Help: help}
	}
	return &metrics{
		events:      prometheus.NewCounterVec(opts("events_total", "Events handed to the log, repeats included, by topic."), []string{"topic"}),
		entries:     prometheus.NewCounter(opts("entries_total", "Outbox entries acknowledged by the log and trimmed.")),
		deadLetters: prometheus.NewCounterVec(opts("dead_letters_total", "Events that the log refuses, by reason."), []string{"reason"}),
		failures:    prometheus.NewCounterVec(opts("failures_total", "Failed calls, by what was tried."), []string{"call"}),
		expired:     prometheus.NewCounter(opts("expired_holds_total", "Holds that were expired by this relay.")),
		backlog: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "tollgate", Subsystem: "relay", Name: "backlog_records", Help: "Records that wait in the outbox, all shards.",
		}),
		owned: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "tollgate", Subsystem: "relay", Name: "owned_shards", Help: "Shards that this relay holds the lease of.",
		}),
		publishSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "tollgate", Subsystem: "relay", Name: "publish_seconds", Help: "Time of publishing one round.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
}

func (m *metrics) register(r prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{m.events, m.entries, m.deadLetters, m.failures, m.expired, m.backlog, m.owned, m.publishSeconds} {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}
