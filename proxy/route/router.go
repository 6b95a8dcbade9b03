package route

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ErrUnknownModel says that no entry of the table serves the name asked for.
var ErrUnknownModel = errors.New("unknown model")

// ErrNoDeployment says that the model is known and nobody serves it as asked. It
// comes as a *NoDeploymentError.
var ErrNoDeployment = errors.New("no deployment of the model")

// NoDeploymentError says what is served instead.
type NoDeploymentError struct {
	Model    string   // as asked for
	Dialects []string // that the model is served in, sorted
	Region   string   // that was asked for, "" when any would do
}

// Error implements error.
func (e *NoDeploymentError) Error() string {
	if e.Region != "" {
		return fmt.Sprintf("no deployment of %q in region %q", e.Model, e.Region)
	}
	return fmt.Sprintf("no deployment of %q in this dialect; it is served in: %s", e.Model, strings.Join(e.Dialects, ", "))
}

// Is makes errors.Is(err, ErrNoDeployment) true.
func (e *NoDeploymentError) Is(target error) bool { return target == ErrNoDeployment }

// Unavailable says that every deployment is left alone for a while.
type Unavailable struct {
	RetryAfter time.Duration // until the first one is tried again; above zero
}

// Error implements error.
func (e *Unavailable) Error() string {
	return fmt.Sprintf("no deployment is available; the next is tried in %s", e.RetryAfter)
}

// drainedWait is the answer's Retry-After when all that there is has weight 0.
const drainedWait = 30 * time.Second

// Plan is where a request goes.
type Plan struct {
	// Name is what the request counts and is priced as: the configured name, so
	// that no alias has prices and limits of its own; the name asked for where a
	// pattern matched.
	Name string
	// Model is the configured name: an alias's own model, a pattern for names that
	// a pattern matched. Labels of metrics may use it.
	Model     string
	Tokenizer string
	// Deployments are in the order to try, at least one.
	Deployments []*Deployment
}

// RouterOptions configures a Router. Zero values take the defaults named.
type RouterOptions struct {
	// Region is the gateway's own: its deployments are tried before others.
	Region string
	Now    func() time.Time // default time.Now
	Random func() uint64    // default rand.Uint64; of 64 even bits
	// OnBreaker hears when a deployment is put aside, and when it is back. Model is
	// the configured one, "*" where the name asked for is passed on.
	OnBreaker func(upstream, model string, aside bool)
}

// Router answers from a table and keeps each deployment's breaker. It is safe
// for concurrent use.
type Router struct {
	opts    RouterOptions
	current atomic.Pointer[index]

	mu       sync.Mutex // of Replace
	breakers map[string]*breaker
	table    *Table
}

// index finds models by name.
type index struct {
	exact    map[string]*entry
	patterns []pattern // longest first
	listed   map[string][]string
}

type pattern struct {
	prefix string
	entry  *entry
}

// entry is a model with its deployments in the order of preference.
type entry struct {
	model *Model
	// groups are primaries here, primaries elsewhere, backups here, backups
	// elsewhere; where "here" is the gateway's own region.
	groups [4][]*Deployment
}

// NewRouter returns a router of the table, which must be one that Parse gave or
// as good.
func NewRouter(table *Table, opts RouterOptions) *Router {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Random == nil {
		opts.Random = rand.Uint64
	}
	if opts.OnBreaker == nil {
		opts.OnBreaker = func(string, string, bool) {}
	}
	r := &Router{opts: opts, breakers: map[string]*breaker{}, table: &Table{}}
	r.Replace(table)
	return r
}

// Replace puts another table in the first one's place. What is known of
// deployments that stay, and connections to upstreams that stay as they are, are
// kept. Requests that have a plan go on by the old table.
func (r *Router) Replace(table *Table) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := map[*Upstream]bool{}
	for _, up := range table.Upstreams {
		if up.Client != nil {
			continue
		}
		if old := sameUpstream(r.table.Upstreams, up); old != nil {
			up.Client, kept[old] = old.Client, true
		} else {
			up.Client = newClient(up)
		}
	}
	ix := &index{exact: map[string]*entry{}, listed: map[string][]string{}}
	breakers := map[string]*breaker{}
	for _, m := range table.Models {
		e := &entry{model: m}
		for _, d := range m.Deployments {
			r.giveBreaker(d, breakers)
			at := 0
			if r.opts.Region != "" && d.Upstream.Region != r.opts.Region {
				at = 1
			}
			if d.Backup {
				at += 2
			}
			e.groups[at] = append(e.groups[at], d)
		}
		ix.add(e)
	}
	slices.SortStableFunc(ix.patterns, func(a, b pattern) int { return cmp.Compare(len(b.prefix), len(a.prefix)) })
	for _, ids := range ix.listed {
		slices.Sort(ids)
	}
	for _, old := range r.table.Upstreams {
		if !kept[old] {
			old.Client.CloseIdleConnections()
		}
	}
	r.breakers, r.table = breakers, table
	r.current.Store(ix)
}

// Close closes connections that nobody uses.
func (r *Router) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, up := range r.table.Upstreams {
		up.Client.CloseIdleConnections()
	}
}

// files are those that the table came from.
func (r *Router) files() map[string]stamp {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.files
}

func (r *Router) giveBreaker(d *Deployment, breakers map[string]*breaker) {
	model := cmp.Or(d.Model, "*")
	key := d.Upstream.Name + "\x00" + model
	b := breakers[key]
	if b == nil {
		if b = r.breakers[key]; b == nil {
			b = &breaker{changed: func(aside bool) { r.opts.OnBreaker(d.Upstream.Name, model, aside) }}
		}
		breakers[key] = b
	}
	d.breaker = b
}

func (ix *index) add(e *entry) {
	if prefix, open := strings.CutSuffix(e.model.Name, "*"); open {
		ix.patterns = append(ix.patterns, pattern{prefix, e})
	} else {
		ix.exact[e.model.Name] = e
	}
	for _, alias := range e.model.Aliases {
		ix.exact[alias] = e
	}
	for _, dialect := range e.dialects() {
		if !strings.HasSuffix(e.model.Name, "*") {
			ix.listed[dialect] = append(ix.listed[dialect], e.model.Name)
		}
		ix.listed[dialect] = append(ix.listed[dialect], e.model.Aliases...)
	}
}

// dialects lists those that the model is served in.
func (e *entry) dialects() []string {
	var names []string
	for _, group := range e.groups {
		for _, d := range group {
			names = append(names, d.Upstream.Dialect)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (ix *index) find(model string) *entry {
	if e := ix.exact[model]; e != nil {
		return e
	}
	for _, p := range ix.patterns {
		if strings.HasPrefix(model, p.prefix) {
			return p.entry
		}
	}
	return nil
}

// Models lists the names that may be asked for in a dialect, sorted; patterns
// are left out. The caller does not change it.
func (r *Router) Models(dialect string) []string { return r.current.Load().listed[dialect] }

// Plan says where a request for the model goes that is written in the dialect.
// A region keeps it there; "" lets it go anywhere. The error is ErrUnknownModel,
// a *NoDeploymentError or an *Unavailable.
func (r *Router) Plan(model, dialect, region string) (*Plan, error) {
	e := r.current.Load().find(model)
	if e == nil || model == "" {
		return nil, ErrUnknownModel
	}
	now := r.opts.Now()
	list := make([]*Deployment, 0, 4)
	served, wait := false, time.Duration(0)
	for _, group := range e.groups {
		from := len(list)
		for _, d := range group {
			if d.Upstream.Dialect != dialect || region != "" && d.Upstream.Region != region {
				continue
			}
			served = true
			if d.Weight <= 0 {
				continue
			}
			if left := d.breaker.left(now); left > 0 {
				if wait == 0 || left < wait {
					wait = left
				}
				continue
			}
			list = append(list, d)
		}
		order(list[from:], r.opts.Random)
	}
	if !served {
		return nil, r.none(e, model, dialect, region)
	}
	if len(list) == 0 {
		return nil, &Unavailable{RetryAfter: cmp.Or(wait, drainedWait)}
	}
	name := e.model.Name
	if strings.HasSuffix(name, "*") {
		name = model
	}
	for i, d := range list {
		if d.Model == "" {
			named := *d
			named.Model = name
			list[i] = &named
		}
	}
	return &Plan{Name: name, Model: e.model.Name, Tokenizer: e.model.Tokenizer, Deployments: list}, nil
}

func (r *Router) none(e *entry, model, dialect, region string) error {
	dialects := e.dialects()
	if !slices.Contains(dialects, dialect) {
		region = "" // no region would help
	}
	return &NoDeploymentError{Model: model, Dialects: dialects, Region: region}
}

// order puts one deployment first, each with a chance of its weight's share, and
// the others after it by weight.
func order(list []*Deployment, random func() uint64) {
	if len(list) < 2 {
		return
	}
	first := choose(list, random())
	chosen := list[first]
	copy(list[1:first+1], list[:first])
	list[0] = chosen
	slices.SortStableFunc(list[1:], func(a, b *Deployment) int { return cmp.Compare(b.Weight, a.Weight) })
}

// choose returns the index of the deployment that random, of 64 even bits, falls
// on. Weights are above zero and their sum is below 2^31, so that the remainder
// favours nobody by more than 2^-33.
func choose(list []*Deployment, random uint64) int {
	var sum uint64
	for _, d := range list {
		sum += uint64(d.Weight)
	}
	at := random % sum
	for i, d := range list {
		if at < uint64(d.Weight) {
			return i
		}
		at -= uint64(d.Weight)
	}
	return len(list) - 1
}
