package proxy

import (
	"context"
	"net/http"
	"time"
)

// Exchange is the story of one request, for metrics and traces. It holds no
// prompt, no answer and no secret.
type Exchange struct {
	Dialect   string
	Endpoint  string // Endpoint.Name
	Operation Operation
	Tenant    string // internal id; for traces and logs, never a metric's label
	RequestID string
	// Model is the configured name that the request was routed by; "" when it
	// named none that is known, so that labels come from a bounded set.
	Model         string
	ResponseModel string
	Upstream      string // of the last try
	Region        string
	Stream        bool

	Tries int
	// TryFailed is why the last try came to nothing, in words as ErrorType's, for
	// the observer's next call. After an observer's Try it is "" until that try
	// fails, too.
	TryFailed    string
	Status       int    // of the answer; 499 when the client left before it
	FromUpstream bool   // the status is the upstream's, not ours
	ErrorType    string // "" when all went well: "quota", "upstream_5xx", "client_gone", …

	Began       time.Time
	FirstToken  time.Duration // from Began to the first event with content; 0: none
	Upstreams   time.Duration // time spent waiting for and reading from upstreams
	Took        time.Duration
	Reservation string
	Charged     Charged
	Ended       bool // Charged is set
}

// Observer sees every exchange. It is called on the request's goroutine and
// must be quick.
type Observer interface {
	// Begin is called once the request's dialect is known. The context that it
	// returns is the exchange's.
	Begin(ctx context.Context, ex *Exchange, header http.Header) context.Context
	// Try is called before each try, with the header that goes upstream, in which
	// it may set the trace context.
	Try(ctx context.Context, ex *Exchange, header http.Header)
	// End is called once.
	End(ctx context.Context, ex *Exchange)
}
