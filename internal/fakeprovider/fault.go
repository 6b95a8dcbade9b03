package fakeprovider

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Header names that this server obeys, and nothing else does.
const (
	HeaderFault        = "X-Fake-Fault"
	HeaderOutputTokens = "X-Fake-Output-Tokens"
)

// orders are what a request was told to do other than answer well, and how.
// Counts of chunks are of content events; −1 is never.
type orders struct {
	text string // as given, for the log

	status     int    // answer with this error status
	retryAfter string // its Retry-After, in seconds

	reset          bool  // reset the connection before an answer
	hangHeader     bool  // never answer
	hang           int64 // go silent after so many chunks, or in the middle of a body
	cut            int64 // break the connection off after so many bytes of the body
	cutAfter       int64 // … after so many chunks
	closeClean     int64 // end in good HTTP order after so many chunks, without the dialect's end
	errorEvent     int64 // send an error in the dialect's form after so many chunks
	garbageStream  int64 // send what is no event after so many chunks, and end
	garbage        bool  // 200 with a page that is no answer
	slow           time.Duration
	noUsage        bool
	zeroUsage      bool
	wrongUsage     string // the number to give as output tokens
	repeatUsage    bool   // cumulative usage in every chunk
	noDone         bool   // leave the stream's end marker out
	crlf, comments bool
	keepAlive      bool // a comment before every event, as servers send that wait
	multiLine      bool // an event's data in several lines
	hugeLine       int64
	split          int64 // write in pieces of so many bytes

	tokens    int64 // output tokens of the answer
	reasoning int64 // reasoning tokens of the answer
	cached    int64 // input tokens to call cached
	tool      bool  // call a tool if any is given
}

func noOrders() orders {
	return orders{
		hang: -1, cut: -1, cutAfter: -1, closeClean: -1, errorEvent: -1, garbageStream: -1,
		tokens: -1, reasoning: -1, cached: -1,
	}
}

// add reads a list such as "cut-after=3, crlf". A range ("cut=1..2000") is drawn
// from r.
func (o *orders) add(list string, r *random) error {
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		if err := o.addOne(item, r); err != nil {
			return err
		}
		if o.text != "" {
			o.text += ","
		}
		o.text += item
	}
	return nil
}

// maxNumber bounds what an order may ask for: 64 MiB, where it is bytes.
const maxNumber = 64 << 20

func (o *orders) addOne(item string, r *random) error {
	name, value, _ := strings.Cut(item, "=")
	number := func(otherwise int64) (int64, error) {
		if value == "" {
			return otherwise, nil
		}
		from, to, isRange := strings.Cut(value, "..")
		n, err := strconv.ParseInt(from, 10, 32)
		if err == nil && isRange {
			var high int64
			high, err = strconv.ParseInt(to, 10, 32)
			n = r.between(n, high)
		}
		if err != nil || n < 0 || n > maxNumber {
			return 0, fmt.Errorf("fault %q: want a whole number such as %s=3, or a range such as %s=1..9", item, name, name)
		}
		return n, nil
	}
	var err error
	switch name {
	case "hang":
		o.hang, err = number(1)
	case "hang-before-header":
		o.hangHeader = true
	case "reset":
		o.reset = true
	case "cut":
		o.cut, err = number(0)
	case "cut-after":
		o.cutAfter, err = number(1)
	case "close-clean":
		o.closeClean, err = number(1)
	case "error-event":
		o.errorEvent, err = number(1)
	case "garbage":
		o.garbage = true
	case "garbage-stream":
		o.garbageStream, err = number(1)
	case "slow":
		var ms int64
		ms, err = number(100)
		o.slow = time.Duration(ms) * time.Millisecond
	case "no-usage":
		o.noUsage = true
	case "zero-usage":
		o.zeroUsage = true
	case "wrong-usage":
		// Any number of JSON: negative, huge and fractional figures are what it is for.
		if !isNumber(value) {
			return fmt.Errorf("fault %q: want a number such as wrong-usage=1000", item)
		}
		o.wrongUsage = value
	case "repeat-usage":
		o.repeatUsage = true
	case "no-done":
		o.noDone = true
	case "crlf":
		o.crlf = true
	case "comments":
		o.comments = true
	case "keepalive":
		o.keepAlive = true
	case "multi-line":
		o.multiLine = true
	case "huge-line":
		o.hugeLine, err = number(1 << 20)
	case "split":
		o.split, err = number(1)
	case "tokens":
		o.tokens, err = number(1)
	case "reasoning":
		o.reasoning, err = number(16)
	case "cached":
		o.cached, err = number(1)
	case "tool":
		o.tool = true
	default:
		status, bad := strconv.Atoi(name)
		if bad != nil || status < 400 || status > 599 {
			return fmt.Errorf("there is no fault %q", item)
		}
		o.status, o.retryAfter = status, value
	}
	return err
}

func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil && strings.Trim(s, "0123456789.+-eE") == "" && s[0] != '+' && s[0] != '.'
}

// marked finds what a prompt orders: "[fake:cut-after=3]" anywhere in it.
func marked(prompt string) string {
	const open = "[fake:"
	var all []string
	for {
		_, rest, found := strings.Cut(prompt, open)
		if !found {
			return strings.Join(all, ",")
		}
		list, after, closed := strings.Cut(rest, "]")
		if !closed {
			return strings.Join(all, ",")
		}
		all = append(all, list)
		prompt = after
	}
}
