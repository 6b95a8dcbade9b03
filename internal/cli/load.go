package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tollgate/internal/load"
	"tollgate/internal/trace"
)

type loadCmd struct {
	Trace    string        `arg:"" help:"Trace: CSV with TIMESTAMP, ContextTokens, GeneratedTokens." type:"existingfile"`
	Gateway  []string      `help:"Base URLs of gateways; calls are spread over them." default:"http://127.0.0.1:8080"`
	Keys     string        `required:"" help:"File with one line a tenant: tenant id, a space, an API key. - for standard input." placeholder:"FILE"`
	MeterKey string        `help:"Meter key, to report as the model server does." env:"TOLLGATE_METER_KEY" placeholder:"KEY"`
	RunID    string        `name:"run" help:"Prefix of request ids; a run with the same prefix repeats its requests. Default: the time."`
	Seed     uint64        `help:"Seed of the plan." default:"1"`
	Mix      string        `help:"Of a thousand requests, how many: cancel,lose_settle,duplicate_start,duplicate_settle,progress." default:"30,10,50,50,100"`
	Workers  int           `help:"Clients at once." default:"32"`
	Speed    float64       `help:"Keep the trace's own timing, so many times as fast; 0 sends as fast as answers come." default:"0"`
	HoldTTL  time.Duration `name:"hold-ttl" help:"TTL asked for in each reserve." default:"0s"`
	Patience time.Duration `help:"How long one call is repeated while there is no answer." default:"1m"`
	Model    string        `help:"Model named in each request." default:"demo-model"`
	Endpoint string        `help:"Endpoint named in each request." default:"chat"`
}

// Help implements kong.HelpProvider.
func (loadCmd) Help() string {
	return `Plays a fleet of clients and their model server. Rows have no tenant: they are assigned by the
seed. Prints what must be on the bills in the end.

Example:
  tollgate load azure-llm-2023-code.csv --keys keys.txt --speed 60`
}

type loadOutput struct {
	Trace    trace.Totals            `json:"trace"`
	Expected trace.Totals            `json:"expected"`
	ByTenant map[string]trace.Totals `json:"by_tenant"`
	Load     load.Report             `json:"load"`
	Took     time.Duration           `json:"took_ns"`
}

// Run drives the trace.
func (c *loadCmd) Run(e *env) error {
	mix, err := parseMix(c.Mix)
	if err != nil {
		return err
	}
	if c.Workers < 1 || c.Workers > 4096 || c.Speed < 0 || c.Patience <= 0 || c.HoldTTL < 0 {
		return usagef("--workers must be 1 to 4096, --speed and --hold-ttl not negative, --patience above 0")
	}
	ids, keys, err := e.readKeys(c.Keys)
	if err != nil {
		return err
	}
	requests, err := readTrace(c.Trace)
	if err != nil {
		return err
	}
	run := c.RunID
	if run == "" {
		run = fmt.Sprintf("load-%d", time.Now().UnixNano())
	}
	plan := load.NewPlan(run, c.Seed, len(keys), mix, requests)
	bar := e.progress(int64(len(plan.Steps)), "requests")
	driver := &load.Driver{
		Addresses: c.Gateway, TenantKeys: keys, TenantIDs: ids, MeterKey: c.MeterKey, Workers: c.Workers,
		Endpoint: c.Endpoint, Model: c.Model, HoldTTL: c.HoldTTL, Patience: c.Patience, Speed: c.Speed,
		Client: newClient(c.Workers), Progress: func(int) { _ = bar.Add(1) },
	}
	began := time.Now()
	report, err := driver.Run(e.ctx, plan)
	_ = bar.Finish()
	if err != nil {
		return loadStatus(err)
	}
	out := loadOutput{Trace: plan.Trace, Expected: plan.Expected, ByTenant: map[string]trace.Totals{}, Load: report, Took: time.Since(began)}
	for i, id := range ids {
		out.ByTenant[id] = plan.ByTenant[i]
	}
	return e.value(out, func() error {
		fmt.Fprintf(e.out, "%s requests in %s (run %s, seed %d): %s reserved, %s answers repeated, %s settled, %s cancelled, %s lost, %s refused and asked again, %s retried.\n\n",
			count(report.Done), out.Took.Round(time.Millisecond), run, c.Seed, count(report.Reserved), count(report.Replayed),
			count(report.Settled), count(report.Cancelled), count(report.Lost), count(report.Refused), count(report.Retried))
		rows := [][]string{totalsRow("trace", out.Trace), totalsRow("expected on bills", out.Expected)}
		for _, id := range ids {
			rows = append(rows, totalsRow("  "+id, out.ByTenant[id]))
		}
		return e.table([]string{"", "REQUESTS", "INPUT TOKENS", "OUTPUT TOKENS"}, rows)
	})
}

// loadStatus tells a gateway that did not answer from one that refused for good.
func loadStatus(err error) error {
	var answer *load.HTTPError
	switch {
	case errors.Is(err, load.ErrNoAnswer):
		return withStatus(ExitUnavailable, err)
	case errors.As(err, &answer):
		return withStatus(ExitUsage, err)
	}
	return err
}

func totalsRow(name string, t trace.Totals) []string {
	return []string{name, count(t.Requests), count(t.InputTokens), count(t.OutputTokens)}
}

func parseMix(text string) (load.Mix, error) {
	var n [5]int
	if err := json.Unmarshal([]byte("["+text+"]"), &n); err != nil || strings.Count(text, ",") != len(n)-1 {
		return load.Mix{}, usagef("--mix %q must be five whole numbers such as 30,10,50,50,100", text)
	}
	for _, v := range n {
		if v < 0 || v > 1000 {
			return load.Mix{}, usagef("--mix %q: each number is of a thousand", text)
		}
	}
	return load.Mix{Cancel: n[0], LoseSettle: n[1], DuplicateStart: n[2], DuplicateSettle: n[3], Progress: n[4]}, nil
}

func (e *env) readKeys(path string) (ids, keys []string, err error) {
	data, err := e.read(path)
	if err != nil {
		return nil, nil, err
	}
	for n, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			return nil, nil, usagef("%s, line %d: want a tenant id and an API key", path, n+1)
		}
		if slices.Contains(ids, fields[0]) {
			return nil, nil, usagef("%s, line %d: tenant %s has a line already", path, n+1, fields[0])
		}
		ids, keys = append(ids, fields[0]), append(keys, fields[1])
	}
	return ids, keys, nil
}
