package events_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"tollgate/events"
	"tollgate/events/schemas"
)

var update = flag.Bool("update", false, "write the golden payloads anew")

var allTypes = []events.Type{
	events.TypeReserved, events.TypeUsage, events.TypeSettled, events.TypeCancelled, events.TypeExpired,
	events.TypeFrozen, events.TypeUnfrozen, events.TypeModelMeter, events.TypeGPUMeter,
}

var at = time.Date(2026, 8, 19, 16, 0, 0, 123e6, time.UTC)

// goldenPayloads sets every field at least once over all types.
func goldenPayloads() map[events.Type]any {
	base := events.Reservation{
		TenantID: "acme", ReservationID: "rsv_5d41402abc4b2a76b9719d911017c592000001", RequestID: "req-2026-08-19/000123",
		KeyID: "tgk_abcdefghijklmnop", Endpoint: "chat/completions", Model: "gpt-4o-mini", Seq: 1, State: events.StateHeld,
		WeightMilli: 1500, HeldMilliUnits: 1_536_000, ExpiresAt: at.Add(2 * time.Minute), Author: "client",
	}
	usage := base
	usage.Seq, usage.Delta = 2, events.Usage{InputTokens: 13, OutputTokens: 100, CachedInputTokens: 5, ReasoningTokens: 20, ToolCalls: 1, Images: 2, AudioMillis: 800, GPUMillis: 1200}
	usage.Total, usage.DeltaMilliUnits, usage.TotalMilliUnits = usage.Delta, 169_500, 169_500
	usage.HeldMilliUnits, usage.Estimated = 1_366_500, true
	settled := usage
	settled.Seq, settled.State, settled.HeldMilliUnits, settled.Estimated = 3, events.StateSettled, 0, false
	settled.Delta, settled.DeltaMilliUnits = events.Usage{OutputTokens: -67, GPUMillis: 300}, -100_500
	settled.Total = events.Usage{InputTokens: 13, OutputTokens: 33, CachedInputTokens: 5, ReasoningTokens: 20, ToolCalls: 1, Images: 2, AudioMillis: 800, GPUMillis: 1500}
	settled.TotalMilliUnits, settled.Author, settled.Reason = 69_000, "reconciler", "model meter's final reading"
	cancelled := events.Reservation{
		TenantID: "acme", ReservationID: "rsv_5d41402abc4b2a76b9719d911017c592000002", RequestID: "req-\"quoted\" und Ümläute \u2028 😀",
		Seq: 1, State: events.StateCancelled, ExpiresAt: at, Tombstone: true, Author: "client",
	}
	expired := base
	expired.Seq, expired.State, expired.Author, expired.Reason = 2, events.StateExpired, "gateway", "ttl"
	frozen := events.Settlement{
		TenantID: "acme", Author: "reconciler", Reason: "drift of 4.2 % in tokens", WindowStart: at,
		WindowEnd: at.Add(time.Hour), GatewayCount: 1_000_000, ModelCount: 1_042_000, GPUGateway: 5000, GPUMeter: 5100,
	}
	unfrozen := frozen
	unfrozen.Author, unfrozen.Reason = "tgk_operatorkey00000", "model server double counted; fixed"
	return map[events.Type]any{
		events.TypeReserved: &base, events.TypeUsage: &usage, events.TypeSettled: &settled,
		events.TypeCancelled: &cancelled, events.TypeExpired: &expired,
		events.TypeFrozen: &frozen, events.TypeUnfrozen: &unfrozen,
		events.TypeModelMeter: &events.Meter{
			TenantID: "acme", ReservationID: base.ReservationID, RequestID: base.RequestID, Pool: "h100-eu", Model: "gpt-4o-mini",
			From: at, To: at.Add(3 * time.Second), InputTokens: 13, OutputTokens: 33, Final: true,
		},
		events.TypeGPUMeter: &events.Meter{TenantID: "acme", Pool: "h100-eu", From: at, To: at.Add(time.Minute), GPUMillis: 60_000},
	}
}

func encode(payload any) []byte {
	switch v := payload.(type) {
	case *events.Reservation:
		return events.AppendReservation(nil, v)
	case *events.Settlement:
		return events.AppendSettlement(nil, v)
	case *events.Meter:
		return events.AppendMeter(nil, v)
	}
	panic("no such payload")
}

// decode parses through the event, so that the type's own rules apply.
func decode(typ events.Type, data []byte) (any, error) {
	e := events.Event{ID: "x", Source: "s", Type: typ, Subject: "acme", Time: at, Data: data}
	switch {
	case typ.IsReservation():
		v, err := e.Reservation()
		return &v, err
	case typ.IsSettlement():
		v, err := e.Settlement()
		return &v, err
	default:
		v, err := e.Meter()
		return &v, err
	}
}

func compileSchema(t testing.TB, typ events.Type) *jsonschema.Schema {
	t.Helper()
	data, err := schemas.Files.ReadFile(string(typ) + ".json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource(string(typ), doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(string(typ))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func validates(schema *jsonschema.Schema, data []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return schema.Validate(doc)
}

// Schema, Go struct and golden file say the same of every type.
func TestSchemaStructAndGoldenAgree(t *testing.T) {
	for typ, payload := range goldenPayloads() {
		t.Run(string(typ), func(t *testing.T) {
			path := filepath.Join("schemas", "golden", string(typ)+".json")
			data := encode(payload)
			if *update {
				if err := os.WriteFile(path, append(bytes.Clone(data), '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimSuffix(string(golden), "\n"), string(data)); diff != "" {
				t.Errorf("payload differs from its golden file (-golden +code):\n%s", diff)
			}
			if err := validates(compileSchema(t, typ), golden); err != nil {
				t.Errorf("golden file does not fit the schema: %v", err)
			}
			got, err := decode(typ, golden)
			if err != nil {
				t.Fatalf("golden file is not parsed: %v", err)
			}
			if diff := cmp.Diff(payload, got); diff != "" {
				t.Errorf("parsed golden file (-want +got):\n%s", diff)
			}
			// The hand-written encoder and the struct's tags agree.
			std, err := json.Marshal(payload)
			if err != nil {
				t.Fatal(err)
			}
			var a, b any
			if err := errors.Join(json.Unmarshal(std, &a), json.Unmarshal(data, &b)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(a, b); diff != "" {
				t.Errorf("encoding/json and the encoder (-json +encoder):\n%s", diff)
			}
		})
	}
}

func TestEveryTypeHasASchemaAndEverySchemaAType(t *testing.T) {
	files, err := fs.Glob(schemas.Files, "*.json")
	if err != nil || len(files) != len(allTypes) {
		t.Errorf("%d schemas for %d types, %v", len(files), len(allTypes), err)
	}
	for _, typ := range allTypes {
		compileSchema(t, typ)
		if typ.Topic() == "" {
			t.Errorf("type %s has no topic", typ)
		}
	}
}

// Dropping a field, adding one, and changing a value's kind are judged alike by
// the schema and the parser.
func TestSchemaAndParserJudgeAlike(t *testing.T) {
	values := []any{
		nil, true, "x", "", json.Number("-1"), json.Number("0"), json.Number("1.5"), json.Number("9007199254740993"),
		json.Number("9007199254740992"),
		[]any{},
		map[string]any{},
		"2026-08-19T16:00:00Z", "2026-13-19T16:00:00Z", strings.Repeat("y", 129), strings.Repeat("z", 513),
	}
	for typ, payload := range goldenPayloads() {
		schema := compileSchema(t, typ)
		judge := func(what string, doc map[string]any) {
			t.Helper()
			data, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			_, parseErr := decode(typ, data)
			var bad *events.InvalidError
			if errors.As(parseErr, &bad) && (bad.Reason == events.ReasonTenantMismatch || bad.Field == "from") {
				return // rules that a schema cannot say
			}
			if schemaErr := validates(schema, data); (schemaErr == nil) != (parseErr == nil) {
				t.Errorf("%s, %s: schema says %v, parser says %v", typ, what, schemaErr, parseErr)
			}
		}
		fields := func() map[string]any {
			d := json.NewDecoder(bytes.NewReader(encode(payload)))
			d.UseNumber()
			var doc map[string]any
			if err := d.Decode(&doc); err != nil {
				t.Fatal(err)
			}
			return doc
		}
		for name := range fields() {
			doc := fields()
			delete(doc, name)
			judge("without "+name, doc)
			for _, v := range values {
				doc := fields()
				doc[name] = v
				text, _ := json.Marshal(v)
				judge(name+" = "+string(text), doc)
			}
		}
		doc := fields()
		doc["more"] = 1
		judge("with an unknown field", doc)
	}
}
