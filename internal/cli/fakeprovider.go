package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"tollgate/internal/fakeprovider"
)

type fakeproviderCmd struct {
	Listen string   `help:"Address to listen on." default:"127.0.0.1:9095"`
	Seed   uint64   `help:"Answers follow from the request and from this." default:"1"`
	Models []string `help:"Models to serve; others are not found. Default: any name is served." placeholder:"NAME"`
	Key    string   `help:"API key that clients must send. Default: none." env:"TOLLGATE_FAKEPROVIDER_KEY" placeholder:"KEY"`

	OutputTokens   int64         `help:"Tokens of every answer. Default: 16 to 48, by the request." placeholder:"N"`
	TokensPerChunk int           `help:"Tokens in each piece of a stream." default:"1"`
	FirstToken     time.Duration `help:"Time to the first token, besides reading the prompt." default:"0s"`
	Prefill        int64         `help:"Input tokens a second; 0 reads at once." default:"0" placeholder:"N"`
	Decode         int64         `help:"Output tokens a second of one answer; 0 writes at once." default:"0" placeholder:"N"`
	Jitter         int           `help:"Percent by which the time between tokens varies." default:"0" placeholder:"PERCENT"`

	Slots    int   `help:"Answers at once; 0 has no limit." default:"0" placeholder:"N"`
	KVTokens int64 `help:"Tokens of input and output held at once; 0 has no limit." default:"0" placeholder:"N"`
	Queue    int   `help:"Requests that may wait for a slot or room. Beyond: 429 without a slot, 503 without room." default:"0" placeholder:"N"`

	PrefixCache   bool `help:"Call what earlier requests began with cached."`
	GPUInUsage    bool `name:"gpu-in-usage" help:"Give usage.gpu_ms in answers."`
	VendorHeaders bool `help:"Send rate limit and organization headers as vendors do."`

	Fault     []string `help:"Fault for some requests, e.g. 'every=10: cut-after=3'. May be repeated." sep:"none" placeholder:"RULE"`
	FaultFile string   `help:"File of such rules, one a line." type:"existingfile" placeholder:"FILE"`

	UsageLog string `help:"File to append a line of JSON to for each exchange." type:"path" placeholder:"FILE"`
	Headers  bool   `name:"keep-headers" help:"Note requests' headers in the log, credentials only as present."`
	MeterURL string `name:"meter-url" help:"Gateway to report meters to." placeholder:"URL"`
	MeterKey string `help:"Its API key, of role meter." env:"TOLLGATE_METER_KEY" placeholder:"KEY"`
	Pool     string `help:"Pool named in meter readings." default:"fake"`
}

// Help implements kong.HelpProvider.
func (fakeproviderCmd) Help() string {
	return `A model server without a model, for tests and demos, in the dialects of OpenAI, Anthropic and Gemini.
The same request gets the same answer, streamed or not. Tokens: a run of ASCII letters, digits and
underscores is one, every other visible character is one. A picture is 85, a file 100, a second of sound
10, a picture made 272. GPU time: 1 ms for each 50 input tokens that were not cached, 2 ms an output token.

Faults, separated by commas, come by the header X-Fake-Fault, by a marker such as [fake:cut-after=3] in
the last user message, by --fault, or by POST /fake/faults while it runs:
  hang[=CHUNKS] hang-before-header reset cut=BYTES cut-after=CHUNKS close-clean[=CHUNKS]
  error-event[=CHUNKS] garbage garbage-stream[=CHUNKS] slow=MS 429[=SECONDS] and any other 4xx or 5xx
  no-usage zero-usage wrong-usage=N repeat-usage no-done crlf comments keepalive multi-line
  huge-line=BYTES split=BYTES; and, no faults, tokens=N reasoning=N cached=N tool
A number may be a range: cut=1..2000. Conditions of a rule: model=NAME skip=N every=N permille=N times=N.

GET /fake/log and /fake/totals tell what was really generated, token by token.

Examples:
  tollgate fakeprovider --first-token 200ms --decode 50
  tollgate fakeprovider --slots 8 --queue 16 --fault 'every=20: 503=1' --fault 'permille=10: cut=1..4000'
  tollgate fakeprovider --meter-url http://127.0.0.1:8080 --usage-log usage.jsonl
  curl -d 'times=2: 429=1' http://127.0.0.1:9095/fake/faults`
}

// fakeproviderPatience is how long running answers and unsent readings get at the end.
const fakeproviderPatience = 10 * time.Second

// Run serves until it is told to stop.
func (c *fakeproviderCmd) Run(e *env) (err error) {
	rules, err := c.rules()
	if err != nil {
		return err
	}
	if c.OutputTokens < 0 || c.TokensPerChunk < 1 || c.FirstToken < 0 || c.Prefill < 0 || c.Decode < 0 || c.Slots < 0 ||
		c.KVTokens < 0 || c.Queue < 0 || c.Jitter < 0 || c.Jitter > 100 {
		return usagef("numbers must not be negative, --tokens-per-chunk at least 1, --jitter at most 100")
	}
	if c.MeterURL != "" && c.MeterKey == "" {
		return usagef("--meter-url needs --meter-key or TOLLGATE_METER_KEY")
	}
	opts := fakeprovider.Options{
		Listen: c.Listen, Seed: c.Seed, Models: c.Models, Key: c.Key,
		OutputTokens: c.OutputTokens, TokensPerChunk: c.TokensPerChunk,
		FirstToken: c.FirstToken, PrefillPerSecond: c.Prefill, DecodePerSecond: c.Decode, JitterPercent: c.Jitter,
		Slots: c.Slots, KVTokens: c.KVTokens, Queue: c.Queue,
		PrefixCache: c.PrefixCache, GPUInUsage: c.GPUInUsage, VendorHeaders: c.VendorHeaders, KeepHeaders: c.Headers,
		Rules:  rules,
		Meters: fakeprovider.MeterOptions{URL: c.MeterURL, Key: c.MeterKey, Pool: c.Pool},
		Log:    c.log(e),
	}
	if c.UsageLog != "" {
		file, failed := os.OpenFile(c.UsageLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if failed != nil {
			return usagef("open the usage log: %v", failed)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		opts.LogFile = file
	}
	server := fakeprovider.New(opts)
	if err := server.Start(); err != nil {
		return usagef("%v", err)
	}
	opts.Log.Info("serving", "url", server.URL(), "seed", c.Seed)
	<-e.ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), fakeproviderPatience)
	defer cancel()
	stopped := server.Stop(ctx)
	totals := server.Totals()
	opts.Log.Info("stopped", "requests", totals.Requests, "input_tokens", totals.Input, "output_tokens", totals.Output,
		"readings_accepted", totals.Meters.Accepted, "readings_refused", totals.Meters.Refused)
	return stopped
}

func (c *fakeproviderCmd) rules() ([]fakeprovider.Rule, error) {
	var all []fakeprovider.Rule
	for _, text := range c.Fault {
		rule, err := fakeprovider.ParseRule(text)
		if err != nil {
			return nil, usagef("--fault: %v", err)
		}
		all = append(all, rule)
	}
	if c.FaultFile == "" {
		return all, nil
	}
	text, err := os.ReadFile(c.FaultFile)
	if err != nil {
		return nil, usagef("open rules: %v", err)
	}
	more, err := fakeprovider.ParseRules(bytes.NewReader(text))
	if err != nil {
		return nil, usagef("%s: %v", c.FaultFile, err)
	}
	return append(all, more...), nil
}

// log writes to standard error: for people, or JSON where --json was given.
func (c *fakeproviderCmd) log(e *env) *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if e.root.Verbose {
		opts.Level = slog.LevelDebug
	}
	if e.json {
		return slog.New(slog.NewJSONHandler(e.err, opts))
	}
	return slog.New(slog.NewTextHandler(e.err, opts))
}
