package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// printer writes results to standard output and everything else to standard
// error, so that output can be piped.
type printer struct {
	out, err io.Writer
	json     bool
}

// value prints v as JSON when --json was given, and calls text otherwise.
func (p *printer) value(v any, text func() error) error {
	if !p.json {
		return text()
	}
	enc := json.NewEncoder(p.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// note tells a person what is going on.
func (p *printer) note(format string, args ...any) {
	fmt.Fprintf(p.err, format+"\n", args...)
}

// table prints rows under a header. Columns are as wide as their widest cell;
// cells that are numbers line up at the right.
func (p *printer) table(header []string, rows [][]string) error {
	widths := make([]int, len(header))
	numeric := make([]bool, len(header))
	for c, h := range header {
		widths[c] = utf8.RuneCountInString(h)
		numeric[c] = len(rows) > 0
		for _, row := range rows {
			widths[c] = max(widths[c], utf8.RuneCountInString(row[c]))
			numeric[c] = numeric[c] && isNumber(row[c])
		}
	}
	var text strings.Builder
	line := func(cells []string) {
		var b strings.Builder
		for c, cell := range cells {
			pad := strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell))
			if c > 0 {
				b.WriteString("  ")
			}
			if numeric[c] {
				b.WriteString(pad + cell)
			} else {
				b.WriteString(cell + pad)
			}
		}
		text.WriteString(strings.TrimRight(b.String(), " ") + "\n")
	}
	line(header)
	for _, row := range rows {
		line(row)
	}
	if _, err := io.WriteString(p.out, text.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

func isNumber(s string) bool {
	if s == "" || s == "-" {
		return true
	}
	for _, r := range s {
		if (r < '0' || r > '9') && !strings.ContainsRune("+-.,%", r) {
			return false
		}
	}
	return true
}

// count writes a whole number with thousands separators.
func count(n int64) string {
	digits := fmt.Sprintf("%d", n)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return sign + b.String()
}

// instant writes a time as people and machines both read it; zero is "-".
func instant(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// noSpinner keeps a bar without known total from turning by itself: the
// library's goroutine for it reads the bar without its lock.
var noSpinner = progressbar.OptionSetSpinnerChangeInterval(0)

// progress shows a bar on a terminal and nothing elsewhere. total may be -1
// when it is not known.
func (p *printer) progress(total int64, what string) *progressbar.ProgressBar {
	if f, ok := p.err.(*os.File); !ok || p.json || !term.IsTerminal(int(f.Fd())) {
		return progressbar.NewOptions64(total, progressbar.OptionSetVisibility(false), noSpinner)
	}
	return progressbar.NewOptions64(total,
		noSpinner,
		progressbar.OptionSetWriter(p.err),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionFullWidth(),
		progressbar.OptionClearOnFinish(),
	)
}
