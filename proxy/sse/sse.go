// Package sse cuts a stream of server-sent events (WHATWG HTML, 9.2) into
// events, whatever pieces it arrives in, and keeps every byte of it.
//
// It is made for passing streams on: an Event gives the bytes as they came
// beside the fields that were read from them, so that what is forwarded is what
// was received. Nothing waits for longer than its reader needs: an event goes
// out with its last byte, a comment with its line, and of an event that grows
// beyond 64 KiB the pieces go out as they come while it is still being read.
package sse

// Event is one event with the bytes that it came in, or a piece of one. Its
// slices are only valid during the call that gets it.
type Event struct {
	// Raw is everything of it that has not come out before: field lines, comments,
	// line ends and the empty line that ends it. The Raws of a stream joined are
	// the stream.
	Raw []byte
	// Name is the event field's value; Data is the data lines' values joined by
	// newlines. Both are empty for a comment or a keep-alive.
	Name []byte
	Data []byte
	// HasData tells an empty data line from none.
	HasData bool
	// Cut: Raw is a piece that may be forwarded, and there are no fields. Either
	// the event is still coming (and will have its fields when it is whole), or it
	// is Lost.
	Cut bool
	// Lost: the event that ends here was longer than the parser's bound. It went
	// by unread.
	Lost bool
	// Begun: pieces of this event came out before, so it cannot be hidden from
	// whoever got them.
	Begun bool
}
