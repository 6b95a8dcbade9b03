package redis

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// record is a reservation as admission.lua keeps it; see recordText there.
type record struct {
	hash      string
	state     byte // h held, x expired, s settled, c cancelled, t tombstone
	seq       int64
	created   int64 // ms
	deadline  int64
	latest    int64 // deadline that no report can pass
	body      string
	hold      events.Usage
	total     events.Usage
	estimated bool
	weight    int64
	image     int64
	template  string
	request   string
	key       string
	endpoint  string
	model     string
}

var stateNames = map[byte]events.State{
	'h': events.StateHeld, 'x': events.StateExpired, 's': events.StateSettled,
	'c': events.StateCancelled, 't': events.StateCancelled,
}

const recordFields = 17

func parseRecord(text, hash string) (*record, error) {
	f := strings.SplitN(text, "|", recordFields+1)
	if len(f) != recordFields || f[0] != "1" || len(f[1]) != 1 || stateNames[f[1][0]] == "" {
		return nil, fmt.Errorf("admission record of %s cannot be read", hash)
	}
	r := &record{
		hash: hash, state: f[1][0], body: f[6], estimated: f[9] == "1", template: f[12],
		request: f[13], key: f[14], endpoint: f[15], model: f[16],
	}
	var err error
	number := func(s string) int64 {
		v, e := strconv.ParseInt(s, 10, 64)
		if e != nil && err == nil {
			err = e
		}
		return v
	}
	r.seq, r.created, r.deadline, r.latest = number(f[2]), number(f[3]), number(f[4]), number(f[5])
	r.weight, r.image = number(f[10]), number(f[11])
	if err == nil {
		r.hold, err = parseUsage(f[7])
	}
	if err == nil {
		r.total, err = parseUsage(f[8])
	}
	if err != nil {
		return nil, fmt.Errorf("admission record of %s cannot be read: %w", hash, err)
	}
	return r, nil
}

func (r *record) append(b []byte) []byte {
	b = append(b, '1', '|', r.state, '|')
	for _, v := range [...]int64{r.seq, r.created, r.deadline, r.latest} {
		b = strconv.AppendInt(b, v, 10)
		b = append(b, '|')
	}
	b = append(b, r.body...)
	b = append(b, '|')
	b = appendUsage(b, &r.hold)
	b = append(b, '|')
	b = appendUsage(b, &r.total)
	b = append(b, '|', digit(r.estimated), '|')
	b = strconv.AppendInt(b, r.weight, 10)
	b = append(b, '|')
	b = strconv.AppendInt(b, r.image, 10)
	for _, s := range [...]string{r.template, r.request, r.key, r.endpoint, r.model} {
		b = append(b, '|')
		b = append(b, s...)
	}
	return b
}

func (r *record) reservation() (*admission.Reservation, error) {
	held, err := admission.Units(r.hold, r.weight, r.image)
	if err != nil {
		return nil, fmt.Errorf("admission record of %s: %w", r.hash, err)
	}
	used, err := admission.Units(r.total, r.weight, r.image)
	if err != nil {
		return nil, fmt.Errorf("admission record of %s: %w", r.hash, err)
	}
	return &admission.Reservation{
		ID: admission.ReservationID(r.hash, r.created), RequestID: r.request, State: stateNames[r.state],
		AdmittedUnits: held, Total: r.total, TotalUnits: used,
		CreatedAt: time.UnixMilli(r.created).UTC(), ExpiresAt: time.UnixMilli(r.deadline).UTC(),
	}, nil
}

// poolTemplate is the part of a record's template that is over all tenants.
func poolTemplate(template string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(template, ";") {
		if len(line) > 4 && line[2] == '1' {
			b.WriteString(line)
			b.WriteByte(';')
		}
	}
	return b.String()
}

// constraintAt makes the constraint at a place of a record's template. A record
// keeps what the script needs; the rest is taken from the tenant's document
// where that still has the limit.
func constraintAt(template string, index int, tenant *tenancy.Tenant) admission.Constraint {
	lines := strings.Split(template, ";")
	if index < 0 || index >= len(lines) {
		return admission.Constraint{}
	}
	f := strings.Split(lines[index], ",")
	if len(f) != 9 {
		return admission.Constraint{}
	}
	c := admission.Constraint{Field: f[2], Pool: f[1] == "1"}
	c.Units, _ = strconv.ParseInt(f[4], 10, 64) // the script wrote it
	c.Limit = tenancy.Limit{Layer: f[8], Limit: c.Units, Budget: f[7] == "1"}
	for metric, number := range metricNumbers {
		if f[3] == string(number) {
			c.Limit.Metric = metric
		}
	}
	switch f[0] {
	case "r":
		c.Limit.Kind = tenancy.KindRing
		width, _ := strconv.ParseInt(f[5], 10, 64)
		c.Limit.Slots, _ = strconv.Atoi(f[6])
		c.Limit.Window = tenancy.Duration(time.Duration(width*int64(c.Limit.Slots)) * time.Millisecond)
	case "c":
		c.Limit.Kind = tenancy.KindCounter
		c.Limit.Period = map[string]tenancy.Period{"0": tenancy.PeriodNone, "1": tenancy.PeriodDay, "2": tenancy.PeriodMonth}[f[5]]
	case "g":
		c.Limit.Kind = tenancy.KindRate
	default:
		c.Limit.Kind, c.Limit.Metric = tenancy.KindLease, ""
	}
	if c.Limit.Metric == tenancy.MetricTokens {
		c.Limit.Limit = c.Units / admission.MilliPerUnit
	}
	if parts := strings.SplitN(c.Field, ":", 4); len(parts) >= 3 {
		c.Limit.Scope, c.Limit.Name = tenancy.Scope(parts[1]), parts[2]
	}
	for i := range tenant.Quota.Limits {
		if l := &tenant.Quota.Limits[i]; l.Name == c.Limit.Name && l.Scope == c.Limit.Scope && l.Kind == c.Limit.Kind {
			c.Limit = *l
			break
		}
	}
	return c
}
