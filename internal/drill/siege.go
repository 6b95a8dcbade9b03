package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/internal/trace"
	"tollgate/tenancy"
)

// siegeHoldTTL is short, so that the hold of a gateway that was killed ends soon,
// and longer than any server of a drill is away.
const siegeHoldTTL = 10 * time.Second

// Siege drives the front door while the processes behind it are killed. Its
// clients speak two dialects, take streams and whole answers, and never leave on
// purpose. One of three sends an idempotency key, and with it the same request
// again, to the next gateway, until it is answered or told that it was.
type Siege struct {
	Pool     *pgxpool.Pool
	Gateways []string // base URLs
	Client   *http.Client
	Workers  int
	// Provider is the model server's base URL, and Log opens its usage log.
	Provider string
	Log      func() (io.ReadCloser, error)

	fleet *Fleet
	met   siegeCounts
}

// siegeCounts is what the clients met.
type siegeCounts struct {
	asked, answered, broken, refused, repeated, already, dropped atomic.Int64
}

// SiegeClients is what the clients met.
type SiegeClients struct {
	Asked    int64 `json:"asked"`    // requests, each counted once
	Answered int64 `json:"answered"` // whole, to the last byte
	Broken   int64 `json:"broken"`   // connections and answers that broke
	Refused  int64 `json:"refused"`  // answers 409, 429 and 5xx
	Repeated int64 `json:"repeated"` // requests sent again with their key
	Already  int64 `json:"already"`  // told that an earlier attempt was answered
	Dropped  int64 `json:"dropped"`  // not sent again, as the run was over
}

// MeterKey is for the model server's readings. It is there after Setup.
func (s *Siege) MeterKey() string { return s.fleet.MeterKey }

// Setup creates the tenant.
func (s *Siege) Setup(ctx context.Context) error {
	limits := quota()
	limits.HoldTTL = tenancy.Duration(siegeHoldTTL)
	var err error
	s.fleet, err = setup(ctx, s.Pool, "siege", 1, limits)
	return err
}

// Drive asks until stop is closed, and returns when every answer has come to its
// end. An answer that no kill explains is an error.
func (s *Siege) Drive(ctx context.Context, stop <-chan struct{}) error {
	drain := &Drill{Fleet: s.fleet, Gateways: s.Gateways, Client: s.Client}
	if err := drain.waitForKeys(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range max(1, s.Workers) {
		wg.Go(func() {
			for !over(stop) && ctx.Err() == nil {
				if err := s.request(ctx, int(next.Add(1))-1, stop); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func over(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// request asks the i-th request, with a key until it is known to be answered.
func (s *Siege) request(ctx context.Context, i int, stop <-chan struct{}) error {
	q := question{number: i, stream: i%4 < 2 || i%8 == 4, output: 100 + int64(i*37%201)}
	if i%3 == 0 {
		q.key = fmt.Sprintf("siege-%d", i)
	}
	s.met.asked.Add(1)
	pause := 100 * time.Millisecond
	for attempt := i; ; attempt++ {
		done, err := s.once(ctx, q, s.Gateways[attempt%len(s.Gateways)])
		if done || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil // Drive tells the cause
		}
		switch {
		case q.key == "":
			return nil // its client asks something else
		case over(stop):
			s.met.dropped.Add(1)
			return nil
		}
		s.met.repeated.Add(1)
		pause = min(2*pause, time.Second)
	}
}

// once asks one gateway. done says that asking again is no use.
func (s *Siege) once(ctx context.Context, q question, gateway string) (done bool, err error) {
	res, err := q.send(ctx, s.Client, gateway, s.fleet.Tenants[0].Secret)
	if err != nil {
		s.met.broken.Add(1)
		return false, nil
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close() // read to its end
	switch {
	case err != nil:
		s.met.broken.Add(1)
		return false, nil
	case res.StatusCode == http.StatusOK:
		if !q.whole(text) {
			s.met.broken.Add(1)
			return false, nil
		}
		s.met.answered.Add(1)
		return true, nil
	case res.StatusCode == http.StatusConflict && q.key != "" && res.Header.Get("x-should-retry") == "false":
		s.met.already.Add(1)
		return true, nil
	case res.StatusCode == http.StatusConflict && q.key != "", res.StatusCode == http.StatusTooManyRequests, res.StatusCode >= 500:
		s.met.refused.Add(1)
		return false, nil
	}
	return true, fmt.Errorf("request %d: %s: %.300s", q.number, res.Status, text)
}

// whole says whether an answer came to its end.
func (q question) whole(text []byte) bool {
	switch {
	case !q.stream:
		return json.Valid(text)
	case q.claude():
		return bytes.Contains(text, []byte("event: message_stop"))
	}
	return bytes.Contains(text, []byte("data: [DONE]"))
}

// generation is what the model server says of one exchange, a line of its log.
type generation struct {
	Reservation string `json:"reservation"`
	Tenant      string `json:"tenant"`
	Input       int64  `json:"input_tokens"`
	Output      int64  `json:"output_tokens"`
}

// generated reads the model server's log: what it did for each of the tenant's
// reservations.
func (s *Siege) generated() (map[string]trace.Totals, error) {
	log, err := s.Log()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	did := map[string]trace.Totals{}
	for lines := json.NewDecoder(log); ; {
		var g generation
		if err := lines.Decode(&g); errors.Is(err, io.EOF) {
			return did, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the model server's log: %w", err)
		}
		if g.Tenant != s.fleet.Tenants[0].ID {
			continue
		}
		t := did[g.Reservation]
		t.Requests++
		t.InputTokens += g.Input
		t.OutputTokens += g.Output
		did[g.Reservation] = t
	}
}

// reported returns nil once the model server has ended all its work and the
// gateway has all of its readings.
func (s *Siege) reported(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Provider+"/fake/totals", nil)
	if err != nil {
		return err
	}
	res, err := s.Client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var totals struct {
		Running int64 `json:"running"`
		Meters  struct {
			Pending int64 `json:"pending"`
			Refused int64 `json:"refused"`
		} `json:"meters"`
	}
	if err := json.NewDecoder(res.Body).Decode(&totals); err != nil {
		return fmt.Errorf("read the model server's totals: %w", err)
	}
	if totals.Running > 0 || totals.Meters.Pending > 0 || totals.Meters.Refused > 0 {
		return fmt.Errorf("the model server runs %d answers, has %d readings to report and %d were refused: %w",
			totals.Running, totals.Meters.Pending, totals.Meters.Refused, errNotYet)
	}
	return nil
}
