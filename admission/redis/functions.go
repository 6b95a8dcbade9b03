package redis

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// scriptsFor is how long a server that refused functions is not asked again.
const scriptsFor = 10 * time.Minute

// program is Lua that Redis runs as a function, or as a script where functions
// are unknown (before Redis 7) or not allowed. A function is the faster one: it
// is made once, not in each call, and keeps what it parsed.
type program struct {
	name    string // of the function and its library: versions stay apart
	library string
	script  string
	hash    string // of the script

	scriptsUntil atomic.Int64 // Unix ms
}

// newProgram takes Lua that ends with a function decide(keys, argv).
func newProgram(lua string) *program {
	sum := sha256.Sum256([]byte(lua))
	p := &program{name: "tollgate_" + hex.EncodeToString(sum[:8]), script: lua + "return decide(KEYS, ARGV)\n"}
	p.library = fmt.Sprintf("#!lua name=%[1]s\n%[2]sredis.register_function('%[1]s', decide)\n", p.name, lua)
	p.hash = redis.NewScript(p.script).Hash()
	return p
}

func (p *program) scriptsOnly() bool {
	until := p.scriptsUntil.Load()
	return until > 0 && time.Now().UnixMilli() < until
}

// evaluate runs the program with args, whose first two are left for it. A server
// that will not run the function runs the script: nothing has been written then.
func (t *target) evaluate(ctx context.Context, args []any) (string, error) {
	s, p := t.store, t.store.decide
	if p.scriptsOnly() {
		return t.evaluateScript(ctx, args)
	}
	args[0], args[1] = "fcall", p.name
	reply, err := s.client.Do(ctx, args...).Text()
	if isUnknownFunction(err) { // a new server, or one that was emptied
		err = t.load(ctx)
		if err == nil {
			reply, err = s.client.Do(ctx, args...).Text()
		} else if _, answered := errors.AsType[redis.Error](err); answered && !isRefusal(err) {
			return t.evaluateScript(ctx, args)
		}
	}
	switch {
	case err == nil:
		return reply, nil
	case isRefusal(err):
		if p.scriptsUntil.Swap(time.Now().Add(scriptsFor).UnixMilli()) == 0 {
			reason, _, _ := strings.Cut(err.Error(), ", with args") // those are a tenant's
			s.log.Warn("Redis has or allows no functions; admission runs as a script, which is slower", "error", reason)
		}
		return t.evaluateScript(ctx, args)
	case isUnknownFunction(err), isOutOfService(err):
		return t.evaluateScript(ctx, args)
	}
	return "", err
}

func (t *target) evaluateScript(ctx context.Context, args []any) (string, error) {
	client, p := t.store.client, t.store.decide
	args[0], args[1] = "evalsha", p.hash
	reply, err := client.Do(ctx, args...).Text()
	if err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return reply, err
	}
	// EVAL also keeps the script for the next EVALSHA.
	args[0], args[1] = "eval", p.script
	return client.Do(ctx, args...).Text()
}

// load loads the library on the node that has the target's keys.
func (t *target) load(ctx context.Context) error {
	var node redis.Cmdable = t.store.client
	if c, ok := t.store.client.(*redis.ClusterClient); ok && t.key != "" {
		master, err := c.MasterForKey(ctx, t.key)
		if err != nil {
			return err
		}
		node = master
	}
	err := node.FunctionLoad(ctx, t.store.decide.library).Err()
	if err != nil && strings.Contains(err.Error(), "already exists") {
		return nil // another call was first
	}
	return err
}

func isUnknownFunction(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "ERR Function not found")
}

// isRefusal tells a server that has no functions, or does not allow them.
func isRefusal(err error) bool {
	// HasErrorPrefix takes "ERR " off.
	return redis.HasErrorPrefix(err, "NOPERM") ||
		redis.HasErrorPrefix(err, "unknown command") ||
		redis.HasErrorPrefix(err, "Error compiling function") ||
		redis.HasErrorPrefix(err, "Error registering functions")
}

// isOutOfService tells a server that takes no writes now. It refuses a function
// as a whole, but of a script only what would write: an answer to a repeat or a
// standing is still given.
func isOutOfService(err error) bool {
	for _, prefix := range []string{"OOM", "MISCONF", "NOREPLICAS"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
