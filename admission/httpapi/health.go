package httpapi

import "net/http"

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
	if c.server.opts.Directory.Platform() == nil {
		return &problem{status: http.StatusServiceUnavailable, reason: "directory_not_loaded", retryAfter: 1,
			detail: "The directory of tenants is not loaded yet."}
	}
	if err := c.server.opts.Store.Ready(ctx); err != nil {
		return problemOf(err)
	}
	c.out = append(c.out[:0], `{"status":"ready"}`...)
	c.send(http.StatusOK, jsonType)
	return nil
}
