package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/admission"
	"tollgate/admission/httpapi"
	"tollgate/proxy"
	"tollgate/proxy/anthropic"
	"tollgate/proxy/forward"
	"tollgate/proxy/gemini"
	"tollgate/proxy/openai"
	"tollgate/proxy/route"
	"tollgate/proxy/telemetry"
	"tollgate/proxy/tokens"
	"tollgate/tenancy"
)

// frontDoor returns the front door with everything that it needs added to the
// parts, or nil where none is configured. Starting and stopping the handler itself
// is the HTTP API's part: see serveHTTP.
func (a *App) frontDoor(store admission.Store, directory tenancy.Directory) (*forward.Handler, error) {
	cfg := a.cfg.Proxy
	if !cfg.Enabled() {
		a.log.Info("the front door is off: proxy.upstreams_file is not set")
		return nil, nil
	}
	router, err := a.router()
	if err != nil {
		return nil, err
	}
	observer, err := a.observer()
	if err != nil {
		return nil, err
	}
	handler, err := forward.New(forward.Options{
		Store:              store,
		Directory:          directory,
		Dialects:           []proxy.Dialect{anthropic.New(), gemini.New(), openai.New()},
		Router:             router,
		Observer:           observer,
		Counters:           counterOf,
		MaxBodyBytes:       int64(cfg.MaxBodyBytes),
		MaxAnswerBytes:     int64(cfg.MaxAnswerBytes),
		DecideTimeout:      a.cfg.Admission.RequestTimeout,
		ClientWriteTimeout: cfg.ClientWriteTimeout,
		DrainTimeout:       cfg.DrainTimeout,
		ProgressTokens:     cfg.ProgressTokens,
		MaxTries:           cfg.MaxTries,
		Logger:             a.log,
		Registerer:         a.metrics,
	})
	if err != nil {
		return nil, err
	}
	a.patience += cfg.DrainTimeout
	return handler, nil
}

// observer returns who makes metrics of requests, and traces where there is a
// place for them to go.
func (a *App) observer() (proxy.Observer, error) {
	traces, err := telemetry.NewTraces(context.Background(), telemetry.TracesOptions{
		Endpoint: a.cfg.Proxy.OTLPEndpoint, Percent: a.cfg.Proxy.TracePercent, Version: a.Version, Log: a.log,
	})
	if err != nil {
		return nil, fmt.Errorf("proxy.otlp_endpoint: %w", err)
	}
	a.add(part{
		name:  "traces",
		start: func(context.Context) error { return nil },
		stop: func(ctx context.Context) error {
			if err := traces.Stop(ctx); err != nil { // a collector that is away spoils no orderly end
				a.log.Warn("some traces were not exported", "error", err)
			}
			return nil
		},
	})
	return telemetry.New(telemetry.Options{Registerer: a.metrics, TracerProvider: traces.Provider()})
}

// counterOf is the counter of the configured tokenizer, else of the model's name.
func counterOf(model, tokenizer string) proxy.Counter {
	if counter, known := tokens.For(tokenizer); known {
		return counter
	}
	return tokens.Guess(model)
}

// router reads the upstreams, and again when their file changes.
func (a *App) router() (*route.Router, error) {
	file := a.cfg.Proxy.UpstreamsFile
	table, err := route.Open(file, os.Getenv)
	if err != nil {
		return nil, err
	}
	a.log.Info("front door", "upstreams_file", file, "upstreams", len(table.Upstreams), "models", len(table.Models))
	for _, warning := range table.Warnings {
		a.log.Warn("upstreams", "warning", warning)
	}
	m, err := newRouteMetrics(a.metrics)
	if err != nil {
		return nil, err
	}
	router := route.NewRouter(table, route.RouterOptions{Region: a.cfg.Proxy.Region, OnBreaker: m.breaker})
	a.closers = append(a.closers, router.Close)
	watcher, err := route.NewWatcher(route.WatcherOptions{File: file, Router: router, Logger: a.log, OnReload: m.reload})
	if err != nil {
		return nil, err
	}
	a.add(part{
		name:  "upstreams",
		start: func(context.Context) error { watcher.Start(); return nil },
		stop:  func(context.Context) error { watcher.Stop(); return nil },
	})
	return router, nil
}

// routeMetrics are what operators see of the upstreams.
type routeMetrics struct {
	aside   *prometheus.GaugeVec
	reloads *prometheus.CounterVec
	stale   prometheus.Gauge
}

func newRouteMetrics(r prometheus.Registerer) (*routeMetrics, error) {
	m := &routeMetrics{
		aside: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tollgate_proxy_deployment_aside", Help: "1 where a model at an upstream is left alone because it fails.",
		}, []string{"upstream", "model"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_proxy_reloads_total", Help: "Attempts to read the changed upstreams' file, by outcome.",
		}, []string{"outcome"}),
		stale: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_proxy_upstreams_stale", Help: "1 where the upstreams' file has mistakes and the table of before is in force.",
		}),
	}
	for _, c := range []prometheus.Collector{m.aside, m.reloads, m.stale} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("metrics of the upstreams: %w", err)
		}
	}
	return m, nil
}

func (m *routeMetrics) breaker(upstream, model string, aside bool) {
	value := 0.0
	if aside {
		value = 1
	}
	m.aside.WithLabelValues(upstream, model).Set(value)
}

func (m *routeMetrics) reload(err error) {
	if err != nil {
		m.reloads.WithLabelValues("refused").Inc()
		m.stale.Set(1)
		return
	}
	m.reloads.WithLabelValues("ok").Inc()
	m.stale.Set(0)
}

// apiDrain is how long requests of the API may take to end.
const apiDrain = 10 * time.Second

// serveHTTP adds the gateway's listener, with the front door behind it where
// there is one. Both stop together: the listener takes no new connection, the
// front door refuses new requests on those that are open, and streams go on until
// the drain's time is up; then the front door ends them in their dialect.
func (a *App) serveHTTP(opts httpapi.Options, front *forward.Handler) error {
	opts.DrainTimeout = apiDrain
	if front != nil {
		opts.FrontDoor = front
		opts.DrainTimeout += a.cfg.Proxy.DrainTimeout + stopTimeout/2
	}
	server, err := httpapi.New(opts)
	if err != nil {
		return err
	}
	a.add(part{
		name: "http api",
		start: func(context.Context) error {
			if front != nil {
				if err := front.Start(); err != nil {
					return err
				}
			}
			if err := server.Start(); err != nil {
				if front != nil {
					err = errors.Join(err, front.Stop(context.Background()))
				}
				return err
			}
			a.Addr = server.Addr().String()
			return nil
		},
		stop: func(ctx context.Context) error {
			if front == nil {
				return server.Stop(ctx)
			}
			drained := make(chan error, 1)
			go func() { drained <- front.Stop(ctx) }()
			return errors.Join(server.Stop(ctx), <-drained)
		},
	})
	return nil
}
