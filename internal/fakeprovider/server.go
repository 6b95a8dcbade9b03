// Package fakeprovider is a model server without a model, for tests and demos.
// It speaks OpenAI's, Anthropic's and Gemini's dialects with objects as whole as
// the real ones, and its answers follow from the request alone: the same
// question gives the same text, ids and times, streamed or not, direct or
// through a gateway. Tokens are counted by its own simple tokenizer, so every
// figure is known; speeds, slots and the KV cache are as configured.
//
// It misbehaves when told to: by a header, by a marker in the prompt, by rules
// given at the start or set while it runs. It keeps a log of what it really
// generated and reports it to a gateway as a model meter and a GPU meter.
package fakeprovider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// Options are what a Server may be told. The zero value answers at once and
// without limits.
type Options struct {
	Listen string // host:port for Start; "" is 127.0.0.1:0
	Seed   uint64
	// Models are served and no others. Empty: any name is, and a few are listed.
	Models []string
	// Key must come with every request of a dialect; "" asks for none.
	Key string

	OutputTokens   int64 // of every answer; 0 takes 16 to 48, by the request
	TokensPerChunk int   // of a stream; 0 is 1

	FirstToken       time.Duration // before the first token, besides reading the prompt
	PrefillPerSecond int64         // input tokens a second; 0 is at once
	DecodePerSecond  int64         // output tokens a second of one answer; 0 is at once
	JitterPercent    int           // of the time between tokens, either way

	Slots    int   // answers at once; 0 has no limit
	KVTokens int64 // tokens of input and output held at once; 0 has no limit
	Queue    int   // requests that may wait for a slot or for room; beyond: 429 and 503

	PrefixCache   bool // call what earlier requests began with cached
	GPUInUsage    bool // give usage.gpu_ms
	VendorHeaders bool // send rate limit and organization headers as vendors do

	Rules []Rule // faults by rule

	LogFile  io.Writer // gets a line of JSON for each exchange; may be nil
	LogLimit int       // records kept in memory; 0 is 20,000
	// KeepHeaders notes each request's headers in its record, so that a test sees
	// what a gateway lets through. Credentials are only said to be there.
	KeepHeaders bool

	Meters MeterOptions

	Log *slog.Logger // of this program; nil is silent
}

// Server is a model server. It is an http.Handler, and listens by itself
// between Start and Stop.
type Server struct {
	opts    Options
	log     *usageLog
	rules   *rules
	seats   *seats
	cache   *prefixCache
	meters  *meters
	running atomic.Int64
	count   atomic.Uint64
	models  []string

	quit     chan struct{} // closed by Stop: silent answers end
	stop     sync.Once
	listener net.Listener
	http     *http.Server
	done     chan struct{}
}

// New makes a Server. It begins to report meters at once, so Stop must be called
// where these are configured, with or without Start.
func New(opts Options) *Server {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.LogLimit == 0 {
		opts.LogLimit = 20_000
	}
	s := &Server{
		opts: opts, log: newLog(opts.LogLimit, opts.LogFile), rules: newRules(opts.Seed, opts.Rules),
		seats: newSeats(opts.Slots, opts.KVTokens, opts.Queue), models: opts.Models, quit: make(chan struct{}),
	}
	if opts.PrefixCache {
		s.cache = newPrefixCache()
	}
	if len(s.models) == 0 {
		s.models = []string{"fake-embedding", "fake-image", "fake-large", "fake-small", "fake-speech"}
	}
	s.meters = startMeters(opts.Meters, opts.Log)
	return s
}

// Start listens. The error says why it cannot.
func (s *Server) Start() error {
	address := s.opts.Listen
	if address == "" {
		address = "127.0.0.1:0"
	}
	var err error
	if s.listener, err = net.Listen("tcp", address); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug),
	}
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.opts.Log.Error("the server stopped", "error", err)
		}
	}()
	return nil
}

// Addr is host:port of the listener.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// URL is the server's base address.
func (s *Server) URL() string { return "http://" + s.Addr() }

// Stop ends it: running answers get until ctx is over, meters are reported, the
// log is flushed. It may be called twice. The error says what could not be
// reported.
func (s *Server) Stop(ctx context.Context) error {
	var err error
	s.stop.Do(func() {
		close(s.quit)
		if s.http != nil {
			if s.http.Shutdown(ctx) != nil {
				_ = s.http.Close() // the patience is over; handlers end with their connections
			}
			<-s.done
		}
		err = s.meters.stop(ctx)
		s.log.mu.Lock()
		err = errors.Join(err, s.log.fileErr)
		s.log.mu.Unlock()
	})
	return err
}

// Records are the exchanges that ended, from the oldest; as many as are kept.
func (s *Server) Records() []Record { return s.log.records() }

// Totals add up all exchanges that ended.
func (s *Server) Totals() AllTotals {
	t := s.log.totals()
	t.Running = s.running.Load()
	t.Meters = s.meters.totals()
	return t
}

// ResetLog forgets records and totals.
func (s *Server) ResetLog() { s.log.reset() }

// Running is how many requests of a dialect are being answered.
func (s *Server) Running() int64 { return s.running.Load() }

// dialect is how one vendor speaks of errors.
type dialect struct {
	name       string
	requestID  string // header of the answer that carries the request's id
	errorBody  func(b []byte, status int, detail *badRequest, requestID string) []byte
	errorEvent func(sequence int64) (name string, data []byte)
}

func (b *badRequest) message() string {
	switch {
	case b.field != "" && !strings.Contains(b.detail, b.field):
		return b.field + ": " + b.detail
	case b.field == "" && strings.HasPrefix(b.detail, "is "):
		return "The body " + b.detail
	}
	return b.detail
}

// maxBody bounds a request: a prompt with pictures fits.
const maxBody = 64 << 20

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/fake/") {
		s.control(w, r)
		return
	}
	t := s.route(r)
	if t.list != nil {
		t.list(s, w, r)
		return
	}
	x := exchanges.Get().(*exchange)
	x.server, x.dialect, x.w, x.r, x.ctx = s, t.dialect, w, r, r.Context()
	x.orders = noOrders()
	x.rec = Record{
		Dialect: t.dialect.name, Path: r.URL.Path, Started: time.Now().UTC(),
		RequestID: r.Header.Get("X-Request-Id"), Tenant: r.Header.Get("X-Tollgate-Tenant"),
		Reservation: r.Header.Get("X-Tollgate-Reservation"), Metered: r.Header.Get("X-Tollgate-Model"),
	}
	if s.opts.KeepHeaders {
		x.rec.Header = withoutSecrets(r.Header)
	}
	s.running.Add(1)
	defer x.finish()
	x.serve(&t)
}

func withoutSecrets(h http.Header) http.Header {
	h = h.Clone()
	for _, name := range []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Cookie"} {
		if _, there := h[name]; there {
			h[name] = []string{"(present)"}
		}
	}
	return h
}

// serve reads the request and has it answered.
func (x *exchange) serve(t *target) {
	if wrong, gone := x.readBody(); gone {
		x.left()
		return
	} else if wrong != nil {
		x.fail(http.StatusRequestEntityTooLarge, wrong)
		return
	}
	if t.answer == nil {
		x.fail(http.StatusNotFound, bad("", "There is no "+x.r.Method+" "+x.r.URL.Path+"."))
		return
	}
	if !x.authorized() {
		x.fail(http.StatusUnauthorized, bad("", "Incorrect API key provided."))
		return
	}
	a := &ask{max: -1, choices: 1, reader: reader{hash: fnvOffset ^ x.server.opts.Seed, keep: x.server.cache != nil}}
	var root gjson.Result
	var wrong *badRequest
	a.tag(t.name)
	if t.raw == nil {
		root, wrong = x.parse()
	}
	if wrong == nil {
		if t.raw != nil {
			wrong = t.raw(a, x)
		} else {
			a.model = t.model
			wrong = t.read(a, root)
		}
	}
	if wrong != nil {
		x.fail(http.StatusBadRequest, wrong)
		return
	}
	x.rec.Model, x.rec.Stream = a.model, a.stream
	if !x.knows(a.model) {
		x.fail(http.StatusNotFound, bad("model", "The model `"+a.model+"` does not exist or you do not have access to it."))
		return
	}
	if wrong := x.ordered(a); wrong != nil {
		x.fail(http.StatusBadRequest, wrong)
		return
	}
	if !x.faultBefore() || !x.admit(a) {
		return
	}
	x.usage.Input = max(1, a.input)
	x.readCache(a)
	x.identify(a)
	x.begin(a)
	t.answer(x, a, root)
}

// readBody takes the request's body. gone says that its client left before the
// body's end.
func (x *exchange) readBody() (wrong *badRequest, gone bool) {
	buf := bytes.NewBuffer(x.body[:0])
	n := x.r.ContentLength
	if n > maxBody {
		return bad("", "is larger than 64 MiB"), false
	}
	if n > 0 {
		buf.Grow(int(n) + bytes.MinRead)
	}
	read, err := buf.ReadFrom(io.LimitReader(x.r.Body, maxBody+1))
	x.body = buf.Bytes()
	if read > maxBody {
		return bad("", "is larger than 64 MiB"), false
	}
	return nil, err != nil
}

func (x *exchange) authorized() bool {
	key := x.server.opts.Key
	if key == "" {
		return true
	}
	h := x.r.Header
	return h.Get("Authorization") == "Bearer "+key || h.Get("X-Api-Key") == key || h.Get("Api-Key") == key ||
		h.Get("X-Goog-Api-Key") == key
}

func (x *exchange) knows(model string) bool {
	if len(x.server.opts.Models) == 0 {
		return true
	}
	for _, known := range x.server.opts.Models {
		if known == model {
			return true
		}
	}
	return false
}

// ordered collects what this request is told to do: by header, by its prompt,
// by rule.
func (x *exchange) ordered(a *ask) *badRequest {
	r := random(x.server.opts.Seed ^ a.hash ^ x.server.count.Add(1)*fnvPrime)
	lists := [...]string{x.r.Header.Get(HeaderFault), marked(a.prompt), x.server.rules.match(a.model)}
	for _, list := range lists {
		if list == "" {
			continue
		}
		if err := x.orders.add(list, &r); err != nil {
			return bad("", err.Error())
		}
	}
	if text := x.r.Header.Get(HeaderOutputTokens); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return bad("", HeaderOutputTokens+" must be a whole number")
		}
		x.orders.tokens = n
	}
	x.rec.Orders = x.orders.text
	return nil
}

// faultBefore carries out what comes instead of an answer. False: that is it.
func (x *exchange) faultBefore() bool {
	o := &x.orders
	switch {
	case o.reset:
		x.rec.End = EndFault + "reset"
		x.resetConnection()
	case o.hangHeader:
		x.silence(EndFault + "hang-before-header")
	case o.status != 0:
		if o.slow > 0 && !x.wait(x.rec.Started.Add(o.slow)) {
			return false
		}
		if o.retryAfter != "" {
			x.w.Header().Set("Retry-After", o.retryAfter)
		}
		x.fail(o.status, bad("", "This is the fault that was ordered."))
	case o.garbage:
		x.rec.End = EndFault + "garbage"
		x.send(http.StatusOK, []string{"text/html"}, []byte("<html><body><h1>It works!</h1></body></html>\n"))
	default:
		return true
	}
	return false
}

// resetConnection drops the connection so that the client reads a reset.
func (x *exchange) resetConnection() {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		x.abort = true
		return
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// identify sends the headers that come with every answer.
func (x *exchange) identify(a *ask) {
	if x.rec.RequestID == "" {
		r := a.seed(-2)
		x.rec.RequestID = r.id("req_", 24)
	}
	h := x.w.Header()
	h[x.dialect.requestID] = []string{x.rec.RequestID}
	if x.server.opts.VendorHeaders {
		for name, value := range vendorHeaders {
			h[name] = value
		}
	}
}

// vendorHeaders are a sample of what vendors send and a gateway must not pass on.
var vendorHeaders = map[string][]string{
	"Server": {"fake"}, "Set-Cookie": {"__cf_bm=fake; path=/; HttpOnly"}, "Strict-Transport-Security": {"max-age=15552000"},
	"Openai-Organization": {"fake-org"}, "Openai-Project": {"proj_fake"}, "X-Ratelimit-Limit-Requests": {"10000"},
	"X-Ratelimit-Remaining-Requests": {"9999"}, "X-Ratelimit-Reset-Requests": {"6ms"},
	"Anthropic-Organization-Id": {"fake-org"}, "Anthropic-Ratelimit-Requests-Remaining": {"99"}, "Alt-Svc": {`h3=":443"`},
}

// fail answers with an error of the dialect.
func (x *exchange) fail(status int, detail *badRequest) {
	if x.rec.End == "" {
		x.rec.End = EndRefused
	}
	x.usage = Usage{}
	if x.rec.RequestID == "" {
		r := random(x.server.count.Add(1) ^ x.server.opts.Seed)
		x.rec.RequestID = r.id("req_", 24)
	}
	x.w.Header()[x.dialect.requestID] = []string{x.rec.RequestID}
	x.send(status, jsonType, x.dialect.errorBody(x.spare(), status, detail, x.rec.RequestID))
}

// finish writes the exchange down and gives everything back. It breaks the
// connection off where that is the order.
func (x *exchange) finish() {
	s := x.server
	if x.admitted > 0 {
		s.seats.leave(x.admitted - 1)
	}
	if x.rec.End == "" {
		x.rec.End = EndComplete
	}
	x.rec.Usage = x.meter()
	x.rec.Chunks, x.rec.Bytes = x.chunks, x.sent
	x.rec.Ended = time.Now().UTC()
	// The name alone is kept, not the request that it is a part of.
	x.rec.Model = strings.Clone(x.rec.Model)
	if !utf8.ValidString(x.rec.Model) {
		x.rec.Model = strings.ToValidUTF8(x.rec.Model, "�")
	}
	s.log.add(&x.rec)
	s.meters.add(&x.rec)
	s.running.Add(-1)
	abort := x.abort
	if x.timer != nil {
		x.timer.Stop()
	}
	body, out := x.body, x.out
	if cap(body) > 64<<10 {
		body = nil
	}
	if cap(out) > 16<<10 {
		out = nil
	}
	*x = exchange{body: body, out: out}
	exchanges.Put(x)
	if abort {
		panic(http.ErrAbortHandler)
	}
}
