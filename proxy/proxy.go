// Package proxy is the front door: it takes requests in the dialects of model
// providers, reserves before a byte goes upstream, forwards, follows the answer,
// and charges what was delivered.
//
// The root holds the nouns and the pure rules: what a request asks for (Ask),
// what an answer was seen to hold (Tally), and what is charged when it ends
// (Charge). One subpackage a dialect reads and writes that provider's shapes;
// proxy/forward is the HTTP handler; proxy/route knows the upstreams.
//
// Nothing is translated between dialects: a request reaches an upstream that
// speaks as its client does, and fields that nobody here knows pass through
// untouched in both directions.
package proxy

import (
	"net/http"

	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/proxy/sse"
)

// Operation is what a request does, in the terms of OpenTelemetry's semantic
// conventions for generative AI (gen_ai.operation.name).
type Operation string

// Operations.
const (
	OperationChat       Operation = "chat"
	OperationCompletion Operation = "text_completion"
	OperationEmbeddings Operation = "embeddings"
	OperationGenerate   Operation = "generate_content"
	OperationImages     Operation = "generate_images"
	OperationTranscribe Operation = "transcribe_audio"
	OperationSpeech     Operation = "generate_speech"
	OperationCount      Operation = "count_tokens"
	OperationModels     Operation = "list_models"
)

// Dialect is one provider's way to ask and to answer. It is stateless and safe
// for concurrent use.
type Dialect interface {
	// Name is what upstreams are configured with: "openai", "anthropic", "gemini".
	Name() string
	// Endpoint finds the endpoint of a client's request, and the model where the
	// path names it. Paths shared by dialects (/v1/models) are told apart by
	// headers. False: not this dialect's.
	Endpoint(method, path string, header http.Header) (e Endpoint, model string, ok bool)
	// Credential is the API key that a client presented in this dialect's way,
	// or "". Several different ones are an ambiguity and give "".
	Credential(header http.Header, query string) string
	// Address says where a request of this endpoint goes at an upstream: the URL
	// below the upstream's base, and the headers that carry the upstream's key.
	// A header that the client sent itself stays as it is (its credentials are gone
	// by then): only what is missing is added.
	// model is the upstream's name for the model; query is the client's, without
	// credentials.
	Address(e Endpoint, up Upstream, model, query string) (url string, header http.Header)
	// Error is the body of an error answer.
	Error(a *answer.Answer, requestID string) []byte
	// ErrorEvent is the error as event(s) of a stream that has begun.
	ErrorEvent(e Endpoint, a *answer.Answer, requestID string) []byte
	// Models is the body that lists models (ids sorted), or that shows one of them
	// when only is not empty; false when it is not among them.
	Models(ids []string, only string) (body []byte, ok bool)
}

// Endpoint is one operation of a dialect. It is stateless and safe for
// concurrent use.
type Endpoint interface {
	// Name is the endpoint as quota documents and events call it, for example
	// "chat/completions" or "messages": [a-z0-9._/-]{1,64}.
	Name() string
	Operation() Operation
	// Free says that it is answered or forwarded without a reservation
	// (listing models, counting tokens).
	Free() bool
	// Read reads a request strictly where it matters for routing and metering
	// and leaves the rest alone. body is kept by the caller, unchanged, as long as
	// the Ask lives. Model is what the path named, or "". The error is a *BadRequest.
	Read(body []byte, contentType, model string) (*Ask, error)
	// Upstream is the body that goes upstream. It returns body itself where
	// nothing must change, so that it passes byte for byte.
	Upstream(body []byte, ask *Ask, change Change) (changed []byte, contentType string, err error)
	// Answer reads a complete, successful answer that is no stream. Where it is not
	// what the dialect answers, Tally.Garbage is set.
	Answer(body []byte, contentType string, ask *Ask, count Counter) Tally
	// Stream follows a streamed answer.
	Stream(ask *Ask, count Counter) Stream
}

// QueryReader is an Endpoint that has to see the request's query: some of what it
// may ask for cannot be metered. It is asked before anything is reserved.
type QueryReader interface {
	Endpoint
	// ReadQuery refuses with a *BadRequest.
	ReadQuery(query string) error
}

// Ask is what a request asks for, as far as the front door has to know.
type Ask struct {
	Model  string // as the client named it
	Stream bool
	// UsageAsked: the client itself asked for usage in the stream. Else it is asked
	// for on its behalf, where the dialect must ask, and hidden.
	UsageAsked bool
	// MaxOutputTokens is the output cap of one choice; −1 when none was given.
	MaxOutputTokens int64
	Choices         int64 // answers asked for, at least 1; each may use the cap
	// Images is how many images shall be generated. Images in the input are input
	// tokens, as providers count them.
	Images int64
	// AudioMillis is the length of audio in the input, estimated where it is not
	// known.
	AudioMillis int64
	// InputTokens counts the input: exactly with a counter that is exact, up to the
	// parts that no tokenizer sees (images, files), which are estimated by the
	// provider's published rule. It may be called once, later than Read.
	InputTokens func(count Counter) int64
	// Binary says that a successful answer is not JSON (audio): it is passed on as
	// it comes and not read.
	Binary bool
	// Private is the dialect's own: what it found while reading (positions of
	// fields, say), for Upstream and Stream.
	Private any
}

// Change is what the front door changes in a request.
type Change struct {
	Model string // the upstream's name for the model
	// OutputCap, when above zero, is written as the output cap of a request that
	// gave none: the hold is that large, and the answer must not outgrow it.
	OutputCap int64
	// OutputCapField is the field's name where upstreams differ ("max_tokens");
	// "" takes the dialect's.
	OutputCapField string
	// AskUsage asks the upstream for usage in the stream.
	AskUsage bool
}

// Upstream is a server of models as a dialect has to know it.
type Upstream struct {
	Base       string // URL without a trailing slash, as its clients configure it
	Key        string // secret; "" sends none
	Azure      bool   // Azure OpenAI: deployments in the path, api-key header
	APIVersion string // Azure's api-version
}

// Stream follows one streamed answer. It is used by one goroutine at a time.
type Stream interface {
	// Event takes one complete event. The event's bytes are only valid during the
	// call; it may overwrite them in place, and what is left is forwarded.
	Event(ev sse.Event) Action
	// Tally is what was seen so far. Its token estimate may be rough (cheap) when
	// exact is false.
	Tally(exact bool) Tally
	// Finish returns the events that end the stream at the client as its dialect
	// ends one, for reason: what is open is closed, the usage is given where the
	// client asked for it, and the end marker is written. It is called at most once,
	// instead of the rest of the upstream's events.
	Finish(end End) []byte
}

// Action is what becomes of an event.
type Action uint8

// Actions.
const (
	Forward Action = iota
	Hide           // not meant for this client: usage that it did not ask for
)

// Counter counts tokens of text. It is safe for concurrent use.
type Counter interface {
	// Count is the number of tokens of text, exact where Exact says so.
	Count(text []byte) int64
	Exact() bool
}

// Tally is what an answer was seen to hold.
type Tally struct {
	// Usage is what the upstream itself said, the last and largest figures of its
	// cumulative reports; nil when it said nothing.
	Usage *events.Usage
	// OutputUnsaid: Usage was said before the content was (Anthropic's
	// message_start), so that its output figure does not cover what was delivered.
	OutputUnsaid bool
	// Delivered is what was counted from the content: output tokens, of which
	// reasoning; tool calls; images; audio.
	Delivered events.Usage
	// Content: something of the answer itself was seen (text, a tool call, an
	// image), not only its frame.
	Content bool
	// Complete: the dialect's own end of an answer was seen (a finish reason, a
	// final event).
	Complete bool
	// Failed: the stream carried an error of the upstream in the dialect's form.
	Failed bool
	// Garbage: what came is not the dialect's.
	Garbage bool
	// Model and FinishReason are the answer's, for metrics and traces.
	Model        string
	FinishReason string
}

// Words of End.Reason that dialects tell apart: at a cap or a quota an answer ends
// as one that has come to its cap, and the shutdown is no fault of its server's.
const (
	EndOutputCap = "output_cap"
	EndQuota     = "quota"
	EndShutdown  = "shutdown"
)

// End is why a stream is ended before the upstream ended it.
type End struct {
	// Reason is a word for programs: EndOutputCap, EndQuota, EndShutdown, or another.
	Reason string
	// Detail is a sentence for people.
	Detail string
	// Usage is what is charged.
	Usage events.Usage
}

// Capped says that the answer ends as one that came to its cap.
func (e *End) Capped() bool { return e.Reason == EndOutputCap || e.Reason == EndQuota }

// BadRequest says that a request cannot be understood. Its answer is 400 unless
// Status says otherwise.
type BadRequest struct {
	Status int    // 0 is 400
	Field  string // dotted path, "" for the whole body
	Detail string // what is wrong and what to do
}

// Error implements error.
func (e *BadRequest) Error() string {
	if e.Field == "" {
		return e.Detail
	}
	return e.Field + " " + e.Detail
}
