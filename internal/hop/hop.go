// Package hop measures what a hop between a client and a model server costs:
// Tollgate's front door, or another gateway in its place.
//
// Every load is driven twice in turns by the same client, straight at the model
// server (internal/benchupstream) and through the hop, so that a figure says
// what the hop adds on this machine at this moment. The rounds' median is
// reported. Client, hop and server share the machine; the first and the last are
// one thread each and lean.
package hop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"tollgate/internal/benchupstream"
	"tollgate/internal/loadclient"
)

// Pace is how the model server behind the hop answers. Its value is what stands
// before /v1 in the server's address.
type Pace string

// Paces.
const (
	Prompt Pace = "/every-2ms/chunks-40"   // answers at once, chunks 2 ms apart
	Slow   Pace = "/delay-20ms"            // answers after 20 ms
	Held   Pace = "/every-250ms/chunks-40" // streams stay open for ten seconds
)

// Paces lists them all.
var Paces = []Pace{Prompt, Slow, Held}

// chunks is how many a stream has in every pace.
const chunks = 40

// Word is the pace as a part of a name.
func (p Pace) Word() string {
	return map[Pace]string{Prompt: "prompt", Slow: "slow", Held: "held"}[p]
}

// Path is the whole path at the model server.
func (p Pace) Path() string { return string(p) + "/v1/chat/completions" }

// Body is what is asked for, in OpenAI's dialect.
func Body(model string, stream bool) []byte {
	streams := ""
	if stream {
		streams = `"stream":true,`
	}
	return fmt.Appendf(nil, `{"model":%q,%s"messages":[{"role":"system","content":"You answer in one sentence."},`+
		`{"role":"user","content":"What is a quota, and who needs one?"}],"temperature":0.2,"max_tokens":64}`, model, streams)
}

// Target is where requests go: the model server itself, or a hop.
type Target struct {
	Addr string
	// Requests are what its clients send, each of them in turn.
	Requests func(p Pace, stream bool) [][]byte
	// Root is the process whose time and memory, with its children's, are the
	// hop's; 0 for none.
	Root int
}

// Direct is the model server on addr without a hop.
func Direct(addr string) Target {
	return Target{Addr: addr, Requests: func(p Pace, stream bool) [][]byte {
		return [][]byte{loadclient.AppendRequest(nil, http.MethodPost, p.Path(), addr, "", Body("bench", stream))}
	}}
}

// Send sends n requests on a few connections and fails when anything but whole
// answers came.
func (t Target) Send(ctx context.Context, p Pace, stream bool, n int64) error {
	_, err := drive(ctx, t, load{pace: p, conns: 8, stream: stream, requests: n}, 0)
	return err
}

// StreamTokens is what one stream uses, by the model server's own count, and
// AnswerTokens what an answer that is no stream does.
const (
	StreamTokens = benchupstream.PromptTokens + chunks
	AnswerTokens = benchupstream.PromptTokens + benchupstream.AnswerTokens
)

// Options say how long to measure.
type Options struct {
	Each   time.Duration // how long one load lasts
	Rounds int           // how often it is repeated
}

// Figure is one measured value. Its name gets the hop's in front. Baseline is
// without the hop; nil where that says nothing.
type Figure struct {
	Name     string
	Value    float64
	Unit     string
	Baseline *float64
}

// Load is one way to use a hop.
type Load struct {
	Name string
	run  func(ctx context.Context, direct, hop Target, o Options) ([]Figure, error)
}

// Loads are all loads, in the order in which they are driven: memory first,
// while the hop has not yet seen a heavy load.
var Loads = []Load{
	{"idle", idle},
	{"memory", memory},
	{"200rps", open200},
	{"50rps", open50},
	{"32", closed32},
	{"stream", streams50},
}

// Run drives the load. It fails when anything but whole answers came.
func (l Load) Run(ctx context.Context, direct, hop Target, o Options) ([]Figure, error) {
	figures, err := l.run(ctx, direct, hop, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.Name, err)
	}
	return figures, nil
}

// idle is what the hop does when nothing is asked of it.
func idle(ctx context.Context, _, hop Target, _ Options) ([]Figure, error) {
	const span = 2 * time.Second
	before, err := cpu(hop.Root)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(span):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	after, err := cpu(hop.Root)
	return []Figure{{Name: "idle_cpu_ms_per_s", Value: millis(after-before) / span.Seconds(), Unit: "ms/s"}}, err
}

func open200(ctx context.Context, direct, hop Target, o Options) ([]Figure, error) {
	without, with, err := rounds(ctx, direct, hop, o, load{pace: Slow, conns: 64, rate: 200})
	if err != nil {
		return nil, err
	}
	return []Figure{
		added("200rps_added_p50_ms", without, with, func(s sample) float64 { return millis(s.latency.Quantile(0.5)) }),
		added("200rps_added_p99_ms", without, with, func(s sample) float64 { return millis(s.latency.Quantile(0.99)) }),
	}, nil
}

func open50(ctx context.Context, direct, hop Target, o Options) ([]Figure, error) {
	without, with, err := rounds(ctx, direct, hop, o, load{pace: Slow, conns: 64, rate: 50})
	if err != nil {
		return nil, err
	}
	return []Figure{
		added("50rps_added_p50_ms", without, with, func(s sample) float64 { return millis(s.latency.Quantile(0.5)) }),
		added("50rps_added_p99_ms", without, with, func(s sample) float64 { return millis(s.latency.Quantile(0.99)) }),
		{Name: "50rps_cpu_ms", Value: median(with, sample.cpuMillis), Unit: "ms"},
	}, nil
}

func closed32(ctx context.Context, direct, hop Target, o Options) ([]Figure, error) {
	without, with, err := rounds(ctx, direct, hop, o, load{pace: Prompt, conns: 32})
	if err != nil {
		return nil, err
	}
	return []Figure{
		beside("32_rps", "requests/s", without, with, sample.perSecond),
		{Name: "saturated_cpu_ms", Value: median(with, sample.cpuMillis), Unit: "ms"},
	}, nil
}

func streams50(ctx context.Context, direct, hop Target, o Options) ([]Figure, error) {
	without, with, err := rounds(ctx, direct, hop, o, load{pace: Prompt, conns: 50, stream: true})
	if err != nil {
		return nil, err
	}
	return []Figure{
		added("stream_ttft_added_ms", without, with, func(s sample) float64 { return millis(s.first.Quantile(0.5)) }),
		beside("streams_per_s", "streams/s", without, with, sample.perSecond),
		{Name: "stream_cpu_ms", Value: median(with, sample.cpuMillis), Unit: "ms"},
	}, nil
}

// heldStreams is how many streams are open at once when memory is measured.
const heldStreams = 1000

// memory is how much of it each open stream takes.
func memory(ctx context.Context, _, hop Target, o Options) ([]Figure, error) {
	if _, err := drive(ctx, hop, load{pace: Prompt, conns: 16, stream: true}, o.Each/5); err != nil { // a warm-up
		return nil, err
	}
	base, err := rss(hop.Root)
	if err != nil {
		return nil, err
	}
	var openNow atomic.Int64
	done := make(chan error, 1)
	go func() {
		_, err := drive(ctx, hop, load{
			pace: Held, conns: heldStreams, stream: true, requests: heldStreams, timeout: time.Minute,
			began: func(int) { openNow.Add(1) }, done: func(int, int, []byte) { openNow.Add(-1) },
		}, 0)
		done <- err
	}()
	most, perStream := int64(0), 0.0
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return []Figure{
				{Name: "stream_rss_kib", Value: perStream, Unit: "KiB"},
				{Name: "streams_open", Value: float64(most), Unit: "streams"},
			}, err
		case <-tick.C:
		}
		open := openNow.Load()
		now, err := rss(hop.Root)
		if err != nil || open == 0 || open < most {
			continue
		}
		// The largest value at the largest number of open streams.
		if each := (now - base) / float64(open); open > most || each > perStream {
			most, perStream = open, each
		}
	}
}

// load is what is driven at a target.
type load struct {
	pace     Pace
	conns    int
	rate     int // 0: closed loop
	stream   bool
	requests int64
	timeout  time.Duration
	began    func(int)
	done     func(int, int, []byte)
}

// sample is one round.
type sample struct {
	answers        int64
	latency, first *loadclient.Histogram
	elapsed        time.Duration
	cpu            time.Duration // of the target
}

func (s sample) perSecond() float64 { return float64(s.answers) / s.elapsed.Seconds() }
func (s sample) cpuMillis() float64 { return millis(s.cpu) / float64(s.answers) }

// rounds drives the load at both targets in turns, after a warm-up.
func rounds(ctx context.Context, direct, hop Target, o Options, l load) (without, with []sample, err error) {
	for _, t := range []Target{direct, hop} {
		if _, err := drive(ctx, t, l, o.Each/5); err != nil {
			return nil, nil, err
		}
	}
	for range max(o.Rounds, 1) {
		d, err := drive(ctx, direct, l, o.Each)
		if err != nil {
			return nil, nil, fmt.Errorf("without the hop: %w", err)
		}
		h, err := drive(ctx, hop, l, o.Each)
		if err != nil {
			return nil, nil, err
		}
		without, with = append(without, d), append(with, h)
	}
	return without, with, nil
}

// drive fails when anything but whole answers came.
func drive(ctx context.Context, t Target, l load, d time.Duration) (sample, error) {
	requests := t.Requests(l.pace, l.stream)
	n := 0
	next := func(_ int, buf []byte) []byte { // one goroutine calls it
		n++
		return append(buf, requests[n%len(requests)]...)
	}
	var refusal string // the first one, for the reader
	done := func(conn, status int, body []byte) {
		if status != http.StatusOK && refusal == "" {
			refusal = string(body[:min(len(body), 500)])
		}
		if l.done != nil {
			l.done(conn, status, body)
		}
	}
	before, err := cpu(t.Root)
	if err != nil {
		return sample{}, err
	}
	res, err := loadclient.Run(ctx, loadclient.Options{
		Addr: t.Addr, Conns: l.conns, Rate: l.rate, Duration: d, Requests: l.requests, Next: next,
		Streams: l.stream, Timeout: l.timeout, Began: l.began, Done: done,
	})
	if err != nil {
		return sample{}, err
	}
	after, err := cpu(t.Root)
	if err != nil {
		return sample{}, err
	}
	ok := res.ByStatus[http.StatusOK]
	if err := ctx.Err(); err != nil {
		return sample{}, err
	}
	if ok == 0 || ok != res.Answers() || res.Errors > 0 {
		return sample{}, errors.Join(fmt.Errorf("answers by status %v, %d errors; %s", res.ByStatus, res.Errors, refusal), res.LastErr)
	}
	if l.stream && res.Events < ok*chunks {
		return sample{}, fmt.Errorf("%d events in %d streams of %d chunks: some are lost", res.Events, ok, chunks)
	}
	return sample{answers: ok, latency: res.Latency, first: res.FirstEvent, elapsed: res.Elapsed, cpu: after - before}, nil
}

// added is the median of what each round with the hop had above the round
// before it without; its baseline is the value without.
func added(name string, without, with []sample, value func(sample) float64) Figure {
	base := median(without, value)
	var above []float64
	for i := range with {
		above = append(above, value(with[i])-value(without[i]))
	}
	return Figure{Name: name, Value: middle(above), Unit: "ms", Baseline: &base}
}

// beside is the value with the hop; its baseline is the one without.
func beside(name, unit string, without, with []sample, value func(sample) float64) Figure {
	base := median(without, value)
	return Figure{Name: name, Value: median(with, value), Unit: unit, Baseline: &base}
}

func median(samples []sample, value func(sample) float64) float64 {
	var values []float64
	for _, s := range samples {
		values = append(values, value(s))
	}
	return middle(values)
}

// middle is the median; of two in the middle, their mean.
func middle(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	if n == 0 {
		return 0
	}
	return (values[(n-1)/2] + values[n/2]) / 2
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Await waits until ready says so, the process has ended, or the time is up.
func Await(ctx context.Context, ended <-chan struct{}, patience time.Duration, ready func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !ready(ctx) {
		select {
		case <-ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("it did not come up in %s", patience)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// StartUpstream starts the model server, a process of its own: program and args
// without the address.
func StartUpstream(ctx context.Context, program string, args ...string) (*Process, error) {
	addr, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	p, err := Start(program, append(args, "--listen", addr), nil)
	if err != nil {
		return nil, fmt.Errorf("start the model server: %w", err)
	}
	p.Addr = addr
	err = Await(ctx, p.Ended, 20*time.Second, func(ctx context.Context) bool { return benchupstream.Healthy(ctx, addr) })
	if err != nil {
		p.Stop()
		return nil, fmt.Errorf("the model server: %w; its output:\n%s", err, p.Output())
	}
	return p, nil
}
