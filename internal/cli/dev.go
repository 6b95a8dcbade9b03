package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/billing/export"
	"tollgate/internal/app"
	"tollgate/internal/config"
	"tollgate/internal/drill"
	"tollgate/internal/embedded"
	"tollgate/internal/load"
	"tollgate/internal/trace"
)

type devCmd struct {
	Data    string  `help:"Keep the services' data here between runs. Default: a temporary directory." type:"path" placeholder:"DIR"`
	Listen  string  `help:"Address of the API." default:"127.0.0.1:8080"`
	Demo    bool    `help:"Drive a trace through everything, print one table of totals, and end."`
	Trace   string  `help:"Trace to drive with --demo." type:"path" default:"deploy/demo/azure-llm-2023-code.csv"`
	Tenants int     `help:"Tenants of the demo." default:"5"`
	Seed    uint64  `help:"Seed of the demo's plan." default:"1"`
	NoMix   bool    `name:"no-mix" help:"Leave out duplicates, retries, cancels and lost settles."`
	Workers int     `help:"Clients at once in the demo." default:"32"`
	Speed   float64 `help:"Keep the trace's own timing, so many times as fast; 0 sends as fast as answers come." default:"0"`
	Out     string  `help:"Directory of the demo's exported bills." default:"dist/demo" type:"path"`
}

// Help implements kong.HelpProvider.
func (devCmd) Help() string {
	return `Needs PostgreSQL's binaries on the machine; uses redis-server where there is one, and a Kafka broker
in this process. For trying things out, not for production.

Examples:
  tollgate dev                     serve on 127.0.0.1:8080 until Ctrl-C, with a tenant and its key
  tollgate dev --demo              the whole path, from a trace to a bill
  tollgate dev --demo --no-mix     the same without anything going wrong`
}

// Run runs every role in this process.
func (c *devCmd) Run(e *env) error {
	level := slog.LevelWarn
	if e.root.Verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(e.err, &slog.HandlerOptions{Level: level}))
	if c.Workers < 1 || c.Workers > 4096 || c.Speed < 0 {
		return usagef("--workers must be 1 to 4096, --speed not negative")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return usagef("--listen %q must be host:port", c.Listen)
	}
	var plan *load.Plan
	if c.Demo {
		var err error
		if plan, err = c.plan(); err != nil {
			return err
		}
	}

	if err := c.run(e, log, plan); err != nil && (c.Demo || e.ctx.Err() == nil) {
		return err
	} else if err != nil {
		log.Warn("told to stop while starting", "error", err)
	}
	return nil
}

// run starts the services and everything on them.
func (c *devCmd) run(e *env, log *slog.Logger, plan *load.Plan) error {
	e.note("Starting PostgreSQL, Redis and Kafka …")
	services, err := embedded.Start(e.ctx, embedded.Options{Dir: c.Data, Log: log})
	if err != nil {
		return err
	}
	defer func() {
		if err := services.Stop(); err != nil {
			log.Warn("stop services", "error", err)
		}
	}()
	e.note("  %s, %s, %s", services.Kinds["postgres"], services.Kinds["redis"], services.Kinds["kafka"])

	cfg, err := c.config(e, services, "")
	if err != nil {
		return err
	}
	var models *modelServer
	if !cfg.Proxy.Enabled() { // else the user's own
		if models, err = newModelServer(); err != nil {
			return err
		}
		defer models.stop(log)
		if cfg, err = c.config(e, services, models.table); err != nil {
			return err
		}
	}
	if err := app.Migrate(e.ctx, cfg, log); err != nil {
		return err
	}
	return c.serve(e, cfg, log, plan, models)
}

// config is the default configuration on the embedded services, with a table of
// upstreams where one is given.
func (c *devCmd) config(e *env, s *embedded.Services, upstreams string) (*config.Config, error) {
	set := map[string]string{
		"listen": c.Listen, "admin_listen": "127.0.0.1:0",
		"redis.addresses": s.RedisAddr, "redis.password": s.RedisPassword, "redis.cluster": "false",
		"kafka.brokers": s.Brokers[0], "kafka.partitions": "4",
		"postgres.url":          s.PostgresURL,
		"ledger.flush_interval": "1s",
		"proxy.drain_timeout":   "5s",
	}
	if upstreams != "" {
		set["proxy.upstreams_file"] = upstreams
	}
	if c.Demo {
		// A lost settle is known when its hold has ended; a demo does not wait
		// the minute that a late client is given.
		set["listen"] = "127.0.0.1:0"
		set["reconcile.hold_grace"] = "0s"
	}
	for field, value := range e.root.Set {
		set[field] = value
	}
	cfg, err := config.Load(config.Source{File: e.configFile(), Flags: set})
	if err != nil {
		return nil, withStatus(ExitUsage, err)
	}
	return cfg, nil
}

// serve runs all roles, and beside them the demo when there is a plan.
func (c *devCmd) serve(e *env, cfg *config.Config, log *slog.Logger, plan *load.Plan, models *modelServer) error {
	a := app.New(cfg, log)
	for _, add := range []func() error{a.Gateway, a.Ledger, a.Reconcile} {
		if err := add(); err != nil {
			return err
		}
	}
	backend, err := a.Backend()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	ready := make(chan struct{})
	a.OnReady(func(*app.App) { close(ready) })
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	select {
	case <-ready:
	case err := <-ended:
		return err
	}
	work := c.work(ctx, e, a, backend, cfg, log, plan, models)
	if plan != nil || work != nil {
		cancel()
	}
	return errors.Join(work, <-ended)
}

// work sets up tenants, lets the models answer, and runs the demo or says how to
// use what is there.
func (c *devCmd) work(
	ctx context.Context, e *env, a *app.App, backend drill.Backend, cfg *config.Config, log *slog.Logger, plan *load.Plan, models *modelServer,
) error {
	pool, err := a.Postgres()
	if err != nil {
		return err
	}
	tenants := 1
	if plan != nil {
		tenants = plan.Tenants
	}
	fleet, err := drill.Setup(ctx, pool, tenants)
	if err != nil {
		return err
	}
	if models != nil {
		models.serve("http://"+a.Addr, fleet.MeterKey, log)
	}
	if plan != nil {
		return c.demo(ctx, e, a, backend, fleet, plan, models)
	}
	c.welcome(e, a, cfg, fleet)
	return nil
}

// welcome says how to use what is there.
func (c *devCmd) welcome(e *env, a *app.App, cfg *config.Config, fleet *drill.Fleet) {
	tenant := fleet.Tenants[0]
	e.note(`
Tollgate listens on http://%[1]s, metrics on http://%[2]s/metrics. A tenant's key:

  export KEY=%[3]s

Three lines of Python stream an answer through it (pip install openai); %[5]s answers
clients of Anthropic's, with base_url http://%[1]s:

from openai import OpenAI
for part in OpenAI(base_url="http://%[1]s/v1", api_key="%[3]s").chat.completions.create(model="%[4]s", messages=[{"role": "user", "content": "Hello"}], stream=True):
    print(part.choices[0].delta.content or "", end="", flush=True)

What it used, and what it costs:

  curl -s http://%[1]s/v1/quota/usage -H "Authorization: Bearer $KEY"
  TOLLGATE_POSTGRES_URL='%[6]s' %[9]s bill draft %[7]s %[8]s

Or reserve by hand, and settle what was used:

  curl -s http://%[1]s/v1/reservations -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' \
    -d '{"request_id":"first","endpoint":"chat","model":"%[4]s","input_tokens":120,"max_output_tokens":400}'

Ctrl-C ends everything.`, a.Addr, a.AdminAddr, tenant.Secret, drill.Model, drill.ClaudeModel,
		cfg.Postgres.URL.Reveal(), tenant.ID, fleet.PricedFrom.Format("2006-01"), os.Args[0])
}

func (c *devCmd) plan() (*load.Plan, error) {
	if c.Tenants < 1 || c.Tenants > 100 {
		return nil, usagef("--tenants must be 1 to 100")
	}
	requests, err := readTrace(c.Trace)
	if err != nil {
		return nil, err
	}
	mix := load.DefaultMix
	if c.NoMix {
		mix = load.Mix{}
	}
	return load.NewPlan("demo", c.Seed, c.Tenants, mix, requests), nil
}

func readTrace(path string) ([]trace.Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, withStatus(ExitUsage, err)
	}
	defer func() { _ = f.Close() }() // only read
	requests, err := trace.Parse(f)
	if err != nil {
		return nil, usagef("%s: %w", path, err)
	}
	if len(requests) == 0 {
		return nil, usagef("%s has no requests", path)
	}
	return requests, nil
}

// demo drives the plan and prints what every part counted.
func (c *devCmd) demo(
	ctx context.Context, e *env, a *app.App, backend drill.Backend, fleet *drill.Fleet, plan *load.Plan, models *modelServer,
) error {
	pool, err := a.Postgres()
	if err != nil {
		return err
	}
	e.note("Driving %s requests of %s for %d tenants (rows are assigned to tenants by seed %d); %s duplicates, %s cancels, %s lost settles …",
		count(int64(len(plan.Steps))), filepath.Base(c.Trace), plan.Tenants, plan.Seed,
		count(int64(plan.Duplicates)), count(int64(plan.Cancelled)), count(int64(plan.Lost)))
	bar := e.progress(int64(len(plan.Steps)), "requests")
	d := &drill.Drill{
		Pool: pool, Backend: backend, Fleet: fleet, Plan: plan, Gateways: []string{"http://" + a.Addr},
		Client: newClient(c.Workers), Workers: c.Workers, Speed: c.Speed, HoldTTL: 3 * time.Second,
		Patience: time.Minute, DrainTimeout: 40 * time.Second,
		Progress: func(int) { _ = bar.Add(1) }, Note: e.note,
	}
	result, err := d.Run(ctx)
	if finishErr := bar.Finish(); finishErr != nil {
		e.note("progress bar: %v", finishErr)
	}
	if err != nil {
		return err
	}
	files, err := c.exportBills(ctx, d)
	if err != nil {
		return err
	}
	if models != nil {
		front := c.front(a, pool, backend, models)
		e.note("Asking %d models' answers through the front door, in two dialects; %d clients leave in the middle …", front.Requests, front.Left)
		if result.FrontDoor, err = front.Run(ctx); err != nil {
			return err
		}
		result.Differences = append(result.Differences, result.FrontDoor.Differences...)
	}
	if err := e.value(result, func() error { return e.drill(result) }); err != nil {
		return err
	}
	for _, f := range files {
		e.note("Bill: %s", f)
	}
	if err := differing(result); err != nil {
		return err
	}
	e.note("All equal.")
	return nil
}

// front is the demo's second part.
func (c *devCmd) front(a *app.App, pool *pgxpool.Pool, backend drill.Backend, models *modelServer) *drill.Front {
	return &drill.Front{
		Pool: pool, Backend: backend, Gateway: "http://" + a.Addr, Client: newClient(c.Workers), Workers: c.Workers,
		Requests: 300, Left: 30, Generated: models.generated, Reported: models.reported, DrainTimeout: 40 * time.Second,
	}
}

// differing is the error of a drill in which a part counted something else.
func differing(r *drill.Result) error {
	if len(r.Differences) == 0 {
		return nil
	}
	return withStatus(ExitDiffers, fmt.Errorf("%d parts differ from what was expected", len(r.Differences)))
}

// drill prints the table of totals.
func (e *env) drill(r *drill.Result) error {
	row := func(part string, t trace.Totals, mark string) []string {
		return []string{part, count(t.Requests), count(t.InputTokens), count(t.OutputTokens), mark}
	}
	rows := [][]string{row("trace (CSV file)", r.Trace, "")}
	if r.NotGenerated != (trace.Totals{}) {
		cut := r.NotGenerated
		rows = append(rows,
			[]string{"  not generated: cancelled", less(cut.Requests), less(cut.InputTokens), less(cut.OutputTokens), ""},
			row("expected", r.Expected, ""))
	}
	for _, c := range r.Counts {
		mark := "equal"
		if c.Totals != r.Expected {
			mark = "DIFFERS"
		}
		rows = append(rows, row(c.Part, c.Totals, mark))
	}
	if err := e.table([]string{"COUNTED BY", "REQUESTS", "INPUT TOKENS", "OUTPUT TOKENS", ""}, rows); err != nil {
		return err
	}
	switch {
	case r.FrontDoor != nil:
		return e.frontDoor(r.FrontDoor, row)
	case r.Siege != nil:
		return e.siege(r.Siege, row)
	}
	return nil
}

// frontDoor prints the table of what went through the front door.
func (e *env) frontDoor(r *drill.FrontResult, row func(string, trace.Totals, string) []string) error {
	rows := [][]string{row("model server (its own log)", r.Expected, "")}
	for _, c := range r.Counts {
		mark := "equal"
		if c.Totals != r.Expected {
			mark = "DIFFERS"
		}
		rows = append(rows, row(c.Part, c.Totals, mark))
	}
	left := r.LeftCounted
	rows = append(rows,
		row("clients that left: generated", r.LeftGenerated, ""),
		row("clients that left: charged", left[len(left)-1].Totals, "estimated"))
	if _, err := fmt.Fprintln(e.out); err != nil {
		return err
	}
	return e.table([]string{"THROUGH THE FRONT DOOR", "REQUESTS", "INPUT TOKENS", "OUTPUT TOKENS", ""}, rows)
}

// less writes a figure that is taken away.
func less(n int64) string {
	if n == 0 {
		return "-"
	}
	return count(-n)
}

func (c *devCmd) exportBills(ctx context.Context, d *drill.Drill) ([]string, error) {
	bills, err := d.Bills(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", c.Out, err)
	}
	var files []string
	for _, b := range bills {
		path := filepath.Join(c.Out, "bill-"+b.Account.TenantID+".csv")
		if err := export.File(path, export.CSV, b, export.Options{}, true); err != nil {
			return nil, err
		}
		files = append(files, fmt.Sprintf("%s (%s %s)", path, b.Total, b.Currency))
	}
	return files, nil
}

// newClient keeps one connection a worker.
func newClient(workers int) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, workers+4
	t.DisableCompression = true
	return &http.Client{Transport: t}
}
