package tenancy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPresetsAreValid(t *testing.T) {
	quota := DefaultQuota()
	if err := quota.Validate(); err != nil {
		t.Errorf("DefaultQuota: %v", err)
	}
	layers := map[string]bool{}
	for _, l := range quota.Limits {
		layers[l.Layer+"/"+l.Name] = true
	}
	for _, want := range []string{"L1/tokens-60s", "L1/tokens-30d", "L2/requests", "L3/concurrency"} {
		if !layers[want] {
			t.Errorf("DefaultQuota lacks %s", want)
		}
	}
	platform := DefaultPlatform()
	if err := platform.Validate(); err != nil {
		t.Errorf("DefaultPlatform: %v", err)
	}
}

func TestDocumentsSurviveJSON(t *testing.T) {
	quota := DefaultQuota()
	text, err := json.Marshal(quota)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `"window":"60s"`) || !strings.Contains(string(text), `"window":"30d"`) {
		t.Errorf("windows are not written as 60s and 30d: %s", text)
	}
	back, err := ParseQuota(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(quota, back); diff != "" {
		t.Errorf("quota changed on the way (-want +got):\n%s", diff)
	}
	platform := DefaultPlatform()
	if text, err = json.Marshal(platform); err != nil {
		t.Fatal(err)
	}
	gotPlatform, err := ParsePlatform(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(platform, gotPlatform); diff != "" {
		t.Errorf("platform changed on the way (-want +got):\n%s", diff)
	}
}

// mistakesOf returns the mistakes of an error as text, one each.
func mistakesOf(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) {
		t.Fatalf("error %v (%T) is not an InvalidError", err, err)
	}
	texts := make([]string, len(invalid.Mistakes))
	for i, m := range invalid.Mistakes {
		texts[i] = m.String()
	}
	return texts
}

func wantMistake(t *testing.T, err error, want string) {
	t.Helper()
	texts := mistakesOf(t, err)
	if len(texts) != 1 || !strings.HasPrefix(texts[0], want) {
		t.Errorf("mistakes are %q; want one that starts with %q", texts, want)
	}
}

func TestQuotaMistakes(t *testing.T) {
	ring := Limit{
		Name: "tokens", Layer: "L1", Kind: KindRing, Scope: ScopeTenant, Metric: MetricTokens,
		Limit: 100, Window: Duration(time.Minute), Slots: 60,
	}
	counter := Limit{
		Name: "month", Layer: "L1", Kind: KindCounter, Scope: ScopeTenant, Metric: MetricTokens,
		Limit: 100, Period: PeriodMonth, Budget: true,
	}
	rate := Limit{
		Name: "requests", Layer: "L2", Kind: KindRate, Scope: ScopeTenant, Metric: MetricRequests,
		Limit: 10, Window: Duration(time.Second), Burst: 20,
	}
	lease := Limit{Name: "concurrency", Layer: "L3", Kind: KindLease, Scope: ScopeTenant, Limit: 3}

	for _, test := range []struct {
		want   string
		limit  Limit
		change func(*Limit)
	}{
		{"limits[0].name: \"\" is not", ring, func(l *Limit) { l.Name = "" }},
		{"limits[0].name: \"Tokens\" is not", ring, func(l *Limit) { l.Name = "Tokens" }},
		{"limits[0].name: \"a:b\" is not", ring, func(l *Limit) { l.Name = "a:b" }},
		{"limits[0].layer: \"L5\" is not", ring, func(l *Limit) { l.Layer = "L5" }},
		{"limits[0].kind: \"bucket\" is not", lease, func(l *Limit) { l.Kind = "bucket" }},
		{"limits[0].scope: \"project\" is not", ring, func(l *Limit) { l.Scope = "project" }},
		{"limits[0].scope: global is over all tenants", lease, func(l *Limit) { l.Scope = ScopeGlobal }},
		{"limits[0].limit: must be 0 to 1000000000000, is -1", ring, func(l *Limit) { l.Limit = -1 }},
		{"limits[0].limit: must be 0 to 1000000000000, is 1000000000001", ring, func(l *Limit) { l.Limit = MaxLimit + 1 }},
		{"limits[0].metric: \"\" is not a metric of a ring", ring, func(l *Limit) { l.Metric = "" }},
		{"limits[0].metric: \"words\" is not", counter, func(l *Limit) { l.Metric = "words" }},
		{"limits[0].window: must be 1s to 400d, is 0s", ring, func(l *Limit) { l.Window = 0 }},
		{"limits[0].window: must be 1s to 400d, is 401d", ring, func(l *Limit) { l.Window, l.Slots = Duration(401*day), 401 }},
		{"limits[0].slots: must be 1 to 1024, is 0", ring, func(l *Limit) { l.Slots = 0 }},
		{"limits[0].slots: must be 1 to 1024, is 1025", ring, func(l *Limit) { l.Slots = 1025 }},
		{"limits[0].slots: 60s is not 7 slots", ring, func(l *Limit) { l.Slots = 7 }},
		{"limits[0].burst: has no meaning for a ring", ring, func(l *Limit) { l.Burst = 1 }},
		{"limits[0].period: has no meaning for a ring", ring, func(l *Limit) { l.Period = PeriodDay }},
		{"limits[0].burst_percent: has no meaning for a ring", ring, func(l *Limit) { l.BurstPercent = 120 }},
		{"limits[0].period: \"\" is not a period", counter, func(l *Limit) { l.Period = "" }},
		{"limits[0].period: \"week\" is not a period", counter, func(l *Limit) { l.Period = "week" }},
		{"limits[0].window: has no meaning for a counter", counter, func(l *Limit) { l.Window = Duration(time.Hour) }},
		{"limits[0].slots: has no meaning for a counter", counter, func(l *Limit) { l.Slots = 2 }},
		{"limits[0].metric: \"tokens\" is not a metric of a rate", rate, func(l *Limit) { l.Metric = MetricTokens }},
		{"limits[0].burst: must be 1 to 1000000, is 0", rate, func(l *Limit) { l.Burst = 0 }},
		{"limits[0].burst: 1000000 requests at this rate", rate, func(l *Limit) { l.Burst, l.Limit, l.Window = 1_000_000, 1, Duration(time.Hour) }},
		{"limits[0].limit: a rate must be at least 1, is 0", rate, func(l *Limit) { l.Limit = 0 }},
		{"limits[0].limit: 1001 per 1ms is too fast", rate, func(l *Limit) { l.Limit, l.Window = 1001, Duration(time.Millisecond) }},
		{"limits[0].window: must be 1ms to 1d, is 0s", rate, func(l *Limit) { l.Window = 0 }},
		{"limits[0].budget: has no meaning for a rate", rate, func(l *Limit) { l.Budget = true }},
		{"limits[0].metric: has no meaning for a lease", lease, func(l *Limit) { l.Metric = MetricTokens }},
		{"limits[0].window: has no meaning for a lease", lease, func(l *Limit) { l.Window = Duration(time.Second) }},
		{"limits[0].burst_percent: must be 100 to 1000, is 99", lease, func(l *Limit) { l.BurstPercent = 99 }},
		{"limits[0].match: has no meaning in scope tenant", lease, func(l *Limit) { l.Match = "chat" }},
		{"limits[0].match: \"\" is not an endpoint", lease, func(l *Limit) { l.Scope = ScopeEndpoint }},
		{"limits[0].match: \"Chat\" is not an endpoint", lease, func(l *Limit) { l.Scope, l.Match = ScopeEndpoint, "Chat" }},
		{"limits[0].match: \"a|b\" is not a model", lease, func(l *Limit) { l.Scope, l.Match = ScopeModel, "a|b" }},
	} {
		quota := Quota{Limits: []Limit{test.limit}}
		if err := quota.Validate(); err != nil {
			t.Fatalf("the line before the change is refused: %v", err)
		}
		test.change(&quota.Limits[0])
		wantMistake(t, quota.Validate(), test.want)
	}
}

func TestQuotaReportsAllMistakesAtOnce(t *testing.T) {
	quota := Quota{
		Limits: []Limit{
			{Name: "a", Layer: "L3", Kind: KindLease, Scope: ScopeTenant, Limit: 1},
			{Name: "a", Layer: "L9", Kind: KindLease, Scope: ScopeTenant, Limit: -1},
		},
		DefaultMaxOutputTokens: -5,
		HoldTTL:                Duration(time.Millisecond),
	}
	paths := ""
	var invalid *InvalidError
	if !errors.As(quota.Validate(), &invalid) {
		t.Fatal("accepted")
	}
	for _, m := range invalid.Mistakes {
		paths += m.Path + " "
	}
	want := "limits[1].layer limits[1].limit limits[1].name default_max_output_tokens hold_ttl "
	if paths != want {
		t.Errorf("paths are %q, want %q", paths, want)
	}
}

func TestQuotaRefusesTooManyLines(t *testing.T) {
	quota := Quota{}
	for i := range MaxLimits + 1 {
		quota.Limits = append(quota.Limits, Limit{Name: fmt.Sprintf("l%d", i), Layer: "L3", Kind: KindLease, Scope: ScopeTenant, Limit: 1})
	}
	wantMistake(t, quota.Validate(), "limits: has 65 lines, at most 64")
	quota.Limits = quota.Limits[:MaxLimits]
	if err := quota.Validate(); err != nil {
		t.Errorf("64 lines are refused: %v", err)
	}
}

func TestPlatformMistakes(t *testing.T) {
	for _, test := range []struct {
		want   string
		change func(*Platform)
	}{
		{"limits[0].kind: a limit over all tenants can only be a lease", func(p *Platform) {
			p.Limits = []Limit{{
				Name: "x", Layer: "L2", Kind: KindRate, Scope: ScopeGlobal, Metric: MetricRequests,
				Limit: 1, Window: Duration(time.Second), Burst: 1,
			}}
		}},
		{"limits[1].scope: \"tenant\" is not a scope over all tenants", func(p *Platform) { p.Limits[1].Scope = ScopeTenant }},
		{"models[1].name: \"m\" is already models[0]", func(p *Platform) {
			p.Models = []Model{{Name: "m", WeightMilli: 1000}, {Name: "m", WeightMilli: 2000}}
		}},
		{"models[0].weight_milli: must be 1 to 1000000, is 0", func(p *Platform) { p.Models = []Model{{Name: "m"}} }},
		{"models[0].image_tokens: must be 0 to", func(p *Platform) {
			p.Models = []Model{{Name: "m", WeightMilli: 1, ImageTokens: -1}}
		}},
		{"default_max_output_tokens: must be 1 to", func(p *Platform) { p.DefaultMaxOutputTokens = 0 }},
		{"hold_ttl: must be 1s to 1d, is 0s", func(p *Platform) { p.HoldTTL = 0 }},
		{"max_hold: 1s is shorter than hold_ttl 120s", func(p *Platform) { p.MaxHold = Duration(time.Second) }},
	} {
		platform := DefaultPlatform()
		test.change(&platform)
		wantMistake(t, platform.Validate(), test.want)
	}
}

func TestTenantMistakes(t *testing.T) {
	good := Tenant{ID: "acme", Name: "Acme", TimeZone: "Asia/Kolkata", Currency: "JPY", Quota: DefaultQuota()}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		want   string
		change func(*Tenant)
	}{
		{"id: \"\" is not", func(x *Tenant) { x.ID = "" }},
		{"id: \"-a\" is not", func(x *Tenant) { x.ID = "-a" }},
		{"id: \"Acme\" is not", func(x *Tenant) { x.ID = "Acme" }},
		{"id: \"a:b\" is not", func(x *Tenant) { x.ID = "a:b" }},
		{"id: \"a}b\" is not", func(x *Tenant) { x.ID = "a}b" }},
		{"id: \"aaaa", func(x *Tenant) { x.ID = strings.Repeat("a", 64) }},
		{"name: is missing", func(x *Tenant) { x.Name = " " }},
		{"name: must be printable", func(x *Tenant) { x.Name = "a\nb" }},
		{"name: must be printable", func(x *Tenant) { x.Name = "a\x00" }},
		{"name: must be printable", func(x *Tenant) { x.Name = "a\xff" }},
		{"name: has 201 bytes", func(x *Tenant) { x.Name = strings.Repeat("n", 201) }},
		{"time_zone: is missing", func(x *Tenant) { x.TimeZone = "" }},
		{"time_zone: \"Local\" is not", func(x *Tenant) { x.TimeZone = "Local" }},
		{"time_zone: \"Mars/Olympus\" is not", func(x *Tenant) { x.TimeZone = "Mars/Olympus" }},
		{"time_zone: \"../../etc/passwd\" is not", func(x *Tenant) { x.TimeZone = "../../etc/passwd" }},
		{"currency: is missing", func(x *Tenant) { x.Currency = "" }},
		{"currency: \"eur\" is not", func(x *Tenant) { x.Currency = "eur" }},
		{"currency: \"978\" is not", func(x *Tenant) { x.Currency = "978" }},
		{"currency: \"ZZZ\" is not", func(x *Tenant) { x.Currency = "ZZZ" }},
		{"currency: \"XXX\" is not", func(x *Tenant) { x.Currency = "XXX" }},
		{"quota.limits[0].slots: must be", func(x *Tenant) { x.Quota = DefaultQuota(); x.Quota.Limits[0].Slots = 0 }},
	} {
		tenant := good
		test.change(&tenant)
		wantMistake(t, tenant.Validate(), test.want)
	}
}

// Months with DST, half-hour zones and UTC+13 are only right where the zones
// themselves are known on every machine.
func TestCaseT2ZonesAreKnown(t *testing.T) {
	for _, zone := range []string{"UTC", "Pacific/Tongatapu", "Pacific/Apia", "Australia/Lord_Howe", "Asia/Kathmandu", "America/New_York"} {
		if problem := CheckTimeZone(zone); problem != "" {
			t.Errorf("%s: %s", zone, problem)
		}
	}
}

func TestKeyMistakes(t *testing.T) {
	good := Key{ID: "tgk_0123456789abcdef", TenantID: "acme", Name: "ci", Role: RoleTenant, SecretHash: make([]byte, 32)}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	lease := Limit{Name: "c", Layer: "L3", Kind: KindLease, Scope: ScopeKey, Limit: 1}
	for _, test := range []struct {
		want   string
		change func(*Key)
	}{
		{"id: \"tgk_x\" is not", func(k *Key) { k.ID = "tgk_x" }},
		{"name: is missing", func(k *Key) { k.Name = "" }},
		{"secret_hash: must have 32 bytes, has 0", func(k *Key) { k.SecretHash = nil }},
		{"role: \"admin\" is not", func(k *Key) { k.Role = "admin" }},
		{"tenant_id: \"\" is not", func(k *Key) { k.TenantID = "" }},
		{"tenant_id: an operator key", func(k *Key) { k.Role = RoleOperator }},
		{"limits: only tenant keys spend", func(k *Key) { k.Role, k.Limits = RoleMeter, []Limit{lease} }},
		{"limits[0].scope: \"tenant\" is wider", func(k *Key) { k.Limits = []Limit{lease}; k.Limits[0].Scope = ScopeTenant }},
	} {
		key := good
		test.change(&key)
		wantMistake(t, key.Validate(), test.want)
	}
}

func TestChangeNeedsAuthorAndReason(t *testing.T) {
	if err := (Change{Author: "alice", Reason: "ticket 12"}).Validate(); err != nil {
		t.Fatal(err)
	}
	if got := mistakesOf(t, Change{Reason: "\n"}.Validate()); len(got) != 2 {
		t.Errorf("mistakes %q, want author and reason", got)
	}
}
