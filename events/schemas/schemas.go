// Package schemas embeds the JSON Schemas (2020-12) of the event payloads, one
// file a type and version, for those who read or write the log with other
// tools. The parsers of package events are stricter in what a schema cannot
// say: duplicate fields, NUL, sizes in bytes, the envelope. A golden payload
// of each type is in the golden folder, outside the binary.
package schemas

import "embed"

// Files holds "<event type>.json" for every type.
//
//go:embed *.json
var Files embed.FS
