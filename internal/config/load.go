package config

import (
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"tollgate/tenancy"
)

// MaxFileBytes bounds the configuration file.
const MaxFileBytes = 1 << 20

const envPrefix = "TOLLGATE_"

// Source says where to read from.
type Source struct {
	File  string            // path of the YAML file; empty: none
	Env   []string          // "NAME=value", as from os.Environ
	Flags map[string]string // path → value, as from --set path=value
}

// Mistake is one thing wrong with a configuration.
type Mistake struct {
	Where   string `json:"where"`          // "tollgate.yaml:12", "TOLLGATE_LISTEN", "--set listen", "default"
	Path    string `json:"path,omitempty"` // "redis.shards"
	Problem string `json:"problem"`
	Hint    string `json:"hint,omitempty"`
}

// String gives "tollgate.yaml:12: redis.shards: must be …; …".
func (m Mistake) String() string {
	text := m.Where + ": "
	if m.Path != "" {
		text += m.Path + ": "
	}
	text += m.Problem
	if m.Hint != "" {
		text += "; " + m.Hint
	}
	return text
}

// InvalidError lists every mistake: those of the file in the order of its
// lines, then those of the environment and flags.
type InvalidError struct {
	Mistakes []Mistake
}

// Error lists the mistakes, one a line.
func (e *InvalidError) Error() string {
	if len(e.Mistakes) == 1 {
		return "configuration: " + e.Mistakes[0].String()
	}
	lines := make([]string, len(e.Mistakes))
	for i, m := range e.Mistakes {
		lines[i] = m.String()
	}
	return fmt.Sprintf("configuration: %d mistakes\n  %s", len(lines), strings.Join(lines, "\n  "))
}

// Load reads, merges and validates. The error is an *InvalidError, or says
// that the file cannot be read.
func Load(src Source) (*Config, error) {
	var file []byte
	if src.File != "" {
		var err error
		if file, err = readFile(src.File); err != nil {
			return nil, err
		}
	}
	return parse(src, file)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return data, nil
}

func parse(src Source, file []byte) (*Config, error) {
	l := &loader{config: Default(), leaves: leaves()}
	l.config.origins = map[string]string{}
	if src.File != "" {
		l.loadFile(src.File, file)
	}
	l.loadEnv(src.Env)
	for _, path := range slices.Sorted(maps.Keys(src.Flags)) {
		l.loadFlag(path, src.Flags[path])
	}
	l.validate()
	if len(l.mistakes) > 0 {
		return nil, &InvalidError{Mistakes: l.mistakes}
	}
	return l.config, nil
}

// loader merges sources into a configuration and collects mistakes.
type loader struct {
	config   *Config
	leaves   map[string][]int // path → index for reflect
	mistakes []Mistake
}

// maxMistakes is as many as a person works on at once.
const maxMistakes = 100

func (l *loader) mistake(where, path, hint, problem string, args ...any) {
	if len(l.mistakes) < maxMistakes {
		l.mistakes = append(l.mistakes, Mistake{Where: where, Path: path, Problem: fmt.Sprintf(problem, args...), Hint: hint})
	}
}

// set gives a field its value from text. A list is given as several texts, or
// as one with commas. A wrong value is reported here and the default stays, so
// that validation does not report it again.
func (l *loader) set(where, path string, texts []string) {
	field := reflect.ValueOf(l.config).Elem().FieldByIndex(l.leaves[path])
	problem := assign(field, texts)
	if problem != "" {
		l.mistake(where, path, "", "%s", problem)
		return
	}
	l.config.origins[path] = where
}

// notSettings are variables with the prefix that others read: commands for
// their own flags, tests, and the script that starts services.
var notSettings = regexp.MustCompile(`^TOLLGATE_(CONFIG|AUTHOR|METER_KEY|REPLAY_TARGET|TEST_.*|SERVICES_.*)$`)

func (l *loader) loadEnv(env []string) {
	known := make(map[string]string, len(l.leaves))
	for path := range l.leaves {
		known[envName(path)] = path
	}
	names := slices.Sorted(maps.Keys(known))
	for _, entry := range slices.Sorted(slices.Values(env)) {
		name, value, _ := strings.Cut(entry, "=")
		if path, found := known[name]; found {
			l.set(name, path, []string{value})
			continue
		}
		// Other programs and tests may use the prefix; what looks like one of
		// ours and is not is a mistake.
		if !strings.HasPrefix(name, envPrefix) || notSettings.MatchString(name) {
			continue
		}
		if closest := tenancy.Closest(name, names); closest != "" || l.inSection(name) {
			l.mistake(shorten(name), "", didYouMean(name, names), "is not a setting")
		}
	}
}

// inSection reports whether a variable begins like those of a section.
func (l *loader) inSection(name string) bool {
	for path := range l.leaves {
		if section, _, nested := strings.Cut(path, "."); nested && strings.HasPrefix(name, envName(section)+"_") {
			return true
		}
	}
	return false
}

func (l *loader) loadFlag(path, value string) {
	where := "--set " + shorten(path)
	if _, known := l.leaves[path]; !known {
		l.mistake(where, "", didYouMean(path, slices.Sorted(maps.Keys(l.leaves))), "is not a setting")
		return
	}
	l.set(where, path, []string{value})
}

// byDefault is where a value that nobody gave comes from.
const byDefault = "default"

// origin says where a field's value was given.
func (c *Config) origin(path string) string {
	if where := c.origins[path]; where != "" {
		return where
	}
	return byDefault
}

func envName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// didYouMean suggests a name for a mistyped one.
func didYouMean(name string, names []string) string {
	if closest := tenancy.Closest(name, names); closest != "" {
		return fmt.Sprintf("did you mean %s?", closest)
	}
	if len(names) <= 12 {
		return "known are " + strings.Join(names, ", ")
	}
	return `"tollgate config print" shows all settings`
}

// leaves lists the paths of all settings.
func leaves() map[string][]int {
	found := map[string][]int{}
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			name := t.Field(i).Tag.Get("yaml")
			if name == "" {
				continue
			}
			at := append(slices.Clone(index), i)
			if t.Field(i).Type.Kind() == reflect.Struct {
				walk(t.Field(i).Type, prefix+name+".", at)
			} else {
				found[prefix+name] = at
			}
		}
	}
	walk(reflect.TypeFor[Config](), "", nil)
	return found
}

// assign parses texts into a field and returns what is wrong with them. Values
// of secrets are not repeated.
func assign(field reflect.Value, texts []string) string {
	if list, ok := field.Addr().Interface().(*[]string); ok {
		if len(texts) == 1 {
			texts = strings.Split(texts[0], ",")
		}
		*list = (*list)[:0:0]
		for _, text := range texts {
			*list = append(*list, strings.TrimSpace(text))
		}
		return ""
	}
	if len(texts) != 1 {
		return "must be one value, is a list"
	}
	text := texts[0]
	switch v := field.Addr().Interface().(type) {
	case *string:
		*v = text
	case *Secret:
		*v = Secret(text)
	case *SecretURL:
		*v = SecretURL(text)
	case *bool:
		if text != "true" && text != "false" {
			return fmt.Sprintf("must be true or false, is %s", quoted(text))
		}
		*v = text == "true"
	case *int:
		n, err := parseWhole(text)
		if err != nil {
			return fmt.Sprintf("must be a whole number, is %s", quoted(text))
		}
		*v = int(n)
	case *int64:
		n, err := parseWhole(text)
		if err != nil {
			return fmt.Sprintf("must be a whole number, is %s", quoted(text))
		}
		*v = n
	case *time.Duration:
		d, err := tenancy.ParseDuration(text)
		if err != nil {
			return fmt.Sprintf(`must be a duration such as "60s", "1h30m" or "30d", is %s`, quoted(text))
		}
		*v = time.Duration(d)
	case *ByteSize:
		if err := v.UnmarshalText([]byte(text)); err != nil {
			return fmt.Sprintf("%s, is %s", err, quoted(text))
		}
	case *Percent:
		if err := v.UnmarshalText([]byte(text)); err != nil {
			return fmt.Sprintf("%s, is %s", err, quoted(text))
		}
	default:
		panic(fmt.Sprintf("config: no parser for fields of type %s", field.Type()))
	}
	return ""
}

func quoted(text string) string { return fmt.Sprintf("%q", shorten(text)) }

func shorten(text string) string {
	if len(text) > 80 {
		return strings.ToValidUTF8(text[:80], "") + "…"
	}
	return text
}
