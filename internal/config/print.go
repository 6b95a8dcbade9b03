package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"tollgate/tenancy"
)

// Print writes the merged configuration as YAML that Load takes, each line
// with where its value comes from. Secrets are redacted.
func (c *Config) Print(w io.Writer) error {
	var b strings.Builder
	printStruct(&b, reflect.ValueOf(c).Elem(), "", c.origin)
	_, err := io.WriteString(w, b.String())
	return err
}

func printStruct(b *strings.Builder, v reflect.Value, prefix string, origin func(string) string) {
	indent := strings.Repeat("  ", strings.Count(prefix, "."))
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		switch {
		case name == "":
		case v.Field(i).Kind() == reflect.Struct:
			fmt.Fprintf(b, "\n%s%s:\n", indent, name)
			printStruct(b, v.Field(i), prefix+name+".", origin)
		default:
			text := fmt.Sprintf("%s%s: %s", indent, name, yamlText(shown(v.Field(i))))
			fmt.Fprintf(b, "%-56s # %s\n", text, oneLine(origin(prefix+name)))
		}
	}
}

// oneLine keeps a file's name from ending the comment that it stands in.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// MarshalJSON gives the merged configuration as Print does, for --json.
func (c *Config) MarshalJSON() ([]byte, error) {
	return json.Marshal(shownStruct(reflect.ValueOf(c).Elem()))
}

func shownStruct(v reflect.Value) map[string]any {
	fields := map[string]any{}
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		switch {
		case name == "":
		case v.Field(i).Kind() == reflect.Struct:
			fields[name] = shownStruct(v.Field(i))
		default:
			fields[name] = shown(v.Field(i))
		}
	}
	return fields
}

// shown is a field's value as it may be shown: text, bool, int64 or []string.
func shown(v reflect.Value) any {
	switch value := v.Interface().(type) {
	case time.Duration:
		return tenancy.Duration(value).String()
	case int:
		return int64(value)
	case fmt.Stringer:
		return value.String()
	default:
		return value
	}
}

func yamlText(value any) string {
	switch v := value.(type) {
	case string:
		return strconv.Quote(v)
	case []string:
		texts := make([]string, len(v))
		for i, text := range v {
			texts[i] = strconv.Quote(text)
		}
		return "[" + strings.Join(texts, ", ") + "]"
	default:
		return fmt.Sprint(v)
	}
}

// TLSConfig returns nil where Redis is reached without TLS.
func (r Redis) TLSConfig() (*tls.Config, error) { return tlsConfig(r.TLS, r.TLSCAFile) }

// TLSConfig returns nil where Kafka is reached without TLS.
func (k Kafka) TLSConfig() (*tls.Config, error) { return tlsConfig(k.TLS, k.TLSCAFile) }

func tlsConfig(enabled bool, caFile string) (*tls.Config, error) {
	if !enabled {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", caFile)
	}
	return config, nil
}
