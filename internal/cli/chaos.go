package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"tollgate/events"
	"tollgate/internal/app"
	"tollgate/internal/chaos"
	"tollgate/internal/config"
	"tollgate/internal/drill"
	"tollgate/internal/load"
	"tollgate/ledger/ledgerbench"
	ledgerpg "tollgate/ledger/postgres"
)

type chaosCmd struct {
	Trace    string `help:"Trace to drive; the first of these that exists." default:"../shared/traces/azure-llm-2023-conv.csv,deploy/demo/azure-llm-2023-code.csv"`
	Services string `help:"The script that kills and revives servers." default:"deploy/services" type:"path"`
	Seed     uint64 `help:"Seed of plan and kills; 0 takes one from the clock." default:"0"`
	Rounds   int    `help:"How often each process dies." default:"1"`
	Workers  int    `help:"Clients at once." default:"32"`
	Front    int    `help:"Clients of the front door at once, beside them." default:"24"`
	Tenants  int    `help:"Tenants." default:"8"`
	Logs     string `help:"Directory of the processes' logs." default:"dist/chaos" type:"path"`
}

// Help implements kong.HelpProvider.
func (chaosCmd) Help() string {
	return `Kills gateway, relay, ledger, reconcile, Redis, Kafka and PostgreSQL with SIGKILL, each in turn, while
a trace runs through them, and beside it streams and whole answers of a fake model server through the
front door. Then every total must be exact, also of streams whose gateway was killed, the ledger must
verify, and a replay of the log must give the same ledger. Needs servers that deploy/services started.

Example:
  TOLLGATE_SERVICES_REDIS_FSYNC=always deploy/with-services --settings bin/tollgate chaos`
}

type chaosOutput struct {
	Trace string `json:"trace"`
	*drill.Result
	Killed int                    `json:"killed"`
	Verify *ledgerpg.VerifyReport `json:"verify"`
	Replay *ledgerpg.ReplayReport `json:"replay"`
}

// Run kills and counts.
func (c *chaosCmd) Run(e *env) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	if c.Rounds < 1 || c.Rounds > 20 || c.Workers < 1 || c.Front < 1 || c.Tenants < 1 || c.Tenants > 100 {
		return usagef("--rounds must be 1 to 20, --tenants 1 to 100, --workers and --front at least 1")
	}
	cfg.Reconcile.HoldGrace, cfg.Reconcile.PendingDeadline = chaosHoldGrace, chaosPendingDeadline
	if c.Seed == 0 {
		c.Seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	path := firstFile(strings.Split(c.Trace, ","))
	requests, err := readTrace(path)
	if err != nil {
		return err
	}
	plan := load.NewPlan("chaos", c.Seed, c.Tenants, load.DefaultMix, requests)
	e.note("Seed %d; %s requests of %s. Logs are in %s.", c.Seed, count(int64(len(requests))), path, c.Logs)

	log := e.logger(cfg)
	if err := app.Migrate(e.ctx, cfg, log); err != nil {
		return err
	}
	a := app.New(cfg, log)
	backend, err := a.Backend()
	if err != nil {
		return err
	}
	return a.Do(e.ctx, func(ctx context.Context, a *app.App) error {
		return c.run(ctx, e, cfg, a, backend, path, plan)
	})
}

func firstFile(paths []string) string {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return paths[len(paths)-1]
}

func (c *chaosCmd) run(ctx context.Context, e *env, cfg *config.Config, a *app.App, backend drill.Backend, path string, plan *load.Plan) error {
	pool, err := a.Postgres()
	if err != nil {
		return err
	}
	fleet, err := drill.Setup(ctx, pool, c.Tenants)
	if err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if err := os.MkdirAll(c.Logs, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", c.Logs, err)
	}
	models, err := newChaosModels(c.Logs)
	if err != nil {
		return err
	}
	defer models.role.Stop()
	roles, gateways, err := chaosRoles(models.table)
	if err != nil {
		return err
	}
	siege := models.siege(pool, gateways, c.Front)
	if err := siege.Setup(ctx); err != nil {
		return err
	}
	if err := models.start(binary, c.Logs, gateways[0], siege.MeterKey()); err != nil {
		return err
	}
	defer func() {
		for _, r := range roles {
			r.Stop()
		}
	}()
	var victims []chaos.Victim
	for _, r := range roles {
		if err := r.Start(binary, c.Logs); err != nil {
			return err
		}
		victims = append(victims, chaos.RoleVictim(r, binary, c.Logs))
	}
	for _, name := range []string{"redis", "kafka", "postgres"} {
		victims = append(victims, chaos.ServiceVictim(name, c.Services))
	}
	killer := chaos.NewKiller(c.Seed, victims, c.Rounds, len(plan.Steps), e.note)
	d := &drill.Drill{
		Pool: pool, Backend: backend, Fleet: fleet, Plan: plan, Gateways: gateways, Client: newClient(c.Workers),
		Workers: c.Workers, HoldTTL: 20 * time.Second, Patience: 2 * time.Minute, DrainTimeout: 4 * time.Minute,
		Note: e.note,
	}
	result, err := c.drive(ctx, d, killer, siege)
	killed, killErr := killer.Wait()
	if err := errors.Join(err, killErr); err != nil {
		return err
	}
	if result.Siege, err = siege.Finish(ctx, d); err != nil {
		return err
	}
	result.Differences = append(result.Differences, result.Siege.Differences...)
	out := chaosOutput{Trace: path, Result: result, Killed: killed}
	if err := c.audit(ctx, e, cfg, a, &out); err != nil {
		return err
	}
	if err := e.value(out, func() error { return e.drill(result) }); err != nil {
		return err
	}
	e.note("%d processes were killed. Seed %d.", killed, c.Seed)
	for _, d := range result.Differences {
		e.note("%s", d)
	}
	if err := differing(result); err != nil {
		return err
	}
	if err := errors.Join(out.Verify.Err(), out.Replay.Err()); err != nil {
		return withStatus(ExitDiffers, err)
	}
	e.note("All equal; the ledger verifies, and a replay of the log gives the same ledger.")
	return nil
}

// drive runs the trace, and the siege of the front door as long as that lasts.
func (c *chaosCmd) drive(ctx context.Context, d *drill.Drill, killer *chaos.Killer, siege *drill.Siege) (*drill.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		err := siege.Drive(ctx, stop)
		if err != nil {
			cancel(err)
		}
		ended <- err
	}()
	d.Progress = func(done int) {
		killer.Done(ctx, done)
		if done == len(d.Plan.Steps) {
			close(stop)
		}
	}
	result, err := d.Run(ctx)
	if err != nil {
		cancel(err)
	}
	return result, errors.Join(err, <-ended)
}

// audit verifies the ledger, and folds the log into a database of its own.
func (c *chaosCmd) audit(ctx context.Context, e *env, cfg *config.Config, a *app.App, out *chaosOutput) error {
	pool, err := a.Postgres()
	if err != nil {
		return err
	}
	store := ledgerpg.New(pool, ledgerpg.Options{})
	if out.Verify, err = store.Verify(ctx, ledgerpg.VerifyOptions{}, nil); err != nil {
		return err
	}
	scratch, err := ledgerbench.NewScratch(ctx, cfg.Postgres.URL.Reveal())
	if err != nil {
		return err
	}
	defer func() {
		if err := scratch.Close(); err != nil {
			e.note("drop the replay's database: %v", err)
		}
	}()
	client, err := app.NewKafka(cfg, e.logger(cfg))
	if err != nil {
		return err
	}
	defer client.Close()
	read := func(ctx context.Context, fn func(int, []events.Record) error) error {
		_, err := client.ReadAll(ctx, events.TopicEvents, nil, fn)
		return err
	}
	out.Replay, err = ledgerpg.Replay(ctx, read, scratch.URL, ledgerpg.ReplayOptions{Original: store}, nil)
	return err
}

// Holds of the drill end soon. The deadline is for those that nothing is known
// of, because the gateway died before it asked the model server.
const (
	chaosHoldGrace       = 20 * time.Second
	chaosPendingDeadline = time.Minute
)

// chaosRoles are two gateways with a front door, two relays, two ledgers and a
// reconciler.
func chaosRoles(upstreams string) (roles []*chaos.Role, gateways []string, err error) {
	for i := range 2 {
		port, err := freeAddress()
		if err != nil {
			return nil, nil, err
		}
		gateways = append(gateways, "http://"+port)
		roles = append(roles, &chaos.Role{Name: fmt.Sprintf("gateway-%d", i+1), Args: []string{
			"--set", "listen=" + port, "--set", "relay.enabled_in_gateway=false", "--set", "proxy.upstreams_file=" + upstreams, "gateway",
		}})
	}
	for _, name := range []string{"relay-1", "relay-2", "ledger-1", "ledger-2", "reconcile-1"} {
		roles = append(roles, &chaos.Role{Name: name, Args: []string{strings.Split(name, "-")[0]}})
	}
	for _, r := range roles {
		r.Args = append([]string{
			"--set", "admin_listen=127.0.0.1:0", "--set", "ledger.flush_interval=1s",
			"--set", "reconcile.hold_grace=" + chaosHoldGrace.String(), "--set", "reconcile.pending_deadline=" + chaosPendingDeadline.String(),
		}, r.Args...)
	}
	return roles, gateways, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
