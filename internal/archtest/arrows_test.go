package archtest

// packages lists every package of the project with what it is for and which
// other packages of the project it may import in code that ships (tests may
// import more). Arrows point one way:
//
//	cmd → internal/cli → internal/app → { proxy → admission → events, tenancy; billing → ledger → events; reconcile → ledger, events }
//
// admission and ledger never import each other: they meet only in the log.
var packages = map[string]struct {
	why    string
	arrows map[string]string // to → why
}{
	// --- roots: nouns, rules, small interfaces ---
	"events": {"what is written to the log", nil},
	"tenancy": {"who may spend and how much", map[string]string{
		"events": "ids that also stand in events",
	}},
	"admission": {"what a decision is", map[string]string{
		"events":  "usage and reservations are what the log carries",
		"tenancy": "limits are a tenant's documents",
	}},
	"ledger": {"how the log is folded", map[string]string{
		"events":                 "what is folded",
		"ledger/internal/pgcopy": "a row's canonical bytes, which leaves hash, are the bytes that are copied",
	}},
	"reconcile": {"what to do when meters disagree or holds stay open", map[string]string{
		"events": "its decisions are events",
		"ledger": "holds and totals are the ledger's",
	}},
	"billing": {"how use becomes money", map[string]string{
		"events": "metrics are named as in events",
		"ledger": "use is the ledger's",
	}},
	"proxy": {"what a request asks for, what an answer holds, what is charged", map[string]string{
		"admission/answer": "errors in a dialect begin as the one table's answers",
		"events":           "usage is what events carry",
		"proxy/sse":        "streams are followed event by event",
	}},
	"migrations":     {"the database's schema", nil},
	"events/schemas": {"the payloads' JSON Schemas as files", nil},

	// --- technology, below the root that it serves ---
	"proxy/telemetry": {"metrics and traces of the front door", map[string]string{
		"proxy": "observes its exchanges",
	}},
	"proxy/tokens": {"tokens of text, by the encodings that are known", map[string]string{
		"proxy": "implements its Counter",
	}},
	"events/kafka": {"the log on Kafka", map[string]string{
		"events": "what is sent and read",
	}},
	"events/logfile": {"the log as a file, out and in again", map[string]string{
		"events": "what is written and read",
	}},
	"events/relay": {"from the outbox to the log", map[string]string{
		"events": "what is copied",
	}},
	"tenancy/postgres": {"where tenants are kept", map[string]string{
		"tenancy": "what is kept",
	}},
	"tenancy/redis": {"how tenants reach the gateways", map[string]string{
		"tenancy": "what is published",
	}},
	"admission/redis": {"decisions in one script call", map[string]string{
		"admission": "implements its Store",
		"events":    "the outbox's entries",
		"tenancy":   "limits become the script's data",
	}},
	"admission/answer": {"what a caller is told when it is refused", map[string]string{
		"admission": "refusals and errors",
		"tenancy":   "limits and errors of credentials",
	}},
	"admission/httpapi": {"the gateway's HTTP API", map[string]string{
		"admission":        "serves its Store",
		"admission/answer": "one table of answers for every interface",
		"events":           "usage and meters in bodies",
		"tenancy":          "who asks",
	}},
	"proxy/sse": {"server-sent events, bytes only", nil},
	"proxy/jsonbody": {"JSON bodies read strictly and changed in place", map[string]string{
		"proxy": "what is refused is a bad request",
	}},
	"proxy/openai":      {"the dialect of OpenAI's clients and of the servers that speak like it", dialectArrows},
	"proxy/media":       {"sizes of files in requests", nil},
	"proxy/anthropic":   {"the dialect of Anthropic's clients", dialectArrows},
	"proxy/dialecttest": {"one contract for every dialect; tests only", nil},
	"proxy/gemini":      {"the dialect of Gemini's clients", dialectArrows},
	"proxy/forward": {"the front door's handler", map[string]string{
		"proxy":            "what is asked, answered and charged",
		"proxy/route":      "where requests go",
		"proxy/sse":        "streams are passed on event by event",
		"admission":        "reserves, reports and settles",
		"admission/answer": "errors are the one table's answers",
		"events":           "usage is what events carry",
		"tenancy":          "who asks",
	}},
	"proxy/upstream": {"HTTP/1.1 to upstreams without TLS, on the caller's goroutine", nil},
	"proxy/route": {"which upstream serves a model", map[string]string{
		"proxy/upstream":     "how an upstream without TLS is reached",
		"proxy":              "an upstream as a dialect knows it",
		"tenancy":            "durations and suggestions as in the configuration",
		"internal/plainyaml": "the table is a file",
	}},
	"ledger/postgres": {"the fold's tables", map[string]string{
		"ledger":                 "implements its stores",
		"ledger/internal/pgcopy": "rows on their way to COPY and back",
		"events":                 "what is folded",
	}},
	"ledger/internal/pgcopy": {"PostgreSQL's binary copy format, bytes only", nil},
	"ledger/ledgerbench": {"how fast the fold is", map[string]string{
		"ledger":          "what is measured",
		"ledger/postgres": "what is measured",
		"events":          "the records that are folded",
		"migrations":      "a database to measure in",
	}},
	"reconcile/postgres": {"the reconciler's tables and runs", map[string]string{
		"reconcile": "implements its stores",
		"events":    "meters are events",
	}},
	"billing/postgres": {"prices and bills", map[string]string{
		"billing": "what is kept",
		"events":  "metrics are named as in events",
	}},
	"billing/export": {"bills as files", map[string]string{
		"billing": "what is written",
	}},

	// --- the program ---
	"cmd/tollgate": {"main: signals and exit status", map[string]string{
		"internal/cli": "everything else",
	}},
	"internal/config": {"one file, the environment and flags", map[string]string{
		"tenancy":            "durations are written the same way",
		"internal/plainyaml": "the file",
	}},
	"internal/plainyaml":    {"YAML files as plain data, with the line of each mistake", nil},
	"internal/fakeprovider": {"a model server without a model, for tests and demos", nil},
	"internal/embedded":     {"stand-ins and local servers for `tollgate dev`", nil},
	"internal/trace":        {"traces of requests", nil},
	"internal/load": {"drives a gateway with a trace", map[string]string{
		"events":         "usage in requests",
		"internal/trace": "what is driven",
	}},
	"internal/drill": {"a trace through a whole installation, and every part's total", map[string]string{
		"internal/load":    "drives",
		"internal/trace":   "what is driven",
		"tenancy":          "its tenants",
		"tenancy/postgres": "its tenants",
		"billing":          "one of the totals is the bill's",
		"billing/postgres": "one of the totals is the bill's",
		"reconcile":        "who ended what a dead gateway left",
	}},
	"internal/bench": {"measures every part on real services", map[string]string{
		"admission":           "what is measured",
		"admission/redis":     "what is measured",
		"internal/app":        "a gateway like a user's",
		"internal/config":     "where the services are",
		"internal/hop":        "what the front door adds",
		"internal/loadclient": "drives the gateway",
		"ledger/ledgerbench":  "the fold's and the replay's rates",
		"tenancy":             "its tenants",
		"tenancy/postgres":    "its tenants",
	}},
	"internal/hop": {"what a hop in front of a model server costs", map[string]string{
		"internal/benchupstream": "the model server",
		"internal/loadclient":    "the client",
	}},
	"internal/chaos":         {"child processes that are killed and started again", nil},
	"internal/loadclient":    {"a lean HTTP client that measures", nil},
	"internal/benchupstream": {"a model server that costs next to nothing", nil},
	"internal/benchpeers": {"the gateway beside other programs", map[string]string{
		"internal/benchupstream": "the peers' model server",
		"internal/hop":           "loads at a gateway of model servers",
		"internal/loadclient":    "both sides are driven by the same client",
	}},
	"internal/app": {"wires the roles; the only place that knows all parts", map[string]string{
		"admission": "", "admission/httpapi": "", "admission/redis": "",
		"events": "", "events/kafka": "", "events/relay": "",
		"ledger": "", "ledger/postgres": "",
		"reconcile": "", "reconcile/postgres": "",
		"billing": "", "billing/postgres": "",
		"tenancy": "", "tenancy/postgres": "", "tenancy/redis": "",
		"proxy": "", "proxy/anthropic": "", "proxy/forward": "", "proxy/gemini": "", "proxy/openai": "", "proxy/route": "", "proxy/telemetry": "", "proxy/tokens": "",
		"migrations": "", "internal/config": "", "internal/embedded": "",
	}},
	"internal/cli": {"commands: flags in, tables and JSON out", map[string]string{
		"admission": "", "events": "", "events/kafka": "", "tenancy": "", "tenancy/postgres": "",
		"ledger": "", "ledger/postgres": "", "ledger/ledgerbench": "",
		"reconcile": "", "reconcile/postgres": "",
		"billing": "", "billing/postgres": "", "billing/export": "",
		"migrations": "", "internal/app": "", "internal/config": "", "internal/embedded": "", "proxy/route": "",
		"events/logfile": "", "internal/bench": "", "internal/fakeprovider": "", "internal/benchupstream": "", "internal/chaos": "", "internal/drill": "", "internal/load": "", "internal/loadclient": "", "internal/trace": "",
	}},

	// --- tests ---
	"internal/testenv": {"real services for tests", map[string]string{
		"migrations": "the template database is migrated as a user's is",
	}},
	"internal/archtest": {"the shape of the project", nil},
	"internal/clients":  {"official SDKs through the gateway; tests alone", nil},
}

// modules lists every module of others that code which ships may import, and
// where. Whatever else is in go.mod is for tests.
var modules = map[string]struct {
	why string
	in  []string
}{
	"github.com/jackc/pgx/v5": {
		"PostgreSQL stays in packages of its name; the rest is set-up and exit statuses",
		[]string{
			"tenancy/postgres", "ledger/postgres", "ledger/ledgerbench", "reconcile/postgres", "billing/postgres",
			"migrations", "internal/app", "internal/bench", "internal/cli", "internal/drill", "internal/embedded", "internal/testenv",
		},
	},
	"github.com/pressly/goose/v3": {"migrations are applied in one place", []string{"migrations"}},
	"github.com/redis/go-redis/v9": {
		"Redis stays in packages of its name; the rest is set-up",
		[]string{"admission/redis", "tenancy/redis", "internal/app", "internal/bench", "internal/cli", "internal/embedded", "internal/testenv"},
	},
	"github.com/segmentio/kafka-go": {
		"Kafka stays in the package of its name; the app names a way to log in, tests clean up topics",
		[]string{"events/kafka", "internal/app", "internal/testenv"},
	},
	"github.com/twmb/franz-go/pkg/kfake": {
		"a stand-in for Kafka, never a client", []string{"internal/embedded"},
	},
	"github.com/alicebob/miniredis/v2": {"a stand-in for Redis", []string{"internal/embedded"}},
	"github.com/prometheus/client_golang": {
		"parts count what they do and are given a registerer; the registry is the app's",
		[]string{
			"admission/redis", "admission/httpapi", "events/kafka", "events/relay", "ledger", "reconcile/postgres",
			"proxy/telemetry", "tenancy/redis", "internal/app", "internal/cli", "proxy/forward",
		},
	},
	"github.com/danielgtaylor/huma/v2":   {"the OpenAPI document", []string{"admission/httpapi"}},
	"github.com/tiktoken-go/tokenizer":   {"vocabularies", []string{"proxy/tokens"}},
	"github.com/transparency-dev/merkle": {"tree heads of the journal", []string{"ledger", "ledger/postgres"}},
	"github.com/govalues/decimal":        {"prices", []string{"billing", "billing/postgres", "billing/export", "internal/cli", "internal/drill"}},
	"github.com/govalues/money":          {"amounts and currencies", []string{"billing", "billing/postgres", "billing/export", "tenancy", "internal/config"}},
	"github.com/robfig/cron/v3":          {"when the reconciler runs", []string{"reconcile/postgres", "internal/config"}},
	"github.com/tidwall/gjson":           {"JSON read without decoding it", []string{"proxy/jsonbody", "proxy/openai", "proxy/anthropic", "proxy/gemini", "internal/fakeprovider"}},
	"github.com/goccy/go-yaml":           {"the configuration file, with the line of each mistake", []string{"internal/plainyaml"}},
	"github.com/alecthomas/kong":         {"commands and flags", []string{"internal/cli"}},
	"github.com/schollz/progressbar/v3":  {"long work on a terminal", []string{"internal/cli"}},
	"github.com/oklog/ulid/v2":           {"ids that sort by time", []string{"internal/app", "internal/cli", "internal/load", "tenancy/postgres", "reconcile/postgres", "billing/postgres"}},
	"github.com/cespare/xxhash/v2":       {"a hash that is no secret", []string{"admission", "admission/redis"}},
	"go.opentelemetry.io/otel":           {"traces", []string{"proxy/telemetry"}},
	"golang.org/x/sync":                  {"bounded concurrency", []string{"events/kafka", "events/relay", "ledger", "ledger/postgres", "ledger/ledgerbench", "admission/redis", "internal/app", "internal/cli"}},
	"golang.org/x/sys":                   {"epoll for the load client and its model server, clocks of processes", []string{"internal/loadclient", "internal/benchupstream", "internal/hop"}},
	"golang.org/x/term":                  {"is this a terminal", []string{"internal/cli"}},
}

// pure lists the packages that decide: they get the time and randomness as
// arguments, and know no float.
var pure = []string{"events", "tenancy", "admission", "reconcile", "billing"}

// noTechnology lists the packages that hold nouns and rules. They know no
// network, database or process, so that every rule can be tested by calling it.
var noTechnology = []string{"events", "tenancy", "admission", "ledger", "reconcile", "billing"}

// dialectArrows are every dialect's.
var dialectArrows = map[string]string{
	"proxy":            "implements its Dialect",
	"proxy/jsonbody":   "bodies are JSON",
	"proxy/media":      "files are counted by their size",
	"proxy/sse":        "streams are events",
	"admission/answer": "errors begin as the one table's answers",
	"events":           "usage is what events carry",
}
