package fakeprovider

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// MeterOptions say where readings go. They are two for each exchange that a
// tenant and a reservation came with and that used anything: what the model
// generated, and the GPU's time. Figures are the reservation's so far at this
// server, so a second attempt under it adds to the first.
type MeterOptions struct {
	URL  string // of the gateway, without /v1/meters; "" reports nothing
	Key  string // API key of role meter
	Pool string // named in readings; may be ""
	// Every is how long readings are collected before they are sent; 0 is 200 ms.
	Every time.Duration
	// Client sends them; nil is one with a time-out of 10 s.
	Client *http.Client
}

// MeterTotals count readings.
type MeterTotals struct {
	Made     int64 `json:"made"`
	Accepted int64 `json:"accepted"`
	Refused  int64 `json:"refused"` // wrong in the gateway's eyes; given up
	Pending  int64 `json:"pending"`
	Retries  int64 `json:"retries"` // batches that were sent again
}

// The largest batch that a gateway takes.
const maxBatch = 256

// What a gateway takes as a name. A reading with another is not sent, because it
// would have its whole batch refused.
var (
	tenantPattern      = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	reservationPattern = regexp.MustCompile(`^[A-Za-z0-9_]{1,128}$`)
	requestPattern     = regexp.MustCompile(`^[A-Za-z0-9._:@/+=-]{1,128}$`)
	modelPattern       = regexp.MustCompile(`^[ -{}~]{1,128}$`)
)

// meters sends readings. Each keeps its id however often it is sent, so the
// gateway counts it once.
type meters struct {
	opts MeterOptions
	log  *slog.Logger
	run  string // begins every id, so that ids of another run are others

	mu      sync.Mutex
	pending [][]byte // readings as JSON, oldest first
	sums    map[string]*reservationSum
	old     map[string]*reservationSum
	count   MeterTotals

	stopping chan struct{}
	hurry    context.CancelFunc // ends the last attempts
	life     context.Context    // of the sender
	done     chan struct{}
}

type reservationSum struct {
	input, output, gpu int64
	from               time.Time
}

func startMeters(opts MeterOptions, log *slog.Logger) *meters {
	if opts.URL == "" {
		return &meters{}
	}
	if opts.Every == 0 {
		opts.Every = 200 * time.Millisecond
	}
	if opts.Client == nil {
		opts.Client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	}
	opts.URL = strings.TrimRight(opts.URL, "/") + "/v1/meters"
	m := &meters{
		opts: opts, log: log, run: strconv.FormatInt(time.Now().UnixNano(), 36), sums: map[string]*reservationSum{},
		stopping: make(chan struct{}), done: make(chan struct{}),
	}
	m.life, m.hurry = context.WithCancel(context.Background())
	go m.send()
	return m
}

// add makes the readings of an exchange that ended.
func (m *meters) add(r *Record) {
	if m.opts.URL == "" || r.Reservation == "" || r.Input+r.Output+r.GPUMS == 0 ||
		!tenantPattern.MatchString(r.Tenant) || !reservationPattern.MatchString(r.Reservation) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.sum(r)
	sum.input += r.Input
	sum.output += r.Output
	sum.gpu += r.GPUMS
	tokens := appendInt(appendInt(nil, `,"input_tokens":`, sum.input), `,"output_tokens":`, sum.output)
	m.pending = append(m.pending, m.reading(r, sum, "model", tokens), m.reading(r, sum, "gpu", appendInt(nil, `,"gpu_ms":`, sum.gpu)))
}

// sum is what the reservation used here before. Those of long ago are forgotten.
func (m *meters) sum(r *Record) *reservationSum {
	sum := m.sums[r.Reservation]
	if sum == nil {
		if sum = m.old[r.Reservation]; sum == nil {
			sum = &reservationSum{from: r.Started}
		}
		if len(m.sums) >= 1<<16 {
			m.old, m.sums = m.sums, map[string]*reservationSum{}
		}
		m.sums[r.Reservation] = sum
	}
	return sum
}

func (m *meters) reading(r *Record, sum *reservationSum, kind string, figures []byte) []byte {
	m.count.Made++
	b := appendInt(append(append([]byte(`{"id":"`), m.run...), '-'), "", m.count.Made)
	b = appendText(append(b, '"'), `,"kind":`, kind)
	b = appendText(b, `,"tenant_id":`, r.Tenant)
	b = appendText(b, `,"reservation_id":`, r.Reservation)
	if requestPattern.MatchString(r.RequestID) {
		b = appendText(b, `,"request_id":`, r.RequestID)
	}
	if m.opts.Pool != "" {
		b = appendText(b, `,"pool":`, m.opts.Pool)
	}
	if model := cmp.Or(r.Metered, r.Model); modelPattern.MatchString(model) {
		b = appendText(b, `,"model":`, model)
	}
	b = append(sum.from.AppendFormat(append(b, `,"from":"`...), time.RFC3339Nano), '"')
	b = append(r.Ended.AppendFormat(append(b, `,"to":"`...), time.RFC3339Nano), '"')
	return append(append(b, figures...), `,"final":true}`...)
}

func (m *meters) totals() MeterTotals {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.count
	t.Pending = int64(len(m.pending))
	return t
}

// send sends batches until it is told to stop and nothing is left.
func (m *meters) send() {
	defer close(m.done)
	pause, alone := m.opts.Every, 0
	for {
		stopping := false
		select {
		case <-m.stopping:
			stopping = true
			if pause > m.opts.Every { // after a failure
				sleep(m.life, min(pause, 200*time.Millisecond))
			}
		case <-time.After(pause):
		}
		pause = m.opts.Every
		for {
			size := maxBatch
			if alone > 0 {
				size = 1
			}
			batch := m.batch(size)
			if len(batch) == 0 {
				if stopping {
					return
				}
				break
			}
			refused, err := m.post(batch)
			switch {
			case err == nil:
				m.sent(len(batch), true)
				alone = max(0, alone-1)
				continue
			case refused && len(batch) > 1:
				alone = len(batch) // one of them is wrong; which?
				continue
			case refused:
				m.log.Error("the gateway refuses a reading", "reading", string(batch[0]), "error", err)
				m.sent(1, false)
				alone = max(0, alone-1)
				continue
			}
			m.log.Warn("readings will be sent again", "readings", len(batch), "error", err)
			m.mu.Lock()
			m.count.Retries++
			m.mu.Unlock()
			pause = min(max(2*pause, 2*m.opts.Every), 5*time.Second)
			break
		}
		if m.life.Err() != nil {
			return
		}
	}
}

// sleep pauses for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (m *meters) batch(size int) [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pending[:min(size, len(m.pending))]
}

// sent drops the n oldest readings, which are with the gateway or refused.
func (m *meters) sent(n int, accepted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.pending[:n])
	m.pending = m.pending[n:]
	if accepted {
		m.count.Accepted += int64(n)
	} else {
		m.count.Refused += int64(n)
	}
}

// post sends one batch. refused says that sending it again is no use.
func (m *meters) post(batch [][]byte) (refused bool, err error) {
	body := append(append([]byte(`{"readings":[`), bytes.Join(batch, []byte(","))...), `]}`...)
	req, err := http.NewRequestWithContext(m.life, http.MethodPost, m.opts.URL, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("report meters: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+m.opts.Key)
	res, err := m.opts.Client.Do(req)
	if err != nil {
		return false, fmt.Errorf("report meters: %w", err)
	}
	defer res.Body.Close()
	detail, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	if res.StatusCode == http.StatusAccepted && err == nil {
		return false, nil
	}
	switch res.StatusCode {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		refused = true
	}
	return refused, fmt.Errorf("report meters: %s: %s", res.Status, detail)
}

// stop sends what is left, until ctx ends.
func (m *meters) stop(ctx context.Context) error {
	if m.opts.URL == "" {
		return nil
	}
	close(m.stopping)
	select {
	case <-m.done:
	case <-ctx.Done():
	}
	m.hurry()
	<-m.done
	m.opts.Client.CloseIdleConnections()
	if left := m.totals().Pending; left > 0 {
		return fmt.Errorf("%d meter readings were not reported: %w", left, errors.New("the gateway did not take them in time"))
	}
	return nil
}
