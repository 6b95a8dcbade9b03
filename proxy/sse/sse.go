// Package sse cuts a stream of server-sent events (WHATWG HTML, 9.2) into
// events, whatever pieces it arrives in, and keeps every byte of it.
//
// It is made for passing streams on: an Event gives the bytes as they came
// beside the fields that were read from them, so that what is forwarded is what
// was received.
package sse

// Event is one event with the bytes that it came in.
type Event struct {
	// Raw is everything of it: field lines, comments, line ends and the empty line
	// that ends it. The Raws of a stream joined are the stream.
	Raw []byte
	// Name is the event field's value; Data is the data lines' values joined by
	// newlines. Both are empty for a comment or a keep-alive.
	Name []byte
	Data []byte
	// HasData tells an empty data line from none.
	HasData bool
	// Cut: the event is longer than the parser's bound. Raw is a part of it that
	// may be forwarded, and there are no fields.
	Cut bool
}
