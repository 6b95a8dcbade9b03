package cli

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"tollgate/internal/bench"
)

type benchCmd struct {
	Only         string        `help:"Only this part: reserve_process, reserve_http, proxy, fold or replay."`
	Each         time.Duration `help:"How long one load lasts." default:"5s"`
	FoldEvents   int           `help:"Events to fold." default:"300000"`
	ReplayEvents int           `help:"Events to replay and verify." default:"300000"`
}

// Help implements kong.HelpProvider.
func (benchCmd) Help() string {
	return `Works in a scratch database, under a Redis prefix and with Kafka topics of its own on the configured
servers, and removes them. It takes all the processor it can get: not for a machine that serves.

Examples:
  tollgate bench --json
  tollgate bench --only fold`
}

// Run measures.
func (c *benchCmd) Run(e *env) error {
	if c.Each < time.Second || c.FoldEvents < 1000 || c.ReplayEvents < 1000 {
		return usagef("--each must be at least 1s, --fold-events and --replay-events at least 1000")
	}
	switch c.Only {
	case "", "reserve", "reserve_process", "reserve_http", "proxy", "fold", "replay":
	default:
		return usagef("--only %q is none of reserve_process, reserve_http, proxy, fold, replay", c.Only)
	}
	cfg, err := e.config()
	if err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cfg.Log.Level = "error"
	figures, err := bench.Run(e.ctx, bench.Options{
		Config: cfg, Binary: binary, Only: c.Only, Each: c.Each, FoldEvents: c.FoldEvents, ReplayEvents: c.ReplayEvents,
		Log: e.logger(cfg), Note: e.note,
	})
	if err != nil {
		return err
	}
	return e.value(figures, func() error {
		rows := make([][]string, len(figures))
		for i, f := range figures {
			rows[i] = []string{f.Name, number(&f.Value), f.Unit, number(f.Baseline), number(f.Ratio), f.Against}
		}
		return e.table([]string{"FIGURE", "VALUE", "UNIT", "BASELINE", "RATIO", "THE BASELINE IS"}, rows)
	})
}

// number writes a figure with three significant places after the point where
// it is small, and none where it is large.
func number(f *float64) string {
	switch {
	case f == nil:
		return "-"
	case *f >= 1000:
		return count(int64(*f + 0.5))
	default:
		return strconv.FormatFloat(*f, 'f', 3, 64)
	}
}
