// Package route knows the upstreams: which deployments serve a model, in which
// order they are tried, and which are left alone for a while because they fail.
//
// The table of upstreams and models is one YAML file, read strictly (Parse) and
// again when it changes (Watcher). Upstream keys come from environment variables
// or files that the table names; they are never printed. A Router answers from
// the table (Plan), and learns from what tries came to (Deployment.Done).
package route

import (
	"fmt"
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
	// ConnectTimeout bounds a connection's making, ResponseTimeout the wait for a
	// stream's header, AnswerTimeout that for the header of an answer that comes as a
	// whole, IdleTimeout the wait between two pieces of an answer. Zero for the
	// second or third leaves the wait to the other.
	ConnectTimeout, ResponseTimeout, AnswerTimeout, IdleTimeout time.Duration
	// MaxConnections bounds connections to it; 0 does not. Over HTTP/2 many
	// requests share one.
	MaxConnections int
	// Identify sends the tenant's id and the reservation's id along, for servers
	// of the operator's own that report what they did.
	Identify bool
	// OutputCapField is the name of the output cap's field, "" for the dialect's.
	OutputCapField string
	// EnvironmentProxy reaches it through the proxy that HTTPS_PROXY and its kind
	// name; else these variables mean nothing.
	EnvironmentProxy bool
	// Client does requests to this upstream; it follows no redirects. A Router
	// makes it where it is nil.
	Client *http.Client
}

// Deployment is a model at an upstream.
type Deployment struct {
	Upstream *Upstream
	// Model is the upstream's name for it. In a table, "" is the name asked for;
	// in a plan, it is never empty.
	Model  string
	Weight int  // share among the model's others; 0: drained, never tried
	Backup bool // of the approved backup pool: tried when no other is left

	breaker *breaker // shared by all copies of this deployment, across tables
}

// Format implements fmt.Formatter for every verb: an upstream's key is not shown
// by a wrong one either.
func (up Upstream) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, up.Name, " ", up.Server) }

// Format implements fmt.Formatter for every verb, as Upstream's.
func (d Deployment) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprint(f, *d.Upstream, " ", d.Model)
}

// Model is a name that clients ask for.
type Model struct {
	// Name is what clients ask for, and what metrics and lists call it. A last
	// "*" stands for any ending, and "*" alone for any name.
	Name        string
	Aliases     []string // other names of it
	Tokenizer   string   // one of Tokenizers; "" guesses by the name
	Deployments []*Deployment
}

// Table is the upstreams and the models that they serve. It is not changed once
// a Router has it.
type Table struct {
	Upstreams []*Upstream
	Models    []*Model
	// Warnings are what is allowed and seldom meant.
	Warnings []string

	files map[string]stamp // that it was read from, keys' files too
}

// Outcome is what a try of a deployment came to, for its breaker.
type Outcome uint8

// Outcomes.
const (
	Good      Outcome = iota // an answer, or an error that is the caller's fault
	Overload                 // 429 or 503: left alone as long as it says, if it says
	Bad                      // 5xx, reset, time-out, garbage
	Abandoned                // nothing is known: the client left, say
)
