package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TracesOptions say where traces go.
type TracesOptions struct {
	// Endpoint is an OTLP/HTTP collector's URL, as http://collector:4318; without a
	// path /v1/traces is asked. "" makes no traces. The exporter also obeys
	// OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_HEADERS and the like).
	Endpoint string
	// Percent of the requests are traced whose client did not decide it: 0 to 100.
	Percent int
	Version string       // of the program
	Log     *slog.Logger // where failures to export are told; nil: slog's default
}

// Traces sends spans to a collector, in batches and in the background: at most
// 2,048 spans wait, further ones are dropped, so that a collector that is away
// costs neither time nor memory.
type Traces struct {
	provider *sdktrace.TracerProvider
}

// stopWithin bounds the last export.
const stopWithin = 5 * time.Second

// NewTraces starts to send traces, if an endpoint is given; else it gives nil,
// whose methods do nothing. OpenTelemetry has one place a process where failures
// in the background are told: it is set to opts.Log.
func NewTraces(ctx context.Context, opts TracesOptions) (*Traces, error) {
	if opts.Endpoint == "" {
		return nil, nil
	}
	target, err := url.Parse(opts.Endpoint)
	if err != nil || target.Host == "" || target.Scheme != "http" && target.Scheme != "https" {
		return nil, fmt.Errorf("traces: the endpoint %q must be a URL as http://collector:4318", redact(target, opts.Endpoint))
	}
	if opts.Percent < 0 || opts.Percent > 100 {
		return nil, fmt.Errorf("traces: the share must be 0 to 100 percent, is %d", opts.Percent)
	}
	if strings.Trim(target.Path, "/") == "" {
		target.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(target.String()))
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	log := opts.Log
	if log == nil {
		log = slog.Default()
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces were not exported", "err", err) }))
	return &Traces{provider: sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(float64(opts.Percent)/100))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "tollgate"),
			attribute.String("service.version", opts.Version),
		)),
	)}, nil
}

// Provider is for Options; nil where there are no traces.
func (t *Traces) Provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Stop sends what waits, for at most 5 seconds, and ends the background work. It
// may be called twice.
func (t *Traces) Stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	return nil
}

// redact leaves out a password that a URL may carry.
func redact(u *url.URL, raw string) string {
	if u == nil {
		return "(not a URL)"
	}
	if u.User != nil {
		return u.Redacted()
	}
	return raw
}
