// Package trace reads request traces in the format of the Azure LLM inference
// traces: a CSV file with the columns TIMESTAMP, ContextTokens and
// GeneratedTokens, one request a row.
//
// Reading is strict. A row that cannot be read is an error that names its line
// and what was expected: a trace feeds totals that are compared to the last
// token, so nothing is skipped or repaired.
package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Limits on a trace file.
const (
	MaxRows      = 10_000_000
	MaxLineBytes = 256
	MaxTokens    = 1 << 31 // of one request, either direction
)

const header = "TIMESTAMP,ContextTokens,GeneratedTokens"

// timestampLayout has up to nine fractional digits; the traces carry seven.
const timestampLayout = "2006-01-02 15:04:05.999999999"

// Request is one row.
type Request struct {
	At           time.Time // UTC
	InputTokens  int64
	OutputTokens int64
}

// Totals are sums over a trace.
type Totals struct {
	Requests     int64 `json:"requests"`
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
}

// Sum adds up the rows.
func Sum(requests []Request) Totals {
	var t Totals
	for _, r := range requests {
		t.Requests++
		t.InputTokens += r.InputTokens
		t.OutputTokens += r.OutputTokens
	}
	return t
}

// SyntaxError is a row that could not be read.
type SyntaxError struct {
	Line int // from 1, the header's line
	Msg  string
}

// Error implements error.
func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

// Parse reads a whole trace. Lines end in LF or CRLF; a byte order mark and
// empty lines at the end are allowed. Errors are *SyntaxError or r's own.
func Parse(r io.Reader) ([]Request, error) {
	// One byte more than a legal line with CRLF, so that an over-long line is
	// told apart from a legal one.
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, MaxLineBytes+2), MaxLineBytes+2)
	var requests []Request
	line, emptyAt := 0, 0
	for scanner.Scan() {
		line++
		text := scanner.Text()
		if line == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
			if text != header {
				return nil, &SyntaxError{line, fmt.Sprintf("the header must be %q", header)}
			}
			continue
		}
		if text == "" {
			if emptyAt == 0 {
				emptyAt = line
			}
			continue
		}
		if emptyAt != 0 {
			return nil, &SyntaxError{emptyAt, "empty line inside the trace; remove it"}
		}
		if len(requests) == MaxRows {
			return nil, &SyntaxError{line, fmt.Sprintf("more than %d rows; split the file", MaxRows)}
		}
		req, err := parseRow(text)
		if err != nil {
			return nil, &SyntaxError{line, err.Error()}
		}
		requests = append(requests, req)
	}
	if err := scanner.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, &SyntaxError{line + 1, fmt.Sprintf("longer than %d bytes", MaxLineBytes)}
		}
		return nil, fmt.Errorf("read trace: %w", err)
	}
	if line == 0 {
		return nil, &SyntaxError{1, fmt.Sprintf("the file is empty; the header must be %q", header)}
	}
	return requests, nil
}

func parseRow(text string) (Request, error) {
	fields := strings.Split(text, ",")
	if len(fields) != 3 {
		return Request{}, fmt.Errorf("want 3 fields (%s), have %d", header, len(fields))
	}
	at, err := time.ParseInLocation(timestampLayout, fields[0], time.UTC)
	if err != nil {
		return Request{}, fmt.Errorf("TIMESTAMP %.40q must look like 2023-11-16 18:17:03.9799600", fields[0])
	}
	input, err := parseTokens("ContextTokens", fields[1])
	if err != nil {
		return Request{}, err
	}
	output, err := parseTokens("GeneratedTokens", fields[2])
	if err != nil {
		return Request{}, err
	}
	return Request{At: at, InputTokens: input, OutputTokens: output}, nil
}

func parseTokens(column, text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > MaxTokens {
		return 0, fmt.Errorf("%s %.40q must be a whole number from 0 to %d", column, text, int64(MaxTokens))
	}
	return int64(n), nil
}
