package events_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
)

const good = `{"tenant_id":"acme","reservation_id":"rsv_1","request_id":"r","key_id":"k","endpoint":"e","model":"m","seq":1,` +
	`"state":"held","delta":{"input_tokens":0,"output_tokens":0},"delta_milli_units":0,"total":{"input_tokens":0,"output_tokens":0},` +
	`"total_milli_units":0,"weight_milli":1000,"held_milli_units":5,"expires_at":"2026-08-19T16:00:00.123Z","author":"client"}`

func reasonOf(t *testing.T, err error) events.Reason {
	t.Helper()
	var bad *events.InvalidError
	if err != nil && !errors.As(err, &bad) {
		t.Fatalf("error %v is no *InvalidError", err)
	}
	if bad == nil {
		return ""
	}
	return bad.Reason
}

func TestCaseL7_EveryKindOfBadPayloadHasItsReason(t *testing.T) {
	swap := func(old, other string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in the good payload", old)
		}
		return strings.Replace(good, old, other, 1)
	}
	for name, c := range map[string]struct {
		data string
		want events.Reason
	}{
		"good":                   {good, ""},
		"white space":            {" \t\r\n" + strings.ReplaceAll(good, ",", " ,\n") + " \n", ""},
		"escapes":                {swap(`"acme"`, `"\u0061c\u006de"`), ""},
		"escaped field name":     {swap(`"tenant_id"`, `"tenant\u005fid"`), ""},
		"surrogate pair":         {swap(`"r"`, `"\ud83d\ude00"`), ""},
		"minus zero":             {swap(`"held_milli_units":5`, `"held_milli_units":-0`), ""},
		"offset time":            {swap(`16:00:00.123Z`, `18:00:00.123+02:00`), ""},
		"largest number":         {swap(`"held_milli_units":5`, `"held_milli_units":9007199254740992`), ""},
		"negative delta":         {swap(`"delta_milli_units":0`, `"delta_milli_units":-7`), ""},
		"empty":                  {``, events.ReasonBadJSON},
		"white space only":       {`  `, events.ReasonBadJSON},
		"no JSON":                {`hello`, events.ReasonBadJSON},
		"cut off":                {good[:len(good)-1], events.ReasonBadJSON},
		"cut off in a string":    {good[:15], events.ReasonBadJSON},
		"cut off in an escape":   {`{"tenant_id":"\`, events.ReasonBadJSON},
		"two objects":            {good + good, events.ReasonBadJSON},
		"trailing comma":         {good[:len(good)-1] + `,}`, events.ReasonBadJSON},
		"no comma":               {swap(`,"seq"`, `"seq"`), events.ReasonBadJSON},
		"no colon":               {swap(`"seq":`, `"seq"`), events.ReasonBadJSON},
		"bare field name":        {swap(`"seq"`, `seq`), events.ReasonBadJSON},
		"unknown escape":         {swap(`"acme"`, `"\x61"`), events.ReasonBadJSON},
		"broken unicode escape":  {swap(`"acme"`, `"\u00g1"`), events.ReasonBadJSON},
		"newline in a string":    {swap(`"acme"`, "\"ac\nme\""), events.ReasonBadJSON},
		"raw NUL in a string":    {swap(`"acme"`, "\"ac\x00me\""), events.ReasonBadJSON},
		"leading zero":           {swap(`"seq":1`, `"seq":01`), events.ReasonBadJSON},
		"lone minus":             {swap(`"seq":1`, `"seq":-`), events.ReasonBadJSON},
		"array":                  {`[` + good + `]`, events.ReasonWrongType},
		"null":                   {`null`, events.ReasonWrongType},
		"null field":             {swap(`"model":"m"`, `"model":null`), events.ReasonWrongType},
		"number for a string":    {swap(`"model":"m"`, `"model":1`), events.ReasonWrongType},
		"string for a number":    {swap(`"seq":1`, `"seq":"1"`), events.ReasonWrongType},
		"fraction":               {swap(`"seq":1`, `"seq":1.0`), events.ReasonWrongType},
		"exponent":               {swap(`"seq":1`, `"seq":1e3`), events.ReasonWrongType},
		"string for an object":   {swap(`{"input_tokens":0,"output_tokens":0}`, `"x"`), events.ReasonWrongType},
		"string for a boolean":   {swap(`"author"`, `"estimated":"yes","author"`), events.ReasonWrongType},
		"seq zero":               {swap(`"seq":1`, `"seq":0`), events.ReasonOutOfRange},
		"negative total":         {swap(`"total_milli_units":0`, `"total_milli_units":-1`), events.ReasonOutOfRange},
		"beyond 2^53":            {swap(`"seq":1`, `"seq":9007199254740993`), events.ReasonOutOfRange},
		"beyond int64":           {swap(`"seq":1`, `"seq":99999999999999999999999`), events.ReasonOutOfRange},
		"unknown state":          {swap(`"held"`, `"open"`), events.ReasonOutOfRange},
		"missing field":          {swap(`"model":"m",`, ``), events.ReasonMissingField},
		"missing nested field":   {swap(`{"input_tokens":0,`, `{`), events.ReasonMissingField},
		"empty object":           {`{}`, events.ReasonMissingField},
		"empty tenant":           {swap(`"acme"`, `""`), events.ReasonMissingField},
		"unknown field":          {swap(`"model":`, `"extra":1,"model":`), events.ReasonUnknownField},
		"unknown nested field":   {swap(`{"input_tokens":0`, `{"tokens":0,"input_tokens":0`), events.ReasonUnknownField},
		"other case":             {swap(`"model"`, `"Model"`), events.ReasonUnknownField},
		"duplicate field":        {swap(`"model":"m"`, `"model":"m","model":"m"`), events.ReasonDuplicateField},
		"duplicate by escape":    {swap(`"model":"m"`, `"model":"m","mode\u006c":"n"`), events.ReasonDuplicateField},
		"duplicate nested field": {swap(`{"input_tokens":0`, `{"input_tokens":0,"input_tokens":1`), events.ReasonDuplicateField},
		"escaped NUL":            {swap(`"acme"`, `"ac\u0000me"`), events.ReasonNUL},
		"lone surrogate":         {swap(`"r"`, `"\ud800"`), events.ReasonBadUTF8},
		"reversed surrogates":    {swap(`"r"`, `"\ude00\ud83d"`), events.ReasonBadUTF8},
		"invalid UTF-8":          {swap(`"r"`, "\"\xff\""), events.ReasonBadUTF8},
		"overlong UTF-8":         {swap(`"r"`, "\"\xc0\x80\""), events.ReasonBadUTF8},
		"byte order mark":        {"\ufeff" + good, events.ReasonBadJSON},
		"long string":            {swap(`"m"`, `"`+strings.Repeat("m", 129)+`"`), events.ReasonOversize},
		"oversize":               {strings.Repeat(" ", events.MaxDataBytes) + good, events.ReasonOversize},
		"no time":                {swap(`2026-08-19T16:00:00.123Z`, `yesterday`), events.ReasonBadTime},
		"30 February":            {swap(`2026-08-19`, `2026-02-30`), events.ReasonBadTime},
		"hour 24":                {swap(`T16:`, `T24:`), events.ReasonBadTime},
		"second 60":              {swap(`16:00:00.123`, `23:59:60.000`), events.ReasonBadTime},
		"year 10000 in UTC":      {swap(`2026-08-19T16:00:00.123Z`, `9999-12-31T23:59:59-01:00`), events.ReasonBadTime},
		"lower-case zone":        {swap(`.123Z`, `.123z`), events.ReasonBadTime},
		"no zone":                {swap(`.123Z`, `.123`), events.ReasonBadTime},
		"deep nesting":           {swap(`{"input_tokens":0`, strings.Repeat(`{"input_tokens":`, 2000)), events.ReasonWrongType},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := events.ParseReservation([]byte(c.data))
			if got := reasonOf(t, err); got != c.want {
				t.Fatalf("reason = %q (%v), want %q", got, err, c.want)
			}
			if err != nil && (r != events.Reservation{}) {
				t.Errorf("a refused payload gave %+v", r)
			}
			if err == nil && r.TenantID != "acme" {
				t.Errorf("tenant = %q", r.TenantID)
			}
			if err != nil && len(c.data) < 2000 && strings.Contains(err.Error(), "acme") {
				t.Errorf("error repeats the payload: %v", err)
			}
		})
	}
}

func TestMeterNeedsAReservationOrAnInterval(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want events.Reason
	}{
		"cumulative": {`{"tenant_id":"a","reservation_id":"r","from":"0001-01-01T00:00:00Z","to":"0001-01-01T00:00:00Z"}`, ""},
		"interval":   {`{"tenant_id":"a","from":"2026-08-19T16:00:00Z","to":"2026-08-19T16:01:00Z"}`, ""},
		"no length":  {`{"tenant_id":"a","from":"2026-08-19T16:00:00Z","to":"2026-08-19T16:00:00Z"}`, events.ReasonInconsistent},
		"backwards":  {`{"tenant_id":"a","from":"2026-08-19T16:01:00Z","to":"2026-08-19T16:00:00Z"}`, events.ReasonInconsistent},
		"negative":   {`{"tenant_id":"a","reservation_id":"r","from":"2026-08-19T16:00:00Z","to":"2026-08-19T16:01:00Z","gpu_ms":-1}`, events.ReasonOutOfRange},
	} {
		if _, err := events.ParseMeter([]byte(c.data)); reasonOf(t, err) != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func goodEvent() events.Event {
	return events.Event{
		ID: "e1-s07-1787155200123-0.0", Source: "tollgate/admission/e1/7", Type: events.TypeReserved,
		Subject: "acme", Time: at, Data: []byte(good),
	}
}

func TestRecordRoundTrip(t *testing.T) {
	want := goodEvent()
	got, err := events.FromRecord(events.ToRecord(events.TopicEvents, &want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	r, err := got.Reservation()
	if err != nil || r.TenantID != "acme" || r.HeldMilliUnits != 5 {
		t.Errorf("reservation = %+v, %v", r, err)
	}
}

func TestBadEnvelopesAreRefused(t *testing.T) {
	header := func(name, value string) func(*events.Record) {
		return func(r *events.Record) {
			for i := range r.Headers {
				if r.Headers[i].Key == name {
					r.Headers[i].Value = []byte(value)
					return
				}
			}
			t.Fatalf("no header %s", name)
		}
	}
	drop := func(name string) func(*events.Record) {
		return func(r *events.Record) {
			for i := range r.Headers {
				if r.Headers[i].Key == name {
					r.Headers = append(r.Headers[:i], r.Headers[i+1:]...)
					return
				}
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*events.Record)
		want   events.Reason
	}{
		"untouched":        {func(*events.Record) {}, ""},
		"extension header": {func(r *events.Record) { r.Headers = append(r.Headers, events.Header{Key: "traceparent"}) }, ""},
		"charset":          {header("content-type", "Application/JSON; charset=utf-8"), ""},
		"no id":            {drop("ce_id"), events.ReasonMissingField},
		"no time":          {drop("ce_time"), events.ReasonMissingField},
		"no content type":  {drop("content-type"), events.ReasonMissingField},
		"no headers":       {func(r *events.Record) { r.Headers = nil }, events.ReasonMissingField},
		"empty id":         {header("ce_id", ""), events.ReasonMissingField},
		"long id":          {header("ce_id", strings.Repeat("x", 129)), events.ReasonOversize},
		"NUL in id":        {header("ce_id", "a\x00b"), events.ReasonNUL},
		"control in id":    {header("ce_id", "a\nb"), events.ReasonBadHeader},
		"bad UTF-8 in id":  {header("ce_id", "a\xff"), events.ReasonBadUTF8},
		"other version":    {header("ce_specversion", "0.3"), events.ReasonBadHeader},
		"unknown type":     {header("ce_type", "tollgate.reservation.created.v2"), events.ReasonUnknownType},
		"bad time":         {header("ce_time", "now"), events.ReasonBadTime},
		"year 1":           {header("ce_time", "0001-01-01T00:00:00Z"), events.ReasonBadTime},
		"Avro":             {header("content-type", "application/avro"), events.ReasonBadHeader},
		"id twice":         {func(r *events.Record) { r.Headers = append(r.Headers, events.Header{Key: "ce_id", Value: []byte("y")}) }, events.ReasonDuplicateField},
		"other key":        {func(r *events.Record) { r.Key = []byte("globex") }, events.ReasonTenantMismatch},
		"no key":           {func(r *events.Record) { r.Key = nil }, events.ReasonTenantMismatch},
		"no value":         {func(r *events.Record) { r.Value = nil }, events.ReasonMissingField},
		"oversize":         {func(r *events.Record) { r.Value = make([]byte, events.MaxDataBytes+1) }, events.ReasonOversize},
	} {
		e := goodEvent()
		r := events.ToRecord(events.TopicEvents, &e)
		c.change(&r)
		if _, err := events.FromRecord(r); reasonOf(t, err) != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestPayloadMustFitItsEnvelope(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*events.Event)
		want   events.Reason
	}{
		"fits":               {func(*events.Event) {}, ""},
		"another's tenant":   {func(e *events.Event) { e.Subject = "globex" }, events.ReasonTenantMismatch},
		"settled while held": {func(e *events.Event) { e.Type = events.TypeSettled }, events.ReasonInconsistent},
		"a meter's type":     {func(e *events.Event) { e.Type = events.TypeGPUMeter }, events.ReasonWrongTopic},
	} {
		e := goodEvent()
		c.change(&e)
		if _, err := e.Reservation(); reasonOf(t, err) != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// The same id a millisecond later is the same event, on the same day: the day
// comes from the id, which says all there is about when it was made.
func TestCaseL2_TheSameIDWithAnotherTimeIsTheSameEvent(t *testing.T) {
	midnight := time.Date(2026, 8, 19, 23, 59, 59, 999e6, time.UTC)
	first := goodEvent()
	first.ID, first.Time = events.NewID("e1-s07", midnight, 4, 2), midnight
	again := first
	again.Time = midnight.Add(time.Millisecond) // which is the next day
	for _, e := range []events.Event{first, again} {
		got, err := events.FromRecord(events.ToRecord(events.TopicEvents, &e))
		if err != nil {
			t.Fatal(err)
		}
		day, err := events.DayOf(got.ID)
		if err != nil || !day.Equal(time.Date(2026, 8, 19, 0, 0, 0, 0, time.UTC)) || got.ID != first.ID {
			t.Errorf("event at %v: id %s, day %v, %v", e.Time, got.ID, day, err)
		}
	}
}

func TestDayOf(t *testing.T) {
	for id, want := range map[string]string{
		"e1-s07-1787155200123-0.0":      "2026-08-19",
		"a-b-c-d-1787155200123-17.3":    "2026-08-19",
		"e-s00-946684800000-0.0":        "2000-01-01",
		"freeze-acme-1787183999999-1.0": "2026-08-19",
		"freeze-acme-1787184000000-1.0": "2026-08-20",
		"":                              "", "-": "", "--": "", "x": "",
		"e1-s07-1787155200123-0":       "", // no part
		"e1-s07-1787155200123-0.":      "",
		"e1-s07-1787155200123-.0":      "",
		"e1-s07-01787155200123-0.0":    "", // another spelling of the same entry
		"e1-s07-+1787155200123-0.0":    "",
		"e1-s07-946684799999-0.0":      "", // before 2000
		"e1-s07-99999999999999999-0.0": "",
		"1787155200123-0.0":            "", // no prefix
		"-1787155200123-0.0":           "",
		"e1-s07-1787155200123-0.0 ":    "",
		"e1-s07-1787155200123-0.0.0":   "",
		"e1-s07-1787155200123-0x1.0":   "",
	} {
		got, err := events.DayOf(id)
		if want == "" {
			if reasonOf(t, err) != events.ReasonBadID {
				t.Errorf("DayOf(%q) = %v, %v; want bad_id", id, got, err)
			}
			continue
		}
		if err != nil || got.Format("2006-01-02") != want || got.Location() != time.UTC || got.Hour() != 0 {
			t.Errorf("DayOf(%q) = %v, %v; want %s", id, got, err, want)
		}
	}
}

func TestCaseT5_ClockSkewIsQuarantined(t *testing.T) {
	arrival := at
	for skew, ok := range map[time.Duration]bool{
		0: true, 5 * time.Minute: true, 5*time.Minute + time.Millisecond: false, 6 * time.Minute: false,
		-35 * 24 * time.Hour: true, -35*24*time.Hour - time.Millisecond: false, -36 * 24 * time.Hour: false,
	} {
		err := events.CheckTime(arrival.Add(skew), arrival)
		if want := events.ReasonClockSkew; (reasonOf(t, err) == want) == ok {
			t.Errorf("event %v from its arrival: %v", skew, err)
		}
	}
}

func TestTimesAreCutToMilliseconds(t *testing.T) {
	r, err := events.ParseReservation([]byte(strings.Replace(good, ".123Z", ".123999999Z", 1)))
	if err != nil || !r.ExpiresAt.Equal(at) {
		t.Errorf("expires_at = %v, %v; want %v", r.ExpiresAt, err, at)
	}
}
