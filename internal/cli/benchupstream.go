package cli

import (
	"encoding/json"

	"tollgate/internal/benchupstream"
)

// benchUpstreamCmd is the model server that `tollgate bench` starts, in a
// process of its own, so that its processor time is not the gateway's.
type benchUpstreamCmd struct {
	Listen string `help:"Address." default:"127.0.0.1:0" placeholder:"ADDRESS"`
}

// Run serves until it is told to stop, and prints what it did.
func (c *benchUpstreamCmd) Run(e *env) error {
	server, err := benchupstream.New(c.Listen)
	if err != nil {
		return err
	}
	e.note("Serving on %s", server.Addr())
	if err := server.Serve(e.ctx); err != nil {
		return err
	}
	return json.NewEncoder(e.out).Encode(server.Stats())
}
