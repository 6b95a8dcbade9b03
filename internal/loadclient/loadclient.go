// Package loadclient drives an HTTP/1.1 server over keep-alive connections and
// measures what its callers would feel.
//
// A closed loop sends the next request of a connection when the answer to the
// last one is in. An open loop sends at a given rate whatever the server does,
// and measures each latency from the moment at which the request was due, so
// that a stall is charged to every request it delayed and not only to the one
// that met it (what is known as coordinated omission).
//
// The client shares its machine with what it measures, so it does little: one
// thread serves all connections and asks the kernel directly which have news;
// requests are bytes made by a callback, answers are parsed only as far as
// their framing. It speaks no TLS, follows no redirect and retries nothing. It
// needs Linux.
package loadclient

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Options says what to send and for how long.
type Options struct {
	Addr  string // host:port
	Conns int    // keep-alive connections; at least 1
	// Rate is the number of requests a second over all connections; 0 runs a
	// closed loop.
	Rate int
	// The run ends when Duration has passed or Requests were sent, whichever
	// comes first. At least one of the two is set.
	Duration time.Duration
	Requests int64
	// Next appends one whole request to buf, which is empty, and returns it.
	// Returning nil retires the connection. Next and Done are called by one
	// goroutine for all connections; while they run, nothing else does.
	Next func(conn int, buf []byte) []byte
	// Done, when set, is given each answer. Body is valid during the call; it is
	// nil for a stream.
	Done func(conn, status int, body []byte)
	// Streams says that answers 200 are streams of server-sent events in chunks,
	// as OpenAI's are. One counts as an answer when it came whole with its end
	// marker, and as an error when it was cut or carried one.
	Streams bool
	// Began, when set, is called when a stream's first event is in.
	Began func(conn int)
	// Timeout bounds one exchange; 0 is 10 s. A timed-out request counts as
	// an error and its connection is replaced.
	Timeout time.Duration
}

// Result is what a run saw.
type Result struct {
	Sent     int64         // requests written
	ByStatus map[int]int64 // answers by status
	Errors   int64         // requests without an answer, and failed dials
	LastErr  error         // one of those errors, for the reader
	Elapsed  time.Duration
	// Latency is measured from the moment a request was due (open loop) or
	// sent (closed loop); Service always from the moment it was sent.
	Latency *Histogram
	Service *Histogram
	// FirstEvent is measured like Latency, to a stream's first event with data.
	// Streams that failed later are in it.
	FirstEvent *Histogram
	Events     int64 // events with data, of all streams
}

// Answers is the number of requests that were answered.
func (r *Result) Answers() int64 {
	var n int64
	for _, c := range r.ByStatus {
		n += c
	}
	return n
}

// PerSecond is answers ÷ elapsed.
func (r *Result) PerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Answers()) / r.Elapsed.Seconds()
}

// maxStatus bounds the table of counts; HTTP statuses have three digits.
const maxStatus = 600

// Run drives the server until the run's end or ctx's, and returns what it saw.
// It fails when the options make no sense or not one connection can be made.
func Run(ctx context.Context, opts Options) (Result, error) {
	if opts.Conns < 1 || opts.Next == nil || opts.Rate < 0 || (opts.Duration <= 0 && opts.Requests <= 0) {
		return Result{}, errors.New("load client: Conns, Next and one of Duration or Requests are needed")
	}
	if opts.Timeout <= 0 {
		opts.Timeout = 10 * time.Second
	}
	l, err := newLoop(ctx, opts)
	if err != nil {
		return Result{}, fmt.Errorf("load client: %w", err)
	}
	defer l.close()
	l.run()
	return l.result(), nil
}
