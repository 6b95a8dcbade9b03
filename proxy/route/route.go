// Package route knows the upstreams: which deployments serve a model, in which
// order they are tried, and which are left alone for a while because they fail.
//
// The table of upstreams and models is one YAML file, read strictly and again
// when it changes. Upstream keys come from environment variables or files that
// the table names; they are never printed.
package route

import (
	"net/http"
	"time"

	"tollgate/proxy"
)

// Upstream is a server of models.
type Upstream struct {
	Name    string
	Dialect string // of proxy.Dialect.Name
	Server  proxy.Upstream
	Region  string
	// ConnectTimeout bounds a connection's making, ResponseTimeout the wait for an
	// answer's header, IdleTimeout the wait between two pieces of an answer.
	ConnectTimeout, ResponseTimeout, IdleTimeout time.Duration
	// Identify sends the tenant's id and the reservation's id along, for servers
	// of the operator's own that report what they did.
	Identify bool
	// OutputCapField is the name of the output cap's field, "" for the dialect's.
	OutputCapField string
	// Client does requests to this upstream; it follows no redirects.
	Client *http.Client
}

// Deployment is a model at an upstream.
type Deployment struct {
	Upstream *Upstream
	Model    string // the upstream's name for it
	Weight   int
	Backup   bool // of the approved backup pool: tried when no other is left
}

// Outcome is what a try of a deployment came to, for its breaker.
type Outcome uint8

// Outcomes.
const (
	Good      Outcome = iota // an answer, or an error that is the caller's fault
	Overload                 // 429 or 503: left alone as long as it says
	Bad                      // 5xx, reset, time-out, garbage
	Abandoned                // nothing is known: the client left, say
)
