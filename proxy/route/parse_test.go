package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"tollgate/proxy"
)

const (
	exampleFile = "../../deploy/upstreams.example.yaml"
	secret      = "sk-hunter2"
)

// parse reads text as upstreams.yaml, where KEY is set and key.txt holds a key.
func parse(text string) (*Table, error) {
	env := func(name string) string {
		return map[string]string{"KEY": secret, "SPACED": "a b " + secret}[name]
	}
	return Parse([]byte(text), "upstreams.yaml", env, func(path string) ([]byte, error) {
		if path == "key.txt" {
			return []byte(secret + "\n"), nil
		}
		return nil, fs.ErrNotExist
	})
}

const minimal = `
upstreams:
  - {name: a, dialect: openai, url: "http://127.0.0.1:1/v1"}
models:
  - name: m
    deployments: [{upstream: a}]
`

func TestParse(t *testing.T) {
	got, err := parse(`
upstreams:
  - name: own
    dialect: openai
    url: http://10.0.0.1:8000/v1/
    key_env: KEY
    region: eu
    connect_timeout: 1s
    response_timeout: 2m
    answer_timeout: 5m
    idle_timeout: 30s
    identify: true
    output_cap_field: max_tokens
    max_connections: 7
    environment_proxy: true
  - {name: az, dialect: openai, azure: true, api_version: 2024-10-21, url: "https://az.example", key_file: key.txt}
  - {name: claude, dialect: anthropic, url: "https://[::1]:8443", key_env: NONE, key_optional: true}
models:
  - name: small
    aliases: [fast, "s"]
    tokenizer: o200k_base
    deployments:
      - {upstream: own, model: org/qwen:7b, weight: 3}
      - upstream: az
    backup:
      - {upstream: claude, model: haiku, weight: 0}
  - name: "llama-*"
    deployments: [{upstream: own}, {upstream: own, model: fixed}]
`)
	if err != nil {
		t.Fatal(err)
	}
	own := &Upstream{
		Name: "own", Dialect: "openai", Server: proxy.Upstream{Base: "http://10.0.0.1:8000/v1", Key: secret}, Region: "eu",
		ConnectTimeout: time.Second, ResponseTimeout: 2 * time.Minute, AnswerTimeout: 5 * time.Minute, IdleTimeout: 30 * time.Second,
		MaxConnections: 7, Identify: true, OutputCapField: "max_tokens", EnvironmentProxy: true,
	}
	az := &Upstream{
		Name: "az", Dialect: "openai", Server: proxy.Upstream{Base: "https://az.example", Key: secret, Azure: true, APIVersion: "2024-10-21"},
		ConnectTimeout: 2 * time.Second, ResponseTimeout: 2 * time.Minute, AnswerTimeout: 10 * time.Minute, IdleTimeout: time.Minute,
	}
	claude := &Upstream{
		Name: "claude", Dialect: "anthropic", Server: proxy.Upstream{Base: "https://[::1]:8443"},
		ConnectTimeout: 2 * time.Second, ResponseTimeout: 2 * time.Minute, AnswerTimeout: 10 * time.Minute, IdleTimeout: time.Minute,
	}
	want := &Table{
		Upstreams: []*Upstream{own, az, claude},
		Models: []*Model{
			{Name: "small", Aliases: []string{"fast", "s"}, Tokenizer: "o200k_base", Deployments: []*Deployment{
				{Upstream: own, Model: "org/qwen:7b", Weight: 3},
				{Upstream: az, Model: "small", Weight: 1},
				{Upstream: claude, Model: "haiku", Weight: 0, Backup: true},
			}},
			{Name: "llama-*", Deployments: []*Deployment{{Upstream: own, Weight: 1}, {Upstream: own, Model: "fixed", Weight: 1}}},
		},
		Warnings: []string{`the key of upstream "own" goes over plain http to a host that is not this one`},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Table{}, Deployment{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Each mistake is at its line and says what to do.
func TestMistakes(t *testing.T) {
	for _, test := range []struct{ old, new, want string }{
		{"name: a,", "nmae: a,", `upstreams.yaml:3: upstreams[0].nmae: is not a setting; did you mean name?`},
		{"name: a,", "name: a, name: b,", `upstreams.yaml:3: `},
		{"name: a,", "name: [a],", `upstreams.yaml:3: upstreams[0].name: must be a plain value`},
		{"name: a,", "name: a b,", `upstreams.yaml:3: upstreams[0].name: must be 1 to 64 letters`},
		{"openai", "opnai", `upstreams.yaml:3: upstreams[0].dialect: "opnai" is not known; did you mean openai?`},
		{"http://127.0.0.1:1/v1", "ftp://x", `upstreams.yaml:3: upstreams[0].url: must be an http or https URL`},
		{"http://127.0.0.1:1/v1", "http://u:" + secret + "@x", `upstreams.yaml:3: upstreams[0].url: must not hold a user or password`},
		{"http://127.0.0.1:1/v1", "http://x:" + secret + ":x", `upstreams.yaml:3: upstreams[0].url: must be an http`},
		{"http://127.0.0.1:1/v1", "http://x/?key=" + secret, `upstreams.yaml:3: upstreams[0].url: must not have a query`},
		{"http://127.0.0.1:1/v1", "http://x:99999", `upstreams.yaml:3: upstreams[0].url: has a port that is none`},
		{"http://127.0.0.1:1/v1", "http://x:", `upstreams.yaml:3: upstreams[0].url: `},
		{"name: a,", "name: a, key_env: " + secret + ",", `upstreams.yaml:3: upstreams[0].key_env: the environment variable that it names is not set`},
		{"name: a,", "name: a, key_env: SPACED,", `upstreams.yaml:3: upstreams[0].key_env: what it names is no key`},
		{"name: a,", "name: a, key_file: none,", `upstreams.yaml:3: upstreams[0].key_file: no key can be read`},
		{"name: a,", "name: a, key_env: KEY, key_file: key.txt,", `upstreams.yaml:3: upstreams[0]: key_env and key_file do not go together`},
		{"name: a,", "name: a, azure: yes,", `upstreams.yaml:3: upstreams[0].azure: must be true or false, is "yes"`},
		{"openai", "anthropic, azure: true", `upstreams.yaml:3: upstreams[0].azure: Azure speaks OpenAI's dialect`},
		{"/v1", "/v1/chat/completions", `upstreams.yaml:3: upstreams[0].url: is the address of one endpoint; end it where clients' base URLs end, before /chat/completions`},
		{"openai", "openai, api_version: v1", `upstreams.yaml:3: upstreams[0].api_version: has no meaning without azure`},
		{"openai", "openai, idle_timeout: 60", `upstreams.yaml:3: upstreams[0].idle_timeout: must be a duration such as`},
		{"openai", "openai, idle_timeout: 2h", `upstreams.yaml:3: upstreams[0].idle_timeout: must be`},
		{"openai", "openai, max_connections: 1.5", `upstreams.yaml:3: upstreams[0].max_connections: must be a whole number`},
		{"openai", "openai, output_cap_field: cap", `upstreams.yaml:3: upstreams[0].output_cap_field: "cap" is not known`},
		{"models:", "  - {name: a, dialect: openai, url: 'http://x'}\nmodels:", `upstreams.yaml:4: upstreams[1].name: "a" is there twice`},
		{"upstream: a", "upstream: b", `upstreams.yaml:6: models[0].deployments[0].upstream: there is no upstream "b"; did you mean a?`},
		{"upstream: a", "upstream: a, weight: -1", `upstreams.yaml:6: models[0].deployments[0].weight: must be a whole number from 0 to 1000000, is "-1"`},
		{"upstream: a", "upstream: a}, {upstream: a, model: m", `upstreams.yaml:6: models[0].deployments[1]: the same upstream and model is there twice`},
		{"upstream: a", "model: a", `upstreams.yaml:6: models[0].deployments[0]: lacks upstream`},
		{"deployments: [{upstream: a}]", "weight: 1", `upstreams.yaml:6: models[0].weight: is not a setting`},
		{"name: m", "name: '*m'", `upstreams.yaml:5: models[0].name: a * can only end a model's name; write it as in "llama-*"`},
		{"name: m", "name: m\n    tokenizer: o200k", `upstreams.yaml:6: models[0].tokenizer: "o200k" is not known; known are o200k_base, cl100k_base, estimate`},
		{"name: m", "name: 'm m'", `upstreams.yaml:5: models[0].name: must be 1 to 256 printable ASCII signs`},
		{"name: m", "name: m\n    aliases: [m]", `upstreams.yaml:6: models[0].aliases[0]: "m" is named in line 5 already`},
		{"name: m", "name: m\n    aliases: ['m*']", `upstreams.yaml:6: models[0].aliases[0]: a * can only end`},
		{"name: m", "name: m\n    aliases: x", `upstreams.yaml:6: models[0].aliases: must be a list`},
		{"upstreams:\n", "upstreams: &x\n", `upstreams.yaml:2: anchors and aliases are not taken`},
		{"upstreams:\n", "ups: 1\nupstreams:\n", `upstreams.yaml:2: ups: is not a setting; known are models, upstreams`},
		{"models:", "---\nmodels:", `a second document begins here`},
		{minimal, "", "upstreams.yaml: is empty"},
		{minimal, "upstreams: []\nmodels: []", "upstreams.yaml: upstreams: there must be at least one"},
		{minimal, "x", "upstreams.yaml:1: must hold settings"},
		{minimal, strings.Repeat("#", MaxFileBytes+1), "upstreams.yaml: is larger than 1MiB"},
		{minimal, "\x00", "upstreams.yaml: is not UTF-8 text"},
	} {
		text := strings.Replace(minimal, test.old, test.new, 1)
		_, err := parse(text)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v\nwant %s", test.new, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the secret is shown: %v", test.new, err)
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	_, err := parse("models:\n  - {name: m, deployments: [{upstream: x, weight: y}]}\nupstreams:\n  - {name: a, dialect: b, url: c, d: e}\n")
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	var places []string
	for _, m := range invalid.Mistakes {
		places = append(places, invalid.Where(m)+" "+m.Path)
	}
	want := []string{
		"upstreams.yaml:2 models[0].deployments[0].upstream", "upstreams.yaml:2 models[0].deployments[0].weight",
		"upstreams.yaml:4 upstreams[0].dialect", "upstreams.yaml:4 upstreams[0].url", "upstreams.yaml:4 upstreams[0].d",
	}
	if diff := cmp.Diff(want, places); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The example is read as it stands, and shows every setting.
func TestExampleIsComplete(t *testing.T) {
	data, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	none := func(string) string { return "" }
	noFile := func(string) ([]byte, error) { return nil, fs.ErrNotExist }
	table, err := Parse(data, exampleFile, none, noFile)
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Upstreams) < 3 || len(table.Models) < 3 {
		t.Errorf("%d upstreams, %d models", len(table.Upstreams), len(table.Models))
	}
	for _, place := range []string{"x: 1", "upstreams: [{x: 1}]", "upstreams: []\nmodels: [{x: 1}]", "upstreams: []\nmodels: [{deployments: [{x: 1}]}]"} {
		_, err := parse(place)
		var invalid *InvalidError
		if !errors.As(err, &invalid) {
			t.Fatal(err)
		}
		names := ""
		for _, m := range invalid.Mistakes {
			if after, found := strings.CutPrefix(m.Hint, "known are "); found {
				names = after
			}
		}
		if names == "" {
			t.Fatalf("%s: no list of what is known in %v", place, err)
		}
		for name := range strings.SplitSeq(names, ", ") {
			if !strings.Contains(string(data), name+":") {
				t.Errorf("the example lacks %s", name)
			}
		}
	}
}

func TestKeysAreNotShown(t *testing.T) {
	table, err := parse(strings.Replace(minimal, "name: a,", "name: a, key_env: KEY,", 1))
	if err != nil {
		t.Fatal(err)
	}
	up := table.Upstreams[0]
	if up.Server.Key != secret {
		t.Fatal("the key itself is lost")
	}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, value := range []any{up, *up, up.Server, &up.Server, *table.Models[0].Deployments[0]} {
			_, _ = fmt.Fprintf(&out, verb, value)
		}
	}
	if err := json.NewEncoder(&out).Encode(up.Server); err != nil {
		t.Fatal(err)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "server", up.Server, "at", &up.Server)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "server", up.Server, "at", &up.Server)
	shown := out.String()
	if strings.Contains(shown, "hunter2") || strings.Contains(shown, fmt.Sprintf("%x", secret)) || !strings.Contains(shown, "REDACTED") {
		t.Errorf("shown as %s", shown)
	}
}

func FuzzParse(f *testing.F) {
	data, err := os.ReadFile(exampleFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	for _, seed := range []string{minimal, "upstreams: [[]]", "models: {a: b}", "upstreams: [{name: {}}]", "? x\n: y", "models:\n- name: '*'\n  deployments:\n  - upstream: |\n      a\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := parse(string(data))
		if err != nil {
			var invalid *InvalidError
			if !errors.As(err, &invalid) || len(invalid.Mistakes) == 0 || strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		r := NewRouter(table, RouterOptions{})
		defer r.Close()
		for _, m := range table.Models {
			for _, dialect := range dialects {
				plan, err := r.Plan(m.Name, dialect, "")
				if err == nil && (len(plan.Deployments) == 0 || plan.Deployments[0].Model == "" || plan.Model != m.Name) {
					t.Fatalf("planned %+v", plan)
				}
			}
		}
	})
}
