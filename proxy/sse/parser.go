package sse

import "bytes"

// DefaultMaxEvent bounds the events that are read when New is given no bound.
const DefaultMaxEvent = 8 << 20

const (
	// early is how much of an incomplete event is held back before its pieces are
	// let through.
	early = 64 << 10
	// keep is how large a buffer an idle stream holds on to; it has two.
	keep = 2 << 10
)

var bom = []byte{0xEF, 0xBB, 0xBF}

// Parser cuts one stream. It is used by one goroutine at a time.
type Parser struct {
	max int
	// buf holds the pending event from its first byte, of which sent have come
	// out. It is empty while lost.
	buf  []byte
	sent int
	join []byte // where data lines are joined

	// head is the first bytes of the line that an earlier chunk ended in: enough
	// to tell an empty line, a comment and a byte order mark.
	head  [4]byte
	headN int

	second bool // the stream's first line is over
	moved  bool // the stream's first event is over
	cr     bool // the last byte was a carriage return; a newline belongs to it
	fields bool // the pending event has a line that is no comment
	lost   bool // the pending event is longer than max
}

// New gives a parser that reads events of up to maxEvent bytes; longer ones
// come out in pieces, unread. Zero or less takes DefaultMaxEvent.
func New(maxEvent int) *Parser {
	if maxEvent <= 0 {
		maxEvent = DefaultMaxEvent
	}
	return &Parser{max: maxEvent}
}

// Feed takes the next bytes of the stream, cut anywhere, and calls each for
// every event that they complete, and for what else may go out now. Events
// within one chunk are not copied. An error of each ends the call at once and is
// returned; the parser must not be fed again then.
func (p *Parser) Feed(chunk []byte, each func(Event) error) error {
	from, at := 0, 0 // of the pending event and of its current line, in chunk
	lf, cr := -1, -1 // the next line ends at or after at, once looked for
	if p.cr && len(chunk) > 0 {
		p.cr = false
		if chunk[0] == '\n' {
			at = 1
			if !p.Pending() { // its event is out already
				from = 1
				if err := each(Event{Raw: chunk[:1]}); err != nil {
					return err
				}
			}
		}
	}
	for at < len(chunk) {
		if lf < at {
			lf = find(chunk, at, len(chunk), '\n')
		}
		if cr < at {
			cr = find(chunk, at, lf, '\r')
		}
		end := min(lf, cr)
		if end == len(chunk) {
			p.hold(chunk[at:])
			break
		}
		line := chunk[at:end]
		at = end + 1
		if chunk[end] == '\r' {
			if at == len(chunk) {
				p.cr = true
			} else if chunk[at] == '\n' {
				at++
			}
		}
		if p.endLine(line) {
			if err := p.whole(chunk[from:at], each); err != nil {
				return err
			}
			from = at
		}
	}
	if from < len(chunk) {
		return p.partial(chunk[from:], each)
	}
	return nil
}

// End gives what the stream left incomplete as a last event, with its fields:
// some servers leave out the last empty line.
func (p *Parser) End(each func(Event) error) error {
	p.cr = false
	if !p.Pending() {
		return nil
	}
	return p.whole(nil, each)
}

// Pending says that an event has begun and not ended.
func (p *Parser) Pending() bool { return p.lost || len(p.buf) > 0 }

// Open says that pieces of an unfinished event have come out. Whoever passed
// them on and wants to write an event of its own must end the open one first,
// with an empty line.
func (p *Parser) Open() bool { return p.lost || p.sent > 0 }

// Buffered is the memory that is held, in bytes.
func (p *Parser) Buffered() int { return cap(p.buf) + cap(p.join) }

// find is the position of c in b[from:to], or to.
func find(b []byte, from, to int, c byte) int {
	if i := bytes.IndexByte(b[from:to], c); i >= 0 {
		return from + i
	}
	return to
}

// hold remembers how a line begins that the chunk does not end.
func (p *Parser) hold(line []byte) {
	p.headN += copy(p.head[p.headN:], line)
}

// endLine takes the line's end and says whether the line was empty.
func (p *Parser) endLine(line []byte) (empty bool) {
	if p.headN > 0 {
		p.hold(line)
		line = p.head[:p.headN]
		p.headN = 0
	}
	if !p.second {
		p.second = true
		line = bytes.TrimPrefix(line, bom)
	}
	if len(line) == 0 {
		return true
	}
	if line[0] != ':' {
		p.fields = true
	}
	return false
}

// whole gives the event that rest completes.
func (p *Parser) whole(rest []byte, each func(Event) error) error {
	ev := Event{Raw: rest, Begun: p.Open()}
	all := rest
	if len(p.buf) > 0 {
		p.buf = append(p.buf, rest...)
		all = p.buf
		ev.Raw = all[p.sent:]
	}
	size := len(all)
	if bytes.HasSuffix(all, []byte("\r\n")) {
		size-- // what an event's size is must not depend on a cut before its last byte
	}
	if p.lost || size > p.max {
		ev.Cut, ev.Lost = true, true
	} else {
		if !p.moved {
			all = bytes.TrimPrefix(all, bom)
		}
		p.read(all, &ev)
	}
	err := each(ev)
	p.reset()
	return err
}

// partial keeps what the chunk began, and gives what need not wait.
func (p *Parser) partial(part []byte, each func(Event) error) error {
	begun := p.Open()
	if p.lost {
		return each(Event{Raw: part, Cut: true, Begun: true})
	}
	if size := len(p.buf) + len(part); size > p.max {
		held := p.buf[p.sent:]
		p.lost, p.buf, p.sent = true, nil, 0
		if len(held) > 0 {
			if err := each(Event{Raw: held, Cut: true, Begun: begun}); err != nil {
				return err
			}
			begun = true
		}
		return each(Event{Raw: part, Cut: true, Begun: begun})
	}
	p.buf = append(p.buf, part...)
	switch {
	case len(p.buf) > early:
		ev := Event{Raw: p.buf[p.sent:], Cut: true, Begun: begun}
		p.sent = len(p.buf)
		return each(ev)
	case !p.fields && p.headN == 0:
		// Comments alone, each whole: a keep-alive must not wait for the next event.
		return p.whole(nil, each)
	}
	return nil
}

// reset makes ready for the next event.
func (p *Parser) reset() {
	p.buf, p.sent = p.buf[:0], 0
	if cap(p.buf) > keep {
		p.buf = nil
	}
	if cap(p.join) > keep {
		p.join = nil
	}
	p.moved, p.fields, p.lost = true, false, false
}

// read fills in an event's fields.
func (p *Parser) read(all []byte, ev *Event) {
	p.join = p.join[:0]
	lines := 0 // of data
	lf, cr := -1, -1
	for at := 0; at < len(all); {
		if lf < at {
			lf = find(all, at, len(all), '\n')
		}
		if cr < at {
			cr = find(all, at, lf, '\r')
		}
		end := min(lf, cr)
		name, value, _ := bytes.Cut(all[at:end], []byte{':'})
		at = end + 1
		// A newline after a carriage return reads as one more empty line here, which
		// has no name.
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
		switch string(name) {
		case "event":
			ev.Name = value
		case "data":
			if lines == 1 {
				p.join = append(p.join, ev.Data...)
			}
			if lines > 0 {
				p.join = append(append(p.join, '\n'), value...)
			}
			lines++
			if lines == 1 {
				ev.Data = value
			}
		}
	}
	ev.HasData = lines > 0
	if lines > 1 {
		ev.Data = p.join
	}
}
