package telemetry

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"tollgate/proxy"
)

var propagator = propagation.TraceContext{}

// beginSpan starts the span of the request as clients see it, below the client's
// own if it sent one.
func (t *Telemetry) beginSpan(x *exchange, ex *proxy.Exchange, header http.Header) {
	ctx := propagator.Extract(x.Context, propagation.HeaderCarrier(header))
	x.Context, x.span = t.tracer.Start(ctx, operation(ex), trace.WithSpanKind(trace.SpanKindServer))
}

// beginTrySpan starts the span of a try and sends its context along.
func (t *Telemetry) beginTrySpan(x *exchange, ex *proxy.Exchange, header http.Header) {
	ctx, span := t.tracer.Start(x.Context, name(ex), trace.WithSpanKind(trace.SpanKindClient))
	x.try = span
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("gen_ai.operation.name", operation(ex)),
			attribute.String("gen_ai.provider.name", provider(ex.Dialect)),
			attribute.String("gen_ai.request.model", ex.Model),
			attribute.String("server.address", ex.Upstream),
			attribute.String("tollgate.upstream.region", ex.Region),
			attribute.Int("tollgate.upstream.try", ex.Tries),
		)
	}
	header.Del("Tracestate") // of a client whose traceparent was none, it would be ours
	propagator.Inject(ctx, propagation.HeaderCarrier(header))
}

func endTrySpan(x *exchange, outcome string) {
	if outcome != answered {
		x.try.SetStatus(codes.Error, outcome)
		x.try.SetAttributes(attribute.String("error.type", outcome))
	}
	x.try.End()
	x.try = nil
}

// describe gives a span what the answer was seen to be.
func describe(span trace.Span, ex *proxy.Exchange) {
	if !span.IsRecording() {
		return
	}
	if ex.ResponseModel != "" {
		span.SetAttributes(attribute.String("gen_ai.response.model", ex.ResponseModel))
	}
	if ex.Ended {
		u := &ex.Charged.Usage
		span.SetAttributes(
			attribute.Int64("gen_ai.usage.input_tokens", u.InputTokens),
			attribute.Int64("gen_ai.usage.output_tokens", u.OutputTokens),
			attribute.Int64("gen_ai.usage.cache_read.input_tokens", u.CachedInputTokens),
			attribute.Int64("gen_ai.usage.reasoning.output_tokens", u.ReasoningTokens),
		)
	}
}

func endSpan(x *exchange, ex *proxy.Exchange) {
	if x.span.IsRecording() {
		describe(x.span, ex)
		x.span.SetName(name(ex))
		x.span.SetAttributes(
			attribute.String("gen_ai.operation.name", operation(ex)),
			attribute.String("gen_ai.provider.name", provider(ex.Dialect)),
			attribute.String("gen_ai.request.model", ex.Model),
			attribute.Bool("gen_ai.request.stream", ex.Stream),
			attribute.Int("http.response.status_code", ex.Status),
			attribute.String("tollgate.endpoint", ex.Endpoint),
			attribute.String("tollgate.tenant.id", ex.Tenant),
			attribute.String("tollgate.request.id", ex.RequestID),
			attribute.String("tollgate.reservation.id", ex.Reservation),
			attribute.String("tollgate.upstream", ex.Upstream),
			attribute.Int("tollgate.upstream.tries", ex.Tries),
		)
		if ex.FirstToken > 0 {
			x.span.SetAttributes(attribute.Float64("gen_ai.response.time_to_first_chunk", ex.FirstToken.Seconds()))
		}
		if ex.Ended {
			x.span.SetAttributes(
				attribute.String("tollgate.charge.verb", verb(ex.Charged.Verb)),
				attribute.Bool("tollgate.charge.estimated", ex.Charged.Estimated),
				attribute.String("tollgate.charge.reason", ex.Charged.Reason),
			)
		}
		if ex.ErrorType != "" {
			x.span.SetAttributes(attribute.String("error.type", ex.ErrorType))
			x.span.SetStatus(codes.Error, ex.ErrorType)
		}
	}
	x.span.End()
}

// name is a span's: the operation and, where it is known, the model.
func name(ex *proxy.Exchange) string {
	if ex.Model == "" {
		return operation(ex)
	}
	return operation(ex) + " " + ex.Model
}
