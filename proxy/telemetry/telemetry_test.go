package telemetry_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newObserver(t testing.TB, opts telemetry.Options) (*telemetry.Telemetry, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	opts.Registerer = registry
	observer, err := telemetry.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return observer, registry
}

// gather lists all series with their values, of histograms the count and the sum.
func gather(t testing.TB, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" { // which Prometheus takes for a label that is not there
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			series := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.GetHistogram() != nil:
				all[series+" count"] = float64(m.GetHistogram().GetSampleCount())
				all[series+" sum"] = m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				all[series] = m.GetCounter().GetValue()
			default:
				all[series] = m.GetGauge().GetValue()
			}
		}
	}
	return all
}

// streamed is an exchange that went well at the second upstream.
func streamed() proxy.Exchange {
	return proxy.Exchange{
		Dialect: "openai", Endpoint: "chat/completions", Operation: proxy.OperationChat, Tenant: "ten_secret", RequestID: "req_secret",
		Model: "gpt-4o", ResponseModel: "gpt-4o-2024-08-06", Upstream: "east", Region: "eu", Stream: true, Tries: 2, Status: 200,
		FirstToken: 500 * time.Millisecond, Upstreams: 2 * time.Second, Took: 2500 * time.Millisecond, Reservation: "res_secret", Ended: true,
		Charged: proxy.Charged{Verb: proxy.Settle, Usage: events.Usage{InputTokens: 13, OutputTokens: 33, CachedInputTokens: 4, ReasoningTokens: 5}},
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	observer, registry := newObserver(t, telemetry.Options{})
	ex := streamed()
	ctx := observer.Begin(t.Context(), &ex, http.Header{})
	if got := gather(t, registry)["tollgate_proxy_in_flight{dialect=openai}"]; got != 1 {
		t.Errorf("%v in flight", got)
	}
	ex.Upstream = "west"
	observer.Try(ctx, &ex, http.Header{})
	ex.TryFailed, ex.Upstream = "upstream_503", "east"
	observer.Try(ctx, &ex, http.Header{})
	ex.TryFailed = ""
	observer.End(ctx, &ex)

	gen := "gen_ai_operation_name=chat,gen_ai_provider_name=openai,gen_ai_request_model=gpt-4o,gen_ai_response_model=gpt-4o-2024-08-06"
	want := map[string]float64{
		"gen_ai_client_token_usage{" + gen + ",gen_ai_token_type=input,server_address=east} count":           1,
		"gen_ai_client_token_usage{" + gen + ",gen_ai_token_type=input,server_address=east} sum":             13,
		"gen_ai_client_token_usage{" + gen + ",gen_ai_token_type=output,server_address=east} count":          1,
		"gen_ai_client_token_usage{" + gen + ",gen_ai_token_type=output,server_address=east} sum":            33,
		"gen_ai_client_operation_duration_seconds{" + gen + ",server_address=east} count":                    1,
		"gen_ai_client_operation_duration_seconds{" + gen + ",server_address=east} sum":                      2,
		"gen_ai_server_request_duration_seconds{" + gen + ",server_address=east} count":                      1,
		"gen_ai_server_request_duration_seconds{" + gen + ",server_address=east} sum":                        2.5,
		"gen_ai_server_time_to_first_token_seconds{" + gen + ",server_address=east} count":                   1,
		"gen_ai_server_time_to_first_token_seconds{" + gen + ",server_address=east} sum":                     0.5,
		"gen_ai_server_time_per_output_token_seconds{" + gen + ",server_address=east} count":                 1,
		"gen_ai_server_time_per_output_token_seconds{" + gen + ",server_address=east} sum":                   2.0 / 32,
		"tollgate_proxy_requests_total{dialect=openai,endpoint=chat/completions,source=upstream,status=200}": 1,
		"tollgate_proxy_in_flight{dialect=openai}":                                                           0,
		"tollgate_proxy_upstream_tries_total{outcome=upstream_503,upstream=west}":                            1,
		"tollgate_proxy_upstream_tries_total{outcome=answered,upstream=east}":                                1,
		"tollgate_proxy_charged_total{estimated=false,verb=settle}":                                          1,
		"tollgate_proxy_tokens_total{kind=input}":                                                            13,
		"tollgate_proxy_tokens_total{kind=output}":                                                           33,
		"tollgate_proxy_tokens_total{kind=cached_input}":                                                     4,
		"tollgate_proxy_tokens_total{kind=reasoning}":                                                        5,
		"tollgate_proxy_first_token_seconds{upstream=east} count":                                            1,
		"tollgate_proxy_first_token_seconds{upstream=east} sum":                                              0.5,
	}
	if diff := cmp.Diff(want, gather(t, registry)); diff != "" {
		t.Error(diff)
	}
}

// What ended otherwise is counted as what it was, and not as what it was not.
func TestMetricsOfOtherEndings(t *testing.T) {
	t.Parallel()
	observer, registry := newObserver(t, telemetry.Options{})
	end := func(change func(*proxy.Exchange), tries int) {
		ex := streamed()
		ex.Tries = tries
		change(&ex)
		ctx := observer.Begin(t.Context(), &ex, http.Header{})
		for range tries {
			observer.Try(ctx, &ex, http.Header{})
		}
		observer.End(ctx, &ex)
	}
	end(func(ex *proxy.Exchange) { // refused by a quota: no upstream was asked
		*ex = proxy.Exchange{Dialect: "anthropic", Endpoint: "messages", Operation: proxy.OperationChat, Model: "claude", Status: 429, ErrorType: "quota"}
	}, 0)
	end(func(ex *proxy.Exchange) { // cancelled by its client
		ex.Status, ex.ErrorType = 499, "client_gone"
		ex.Charged = proxy.Charged{Verb: proxy.Cancel, Estimated: true, Reason: "client_gone", Usage: events.Usage{InputTokens: 7, OutputTokens: 2}}
	}, 1)
	end(func(ex *proxy.Exchange) { // passed on from the upstream
		ex.Dialect, ex.Status, ex.FromUpstream, ex.ErrorType, ex.TryFailed = "gemini", 500, true, "upstream_500", "upstream_500"
		ex.FirstToken, ex.ResponseModel, ex.Charged = 0, "", proxy.Charged{Verb: proxy.Cancel, Reason: "upstream_refused"}
	}, 1)
	end(func(ex *proxy.Exchange) { // not a stream
		ex.Stream, ex.FirstToken = false, 0
	}, 1)
	got := gather(t, registry)
	for series, want := range map[string]float64{
		"tollgate_proxy_requests_total{dialect=anthropic,endpoint=messages,source=tollgate,status=429}":                                                                                      1,
		"tollgate_proxy_requests_total{dialect=gemini,endpoint=chat/completions,source=upstream,status=500}":                                                                                 1,
		"tollgate_proxy_requests_total{dialect=openai,endpoint=chat/completions,source=tollgate,status=499}":                                                                                 1,
		"gen_ai_server_request_duration_seconds{error_type=quota,gen_ai_operation_name=chat,gen_ai_provider_name=anthropic,gen_ai_request_model=claude} count":                               1,
		"gen_ai_client_operation_duration_seconds{error_type=upstream_500,gen_ai_operation_name=chat,gen_ai_provider_name=gcp.gemini,gen_ai_request_model=gpt-4o,server_address=east} count": 1,
		"tollgate_proxy_upstream_tries_total{outcome=client_gone,upstream=east}":                                                                                                             1,
		"tollgate_proxy_upstream_tries_total{outcome=upstream_500,upstream=east}":                                                                                                            1,
		"tollgate_proxy_upstream_tries_total{outcome=answered,upstream=east}":                                                                                                                1,
		"tollgate_proxy_charged_total{estimated=true,reason=client_gone,verb=cancel}":                                                                                                        1,
		"tollgate_proxy_charged_total{estimated=false,reason=upstream_refused,verb=cancel}":                                                                                                  1,
		"tollgate_proxy_tokens_total{kind=input}":                                                                                                                                            20,
		"tollgate_proxy_first_token_seconds{upstream=east} count":                                                                                                                            1,
		"tollgate_proxy_in_flight{dialect=anthropic}":                                                                                                                                        0,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", series, v, ok, want)
		}
	}
	for series := range got {
		if strings.HasPrefix(series, "gen_ai_client") && strings.Contains(series, "anthropic") {
			t.Errorf("%s, though no upstream was asked", series)
		}
		if strings.HasPrefix(series, "gen_ai_server_time") {
			t.Errorf("%s, though no stream went well", series)
		}
	}
}

// The bounds of buckets are the conventions'.
func TestBuckets(t *testing.T) {
	t.Parallel()
	observer, registry := newObserver(t, telemetry.Options{})
	ex := streamed()
	observer.End(observer.Begin(t.Context(), &ex, http.Header{}), &ex)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]float64{
		"gen_ai_client_token_usage":                   {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864},
		"gen_ai_client_operation_duration_seconds":    {0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92},
		"gen_ai_server_request_duration_seconds":      {0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92},
		"gen_ai_server_time_per_output_token_seconds": {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5},
		"gen_ai_server_time_to_first_token_seconds":   {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10},
	}
	for _, f := range families {
		bounds, ok := want[f.GetName()]
		if !ok {
			continue
		}
		var got []float64
		for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
			got = append(got, b.GetUpperBound())
		}
		if diff := cmp.Diff(bounds, got); diff != "" {
			t.Errorf("%s: %s", f.GetName(), diff)
		}
		delete(want, f.GetName())
	}
	delete(want, "gen_ai_client_operation_duration_seconds") // tried none below
	if len(want) > 0 {
		t.Errorf("not there: %v", slices.Collect(maps.Keys(want)))
	}
}

// Names that others make up cannot make series without end, nor break a scrape;
// and nothing private is in a label.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	observer, registry := newObserver(t, telemetry.Options{})
	for i := range 1000 {
		ex := streamed()
		ex.ResponseModel = fmt.Sprintf("made-up-%d", i)
		ex.ErrorType = fmt.Sprintf("error-%d", i)
		ex.Charged.Reason = fmt.Sprintf("reason-%d", i)
		switch i {
		case 0:
			ex.ResponseModel, ex.ErrorType = "\xff\xfe", "\xff"
		case 1:
			ex.ResponseModel = strings.Repeat("long", 100)
		}
		ctx := observer.Begin(t.Context(), &ex, http.Header{"Authorization": {"Bearer header_secret"}})
		observer.Try(ctx, &ex, http.Header{})
		observer.End(ctx, &ex)
	}
	got := gather(t, registry)
	models, reasons := 0, 0
	for series := range got {
		if strings.Contains(series, "secret") || strings.Contains(series, "long") {
			t.Errorf("%s", series)
		}
		if strings.HasPrefix(series, "gen_ai_client_token_usage") && strings.Contains(series, "=input") {
			models++
		}
		if strings.HasPrefix(series, "tollgate_proxy_charged_total") {
			reasons++
		}
	}
	if models > 2*201 || models < 200 { // count and sum
		t.Errorf("%d series of models", models)
	}
	if reasons > 101 {
		t.Errorf("%d series of reasons", reasons)
	}
}

func TestNamesAreTaken(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	if _, err := telemetry.New(telemetry.Options{Registerer: registry}); err != nil {
		t.Fatal(err)
	}
	if _, err := telemetry.New(telemetry.Options{Registerer: registry}); err == nil {
		t.Error("two observers have the same names")
	}
	if _, err := telemetry.New(telemetry.Options{}); err != nil {
		t.Error(err)
	}
}

// An observer that did not begin an exchange leaves it alone.
func TestForeignContext(t *testing.T) {
	t.Parallel()
	observer, registry := newObserver(t, telemetry.Options{})
	ex := streamed()
	observer.Try(t.Context(), &ex, http.Header{})
	observer.End(t.Context(), &ex)
	if got := gather(t, registry)["tollgate_proxy_tokens_total{kind=input}"]; got != 0 {
		t.Errorf("%v tokens", got)
	}
}

func TestConcurrentExchanges(t *testing.T) {
	t.Parallel()
	observer, registry := newObserver(t, telemetry.Options{})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				ex := streamed()
				ex.ResponseModel = fmt.Sprint("m", (g+i)%50)
				ctx, cancel := context.WithCancel(observer.Begin(t.Context(), &ex, http.Header{}))
				observer.Try(ctx, &ex, http.Header{})
				observer.End(ctx, &ex)
				cancel()
			}
		})
	}
	wg.Wait()
	got := gather(t, registry)
	if n := got["tollgate_proxy_tokens_total{kind=input}"]; n != 8*200*13 {
		t.Errorf("%v tokens", n)
	}
	if n := got["tollgate_proxy_in_flight{dialect=openai}"]; n != 0 {
		t.Errorf("%v in flight", n)
	}
}

func once(ctx context.Context, observer *telemetry.Telemetry, ex *proxy.Exchange, header http.Header) {
	ctx = observer.Begin(ctx, ex, header)
	observer.Try(ctx, ex, header)
	observer.End(ctx, ex)
}

// One allocation: the exchange itself.
func TestAllocations(t *testing.T) {
	observer, _ := newObserver(t, telemetry.Options{})
	ex, header := streamed(), http.Header{}
	if got := testing.AllocsPerRun(100, func() { once(t.Context(), observer, &ex, header) }); got > 1 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkExchange(b *testing.B) {
	observer, _ := newObserver(b, telemetry.Options{})
	ex, header := streamed(), http.Header{}
	b.ReportAllocs()
	for b.Loop() {
		once(b.Context(), observer, &ex, header)
	}
}
