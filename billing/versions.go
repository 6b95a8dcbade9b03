package billing

import (
	"fmt"
	"slices"
	"time"
)

// Placement says how a new version fits among the versions of its series.
type Placement struct {
	Unchanged bool  // the version in force already charges this
	Price     Price // that version, or the new one with its end

	EndID      int64     // version that the new one ends, 0: none
	EndAt      time.Time // its new end
	WithdrawID int64     // version that the new one replaces from its beginning, 0: none
	Resume     *Price    // what follows the new version where it has an end of its own
}

// Place finds the place of a new version among the series' versions that are
// not withdrawn. A version without an end of its own holds until the next one
// begins. One with an end interrupts: what held before holds again after it.
// It is an error to reach into a later version.
func Place(versions []Price, p Price) (Placement, error) {
	versions = slices.Clone(versions)
	slices.SortFunc(versions, func(a, b Price) int { return a.From.Compare(b.From) })
	var covering, next *Price
	for i := range versions {
		if v := &versions[i]; v.holdsAt(p.From) {
			covering = v
		} else if v.From.After(p.From) && next == nil {
			next = v
		}
	}
	limited := !p.To.IsZero()
	if next != nil {
		switch {
		case !limited:
			p.To = next.From
		case p.To.After(next.From):
			return Placement{}, fmt.Errorf("%w: price %d of the same kind begins at %s, before this one would end", ErrInvalid, next.ID, next.From.UTC().Format(time.RFC3339))
		}
	}
	if covering == nil {
		return Placement{Price: p}, nil
	}
	if covering.SameTerms(p) && (!limited || covering.To.Equal(p.To)) {
		return Placement{Unchanged: true, Price: *covering}, nil
	}
	placement := Placement{Price: p}
	if covering.From.Equal(p.From) {
		placement.WithdrawID = covering.ID
	} else {
		placement.EndID, placement.EndAt = covering.ID, p.From
	}
	if limited && (covering.To.IsZero() || covering.To.After(p.To)) {
		resume := *covering
		resume.ID, resume.From = 0, p.To
		placement.Resume = &resume
	}
	return placement, nil
}
