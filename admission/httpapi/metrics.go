package httpapi

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the API's. Children are looked up once and kept, so that a
// request neither hashes labels nor allocates. Labels come from fixed sets.
type metrics struct {
	inFlight atomic.Int64

	requests *prometheus.CounterVec
	refusals *prometheus.CounterVec
	duration [routeCount]prometheus.Observer
	// byStatus[route][status] is filled as statuses appear.
	byStatus [routeCount][600]atomic.Pointer[prometheus.Counter]
	// byRefusal maps a refusal to its prometheus.Counter.
	byRefusal sync.Map
}

type refusalKey struct{ layer, reason string }

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_http_requests_total", Help: "Requests answered, by route and status; 499 is a client that left.",
		}, []string{"route", "status"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_http_refusals_total", Help: "Reservations refused by quota, by layer and reason.",
		}, []string{"layer", "reason"}),
	}
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "tollgate_http_request_duration_seconds", Help: "Time from a request's header to its answer.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
	}, []string{"route"})
	for r := range routes {
		m.duration[r] = duration.WithLabelValues(routes[r].path)
	}
	inFlight := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tollgate_http_requests_in_flight", Help: "Requests being answered now.",
	}, func() float64 { return float64(m.inFlight.Load()) })

	for _, c := range []prometheus.Collector{m.requests, m.refusals, duration, inFlight} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(r route, status int, took time.Duration) {
	m.duration[r].Observe(took.Seconds())
	if status < 0 || status >= len(m.byStatus[r]) {
		status = 0
	}
	counter := m.byStatus[r][status].Load()
	if counter == nil {
		made := m.requests.WithLabelValues(routes[r].path, strconv.Itoa(status))
		m.byStatus[r][status].Store(&made)
		counter = &made
	}
	(*counter).Inc()
}

func (m *metrics) refused(layer, reason string) {
	key := refusalKey{layer, reason}
	counter, ok := m.byRefusal.Load(key)
	if !ok {
		counter, _ = m.byRefusal.LoadOrStore(key, m.refusals.WithLabelValues(layer, reason))
	}
	counter.(prometheus.Counter).Inc()
}
