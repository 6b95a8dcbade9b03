package forward

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what only this package knows; exchanges are the observer's.
type metrics struct {
	underWay  prometheus.Gauge
	waiting   prometheus.Gauge
	settled   prometheus.Counter
	unsettled *prometheus.CounterVec
	cuts      *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		underWay: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_proxy_requests_under_way", Help: "Requests of the front door that are being answered.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_proxy_settlements_waiting", Help: "Settlements that are tried again because the admission state could not be reached.",
		}),
		settled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_proxy_settlements_total", Help: "Reservations of the front door that were ended with their figures.",
		}),
		unsettled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_proxy_settlements_failed_total", Help: "Reservations of the front door that are left to the reconciler, by reason.",
		}, []string{"reason"}),
		cuts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_proxy_cuts_total", Help: "Answers that Tollgate ended before their upstream did, by reason.",
		}, []string{"reason"}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.underWay, m.waiting, m.settled, m.unsettled, m.cuts} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("proxy/forward: metrics: %w", err)
	}
	return m, nil
}
