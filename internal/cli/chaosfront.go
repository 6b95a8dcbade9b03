package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/internal/chaos"
	"tollgate/internal/drill"
	"tollgate/internal/trace"
)

// Answers of the chaos run's model server last for one to three seconds.
const (
	chaosDecode       = 100 // tokens a second
	chaosOutputTokens = 300 // unless the request wants fewer
	chaosChunkTokens  = 2
)

// chaosModels is the model server behind the front door, a process that is not
// killed: what it says is what everything else is measured by.
type chaosModels struct {
	role    *chaos.Role
	address string
	table   string // file of upstreams
	log     string // file of what it did
}

// newChaosModels takes an address and writes the table of upstreams to dir.
func newChaosModels(dir string) (*chaosModels, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	m := &chaosModels{
		role: &chaos.Role{Name: "models"}, address: address,
		table: filepath.Join(dir, "upstreams.yaml"), log: filepath.Join(dir, "models-usage.jsonl"),
	}
	// No encoding: this server has its own tokens, and a stream whose own count is
	// taken for exact has to ask for more than it holds, which fails while Redis is
	// away.
	if err := os.WriteFile(m.table, []byte(modelTable(address, "")), 0o600); err != nil {
		return nil, fmt.Errorf("write the table of upstreams: %w", err)
	}
	if err := os.RemoveAll(m.log); err != nil { // another run's
		return nil, fmt.Errorf("remove the model server's old log: %w", err)
	}
	return m, nil
}

// siege are the clients of its models.
func (m *chaosModels) siege(pool *pgxpool.Pool, gateways []string, workers int) *drill.Siege {
	return &drill.Siege{
		Pool: pool, Gateways: gateways, Client: newClient(workers), Workers: workers, Provider: "http://" + m.address,
		Log: func() (io.ReadCloser, error) { return os.Open(m.log) },
	}
}

// start starts it. It reports its meters to one gateway, again and again while
// that one is away.
func (m *chaosModels) start(binary, dir, gateway, meterKey string) error {
	m.role.Env = []string{"TOLLGATE_METER_KEY=" + meterKey}
	m.role.Args = []string{
		"fakeprovider", "--listen", m.address, "--usage-log", m.log, "--meter-url", gateway, "--gpu-in-usage",
		"--first-token", "50ms", "--decode", strconv.Itoa(chaosDecode),
		"--output-tokens", strconv.Itoa(chaosOutputTokens), "--tokens-per-chunk", strconv.Itoa(chaosChunkTokens),
	}
	return m.role.Start(binary, dir)
}

// siege prints the table of what went through the front door while processes
// died.
func (e *env) siege(r *drill.SiegeResult, row func(string, trace.Totals, string) []string) error {
	var rows [][]string
	line := func(part string, t trace.Totals, mark string) {
		cells := row(part, t, mark)
		for i, n := range []int64{t.Requests, t.InputTokens, t.OutputTokens} {
			if n == 0 {
				cells[i+1] = "-"
			}
		}
		rows = append(rows, cells)
	}
	line("model server (its own log)", r.Generated, "")
	if r.Unreached.Requests > 0 {
		line("  never reached it", r.Unreached, "")
	}
	if r.Estimated.Requests > 0 {
		line("  of it estimated: generated", r.EstimatedGenerated, "")
		line("  of it estimated: charged", r.Estimated, fmt.Sprintf("at most %s units", count(r.EstimatedBound/1000)))
	}
	line("expected", r.Expected, "")
	line("  by the reconciler, gateway gone", r.Reconciled, "")
	for _, c := range r.Counts {
		mark := "equal"
		if c.Totals != r.Want(c.Part) {
			mark = "DIFFERS"
		}
		line(c.Part, c.Totals, mark)
	}
	if _, err := fmt.Fprintln(e.out); err != nil {
		return err
	}
	if err := e.table([]string{"THROUGH THE FRONT DOOR", "REQUESTS", "INPUT TOKENS", "OUTPUT TOKENS", ""}, rows); err != nil {
		return err
	}
	c := r.Clients
	e.note("%s clients' requests: %s answered whole, %s broken off, %s refused; %s repeated with their key, %s told of an answer, %s given up at the end.",
		count(c.Asked), count(c.Answered), count(c.Broken), count(c.Refused), count(c.Repeated), count(c.Already), count(c.Dropped))
	for _, why := range slices.Sorted(maps.Keys(r.EstimatedWhy)) {
		e.note("Estimated: %d, %s.", r.EstimatedWhy[why], cmp.Or(why, "with no reason"))
	}
	e.note("At the end %d requests are in flight, and %d is held.", r.InFlight, r.Held)
	return nil
}
