package drill

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/internal/trace"
)

// Front drives the front door as clients of two dialects do, half of them with
// streams. Some send a request again with its idempotency key after it was
// answered; it must not count twice. Others leave in the middle of a stream.
type Front struct {
	Pool    *pgxpool.Pool
	Backend Backend
	Gateway string // base URL
	Client  *http.Client
	Workers int
	// Requests that come to their end, and streams whose client leaves.
	Requests, Left int
	// Generated is what the model server itself says that it did for a tenant, and
	// Reported that it has told all of it to its meter.
	Generated    func(tenant string) trace.Totals
	Reported     func() bool
	DrainTimeout time.Duration
}

// FrontResult is what came of it.
type FrontResult struct {
	// Expected is the model server's own log of what came to its end.
	Expected trace.Totals `json:"expected"`
	Counts   []Count      `json:"counts"`
	// Repeated is how many requests were sent again after their answer; each was
	// told so.
	Repeated int `json:"repeated"`
	// LeftGenerated is what the model server did for clients that left, and
	// LeftCounted what the gateway and the ledger count: what was delivered, by
	// the gateway's own count.
	LeftGenerated trace.Totals `json:"left_generated"`
	LeftCounted   []Count      `json:"left_counted"`
	Differences   []string     `json:"differences"`
}

// Run drives, waits until everything has ended and is folded, and asks every
// part.
func (f *Front) Run(ctx context.Context) (*FrontResult, error) {
	whole, err := setup(ctx, f.Pool, "front", 1, quota())
	if err != nil {
		return nil, err
	}
	left, err := setup(ctx, f.Pool, "left", 1, quota())
	if err != nil {
		return nil, err
	}
	drain := &Drill{Pool: f.Pool, Backend: f.Backend, Fleet: left, Gateways: []string{f.Gateway}, Client: f.Client, DrainTimeout: f.DrainTimeout}
	if err := drain.waitForKeys(ctx); err != nil {
		return nil, err
	}
	res := &FrontResult{}
	if res.Repeated, err = f.drive(ctx, whole.Tenants[0].Secret, left.Tenants[0].Secret); err != nil {
		return nil, fmt.Errorf("drive the front door: %w", err)
	}
	err = until(ctx, f.DrainTimeout, func() error {
		if !f.Reported() {
			return fmt.Errorf("the model server has readings to report: %w", errNotYet)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := drain.drain(ctx); err != nil {
		return nil, err
	}
	res.Expected, res.LeftGenerated = f.Generated(whole.Tenants[0].ID), f.Generated(left.Tenants[0].ID)
	if res.Counts, err = f.counts(ctx, whole); err != nil {
		return nil, err
	}
	if res.LeftCounted, err = f.counts(ctx, left); err != nil {
		return nil, err
	}
	res.compare(f.Requests, f.Left)
	return res, nil
}

func (f *Front) counts(ctx context.Context, fleet *Fleet) ([]Count, error) {
	return (&Totals{Pool: f.Pool, Fleet: fleet, Gateway: f.Gateway, Client: f.Client}).Counts(ctx)
}

// compare finds what is not as it must be: for answers that came to their end
// all parts agree with the model server, to the token; for clients that left all
// but the model's meter agree on a figure that is not nothing.
func (r *FrontResult) compare(requests, left int) {
	differ := func(format string, args ...any) { r.Differences = append(r.Differences, fmt.Sprintf(format, args...)) }
	if r.Expected.Requests != int64(requests) {
		differ("the model server answered %d requests, %d were asked", r.Expected.Requests, requests)
	}
	for _, c := range r.Counts {
		if c.Totals != r.Expected {
			differ("front door: %s has %+v, the model server %+v", c.Part, c.Totals, r.Expected)
		}
	}
	first := r.LeftCounted[0].Totals
	if first.Requests != int64(left) || left > 0 && (first.InputTokens == 0 || first.OutputTokens == 0) {
		differ("clients that left: %+v is counted for %d of them", first, left)
	}
	for _, c := range r.LeftCounted {
		if c.Totals != first && c.Part != modelMeter {
			differ("clients that left: %s has %+v, the gateway %+v", c.Part, c.Totals, first)
		}
	}
}

// drive asks everything and returns how many requests were repeated.
func (f *Front) drive(ctx context.Context, whole, left string) (int, error) {
	var next, repeated atomic.Int64
	errs := make([]error, f.Workers)
	var wg sync.WaitGroup
	for worker := range f.Workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				var err error
				switch {
				case i < f.Requests:
					again := i%5 == 4 // both dialects, streams and whole answers
					if err = f.whole(ctx, whole, i, again); again {
						repeated.Add(1)
					}
				case i < f.Requests+f.Left:
					err = f.leave(ctx, left, i)
				default:
					return
				}
				if err != nil {
					errs[worker] = fmt.Errorf("request %d: %w", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return int(repeated.Load()), errors.Join(append(errs, ctx.Err())...)
}

// whole asks for an answer and reads it to its end. With again it is asked a
// second time with the same key, and must be told that it was answered.
func (f *Front) whole(ctx context.Context, secret string, i int, again bool) error {
	key := ""
	if again {
		key = fmt.Sprintf("front-%d-%d", time.Now().UnixNano(), i)
	}
	res, err := f.ask(ctx, secret, i, i%4 < 2, key)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close() // read to its end
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	if !again {
		return nil
	}
	if res, err = f.ask(ctx, secret, i, i%4 < 2, key); err != nil {
		return err
	}
	_ = res.Body.Close() // the status says it
	if res.StatusCode != http.StatusConflict || res.Header.Get("x-should-retry") != "false" {
		return fmt.Errorf("repeated after its answer: %s, x-should-retry %q", res.Status, res.Header.Get("x-should-retry"))
	}
	return nil
}

// leave reads the beginning of a stream and goes away.
func (f *Front) leave(ctx context.Context, secret string, i int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	res, err := f.ask(ctx, secret, i, true, "")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("a stream: %s", res.Status)
	}
	lines := bufio.NewScanner(res.Body)
	for seen := 0; seen < 8; {
		if !lines.Scan() {
			return fmt.Errorf("a stream ended after %d events: %w", seen, lines.Err())
		}
		if strings.HasPrefix(lines.Text(), "data:") {
			seen++
		}
	}
	return nil
}

// ask sends the i-th request to either dialect in turn.
func (f *Front) ask(ctx context.Context, secret string, i int, stream bool, key string) (*http.Response, error) {
	q := question{number: i, stream: stream, key: key}
	return q.send(ctx, f.Client, f.Gateway, secret)
}

// question is a request of a client: its number decides its dialect and how long
// its prompt is.
type question struct {
	number int
	stream bool
	key    string // idempotency key; "" for none
	output int64  // most tokens of the answer; 0 leaves it open
}

// claude says whether it is asked in Anthropic's dialect.
func (q question) claude() bool { return q.number%2 == 1 }

// send asks it.
func (q question) send(ctx context.Context, client *http.Client, gateway, secret string) (*http.Response, error) {
	body := map[string]any{
		"stream": q.stream,
		"messages": []map[string]string{
			{"role": "user", "content": fmt.Sprintf("Question %d. ", q.number) + strings.Repeat("Who pays the toll at the gate? ", q.number%13)},
		},
	}
	path, most := "/v1/chat/completions", "max_completion_tokens"
	if body["model"] = Model; q.claude() {
		path, most = "/v1/messages", "max_tokens"
		body["model"], body[most] = ClaudeModel, 200
	}
	if q.output > 0 {
		body[most] = q.output
	}
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+secret)
	if q.key != "" {
		req.Header.Set("Idempotency-Key", q.key)
	}
	return client.Do(req)
}
