package fakeprovider

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/tidwall/gjson"
)

const weather = `{"type":"object","properties":{"city":{"type":"string","minLength":2},"unit":{"enum":["c","f"]},"days":{"type":"integer","minimum":1,"maximum":7}},"required":["city","unit","days"],"additionalProperties":false}`

// schemas are of the kinds that SDKs and people write.
var schemas = []string{
	weather,
	`{"type":"object","properties":{},"additionalProperties":false}`,
	`{"$defs":{"Step":{"type":"object","properties":{"why":{"type":"string"},"next":{"anyOf":[{"$ref":"#/$defs/Step"},{"type":"null"}]}},"required":["why","next"]}},"$ref":"#/$defs/Step"}`,
	`{"type":"object","properties":{"steps":{"type":"array","minItems":3,"maxItems":4,"items":{"type":"object","properties":{"a":{"type":["null","number"]},"b":{"const":"x"}},"required":["a","b"]}}},"required":["steps"]}`,
	`{"type":"object","properties":{"when":{"type":"string","format":"date-time"},"who":{"type":"string","format":"email"},"id":{"type":"string","format":"uuid"},"at":{"type":"string","format":"uri"},"day":{"type":"string","format":"date"},"ip":{"type":"string","format":"ipv4"}}}`,
	`{"type":"object","properties":{"code":{"type":"string","pattern":"^[A-Z]{2,3}-\\d+(x|y)?$"},"short":{"type":"string","maxLength":2},"long":{"type":"string","minLength":40}},"required":["code","short","long"]}`,
	`{"type":"object","properties":{"n":{"type":"number","exclusiveMinimum":0,"maximum":0.5},"m":{"type":"integer","multipleOf":5,"minimum":12},"k":{"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":5},"neg":{"type":"integer","maximum":-4}}}`,
	`{"allOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},{"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"]}]}`,
	`{"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":{"type":"boolean"}}`,
	`{"oneOf":[{"type":"null"},{"type":"string"}]}`,
	`{"type":"object","properties":{"free":{},"obj":{"type":"object","additionalProperties":{"type":"string"}}},"required":["free","obj","named only here"]}`,
	`{"type":"object","properties":{"tree":{"$ref":"#"}}}`,
}

func TestExamplesAreValid(t *testing.T) {
	t.Parallel()
	for i, text := range schemas {
		schema := compile(t, text)
		for seed := range uint64(50) {
			r := random(seed)
			got := string(appendExample(nil, gjson.Parse(text), &r))
			if err := valid(schema, got); err != nil {
				t.Errorf("schema %d, seed %d: %s: %v", i, seed, got, err)
				break
			}
		}
	}
}

func compile(t *testing.T, text string) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("https://example.com/s.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("https://example.com/s.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func valid(schema *jsonschema.Schema, text string) error {
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	return schema.Validate(value)
}

// Schemas that would never end, or grow without bound, end.
func TestExamplesEnd(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"$ref":"#"}`,
		`{"type":"object","properties":{"a":{"$ref":"#"},"b":{"$ref":"#"},"c":{"$ref":"#"}},"required":["a","b","c"]}`,
		`{"type":"array","minItems":100,"items":{"$ref":"#"}}`,
		`{"type":"string","minLength":1000000000}`,
		`{"type":"string","pattern":"((a{900}){1})+"}`,
		`{"type":"array","minItems":-5,"maxItems":-9,"items":7}`,
		`{"type":"string","maxLength":-5}`,
		`{"type":"number","multipleOf":1e-320,"minimum":1e308}`,
		`{"$ref":"#/no/such"}`,
	} {
		r := random(1)
		if got := appendExample(nil, gjson.Parse(text), &r); len(got) > 1<<20 || !json.Valid(got) {
			t.Errorf("%s: %d bytes, %.80s", text, len(got), got)
		}
	}
}

func TestToolCalls(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	schema := compile(t, weather)
	for _, c := range []struct {
		name, path, body string // PROMPT and CHOICE are filled in
		arguments, delta string
		forced           string
	}{
		{
			"chat", chatPath,
			`{"model":"m","messages":[{"role":"user","content":"PROMPT"}],"tools":[{"type":"function","function":{"name":"get_weather","parameters":` + weather + `}}]CHOICE`,
			"choices.0.message.tool_calls.0.function.arguments", "choices.0.delta.tool_calls.0.function.arguments",
			`,"tool_choice":"required"`,
		},
		{
			"responses", "/v1/responses",
			`{"model":"m","input":"PROMPT","tools":[{"type":"function","name":"get_weather","parameters":` + weather + `}]CHOICE`,
			"output.0.arguments", "delta",
			`,"tool_choice":{"type":"function","name":"get_weather"}`,
		},
		{
			"messages", "/v1/messages",
			`{"model":"m","max_tokens":999,"messages":[{"role":"user","content":"PROMPT"}],"tools":[{"name":"get_weather","input_schema":` + weather + `}]CHOICE`,
			"content.0.input", "delta.partial_json",
			`,"tool_choice":{"type":"any"}`,
		},
		{
			"gemini", "/v1beta/models/m:generateContent",
			`{"contents":[{"parts":[{"text":"PROMPT"}]}],"tools":[{"functionDeclarations":[{"name":"get_weather","parameters":` + weather + `}]}]CHOICE`,
			"candidates.0.content.parts.0.functionCall.args", "candidates.0.content.parts.0.functionCall.args",
			`,"toolConfig":{"functionCallingConfig":{"mode":"ANY"}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ask := func(prompt, choice string) (plain, streamed string) {
				body := strings.Replace(strings.Replace(c.body, "PROMPT", prompt, 1), "CHOICE", choice, 1)
				plain = send(t, s.URL()+c.path, body+`}`).body
				path := strings.Replace(c.path, ":generateContent", ":streamGenerateContent?alt=sse", 1)
				if path == c.path {
					body += `,"stream":true`
				}
				return gjson.Get(plain, c.arguments).String(), joined(send(t, s.URL()+path, body+`}`).body, c.delta)
			}
			for _, asked := range [][2]string{{"What's the weather in Paris?", ""}, {"Say hello.", c.forced}, {"Use your tool.", ""}} {
				plain, streamed := ask(asked[0], asked[1])
				if plain != streamed {
					t.Errorf("%v: plain %s, streamed %s", asked, plain, streamed)
				}
				if err := valid(schema, plain); err != nil {
					t.Errorf("%v: %s: %v", asked, plain, err)
				}
			}
			if plain, _ := ask("Say hello.", ""); plain != "" {
				t.Errorf("nobody asked for a tool, and it called one: %s", plain)
			}
		})
	}
}

// After a tool's result the answer is text, so that an agent comes to an end.
func TestToolResultIsAnswered(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	got := send(t, s.URL()+chatPath, `{"model":"m","messages":[{"role":"user","content":"weather?"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"get_weather","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"call_1","content":"sunny"}],
		"tools":[{"type":"function","function":{"name":"get_weather","parameters":`+weather+`}}]}`).body
	if gjson.Get(got, "choices.0.finish_reason").Str != "stop" || gjson.Get(got, "choices.0.message.content").Str == "" {
		t.Error(got)
	}
}

func TestParallelToolCalls(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	const body = `{"model":"m","max_tokens":999,"messages":[{"role":"user","content":"weather and traffic, please"}],"tools":[
		{"name":"get_weather","input_schema":{"type":"object"}},{"name":"getTraffic","input_schema":{"type":"object"}},{"name":"other","input_schema":{}}]`
	got := send(t, s.URL()+msgPath, body+`}`).body
	if names := gjson.Get(got, "content.#.name").Raw; names != `["get_weather","getTraffic"]` {
		t.Errorf("called %s: %s", names, got)
	}
	got = send(t, s.URL()+msgPath, body+`,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}}`).body
	if names := gjson.Get(got, "content.#.name").Raw; names != `["get_weather"]` {
		t.Errorf("called %s", names)
	}
	if r := last(t, s, 1); r.ToolCalls != 2 {
		t.Errorf("logged: %+v", r)
	}
}

func TestStructuredOutput(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	schema := compile(t, weather)
	for _, c := range []struct{ path, body, text string }{
		{chatPath, `{"model":"m","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"w","schema":` + weather + `}}}`, "choices.0.message.content"},
		{"/v1/responses", `{"model":"m","input":"x","text":{"format":{"type":"json_schema","name":"w","schema":` + weather + `}}}`, "output.0.content.0.text"},
		{msgPath, `{"model":"m","max_tokens":999,"messages":[{"role":"user","content":"x"}],"output_config":{"format":{"type":"json_schema","schema":` + weather + `}}}`, "content.0.text"},
		{"/v1beta/models/m:generateContent", `{"contents":[{"parts":[{"text":"x"}]}],"generationConfig":{"responseMimeType":"application/json","responseSchema":` + strings.ReplaceAll(weather, `"string"`, `"STRING"`) + `}}`, "candidates.0.content.parts.0.text"},
	} {
		got := gjson.Get(send(t, s.URL()+c.path, c.body).body, c.text).Str
		if err := valid(schema, got); err != nil {
			t.Errorf("%s: %s: %v", c.path, got, err)
		}
	}
}
