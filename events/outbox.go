package events

// OutboxEntry is one entry of a shard's outbox: what one admission script call
// recorded, in the order in which it was decided.
type OutboxEntry struct {
	// ID is the entry's place in its shard's stream, as the outbox orders it.
	ID string
	// Cumulative counts the records ever appended to the shard's outbox, this
	// entry's included. Trimming up to an entry therefore tells how many records
	// have left, whatever was trimmed before.
	Cumulative int64
	// Events are the entry's records. A record that could not be decoded is
	// still here, with its raw bytes as Data and the identity that can be told,
	// so that it reaches the dead-letter topic instead of blocking its shard.
	Events []Event
}
