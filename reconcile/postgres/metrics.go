package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/reconcile"
)

// metrics are the reconciler's. Gauges are set by the leader's runs and are 0
// in a process that does not lead, so a sum over processes is right. Drift is
// shown only for tenants over the threshold, at most maxListed of them.
type metrics struct {
	leader        prometheus.Gauge
	frozen        prometheus.Gauge
	pending       prometheus.Gauge
	overdue       prometheus.Gauge
	oldestPending prometheus.Gauge
	queued        prometheus.Gauge
	unpublished   prometheus.Gauge
	drift         *prometheus.GaugeVec
	runs          *prometheus.CounterVec
	settlements   *prometheus.CounterVec
	failures      prometheus.Counter
	lastRun       prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "tollgate", Subsystem: "reconcile", Name: name, Help: help})
	}
	m := &metrics{
		leader:        gauge("leader", "1 where this process did the last run."),
		frozen:        gauge("frozen_tenants", "Tenants whose automatic settlement is frozen."),
		pending:       gauge("pending_holds", "Holds past their TTL that have not ended."),
		overdue:       gauge("overdue_holds", "Pending holds past their deadline: of frozen tenants, or failing."),
		oldestPending: gauge("oldest_pending_seconds", "Time since the TTL of the oldest pending hold."),
		queued:        gauge("queued_settlements", "Automatic settlements that wait."),
		unpublished:   gauge("unpublished_events", "Events of the reconciler that the log has not acknowledged."),
		drift: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "tollgate", Subsystem: "reconcile", Name: "drift_ppm",
			Help: "Drift of a tenant's newest window over the threshold, in parts per million.",
		}, []string{"tenant", "meter"}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tollgate", Subsystem: "reconcile", Name: "runs_total", Help: "Runs by result.",
		}, []string{"result"}),
		settlements: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tollgate", Subsystem: "reconcile", Name: "settlements_total", Help: "Automatic settlements by outcome.",
		}, []string{"outcome"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "tollgate", Subsystem: "reconcile", Name: "failures_total", Help: "Failures of one tenant, reservation or step.",
		}),
		lastRun: gauge("last_run_timestamp_seconds", "When this process last ended a run as the leader."),
	}
	for _, result := range []string{"ok", "partial", "failed", "not_leader"} {
		m.runs.WithLabelValues(result)
	}
	for _, outcome := range []string{outcomeApplied, outcomeFinal, outcomeClosedInLog} {
		m.settlements.WithLabelValues(outcome)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.leader, m.frozen, m.pending, m.overdue, m.oldestPending, m.queued, m.unpublished,
		m.drift, m.runs, m.settlements, m.failures, m.lastRun,
	} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the reconciler's metrics: %w", err)
		}
	}
	return m, nil
}

// observe sets the gauges after a run.
func (r *Reconciler) observe(ctx context.Context, conn *pgx.Conn, now time.Time, rep *Report) {
	if conn.IsClosed() || ctx.Err() != nil {
		return
	}
	s, err := r.status(ctx, conn, now)
	if err != nil {
		rep.fail(err)
		r.log.Warn("reading the status for metrics", "error", err)
		return
	}
	m := r.metrics
	m.leader.Set(1)
	m.frozen.Set(float64(s.FrozenTenants))
	m.pending.Set(float64(s.Pending))
	m.overdue.Set(float64(s.Overdue))
	m.queued.Set(float64(s.Queued))
	m.unpublished.Set(float64(s.Unpublished))
	m.oldestPending.Set(0)
	if !s.OldestPending.IsZero() {
		m.oldestPending.Set(now.Sub(s.OldestPending).Seconds())
	}
	m.drift.Reset()
	seen := make(map[string]bool)
	for _, d := range s.Over { // newest first
		if !seen[d.TenantID] {
			seen[d.TenantID] = true
			m.drift.WithLabelValues(d.TenantID, "model").Set(float64(d.TokensPPM))
			m.drift.WithLabelValues(d.TenantID, "gpu").Set(float64(d.GPUPPM))
		}
	}
}

// ended counts a run.
func (m *metrics) ended(rep *Report, err error) {
	switch {
	case errors.Is(err, reconcile.ErrNotLeader):
		m.runs.WithLabelValues("not_leader").Inc()
		for _, g := range []prometheus.Gauge{m.leader, m.frozen, m.pending, m.overdue, m.oldestPending, m.queued, m.unpublished} {
			g.Set(0)
		}
		m.drift.Reset()
		return
	case err != nil:
		m.runs.WithLabelValues("failed").Inc()
	case rep.Partial:
		m.runs.WithLabelValues("partial").Inc()
	default:
		m.runs.WithLabelValues("ok").Inc()
	}
	m.failures.Add(float64(rep.Failures))
	m.settlements.WithLabelValues(outcomeApplied).Add(float64(rep.Applied))
	m.settlements.WithLabelValues(outcomeFinal).Add(float64(rep.AlreadyFinal))
	m.settlements.WithLabelValues(outcomeClosedInLog).Add(float64(rep.ClosedInLog))
	if err == nil {
		m.lastRun.SetToCurrentTime()
	}
}
