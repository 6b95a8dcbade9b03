// Package telemetry shows what the front door does: metrics for Prometheus and,
// where they are asked for, traces for OpenTelemetry.
//
// Names and attributes are those of OpenTelemetry's semantic conventions for
// generative AI (gen_ai.*), beside own ones (tollgate_proxy_*). The gateway is a
// server to its clients and a client to the upstreams: gen_ai_server_* is what
// clients wait, gen_ai_client_* what upstreams take and use.
//
// Labels come from bounded sets. Models are those that are configured; names that
// upstreams make up (the answer's model, reasons) are kept up to a number, after
// which they are "_other". Tenants, keys, prompts and answers are in no label and
// no span, but for the tenant's internal id in spans.
//
// Without a TracerProvider there are no spans, and a client's traceparent and
// tracestate reach the upstream as they came.
package telemetry

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"tollgate/proxy"
)

// Options say where to.
type Options struct {
	Registerer prometheus.Registerer // nil: metrics are kept and shown to nobody
	// TracerProvider makes the spans; nil makes none.
	TracerProvider trace.TracerProvider
}

// Telemetry observes the front door. It is safe for concurrent use.
type Telemetry struct {
	metrics *metrics
	tracer  trace.Tracer // nil: no traces
}

var _ proxy.Observer = (*Telemetry)(nil)

// New gives an observer. It fails when a metric's name is taken.
func New(opts Options) (*Telemetry, error) {
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{metrics: m}
	if opts.TracerProvider != nil {
		t.tracer = opts.TracerProvider.Tracer("tollgate/proxy")
	}
	return t, nil
}

// exchange is what is remembered of one between the observer's calls. It is the
// context as well, so that an exchange costs one allocation.
type exchange struct {
	context.Context
	inFlight prometheus.Gauge
	tried    string // the upstream of the try that is under way
	span     trace.Span
	try      trace.Span
}

type exchangeKey struct{}

// Value implements context.Context.
func (x *exchange) Value(key any) any {
	if _, ok := key.(exchangeKey); ok {
		return x
	}
	return x.Context.Value(key)
}

// Begin implements proxy.Observer.
func (t *Telemetry) Begin(ctx context.Context, ex *proxy.Exchange, header http.Header) context.Context {
	x := &exchange{Context: ctx, inFlight: t.metrics.inFlight.get(ex.Dialect)}
	x.inFlight.Inc()
	if t.tracer != nil {
		t.beginSpan(x, ex, header)
	}
	return x
}

// Try implements proxy.Observer.
func (t *Telemetry) Try(ctx context.Context, ex *proxy.Exchange, header http.Header) {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok {
		return // begun by another observer
	}
	t.endTry(x, orElse(ex.TryFailed, "failed"))
	x.tried = ex.Upstream
	if x.span != nil {
		t.beginTrySpan(x, ex, header)
	}
}

// End implements proxy.Observer.
func (t *Telemetry) End(ctx context.Context, ex *proxy.Exchange) {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok {
		return
	}
	x.inFlight.Dec()
	if x.try != nil {
		describe(x.try, ex)
	}
	t.endTry(x, orElse(ex.TryFailed, orElse(ex.ErrorType, answered)))
	t.metrics.ended(ex)
	if x.span != nil {
		endSpan(x, ex)
	}
}

// answered is the outcome of a try that was no failure.
const answered = "answered"

// endTry counts the try that is under way, if there is one.
func (t *Telemetry) endTry(x *exchange, outcome string) {
	if x.tried == "" {
		return
	}
	t.metrics.try(x.tried, outcome)
	x.tried = ""
	if x.try != nil {
		endTrySpan(x, outcome)
	}
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
