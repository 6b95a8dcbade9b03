package fakeprovider

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Rule orders faults for some requests, so that a test behind a gateway can
// steer this server without a header. Requests that name another model are not
// counted.
type Rule struct {
	Model    string `json:"model,omitempty"`    // "" is any
	Skip     int64  `json:"skip,omitempty"`     // leave so many requests alone first
	Every    int64  `json:"every,omitempty"`    // of those, every Nth; 0 is each
	Permille int64  `json:"permille,omitempty"` // of those, so many of a thousand, by the seed; 0 is all
	Times    int64  `json:"times,omitempty"`    // at most so often; 0 has no end
	Faults   string `json:"faults"`             // as in the header
}

// ParseRule reads a rule in the form "model=m skip=2 every=10 permille=500 times=3: FAULTS".
// Conditions may be left out; with all of them, so may the colon.
func ParseRule(text string) (Rule, error) {
	conditions, list, found := strings.Cut(text, ":")
	if !found {
		conditions, list = "", text
	}
	rule := Rule{Faults: strings.TrimSpace(list)}
	for condition := range strings.FieldsSeq(conditions) {
		name, value, _ := strings.Cut(condition, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch name {
		case "model":
			rule.Model, err = value, nil
		case "skip":
			rule.Skip = n
		case "every":
			rule.Every = n
		case "permille":
			rule.Permille = n
		case "times":
			rule.Times = n
		default:
			return Rule{}, fmt.Errorf("rule %q: there is no condition %q, only model, skip, every, permille and times", text, name)
		}
		if err != nil {
			return Rule{}, fmt.Errorf("rule %q: %s needs a whole number", text, name)
		}
	}
	return rule, rule.check()
}

// ParseRules reads rules, one a line; a # begins a remark.
func ParseRules(r io.Reader) ([]Rule, error) {
	var all []Rule
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		rule, err := ParseRule(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, rule)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return all, nil
}

func (r *Rule) check() error {
	if r.Skip < 0 || r.Every < 0 || r.Times < 0 || r.Permille < 0 || r.Permille > 1000 {
		return fmt.Errorf("a rule's numbers must not be negative, and permille at most 1000")
	}
	o := noOrders()
	return o.add(r.Faults, new(random))
}

// rules are the rules in force. The first that applies to a request counts.
type rules struct {
	any atomic.Bool
	mu  sync.Mutex
	all []*liveRule
	r   random
}

type liveRule struct {
	Rule
	seen, used int64
}

func newRules(seed uint64, all []Rule) *rules {
	s := &rules{r: random(seed)}
	for _, rule := range all {
		s.add(rule)
	}
	return s
}

func (s *rules) add(rule Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, &liveRule{Rule: rule})
	s.any.Store(true)
}

func (s *rules) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = nil
	s.any.Store(false)
}

func (s *rules) list() []Rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Rule, len(s.all))
	for i, rule := range s.all {
		all[i] = rule.Rule
	}
	return all
}

// match returns the faults for a request.
func (s *rules) match(model string) string {
	if !s.any.Load() {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rule := range s.all {
		if rule.applies(model, &s.r) {
			return rule.Faults
		}
	}
	return ""
}

func (r *liveRule) applies(model string, dice *random) bool {
	if r.Model != "" && r.Model != model || r.Times > 0 && r.used >= r.Times {
		return false
	}
	r.seen++
	counted := r.seen - r.Skip
	if counted <= 0 || r.Every > 0 && counted%r.Every != 0 {
		return false
	}
	if r.Permille > 0 && int64(dice.below(1000)) >= r.Permille {
		return false
	}
	r.used++
	return true
}
