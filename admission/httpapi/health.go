package httpapi

import (
	"errors"
	"net/http"

	"tollgate/tenancy"
)

// getHealth says that the process answers; it asks nobody else.
func (c *call) getHealth() *problem {
	c.out = append(c.out[:0], `{"status":"ok"}`...)
	c.send(http.StatusOK, jsonType)
	return nil
}

// getReady says whether reserves can be decided here and now.
func (c *call) getReady() *problem {
	ctx, cancel := c.decide()
	defer cancel()
	// A directory that is not loaded says so of every tenant; one that is says
	// that nobody has the empty id.
	if _, err := c.server.opts.Directory.Tenant(""); errors.Is(err, tenancy.ErrNotReady) {
		return problemOf(err)
	}
	if err := c.server.opts.Store.Ready(ctx); err != nil {
		return problemOf(err)
	}
	c.out = append(c.out[:0], `{"status":"ready"}`...)
	c.send(http.StatusOK, jsonType)
	return nil
}
