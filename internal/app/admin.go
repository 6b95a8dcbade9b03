package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// checkTimeout bounds the whole of one readiness answer.
const checkTimeout = 2 * time.Second

// addAdmin adds the listener for operators: metrics, liveness and readiness.
// It has no credential and therefore listens on loopback unless configured
// otherwise; it shows no tenant's figures and no errors' details.
func (a *App) addAdmin() {
	if a.cfg.AdminListen == "" {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics, promhttp.HandlerOpts{Registry: a.metrics}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", a.readyz)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	served := make(chan struct{})
	a.parts = append([]part{{
		name: "admin listener",
		start: func(ctx context.Context) error {
			var lc net.ListenConfig
			l, err := lc.Listen(ctx, "tcp", a.cfg.AdminListen)
			if err != nil {
				return fmt.Errorf("admin_listen: %w", err)
			}
			a.AdminAddr = l.Addr().String()
			go func() {
				defer close(served)
				if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
					a.fail(fmt.Errorf("admin listener: %w", err))
				}
			}()
			return nil
		},
		stop: func(ctx context.Context) error {
			err := server.Shutdown(ctx)
			<-served // an end right after the start: only Serve closes the listener then
			return err
		},
	}}, a.parts...)
}

// readyz answers 200 when every check passes, else 503 and the names of the
// checks that do not; why is in the log.
func (a *App) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	failed := a.Ready(ctx)
	if len(failed) == 0 {
		fmt.Fprintln(w, "ready")
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	for _, name := range failed {
		fmt.Fprintf(w, "not ready: %s\n", name)
	}
}

// Ready returns the names of the checks that do not pass.
func (a *App) Ready(ctx context.Context) []string {
	var failed []string
	for _, c := range a.checks {
		if err := c.ready(ctx); err != nil {
			failed = append(failed, c.name)
			a.log.Warn("not ready", "check", c.name, "error", err)
		}
	}
	return failed
}
