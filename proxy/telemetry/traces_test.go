package telemetry_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"tollgate/proxy/telemetry"
)

const (
	clientTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan   = "00f067aa0ba902b7"
	clientParent = "00-" + clientTrace + "-" + clientSpan + "-01"
)

func traced(t *testing.T) (*telemetry.Telemetry, *tracetest.SpanRecorder) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	observer, _ := newObserver(t, telemetry.Options{TracerProvider: provider})
	return observer, recorder
}

func attributes(span sdktrace.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, kv := range span.Attributes() {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

// A request's span is below the client's, a span for each try is below it, and
// the upstream gets the try's.
func TestSpans(t *testing.T) {
	t.Parallel()
	observer, recorder := traced(t)
	ex := streamed()
	ex.Model, ex.Tries, ex.Upstream = "", 0, "" // not known when it begins
	ctx := observer.Begin(t.Context(), &ex, http.Header{"Traceparent": {clientParent}, "Tracestate": {"vendor=7"}})
	ex.Model = "gpt-4o"
	var sent []http.Header
	try := func(upstream string) {
		ex.Upstream = upstream
		ex.Tries++
		header := http.Header{"Traceparent": {clientParent}, "Tracestate": {"vendor=7"}}
		observer.Try(ctx, &ex, header)
		ex.TryFailed = ""
		sent = append(sent, header)
	}
	try("west")
	ex.TryFailed = "upstream_503"
	try("east")
	observer.End(ctx, &ex)

	spans := recorder.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans", len(spans))
	}
	first, second, server := spans[0], spans[1], spans[2]
	if server.Name() != "chat gpt-4o" || server.SpanKind() != trace.SpanKindServer ||
		server.Parent().SpanID().String() != clientSpan || server.SpanContext().TraceID().String() != clientTrace {
		t.Errorf("the request's span: %s %s below %s", server.Name(), server.SpanKind(), server.Parent().SpanID())
	}
	for i, try := range []sdktrace.ReadOnlySpan{first, second} {
		if try.Name() != "chat gpt-4o" || try.SpanKind() != trace.SpanKindClient || try.Parent().SpanID() != server.SpanContext().SpanID() {
			t.Errorf("try %d: %s %s below %s", i, try.Name(), try.SpanKind(), try.Parent().SpanID())
		}
		want := http.Header{"Traceparent": {"00-" + clientTrace + "-" + try.SpanContext().SpanID().String() + "-01"}, "Tracestate": {"vendor=7"}}
		if diff := cmp.Diff(want, sent[i]); diff != "" {
			t.Errorf("try %d: %s", i, diff)
		}
	}
	if first.Status().Code != codes.Error || attributes(first)["error.type"] != "upstream_503" || second.Status().Code != codes.Unset {
		t.Errorf("the tries' ends: %v, %v", first.Status(), second.Status())
	}
	if diff := cmp.Diff(map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-4o", "gen_ai.response.model": "gpt-4o-2024-08-06",
		"gen_ai.usage.input_tokens": "13", "gen_ai.usage.output_tokens": "33",
		"gen_ai.usage.cache_read.input_tokens": "4", "gen_ai.usage.reasoning.output_tokens": "5",
		"server.address": "east", "tollgate.upstream.region": "eu", "tollgate.upstream.try": "2",
	}, attributes(second)); diff != "" {
		t.Error("second try:", diff)
	}
	if diff := cmp.Diff(map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-4o", "gen_ai.response.model": "gpt-4o-2024-08-06",
		"gen_ai.usage.input_tokens": "13", "gen_ai.usage.output_tokens": "33",
		"gen_ai.usage.cache_read.input_tokens": "4", "gen_ai.usage.reasoning.output_tokens": "5",
		"gen_ai.request.stream": "true", "gen_ai.response.time_to_first_chunk": "0.5", "http.response.status_code": "200",
		"tollgate.endpoint": "chat/completions", "tollgate.tenant.id": "ten_secret", "tollgate.request.id": "req_secret",
		"tollgate.reservation.id": "res_secret", "tollgate.upstream": "east", "tollgate.upstream.tries": "2",
		"tollgate.charge.verb": "settle", "tollgate.charge.estimated": "false", "tollgate.charge.reason": "",
	}, attributes(server)); diff != "" {
		t.Error("request:", diff)
	}
}

// A request that failed says so; one without a client's trace begins its own.
func TestSpanOfFailure(t *testing.T) {
	t.Parallel()
	observer, recorder := traced(t)
	ex := streamed()
	ex.Ended, ex.Status, ex.ErrorType, ex.TryFailed = false, 502, "upstream_broken", ""
	header := http.Header{"Tracestate": {"orphan=1"}}
	ctx := observer.Begin(t.Context(), &ex, header)
	observer.Try(ctx, &ex, header)
	observer.End(ctx, &ex)
	spans := recorder.Ended()
	if len(spans) != 2 || spans[1].Parent().IsValid() {
		t.Fatalf("%d spans", len(spans))
	}
	for _, span := range spans {
		if span.Status().Code != codes.Error || attributes(span)["error.type"] != "upstream_broken" {
			t.Errorf("%s: %v", span.SpanKind(), span.Status())
		}
	}
	if got := header.Get("Traceparent"); !strings.Contains(got, spans[0].SpanContext().SpanID().String()) || header.Get("Tracestate") != "" {
		t.Errorf("sent %v", header)
	}
}

// Without traces, what a client sent goes on as it came.
func TestNoTraces(t *testing.T) {
	t.Parallel()
	var off *telemetry.Traces
	observer, _ := newObserver(t, telemetry.Options{TracerProvider: off.Provider()})
	ex := streamed()
	header := http.Header{"Traceparent": {clientParent}, "Tracestate": {"vendor=7"}}
	once(t.Context(), observer, &ex, header)
	if diff := cmp.Diff(http.Header{"Traceparent": {clientParent}, "Tracestate": {"vendor=7"}}, header); diff != "" {
		t.Error(diff)
	}
}

// Spans arrive at a collector, none is lost at the end.
func TestExport(t *testing.T) {
	t.Parallel()
	var bodies atomic.Pointer[string]
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" && err == nil {
			zip, _ := gzip.NewReader(bytes.NewReader(body))
			body, err = io.ReadAll(zip)
		}
		if err != nil {
			t.Error(err)
		}
		all := r.URL.Path + " " + r.Header.Get("Content-Type") + " " + string(body)
		bodies.Store(&all)
	}))
	defer collector.Close()
	traces, err := telemetry.NewTraces(t.Context(), telemetry.TracesOptions{Endpoint: collector.URL, Percent: 100, Version: "v9.9.9", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	observer, _ := newObserver(t, telemetry.Options{TracerProvider: traces.Provider()})
	ex := streamed()
	once(t.Context(), observer, &ex, http.Header{})
	for range 2 {
		if err := traces.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	got := bodies.Load()
	if got == nil {
		t.Fatal("nothing arrived")
	}
	for _, want := range []string{"/v1/traces application/x-protobuf ", "chat gpt-4o", "tollgate", "v9.9.9", "gen_ai.usage.output_tokens"} {
		if !strings.Contains(*got, want) {
			t.Errorf("%q did not arrive", want)
		}
	}
}

// The share is of those requests whose client did not decide.
func TestSampling(t *testing.T) {
	t.Parallel()
	traces, err := telemetry.NewTraces(t.Context(), telemetry.TracesOptions{Endpoint: "http://127.0.0.1:1", Percent: 0, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	// Its one sampled span has nowhere to go.
	defer traces.Stop(t.Context()) //nolint:errcheck // see above
	observer, _ := newObserver(t, telemetry.Options{TracerProvider: traces.Provider()})
	for parent, sampled := range map[string]string{"": "-00", clientParent: "-01", "00-" + clientTrace + "-" + clientSpan + "-00": "-00"} {
		ex := streamed()
		header := http.Header{}
		if parent != "" {
			header.Set("Traceparent", parent)
		}
		ctx := observer.Begin(t.Context(), &ex, header)
		observer.Try(ctx, &ex, header)
		if got := header.Get("Traceparent"); !strings.HasSuffix(got, sampled) {
			t.Errorf("%q goes on as %q", parent, got)
		}
	}
}

func TestNewTracesRefuses(t *testing.T) {
	t.Parallel()
	for _, opts := range []telemetry.TracesOptions{
		{Endpoint: "collector:4318"},
		{Endpoint: "ftp://collector"},
		{Endpoint: "http://"},
		{Endpoint: "::"},
		{Endpoint: "http://c", Percent: 101},
		{Endpoint: "http://c", Percent: -1},
		{Endpoint: "ftp://user:hunter2@c"},
	} {
		traces, err := telemetry.NewTraces(t.Context(), opts)
		if err == nil || traces != nil {
			t.Errorf("%+v is taken", opts)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a password is shown: %v", err)
		}
	}
	traces, err := telemetry.NewTraces(t.Context(), telemetry.TracesOptions{})
	if err != nil || traces.Provider() != nil || traces.Stop(t.Context()) != nil {
		t.Errorf("without an endpoint: %v, %v", traces, err)
	}
}
