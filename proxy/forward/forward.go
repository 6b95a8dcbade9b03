// Package forward is the front door's HTTP handler: it verifies who asks, reads
// the request, reserves its worst case, sends it to an upstream, passes the
// answer on as it comes, and charges what was delivered.
//
// What a request and an answer hold is the dialects' to know, where a request
// goes is the router's, and what an ending costs is proxy.Judge's. This package
// is about the order of things, which is what keeps the promises:
//
//   - Nobody's body is read before the credential is verified, and no byte goes
//     upstream before the reservation is held.
//   - A request has one reservation however many upstreams it tries, and falls
//     over to another only while its client has not received a byte.
//   - Every reservation ends, whatever happens to the request: the answer goes
//     first, its figures right after, and figures that cannot be recorded at once
//     are tried again in the background.
//   - A stream is never held back and never kept: each read from upstream is at
//     most one write to the client, and a client that reads slowly slows the
//     upstream down.
package forward

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/admission"
	"tollgate/proxy"
	"tollgate/proxy/route"
	"tollgate/tenancy"
)

// Router says where requests go; route.Router is the one.
type Router interface {
	Plan(model, dialect, region string) (*route.Plan, error)
	Models(dialect string) []string
}

// Options configures a Handler. Store, Directory, Dialects and Router are
// needed; zero values of the rest take the defaults named.
type Options struct {
	Store     admission.Store
	Directory tenancy.Directory
	// Dialects are asked in this order whose a request is.
	Dialects []proxy.Dialect
	Router   Router
	Observer proxy.Observer // default: nobody looks
	// Counters gives the counter of a model, which the configured tokenizer names
	// where it is not "". Default: four bytes are a token.
	Counters func(model, tokenizer string) proxy.Counter

	MaxBodyBytes int64 // of a request; default 32 MiB
	// MaxBodiesBytes bounds the large bodies that are held at one time; default 1 GiB.
	// One tenant may have a quarter of it, and one body of any size in any case.
	MaxBodiesBytes int64
	// BodyRate is the least rate, in bytes a second, at which a body must come once
	// BodyGrace is over; defaults 16 KiB and 10 s.
	BodyRate  int64
	BodyGrace time.Duration
	// MaxAnswerBytes bounds a whole answer that is kept to be read; a larger one is
	// passed on and its figures are estimated. Default 64 MiB.
	MaxAnswerBytes int64
	MaxEventBytes  int // of a stream's event that is read; default 8 MiB

	DecideTimeout      time.Duration // for one call of the store; default 2 s
	BodyTimeout        time.Duration // for the request's whole body to arrive; default 60 s
	ClientWriteTimeout time.Duration // a client that takes nothing for so long has left; default 60 s
	DrainTimeout       time.Duration // Stop's patience with requests under way; default 30 s
	SettleTimeout      time.Duration // how long figures are tried to be recorded; default 5 min

	// ProgressTokens and ProgressEvery say how often a stream reports: after so
	// many tokens, and after so much time. Defaults: 256 tokens and a third of the
	// hold's lifetime.
	ProgressTokens int64
	ProgressEvery  time.Duration

	MaxTries int // upstreams that one request may try; default 3
	// ShowUpstream tells clients in x-tollgate-upstream who answered.
	ShowUpstream bool

	Logger     *slog.Logger          // default: discard
	Registerer prometheus.Registerer // nil: no metrics
	Now        func() time.Time      // default time.Now
}

func (o *Options) setDefaults() error {
	if o.Store == nil || o.Directory == nil || o.Router == nil || len(o.Dialects) == 0 {
		return errors.New("proxy/forward: a store, a directory, a router and dialects are needed")
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	if o.Counters == nil {
		o.Counters = func(string, string) proxy.Counter { return fourBytes{} }
	}
	o.MaxBodyBytes = orDefault(o.MaxBodyBytes, 32<<20)
	o.MaxBodiesBytes = orDefault(o.MaxBodiesBytes, 1<<30)
	o.BodyRate = orDefault(o.BodyRate, 16<<10)
	o.BodyGrace = orDefault(o.BodyGrace, 10*time.Second)
	o.MaxAnswerBytes = orDefault(o.MaxAnswerBytes, 64<<20)
	o.MaxEventBytes = orDefault(o.MaxEventBytes, 8<<20)
	o.DecideTimeout = orDefault(o.DecideTimeout, 2*time.Second)
	o.BodyTimeout = orDefault(o.BodyTimeout, time.Minute)
	o.ClientWriteTimeout = orDefault(o.ClientWriteTimeout, time.Minute)
	o.DrainTimeout = orDefault(o.DrainTimeout, 30*time.Second)
	o.SettleTimeout = orDefault(o.SettleTimeout, 5*time.Minute)
	o.ProgressTokens = orDefault(o.ProgressTokens, 256)
	o.MaxTries = orDefault(o.MaxTries, 3)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

func orDefault[T cmp.Ordered](value, otherwise T) T {
	var zero T
	if value <= zero {
		return otherwise
	}
	return value
}

// nobody observes nothing.
type nobody struct{}

func (nobody) Begin(ctx context.Context, _ *proxy.Exchange, _ http.Header) context.Context {
	return ctx
}
func (nobody) Try(context.Context, *proxy.Exchange, http.Header) {}
func (nobody) End(context.Context, *proxy.Exchange)              {}

// fourBytes is the usual rule of thumb.
type fourBytes struct{}

func (fourBytes) Count(text []byte) int64 { return int64(len(text)+3) / 4 }
func (fourBytes) Exact() bool             { return false }

// Handler is the front door. New, Start, Stop; between them it serves.
type Handler struct {
	opts     Options
	log      *slog.Logger
	metrics  *metrics
	limits   admission.LimitCache
	settler  settler
	patience patience
	room     room
	pace     pace

	mu       sync.Mutex
	calls    map[*call]struct{} // under way
	draining bool
	idle     chan struct{} // closed when draining and no call is under way
	reports  sync.WaitGroup

	started, stopped sync.Once
	quit             chan struct{} // ends the ticker
	ticked           chan struct{} // closed when it has ended
	stopErr          error
}

// New checks the options and prepares a handler.
func New(opts Options) (*Handler, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	h := &Handler{
		opts: opts, log: opts.Logger, calls: map[*call]struct{}{}, idle: make(chan struct{}),
		quit: make(chan struct{}), ticked: make(chan struct{}),
	}
	var err error
	if h.metrics, err = newMetrics(opts.Registerer); err != nil {
		return nil, err
	}
	h.settler.init(h)
	h.patience.least = opts.DecideTimeout
	return h, nil
}

// Matches says that a request is one of the front door's.
func (h *Handler) Matches(r *http.Request) bool {
	_, _, _, ok := h.find(r)
	return ok
}

func (h *Handler) find(r *http.Request) (proxy.Dialect, proxy.Endpoint, string, bool) {
	for _, d := range h.opts.Dialects {
		if e, model, ok := d.Endpoint(r.Method, r.URL.Path, r.Header); ok {
			return d, e, model, true
		}
	}
	return nil, nil, "", false
}

// ServeHTTP answers one request. What is no dialect's is 404.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d, e, model, ok := h.find(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	c := newCall(h, w, r, d, e, model)
	c.run()
}
