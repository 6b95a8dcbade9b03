package fakeprovider

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"
)

// How an exchange ended, in Record.End. A fault's name follows EndFault.
const (
	EndComplete   = "complete"
	EndClientGone = "client_gone"
	EndRefused    = "refused" // answered with an error
	EndFault      = "fault:"
)

// Record is what this server knows of one exchange: the model meter's and the
// GPU meter's own view. Tokens are those that it generated, also where the
// answer was broken off or said something else.
type Record struct {
	Sequence    int64  `json:"sequence"`
	RequestID   string `json:"request_id"`
	Tenant      string `json:"tenant,omitempty"`
	Reservation string `json:"reservation,omitempty"`
	Dialect     string `json:"dialect"`
	Path        string `json:"path"`
	Model       string `json:"model,omitempty"`
	// Metered is the gateway's name for the model, where it gave one.
	Metered string `json:"metered_model,omitempty"`
	Stream  bool   `json:"stream"`
	Status  int    `json:"status"`
	Usage
	Chunks    int64      `json:"chunks"` // content events sent
	Bytes     int64      `json:"bytes"`  // of the body, sent
	Orders    string     `json:"orders,omitempty"`
	Started   time.Time  `json:"started"`
	Ended     time.Time  `json:"ended"`
	AbortedAt *time.Time `json:"aborted_at,omitempty"` // when the client was seen to be gone
	End       string     `json:"end"`

	Header http.Header `json:"header,omitempty"` // where Options.KeepHeaders
}

// Totals add records up.
type Totals struct {
	Requests int64 `json:"requests"`
	Complete int64 `json:"complete"`
	Refused  int64 `json:"refused"`
	Usage
}

func (t *Totals) add(r *Record) {
	t.Requests++
	switch r.End {
	case EndComplete:
		t.Complete++
	case EndRefused:
		t.Refused++
	}
	t.Input += r.Input
	t.Cached += r.Cached
	t.Written += r.Written
	t.Output += r.Output
	t.Reasoning += r.Reasoning
	t.ToolCalls += r.ToolCalls
	t.Images += r.Images
	t.AudioMS += r.AudioMS
	t.GPUMS += r.GPUMS
}

// AllTotals are the totals of everything that ended.
type AllTotals struct {
	Totals
	Running  int64             `json:"running"`
	ByModel  map[string]Totals `json:"by_model"`
	ByTenant map[string]Totals `json:"by_tenant"`
	Meters   MeterTotals       `json:"meters"`
}

// usageLog keeps the last records in memory, adds all up, and writes each to a
// file where there is one.
type usageLog struct {
	mu       sync.Mutex
	limit    int
	ring     []Record
	next     int
	sequence int64
	all      Totals
	byModel  map[string]*Totals
	byTenant map[string]*Totals
	file     io.Writer
	fileErr  error
}

func newLog(limit int, file io.Writer) *usageLog {
	l := &usageLog{limit: limit, file: file}
	l.reset()
	return l
}

func (l *usageLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring, l.next, l.all = nil, 0, Totals{}
	l.byModel, l.byTenant = map[string]*Totals{}, map[string]*Totals{}
}

// add takes a record and gives it its number.
func (l *usageLog) add(r *Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sequence++
	r.Sequence = l.sequence
	l.all.add(r)
	into(l.byModel, r.Model).add(r)
	if r.Tenant != "" {
		into(l.byTenant, r.Tenant).add(r)
	}
	if len(l.ring) < l.limit {
		l.ring = append(l.ring, *r)
	} else if l.limit > 0 {
		l.ring[l.next] = *r
		l.next = (l.next + 1) % l.limit
	}
	if l.file == nil || l.fileErr != nil {
		return
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		l.fileErr = fmt.Errorf("write the usage log: %w", err)
	}
}

// maxLabels bounds the maps of totals: names come from requests.
const maxLabels = 10_000

func into(m map[string]*Totals, name string) *Totals {
	t := m[name]
	if t == nil {
		if len(m) >= maxLabels {
			name = "(others)"
		}
		if t = m[name]; t == nil {
			t = &Totals{}
			m[name] = t
		}
	}
	return t
}

// records are those kept, from the oldest.
func (l *usageLog) records() []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(append(make([]Record, 0, len(l.ring)), l.ring[l.next:]...), l.ring[:l.next]...)
}

func (l *usageLog) totals() AllTotals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return AllTotals{Totals: l.all, ByModel: values(l.byModel), ByTenant: values(l.byTenant)}
}

func values(m map[string]*Totals) map[string]Totals {
	out := make(map[string]Totals, len(m))
	for name := range maps.Keys(m) {
		out[name] = *m[name]
	}
	return out
}
