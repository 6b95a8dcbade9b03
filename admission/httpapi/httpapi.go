// Package httpapi is the gateway's HTTP API: it verifies the credential, reads
// the body strictly, lets admission.Store decide, and turns the outcome into
// an answer.
//
// It decides nothing itself and keeps no state between requests. The tenant is
// always the credential's; no header, body or query can name another, except
// where an operator reads a tenant's quota.
//
// Requests are I-JSON (RFC 7493) objects: malformed JSON and fields given twice
// are 400, a field that is unknown, of another type or out of range is 422 and
// named. Answers other than successes are RFC 9457 problems, whose members for
// refusals by quota are those of draft-ietf-httpapi-ratelimit-headers.
//
// Requests of the plain form that nearly all have are read and answered here,
// all others by net/http, with the same handlers; see readHead. What the front
// door serves goes to net/http at the first look. There is no framework between: the OpenAPI document is made with huma from the same types
// and tags that the handlers read and enforce, and tests hold the two together.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// MeterSink takes meter readings. Publish returns nil only when all of them
// are safe; it may be called again with the same events.
type MeterSink interface {
	Publish(ctx context.Context, events []events.Event) error
}

// FrontDoor takes requests whose paths the API does not know. The server's
// time-outs, which are for short requests, hold until it sets its own by
// http.ResponseController; the bound on header bytes stays.
type FrontDoor interface {
	http.Handler
	// Matches says that a request is one of its own.
	Matches(r *http.Request) bool
}

// Options configures a Server. Store and Directory are needed; zero values of
// the rest take the defaults named.
type Options struct {
	Store     admission.Store
	Directory tenancy.Directory
	// Meters takes readings; nil answers POST /v1/meters with 503.
	Meters MeterSink
	// FrontDoor serves what is not the API's, on the same listener; nil: nobody.
	FrontDoor FrontDoor

	Listen      string // host:port; default 127.0.0.1:8080
	AdminListen string // metrics and health; default 127.0.0.1:9090, "-" for none

	RequestTimeout time.Duration // for one decision; default 2 s
	MaxBodyBytes   int64         // default 64 KiB
	// DrainTimeout bounds how long Stop waits for requests under way; default 10 s.
	DrainTimeout time.Duration

	Logger     *slog.Logger          // default: discard
	Registerer prometheus.Registerer // default: a registry of its own
	Gatherer   prometheus.Gatherer   // what /metrics shows; default: that registry
	Now        func() time.Time      // default time.Now; dates only, never decides
}

// Bounds of what a request may look like. Header bytes include the request line.
const (
	maxHeaderBytes    = 16 << 10
	maxURLBytes       = 2 << 10
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
)

func (o *Options) setDefaults() error {
	if o.Store == nil || o.Directory == nil {
		return errors.New("http api: a store and a directory are needed")
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:8080"
	}
	if o.AdminListen == "" {
		o.AdminListen = "127.0.0.1:9090"
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = 2 * time.Second
	}
	if o.MaxBodyBytes <= 0 {
		o.MaxBodyBytes = 64 << 10
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		registry := prometheus.NewRegistry()
		o.Registerer = registry
		if o.Gatherer == nil {
			o.Gatherer = registry
		}
	}
	if o.Gatherer == nil {
		o.Gatherer = prometheus.DefaultGatherer
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Server is the HTTP API. New, Start, Stop; it is also an http.Handler.
type Server struct {
	opts    Options
	log     *slog.Logger
	metrics *metrics
	calls   sync.Pool
	limits  admission.LimitCache
	openapi document

	mu       sync.Mutex
	running  []*running
	stopOnce sync.Once
	stopErr  error
}

// running is one listener and its server.
type running struct {
	listener net.Listener
	conns    *conns // of the API's listener; nil for the other
	server   *http.Server
	done     chan error
}

// New checks the options and prepares a server that is not listening yet.
func New(opts Options) (*Server, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	doc, err := theDocument()
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, log: opts.Logger, openapi: doc}
	s.calls.New = func() any { return newCall(s) }
	if s.metrics, err = newMetrics(opts.Registerer); err != nil {
		return nil, fmt.Errorf("http api: %w", err)
	}
	return s, nil
}

// Start listens and serves until Stop. It returns when the addresses are bound.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return errors.New("http api: already started")
	}
	if err := s.serve(s.opts.Listen, s, true); err != nil {
		return err
	}
	if s.opts.AdminListen == "-" {
		return nil
	}
	if err := s.serve(s.opts.AdminListen, s.adminHandler(), false); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), s.opts.DrainTimeout)
		defer cancel()
		err = errors.Join(err, s.running[0].stop(ctx))
		s.running = nil
		return err
	}
	return nil
}

func (s *Server) serve(address string, handler http.Handler, plain bool) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("http api: %w", err)
	}
	r := &running{
		listener: listener,
		done:     make(chan error, 1),
		server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: readHeaderTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		},
	}
	if plain {
		r.conns = newConns(s, listener)
		r.conns.start()
		go func() { r.done <- r.server.Serve(r.conns) }()
	} else {
		go func() { r.done <- r.server.Serve(listener) }()
	}
	s.running = append(s.running, r)
	return nil
}

// Addr is the bound address of the API, nil before Start.
func (s *Server) Addr() net.Addr { return s.addr(0) }

// AdminAddr is the bound address of metrics and health, nil when there is none.
func (s *Server) AdminAddr() net.Addr { return s.addr(1) }

func (s *Server) addr(i int) net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i >= len(s.running) {
		return nil
	}
	return s.running[i].listener.Addr()
}

// Stop refuses new connections, waits for requests under way, and closes what
// is left when ctx ends or DrainTimeout has passed. It may be called twice.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.mu.Lock()
		list := s.running
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, s.opts.DrainTimeout)
		defer cancel()
		for _, r := range list {
			s.stopErr = errors.Join(s.stopErr, r.stop(ctx))
		}
	})
	return s.stopErr
}

func (r *running) stop(ctx context.Context) error {
	var err error
	if r.conns != nil {
		if late := r.conns.shutdown(ctx); late != nil {
			err = fmt.Errorf("http api: drain: %w", late)
		}
	}
	if late := r.server.Shutdown(ctx); late != nil {
		err = errors.Join(err, fmt.Errorf("http api: drain: %w", late), r.server.Close())
	}
	if served := <-r.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("http api: %w", served))
	}
	return err
}

// adminHandler serves what is for operators of the process and not for tenants.
func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.opts.Gatherer, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}))
	mux.Handle("GET /healthz", s)
	mux.Handle("GET /readyz", s)
	return mux
}
