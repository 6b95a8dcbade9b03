package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Driver carries out a plan against a gateway.
type Driver struct {
	// Addresses are base URLs of gateways ("http://127.0.0.1:8080"); calls are
	// spread over them and a retry goes to the next one.
	Addresses []string
	// TenantKeys are API keys by the plan's tenant index.
	TenantKeys []string
	// TenantIDs are the ids that meter readings name, by tenant index.
	TenantIDs []string
	// MeterKey reports the model server's readings; empty: no readings.
	MeterKey string
	Workers  int
	Endpoint string
	Model    string
	// HoldTTL is asked for in each reserve; 0 takes the gateway's.
	HoldTTL time.Duration
	// Patience bounds how long one call is asked again before the run fails.
	Patience time.Duration
	// Speed, when above zero, keeps the trace's own timing, so many times as
	// fast; zero sends as fast as answers come.
	Speed  float64
	Client *http.Client
	// Progress is called after each request with the number done so far.
	Progress func(done int)
}

// Report counts what the driver saw.
type Report struct {
	Done         int64 `json:"done"`
	Reserved     int64 `json:"reserved"`
	Replayed     int64 `json:"replayed"`
	Settled      int64 `json:"settled"`
	Cancelled    int64 `json:"cancelled"`
	Lost         int64 `json:"lost"`
	Retried      int64 `json:"retried"` // calls asked again after an error or a 5xx
	Refused      int64 `json:"refused"` // answers 429, each waited for and asked again
	MeterEntries int64 `json:"meter_entries"`
}

// Run carries out the whole plan. It returns the first error that no retry can
// mend: a 4xx that means the plan or the set-up is wrong, or patience spent.
func (d *Driver) Run(ctx context.Context, p *Plan) (Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	run := &run{Driver: d, plan: p, meters: make(chan reading, 1024)}

	var meterDone sync.WaitGroup
	if d.MeterKey != "" {
		meterDone.Go(func() {
			if err := run.reportMeters(ctx); err != nil {
				cancel(err)
			}
		})
	}
	steps := make(chan *Step)
	var workers sync.WaitGroup
	for range max(1, d.Workers) {
		workers.Go(func() {
			for s := range steps {
				if err := run.step(ctx, s); err != nil {
					cancel(fmt.Errorf("request %s: %w", s.RequestID, err))
					return
				}
				if d.Progress != nil {
					d.Progress(int(run.done.Add(1)))
				} else {
					run.done.Add(1)
				}
			}
		})
	}
	run.feed(ctx, steps)
	close(steps)
	workers.Wait()
	close(run.meters)
	meterDone.Wait()
	if err := context.Cause(ctx); err != nil {
		return run.report(), err
	}
	return run.report(), nil
}

type run struct {
	*Driver
	plan   *Plan
	meters chan reading

	done, reserved, replayed, settled, cancelled, lost, retried, refused, metered atomic.Int64
	turn                                                                          atomic.Uint64
}

func (r *run) report() Report {
	return Report{
		Done: r.done.Load(), Reserved: r.reserved.Load(), Replayed: r.replayed.Load(), Settled: r.settled.Load(),
		Cancelled: r.cancelled.Load(), Lost: r.lost.Load(), Retried: r.retried.Load(), Refused: r.refused.Load(),
		MeterEntries: r.metered.Load(),
	}
}

// feed hands out the steps, at the trace's own pace when Speed asks for it.
func (r *run) feed(ctx context.Context, steps chan<- *Step) {
	start := time.Now()
	for i := range r.plan.Steps {
		s := &r.plan.Steps[i]
		if r.Speed > 0 {
			due := time.Duration(float64(s.Request.At.Sub(r.plan.Steps[0].Request.At)) / r.Speed)
			if !sleep(ctx, due-time.Since(start)) {
				return
			}
		}
		select {
		case steps <- s:
		case <-ctx.Done():
			return
		}
	}
}

type reserveBody struct {
	RequestID       string `json:"request_id"`
	Endpoint        string `json:"endpoint"`
	Model           string `json:"model"`
	InputTokens     int64  `json:"input_tokens"`
	MaxOutputTokens int64  `json:"max_output_tokens"`
	TTLMillis       int64  `json:"ttl_ms,omitempty"`
}

type usageBody struct {
	InputTokens  int64  `json:"input_tokens"`
	OutputTokens int64  `json:"output_tokens"`
	GPUMillis    int64  `json:"gpu_ms"`
	TTLMillis    int64  `json:"ttl_ms,omitempty"` // usage reports only
	Reason       string `json:"reason,omitempty"`
}

type reserveAnswer struct {
	ReservationID string `json:"reservation_id"`
}

// reading is what a model server or GPU agent has counted for a reservation.
type reading struct {
	ID            string    `json:"id"`
	Kind          string    `json:"kind"`
	TenantID      string    `json:"tenant_id"`
	ReservationID string    `json:"reservation_id"`
	RequestID     string    `json:"request_id"`
	Pool          string    `json:"pool"`
	Model         string    `json:"model"`
	From          time.Time `json:"from"`
	To            time.Time `json:"to"`
	InputTokens   int64     `json:"input_tokens,omitempty"`
	OutputTokens  int64     `json:"output_tokens,omitempty"`
	GPUMillis     int64     `json:"gpu_ms,omitempty"`
	Final         bool      `json:"final"`
}

type meterRequest struct {
	Readings []reading `json:"readings"`
}

// gpuMillis is the driver's model of a GPU: 1 ms for 10 input tokens and 5 ms
// an output token.
func gpuMillis(input, output int64) int64 { return input/10 + output*5 }

// step takes one request through its life.
func (r *run) step(ctx context.Context, s *Step) error {
	key := r.TenantKeys[s.Tenant]
	body := reserveBody{
		RequestID: s.RequestID, Endpoint: r.Endpoint, Model: r.Model,
		InputTokens: s.Request.InputTokens, MaxOutputTokens: max(1, s.Request.OutputTokens),
		TTLMillis: r.HoldTTL.Milliseconds(),
	}
	var id string
	for attempt := 0; attempt < 1 || (attempt < 2 && s.DuplicateStart); attempt++ {
		var answer reserveAnswer
		status, err := r.post(ctx, key, "/v1/reservations", body, &answer)
		if err != nil {
			return err
		}
		if id != "" && answer.ReservationID != id {
			return fmt.Errorf("repeated reserve gave reservation %s, not %s", answer.ReservationID, id)
		}
		id = answer.ReservationID
		if status == http.StatusCreated {
			r.reserved.Add(1)
		} else {
			r.replayed.Add(1)
		}
	}
	path := "/v1/reservations/" + url.PathEscape(id)
	if s.Progress > 0 {
		report := usageBody{
			InputTokens: s.Request.InputTokens, OutputTokens: s.Progress,
			GPUMillis: gpuMillis(s.Request.InputTokens, s.Progress), TTLMillis: body.TTLMillis,
		}
		if _, err := r.post(ctx, key, path+"/usage", report, nil); err != nil {
			return err
		}
	}
	final := usageBody{InputTokens: s.Request.InputTokens, OutputTokens: s.OutputTokens, GPUMillis: gpuMillis(s.Request.InputTokens, s.OutputTokens)}
	r.meter(ctx, s, id, final)
	verb, count := "/settle", &r.settled
	switch s.Outcome {
	case Lost:
		r.lost.Add(1)
		return nil
	case Cancelled:
		verb, count, final.Reason = "/cancel", &r.cancelled, "client went away"
	case Completed:
	}
	for attempt := 0; attempt < 1 || (attempt < 2 && s.DuplicateSettle); attempt++ {
		if _, err := r.post(ctx, key, path+verb, final, nil); err != nil {
			return err
		}
	}
	count.Add(1)
	return nil
}

// meter tells what the model server and the GPU agent counted. The ids are the
// request's, so a repeated report counts once.
func (r *run) meter(ctx context.Context, s *Step, reservation string, final usageBody) {
	if r.MeterKey == "" {
		return
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	m := reading{
		ID: s.RequestID + "/model", Kind: "model",
		TenantID: r.TenantIDs[s.Tenant], ReservationID: reservation, RequestID: s.RequestID,
		Pool: "default", Model: r.Model, From: now, To: now,
		InputTokens: final.InputTokens, OutputTokens: final.OutputTokens, Final: true,
	}
	g := m
	g.ID, g.Kind = s.RequestID+"/gpu", "gpu"
	g.InputTokens, g.OutputTokens, g.GPUMillis = 0, 0, final.GPUMillis
	for _, entry := range []reading{m, g} {
		select {
		case r.meters <- entry:
		case <-ctx.Done():
			return
		}
	}
}

// ErrNoAnswer says that a call was asked again until patience was spent.
var ErrNoAnswer = errors.New("no answer")

// HTTPError is an answer that asking again will not change.
type HTTPError struct {
	Status int
	Body   string
}

// Error implements error.
func (e *HTTPError) Error() string {
	return fmt.Sprintf("gateway answered %d: %.300s", e.Status, e.Body)
}

// post sends a body until it is answered with 2xx.
func (r *run) post(ctx context.Context, key, path string, body, answer any) (int, error) {
	payload, err := json.Marshal(body)
	if err != nil {
		return 0, fmt.Errorf("encode body: %w", err)
	}
	deadline := time.Now().Add(r.Patience)
	backoff := 20 * time.Millisecond
	for {
		base := r.Addresses[r.turn.Add(1)%uint64(len(r.Addresses))]
		status, wait, data, err := r.once(ctx, key, base+path, payload)
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case err == nil && status/100 == 2:
			if answer != nil {
				if err := json.Unmarshal(data, answer); err != nil {
					return 0, fmt.Errorf("decode answer of %s: %w", path, err)
				}
			}
			return status, nil
		case err == nil && status == http.StatusTooManyRequests:
			r.refused.Add(1)
		case err == nil && status < 500:
			return status, &HTTPError{status, string(data)}
		default:
			r.retried.Add(1)
		}
		if time.Now().After(deadline) {
			if err == nil {
				err = &HTTPError{status, string(data)}
			}
			return 0, fmt.Errorf("%w to %s within %s: %w", ErrNoAnswer, path, r.Patience, err)
		}
		// A refusal says when to come back, but a test must not wait for the
		// polite five seconds of a lease: ask within a second at the latest.
		backoff = min(2*backoff, time.Second)
		pause := backoff/2 + rand.N(backoff/2)
		if wait > 0 && status == http.StatusTooManyRequests {
			pause = min(wait, time.Second)
		}
		if !sleep(ctx, pause) {
			return 0, context.Cause(ctx)
		}
	}
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

func (r *run) once(ctx context.Context, key, target string, payload []byte) (int, time.Duration, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(payload))
	if err != nil {
		return 0, 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := r.Client.Do(req)
	if err != nil {
		return 0, 0, nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0, 0, nil, err
	}
	seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
	if err != nil {
		seconds = 0 // absent
	}
	return res.StatusCode, time.Duration(seconds) * time.Second, data, nil
}

// meterBatch is how many readings are reported in one call.
const meterBatch = 200

// reportMeters is the model server: it reports what it generated, a batch when
// enough has come together or some time has passed.
func (r *run) reportMeters(ctx context.Context) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var batch []reading
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		if _, err := r.post(ctx, r.MeterKey, "/v1/meters", meterRequest{batch}, nil); err != nil {
			return fmt.Errorf("report meters: %w", err)
		}
		r.metered.Add(int64(len(batch)))
		batch = batch[:0]
		return nil
	}
	for {
		select {
		case m, open := <-r.meters:
			if !open {
				return flush()
			}
			batch = append(batch, m)
			if len(batch) < meterBatch {
				continue
			}
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := flush(); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
