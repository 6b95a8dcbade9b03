package events

import (
	"errors"
	"fmt"
	"sort"
)

// ErrRefused marks an event that the log will not take, whatever the retries:
// it is malformed or too large. Its place is the dead-letter topic.
var ErrRefused = errors.New("event is refused by the log")

// PublishError tells which of the events of one publish are not known to be in
// the log. All others were acknowledged. An event that failed with an error
// that wraps ErrRefused will fail again; the others may be in the log or not,
// and should be published again with the same id.
type PublishError struct {
	Failed map[int]error // by index in the published slice
}

// Error implements error.
func (e *PublishError) Error() string {
	indexes := make([]int, 0, len(e.Failed))
	for i := range e.Failed {
		indexes = append(indexes, i)
	}
	if len(indexes) == 0 {
		return "publish: no event failed"
	}
	sort.Ints(indexes)
	return fmt.Sprintf("%d events were not published, the first (index %d): %v", len(indexes), indexes[0], e.Failed[indexes[0]])
}

// Unwrap returns the distinct causes, so that errors.Is finds them.
func (e *PublishError) Unwrap() []error {
	seen := map[error]bool{}
	var causes []error
	for _, err := range e.Failed {
		if !seen[err] {
			seen[err] = true
			causes = append(causes, err)
		}
	}
	return causes
}
