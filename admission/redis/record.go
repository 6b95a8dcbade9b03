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
	tenant    string
	author    string // of the reserve, escaped
	request   string
	key       string
	endpoint  string
	model     string
}

var stateNames = map[byte]events.State{
	'h': events.StateHeld, 'x': events.StateExpired, 's': events.StateSettled,
	'c': events.StateCancelled, 't': events.StateCancelled,
}

// A record is '2|state|seq|created|deadline|latest|total|estimated|template|'
// and its terms, which admission.lua describes.
const (
	recordFields = 9
	termFields   = 11
)

func parseRecord(text, hash string) (*record, error) {
	f, rest, ok := cutFields(text, recordFields)
	if !ok || f[0] != "2" || len(f[1]) != 1 || stateNames[f[1][0]] == "" {
		return nil, fmt.Errorf("admission record of %s cannot be read", hash)
	}
	r := &record{hash: hash, state: f[1][0], estimated: f[7] == "1", template: f[8]}
	err := r.setTerms(rest)
	for i, to := range [...]*int64{&r.seq, &r.created, &r.deadline, &r.latest} {
		var e error
		if *to, e = strconv.ParseInt(f[2+i], 10, 64); e != nil {
			err = e
		}
	}
	if err == nil {
		r.total, err = parseUsage(f[6])
	}
	if err != nil {
		return nil, fmt.Errorf("admission record of %s cannot be read: %w", hash, err)
	}
	return r, nil
}

// cutFields returns the first n fields of text, at most 16, and what follows.
func cutFields(text string, n int) (f [16]string, rest string, ok bool) {
	for i := range n {
		if f[i], text, ok = strings.Cut(text, "|"); !ok {
			return f, "", false
		}
	}
	return f, text, true
}

// setTerms reads the terms: body|hold|weight|image|tenant|hash|author|request|
// key|endpoint|model.
func (r *record) setTerms(text string) error {
	f, model, ok := cutFields(text, termFields-1)
	if !ok || strings.Contains(model, "|") {
		return fmt.Errorf("terms are not %d fields", termFields)
	}
	r.body, r.tenant, r.hash, r.author = f[0], f[4], f[5], f[6]
	r.request, r.key, r.endpoint, r.model = f[7], f[8], f[9], model
	var err error
	if r.hold, err = parseUsage(f[1]); err != nil {
		return err
	}
	if r.weight, err = strconv.ParseInt(f[2], 10, 64); err != nil {
		return fmt.Errorf("weight: %w", err)
	}
	if r.image, err = strconv.ParseInt(f[3], 10, 64); err != nil {
		return fmt.Errorf("tokens of an image: %w", err)
	}
	return nil
}

func (r *record) append(b []byte) []byte {
	b = append(b, '2', '|', r.state, '|')
	for _, v := range [...]int64{r.seq, r.created, r.deadline, r.latest} {
		b = strconv.AppendInt(b, v, 10)
		b = append(b, '|')
	}
	b = appendUsage(b, &r.total)
	b = append(b, '|', digit(r.estimated), '|')
	b = append(b, r.template...)
	b = append(b, '|')
	return r.appendTerms(b)
}

func (r *record) appendTerms(b []byte) []byte {
	b = append(b, r.body...)
	b = append(b, '|')
	b = appendUsage(b, &r.hold)
	b = append(b, '|')
	b = strconv.AppendInt(b, r.weight, 10)
	b = append(b, '|')
	b = strconv.AppendInt(b, r.image, 10)
	for _, s := range [...]string{r.tenant, r.hash, r.author, r.request, r.key, r.endpoint, r.model} {
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
