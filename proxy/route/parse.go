package route

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"tollgate/internal/plainyaml"
)

// MaxFileBytes bounds the table's file.
const MaxFileBytes = 1 << 20

// Bounds of a table.
const (
	maxTokens      = 20_000
	maxUpstreams   = 256
	maxModels      = 2000
	maxDeployments = 64 // of one model, backups included
	maxAliases     = 64 // of one model
	maxWeight      = 1_000_000
	maxMistakes    = 100
)

var (
	dialects = []string{"openai", "anthropic", "gemini"}
	// Tokenizers are those of proxy/tokens.
	Tokenizers     = []string{"o200k_base", "cl100k_base", "estimate"}
	outputCapNames = []string{"max_tokens", "max_completion_tokens", "max_output_tokens"}
)

// Mistake is one thing that is wrong with a table.
type Mistake struct {
	Line    int    `json:"line,omitempty"` // 0: the whole file
	Path    string `json:"path,omitempty"` // "models[2].weight"
	Problem string `json:"problem"`
	Hint    string `json:"hint,omitempty"`
}

// InvalidError lists every mistake in the order of the file's lines.
type InvalidError struct {
	File     string
	Mistakes []Mistake
}

// Error lists the mistakes, one a line.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Mistakes))
	for i, m := range e.Mistakes {
		lines[i] = e.Where(m) + ": "
		if m.Path != "" {
			lines[i] += m.Path + ": "
		}
		lines[i] += m.Problem
		if m.Hint != "" {
			lines[i] += "; " + m.Hint
		}
	}
	if len(lines) == 1 {
		return "upstreams: " + lines[0]
	}
	return fmt.Sprintf("upstreams: %d mistakes\n  %s", len(lines), strings.Join(lines, "\n  "))
}

// Where is a mistake's place, "upstreams.yaml:12".
func (e *InvalidError) Where(m Mistake) string {
	if m.Line == 0 {
		return e.File
	}
	return fmt.Sprintf("%s:%d", e.File, m.Line)
}

// Parse reads a table. name is its file's, for mistakes, and key_file is relative
// to its folder. env and readFile give the keys: env as os.Getenv does, readFile
// as os.ReadFile. The error is an *InvalidError, which never quotes a key.
func Parse(data []byte, name string, env func(string) string, readFile func(string) ([]byte, error)) (*Table, error) {
	p := &parser{table: &Table{}, file: name, env: env, readFile: readFile, names: map[string]int{}}
	root, mistakes := plainyaml.Parse(data, plainyaml.Limits{Bytes: MaxFileBytes, Tokens: maxTokens})
	for _, m := range mistakes {
		p.wrong(m.Line, "", m.Hint, "%s", m.Problem)
	}
	if len(mistakes) == 0 {
		p.parse(root)
	}
	if len(p.mistakes) > 0 {
		slices.SortStableFunc(p.mistakes, func(a, b Mistake) int { return a.Line - b.Line })
		return nil, &InvalidError{File: name, Mistakes: p.mistakes}
	}
	return p.table, nil
}

type parser struct {
	table    *Table
	file     string
	env      func(string) string
	readFile func(string) ([]byte, error)
	mistakes []Mistake
	names    map[string]int // model names and aliases → line
}

func (p *parser) wrong(line int, path, hint, problem string, args ...any) {
	if len(p.mistakes) < maxMistakes {
		p.mistakes = append(p.mistakes, Mistake{Line: line, Path: path, Problem: fmt.Sprintf(problem, args...), Hint: hint})
	}
}

func (p *parser) parse(root *plainyaml.Node) {
	if root.Kind == plainyaml.Null {
		p.wrong(0, "", "name at least one upstream and one model", "is empty")
		return
	}
	var models *plainyaml.Node
	p.fields(root, "", map[string]take{
		"upstreams": func(n *plainyaml.Node, path string) {
			p.each(n, path, maxUpstreams, p.upstream)
		},
		"models": func(n *plainyaml.Node, _ string) { models = n }, // after all upstreams
	})
	if len(p.table.Upstreams) == 0 && len(p.mistakes) == 0 {
		p.wrong(0, "upstreams", "", "there must be at least one")
	}
	if models != nil {
		p.each(models, "models", maxModels, p.model)
	}
	if len(p.table.Models) == 0 && len(p.mistakes) == 0 {
		p.wrong(0, "models", `- name: "*" with one deployment passes every name on`, "there must be at least one")
	}
}

// endpoints are what a pasted address ends in that is no base.
var endpoints = []string{"/chat/completions", "/completions", "/responses", "/embeddings", "/messages", "/models"}

func (p *parser) upstream(n *plainyaml.Node, path string) {
	up := &Upstream{ConnectTimeout: 2 * time.Second, ResponseTimeout: 120 * time.Second, AnswerTimeout: 10 * time.Minute, IdleTimeout: 60 * time.Second}
	key, nameLine, azureLine, versionLine := keySource{}, n.Line, 0, 0
	p.fields(n, path, map[string]take{
		"name":    func(n *plainyaml.Node, path string) { nameLine = n.Line; p.word(n, path, &up.Name) },
		"dialect": func(n *plainyaml.Node, path string) { p.oneOf(n, path, &up.Dialect, dialects) },
		"url": func(n *plainyaml.Node, path string) {
			p.url(n, path, &up.Server.Base)
			for _, end := range endpoints {
				if strings.HasSuffix(up.Server.Base, end) {
					p.wrong(n.Line, path, "end it where clients' base URLs end, before "+end, "is the address of one endpoint")
				}
			}
		},
		"key_env": func(n *plainyaml.Node, path string) { key.line = n.Line; p.text(n, path, &key.env) },
		"key_file": func(n *plainyaml.Node, path string) {
			key.line = n.Line
			p.text(n, path, &key.file)
		},
		"key_optional": func(n *plainyaml.Node, path string) { p.yesNo(n, path, &key.optional) },
		"azure":        func(n *plainyaml.Node, path string) { azureLine = n.Line; p.yesNo(n, path, &up.Server.Azure) },
		"api_version":  func(n *plainyaml.Node, path string) { versionLine = n.Line; p.word(n, path, &up.Server.APIVersion) },
		"region":       func(n *plainyaml.Node, path string) { p.word(n, path, &up.Region) },
		"connect_timeout": func(n *plainyaml.Node, path string) {
			p.duration(n, path, &up.ConnectTimeout, 10*time.Millisecond, time.Minute)
		},
		"response_timeout": func(n *plainyaml.Node, path string) {
			p.duration(n, path, &up.ResponseTimeout, 10*time.Millisecond, time.Hour)
		},
		"answer_timeout": func(n *plainyaml.Node, path string) {
			p.duration(n, path, &up.AnswerTimeout, 10*time.Millisecond, time.Hour)
		},
		"idle_timeout": func(n *plainyaml.Node, path string) {
			p.duration(n, path, &up.IdleTimeout, 10*time.Millisecond, time.Hour)
		},
		"identify":          func(n *plainyaml.Node, path string) { p.yesNo(n, path, &up.Identify) },
		"output_cap_field":  func(n *plainyaml.Node, path string) { p.oneOf(n, path, &up.OutputCapField, outputCapNames) },
		"max_connections":   func(n *plainyaml.Node, path string) { p.number(n, path, &up.MaxConnections, 0, 100_000) },
		"environment_proxy": func(n *plainyaml.Node, path string) { p.yesNo(n, path, &up.EnvironmentProxy) },
	}, "name", "dialect", "url")
	if up.Name != "" && p.upstreamNamed(up.Name) != nil {
		p.wrong(nameLine, path+".name", "give it another name", "%q is there twice", up.Name)
	}
	if up.Server.Azure && up.Dialect != "openai" && up.Dialect != "" {
		p.wrong(azureLine, path+".azure", "use dialect: openai", "Azure speaks OpenAI's dialect")
	}
	if up.Server.APIVersion != "" && !up.Server.Azure {
		p.wrong(versionLine, path+".api_version", "set azure: true", "has no meaning without azure")
	}
	if base, err := url.Parse(up.Server.Base); err == nil && up.Dialect == "openai" && !up.Server.Azure && strings.Trim(base.Path, "/") == "" && base.Host != "" {
		p.table.Warnings = append(p.table.Warnings, fmt.Sprintf("the url of upstream %q has no path: most servers of this dialect are at …/v1", up.Name))
	}
	p.key(up, path, key)
	p.table.Upstreams = append(p.table.Upstreams, up)
}

// keySource is where an upstream's key comes from.
type keySource struct {
	env, file string
	optional  bool
	line      int
}

// maxKeyBytes is longer than any provider's key.
const maxKeyBytes = 8 << 10

// key reads an upstream's key. What key_env and key_file hold is not quoted: a
// key itself may have been written there.
func (p *parser) key(up *Upstream, path string, from keySource) {
	text, where := "", ""
	switch {
	case from.env != "" && from.file != "":
		p.wrong(from.line, path, "keep one of them", "key_env and key_file do not go together")
		return
	case from.env != "":
		where = path + ".key_env"
		text = p.env(from.env)
		if text == "" && !from.optional {
			p.wrong(from.line, where, "set it, or write key_optional: true", "the environment variable that it names is not set")
		}
	case from.file != "":
		where = path + ".key_file"
		file := from.file
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(p.file), file)
		}
		data, err := p.readFile(file)
		if err == nil && len(data) > maxKeyBytes {
			p.wrong(from.line, where, "", "the file that it names is larger than any key")
			return
		}
		text = strings.TrimSpace(string(data))
		if text == "" && !from.optional {
			p.wrong(from.line, where, "write the key to it, or set key_optional: true", "no key can be read from the file that it names")
		}
	default:
		return
	}
	// What is not fit for a header is most likely no key, and is not quoted.
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		p.wrong(from.line, where, "", "what it names is no key: it holds spaces or signs that no header can carry")
		return
	}
	up.Server.Key = text
	if text != "" && strings.HasPrefix(up.Server.Base, "http:") && !loopback(up.Server.Base) {
		p.table.Warnings = append(p.table.Warnings, fmt.Sprintf("the key of upstream %q goes over plain http to a host that is not this one", up.Name))
	}
}

func loopback(base string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
}

func (p *parser) upstreamNamed(name string) *Upstream {
	i := slices.IndexFunc(p.table.Upstreams, func(up *Upstream) bool { return up.Name == name })
	if i < 0 {
		return nil
	}
	return p.table.Upstreams[i]
}

func (p *parser) model(n *plainyaml.Node, path string) {
	m := &Model{}
	line := n.Line
	var pools [2]*plainyaml.Node
	p.fields(n, path, map[string]take{
		"name": func(n *plainyaml.Node, path string) { line = n.Line; p.modelName(n, path, &m.Name, true) },
		"aliases": func(n *plainyaml.Node, path string) {
			p.each(n, path, maxAliases, func(n *plainyaml.Node, path string) {
				alias := ""
				if p.modelName(n, path, &alias, false) {
					m.Aliases = append(m.Aliases, alias)
				}
			})
		},
		"tokenizer":   func(n *plainyaml.Node, path string) { p.oneOf(n, path, &m.Tokenizer, Tokenizers) },
		"deployments": func(n *plainyaml.Node, _ string) { pools[0] = n },
		"backup":      func(n *plainyaml.Node, _ string) { pools[1] = n },
	}, "name", "deployments")
	for i, pool := range pools {
		if pool == nil {
			continue
		}
		p.each(pool, path+[]string{".deployments", ".backup"}[i], maxDeployments, func(n *plainyaml.Node, path string) {
			p.deployment(n, path, m, i == 1)
		})
	}
	if len(m.Deployments) > maxDeployments {
		p.wrong(line, path, "", "has more than %d deployments", maxDeployments)
	}
	p.table.Models = append(p.table.Models, m)
}

func (p *parser) deployment(n *plainyaml.Node, path string, m *Model, backup bool) {
	d := &Deployment{Weight: 1, Backup: backup}
	p.fields(n, path, map[string]take{
		"upstream": func(n *plainyaml.Node, path string) {
			name := ""
			if !p.word(n, path, &name) {
				return
			}
			if d.Upstream = p.upstreamNamed(name); d.Upstream == nil {
				p.wrong(n.Line, path, didYouMean(name, p.upstreamNames()), "there is no upstream %q", name)
			}
		},
		"model":  func(n *plainyaml.Node, path string) { p.servedName(n, path, &d.Model) },
		"weight": func(n *plainyaml.Node, path string) { p.number(n, path, &d.Weight, 0, maxWeight) },
	}, "upstream")
	if d.Model == "" && !strings.HasSuffix(m.Name, "*") {
		d.Model = m.Name
	}
	for _, other := range m.Deployments {
		if d.Upstream != nil && other.Upstream == d.Upstream && other.Model == d.Model {
			p.wrong(n.Line, path, "add up their weights", "the same upstream and model is there twice")
			break
		}
	}
	if d.Upstream != nil {
		m.Deployments = append(m.Deployments, d)
	}
}

func (p *parser) upstreamNames() []string {
	names := map[string]bool{}
	for _, up := range p.table.Upstreams {
		if up.Name != "" {
			names[up.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// modelName takes a name that clients ask for; each may be there once.
func (p *parser) modelName(n *plainyaml.Node, path string, name *string, pattern bool) bool {
	if !p.servedName(n, path, name) {
		return false
	}
	star := strings.IndexByte(*name, '*')
	if star >= 0 && (!pattern || star != len(*name)-1) {
		hint := `write it as in "llama-*"`
		if !pattern {
			hint = "make it a model of its own"
		}
		p.wrong(n.Line, path, hint, "a * can only end a model's name")
		return false
	}
	if line, taken := p.names[*name]; taken {
		p.wrong(n.Line, path, "keep one of them", "%q is named in line %d already", *name, line)
		return false
	}
	p.names[*name] = n.Line
	return true
}

const maxModelBytes = 256

// servedName takes a model's name at an upstream.
func (p *parser) servedName(n *plainyaml.Node, path string, name *string) bool {
	text, ok := p.scalar(n, path)
	if !ok {
		return false
	}
	if text == "" || len(text) > maxModelBytes || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
		p.wrong(n.Line, path, "", "must be 1 to %d printable ASCII signs without spaces and quotes, is %s", maxModelBytes, quoted(text))
		return false
	}
	*name = text
	return true
}

func (p *parser) url(n *plainyaml.Node, path string, base *string) {
	text, ok := p.scalar(n, path)
	if !ok {
		return
	}
	const hint = `write the base URL that clients of it configure, such as "https://api.example.com/v1"`
	u, err := url.Parse(text)
	switch {
	// A URL may hold a password: what cannot be read is not quoted.
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Hostname() == "" || len(text) > 1024:
		p.wrong(n.Line, path, hint, "must be an http or https URL")
	case u.User != nil:
		p.wrong(n.Line, path, "use key_env or key_file", "must not hold a user or password")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#"):
		p.wrong(n.Line, path, hint, "must not have a query or fragment")
	default:
		if _, _, err := net.SplitHostPort(u.Host); u.Port() == "" && err == nil {
			p.wrong(n.Line, path, hint, "has a colon and no port")
			return
		}
		if port := u.Port(); port != "" {
			if n2, err := strconv.ParseUint(port, 10, 16); err != nil || n2 == 0 {
				p.wrong(n.Line, path, hint, "has a port that is none")
				return
			}
		}
		*base = strings.TrimRight(text, "/")
	}
}
