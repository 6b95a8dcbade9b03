package telemetry

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/proxy"
)

// Bucket bounds that the semantic conventions ask for.
var (
	tokenBuckets    = prometheus.ExponentialBuckets(1, 4, 14)
	durationBuckets = prometheus.ExponentialBuckets(0.01, 2, 14)
	firstBuckets    = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	perTokenBuckets = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5}
)

// How many values of labels are let through that are not configured.
const (
	mostModels  = 200 // names of models in answers
	mostReasons = 100 // error types, outcomes and reasons
)

// work is what the conventions' metrics are told apart by.
type work struct{ operation, provider, model, responseModel, upstream string }

type workEnd struct {
	work
	errorType string
}

type request struct {
	dialect, endpoint string
	status            int
	fromUpstream      bool
}

type charge struct {
	verb      proxy.Verb
	estimated bool
	reason    string
}

type tryEnd struct{ upstream, outcome string }

// metrics hold the children by their labels.
type metrics struct {
	tokens       *cache[work, tokens]
	paces        *cache[work, paces]
	clientTook   *cache[workEnd, prometheus.Observer]
	serverTook   *cache[workEnd, prometheus.Observer]
	requests     *cache[request, prometheus.Counter]
	inFlight     *cache[string, prometheus.Gauge]
	tries        *cache[tryEnd, prometheus.Counter]
	charged      *cache[charge, prometheus.Counter]
	firstToken   *cache[string, prometheus.Observer]
	chargedKinds kinds

	models  *bounded
	reasons *bounded
}

type tokens struct{ input, output prometheus.Observer }

type paces struct{ first, each prometheus.Observer }

type kinds struct{ input, output, cached, reasoning prometheus.Counter }

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gen := []string{"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_response_model", "server_address"}
	genEnd := append(gen[:len(gen):len(gen)], "error_type")
	usage := histogram("gen_ai_client_token_usage", "Tokens that were charged, of one request.", tokenBuckets,
		append(gen[:len(gen):len(gen)], "gen_ai_token_type")...)
	first := histogram("gen_ai_server_time_to_first_token_seconds", "From a request to the first content of its streamed answer, where it ended well.", firstBuckets, gen...)
	each := histogram("gen_ai_server_time_per_output_token_seconds", "Time for each output token of a stream after its first content.", perTokenBuckets, gen...)
	client := histogram("gen_ai_client_operation_duration_seconds", "Time spent with upstreams, over all tries of a request.", durationBuckets, genEnd...)
	server := histogram("gen_ai_server_request_duration_seconds", "From a request to the last byte of its answer.", durationBuckets, genEnd...)
	requests := counter("tollgate_proxy_requests_total", "Requests by their answer's status, and whose status it is.", "dialect", "endpoint", "status", "source")
	inFlight := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tollgate_proxy_in_flight", Help: "Requests that have not ended.",
	}, []string{"dialect"})
	tries := counter("tollgate_proxy_upstream_tries_total", "Tries of upstreams by what they came to.", "upstream", "outcome")
	charged := counter("tollgate_proxy_charged_total", "Reservations that were ended, by how and why.", "verb", "estimated", "reason")
	tokenSum := counter("tollgate_proxy_tokens_total", "Tokens that were charged. Cached ones are part of the input, reasoning is part of the output.", "kind")
	firstOwn := histogram("tollgate_proxy_first_token_seconds", "From a request to the first content of its streamed answer, by upstream.", firstBuckets, "upstream")

	m := &metrics{
		tokens: newCache(func(w work) tokens {
			return tokens{
				usage.WithLabelValues(w.operation, w.provider, w.model, w.responseModel, w.upstream, "input"),
				usage.WithLabelValues(w.operation, w.provider, w.model, w.responseModel, w.upstream, "output"),
			}
		}),
		paces: newCache(func(w work) paces {
			return paces{
				first.WithLabelValues(w.operation, w.provider, w.model, w.responseModel, w.upstream),
				each.WithLabelValues(w.operation, w.provider, w.model, w.responseModel, w.upstream),
			}
		}),
		clientTook: newCache(func(w workEnd) prometheus.Observer {
			return client.WithLabelValues(w.operation, w.provider, w.model, w.responseModel, w.upstream, w.errorType)
		}),
		serverTook: newCache(func(w workEnd) prometheus.Observer {
			return server.WithLabelValues(w.operation, w.provider, w.model, w.responseModel, w.upstream, w.errorType)
		}),
		requests: newCache(func(k request) prometheus.Counter {
			return requests.WithLabelValues(k.dialect, k.endpoint, strconv.Itoa(k.status), source(k.fromUpstream))
		}),
		inFlight: newCache(func(dialect string) prometheus.Gauge { return inFlight.WithLabelValues(dialect) }),
		tries:    newCache(func(k tryEnd) prometheus.Counter { return tries.WithLabelValues(k.upstream, k.outcome) }),
		charged: newCache(func(k charge) prometheus.Counter {
			return charged.WithLabelValues(verb(k.verb), strconv.FormatBool(k.estimated), k.reason)
		}),
		firstToken: newCache(func(upstream string) prometheus.Observer { return firstOwn.WithLabelValues(upstream) }),
		chargedKinds: kinds{
			tokenSum.WithLabelValues("input"), tokenSum.WithLabelValues("output"),
			tokenSum.WithLabelValues("cached_input"), tokenSum.WithLabelValues("reasoning"),
		},
		models: newBounded(mostModels), reasons: newBounded(mostReasons),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{usage, first, each, client, server, requests, inFlight, tries, charged, tokenSum, firstOwn} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("proxy/telemetry: metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) try(upstream, outcome string) {
	m.tries.get(tryEnd{upstream, m.reasons.label(outcome)}).Inc()
}

// ended counts an exchange.
func (m *metrics) ended(ex *proxy.Exchange) {
	passedOn := ex.FromUpstream || ex.Tries > 0 && ex.Status < http.StatusBadRequest
	m.requests.get(request{ex.Dialect, ex.Endpoint, ex.Status, passedOn}).Inc()
	w := work{operation(ex), provider(ex.Dialect), ex.Model, m.models.label(ex.ResponseModel), ex.Upstream}
	end := workEnd{w, m.reasons.label(ex.ErrorType)}
	m.serverTook.get(end).Observe(ex.Took.Seconds())
	if ex.Tries > 0 {
		m.clientTook.get(end).Observe(ex.Upstreams.Seconds())
	}
	if ex.FirstToken > 0 {
		m.firstToken.get(ex.Upstream).Observe(ex.FirstToken.Seconds())
	}
	if !ex.Ended {
		return
	}
	u := &ex.Charged.Usage
	m.charged.get(charge{ex.Charged.Verb, ex.Charged.Estimated, m.reasons.label(ex.Charged.Reason)}).Inc()
	m.chargedKinds.input.Add(float64(u.InputTokens))
	m.chargedKinds.output.Add(float64(u.OutputTokens))
	m.chargedKinds.cached.Add(float64(u.CachedInputTokens))
	m.chargedKinds.reasoning.Add(float64(u.ReasoningTokens))
	if u.InputTokens > 0 || u.OutputTokens > 0 {
		t := m.tokens.get(w)
		t.input.Observe(float64(u.InputTokens))
		t.output.Observe(float64(u.OutputTokens))
	}
	if ex.Stream && ex.FirstToken > 0 && ex.ErrorType == "" {
		p := m.paces.get(w)
		p.first.Observe(ex.FirstToken.Seconds())
		if u.OutputTokens > 1 && ex.Took >= ex.FirstToken {
			p.each.Observe((ex.Took - ex.FirstToken).Seconds() / float64(u.OutputTokens-1))
		}
	}
}

func source(fromUpstream bool) string {
	if fromUpstream {
		return "upstream"
	}
	return "tollgate"
}

func verb(v proxy.Verb) string {
	if v == proxy.Settle {
		return "settle"
	}
	return "cancel"
}
