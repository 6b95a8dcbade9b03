package clients

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
	"tollgate/internal/fakeprovider"
)

// charge is a reservation as the ledger has it.
type charge struct {
	state     events.State
	usage     events.Usage
	estimated bool
}

// checkMeters waits until everything of a tenant's has ended, and compares what
// the ledger says of each reservation with what the provider says it generated
// for it.
func (s *site) checkMeters(t *testing.T, tenant string) {
	t.Helper()
	var records []fakeprovider.Record
	var charges map[string]charge
	until(t, func() string {
		records = s.recordsOf(tenant)
		charges = s.charges(t, tenant)
		for _, record := range records {
			switch c, known := charges[record.Reservation]; {
			case !known:
				return fmt.Sprintf("the ledger does not know the reservation of %+v", record)
			case c.state != events.StateSettled && c.state != events.StateCancelled:
				return fmt.Sprintf("still %s: %+v", c.state, record)
			}
		}
		return ""
	})
	if len(records) == 0 {
		t.Fatal("the provider saw nothing of this tenant")
	}
	exact := 0
	seen := map[string]bool{}
	for _, record := range records {
		if seen[record.Reservation] {
			t.Errorf("two requests under one reservation: %+v", record)
		}
		seen[record.Reservation] = true
		if problem := compare(record, charges[record.Reservation]); problem != "" {
			t.Errorf("%s\n  provider: %+v\n  ledger: %+v", problem, record, charges[record.Reservation])
		}
		if record.End == fakeprovider.EndComplete {
			exact++
		}
	}
	for id, c := range charges {
		if !seen[id] && (c.usage != events.Usage{}) {
			t.Errorf("reservation %s was charged and never reached the provider: %+v", id, c)
		}
	}
	t.Logf("%d requests reached the provider, %d were answered to their end and charged to the token", len(records), exact)
}

// recordsOf are a tenant's exchanges that took a reservation.
func (s *site) recordsOf(tenant string) []fakeprovider.Record {
	var mine []fakeprovider.Record
	for _, record := range s.provider.Records() {
		counting := strings.HasSuffix(record.Path, "/count_tokens") || strings.HasSuffix(record.Path, ":countTokens")
		if record.Tenant == tenant && !counting {
			mine = append(mine, record)
		}
	}
	return mine
}

// compare says what is wrong with a charge.
func compare(record fakeprovider.Record, c charge) string {
	generated := events.Usage{
		InputTokens: record.Input, OutputTokens: record.Output, CachedInputTokens: record.Cached,
		ReasoningTokens: record.Reasoning, ToolCalls: record.ToolCalls, Images: record.Images,
		AudioMillis: record.AudioMS,
	}
	switch record.End {
	case fakeprovider.EndComplete:
		if strings.HasSuffix(record.Path, "/audio/speech") { // which has no place for usage
			if c.state != events.StateSettled || !c.estimated || c.usage.InputTokens <= 0 {
				return "speech is not settled at an estimate"
			}
			return ""
		}
		if c.state != events.StateSettled || c.estimated {
			return "a complete answer is not settled exactly"
		}
		if diff := cmp.Diff(generated, c.usage); diff != "" {
			return "charged is not what was generated (- generated, + charged):\n" + diff
		}
	case fakeprovider.EndRefused:
		if c.state != events.StateCancelled || (c.usage != events.Usage{}) {
			return "an error of the provider was charged"
		}
	default: // somebody broke it off
		if c.state != events.StateCancelled {
			return "what was broken off is not cancelled"
		}
		if (c.usage != events.Usage{}) && !c.estimated && c.usage != generated {
			return "a charge that is neither the provider's nor marked as estimated"
		}
	}
	return ""
}

func (s *site) charges(t *testing.T, tenant string) map[string]charge {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), `SELECT reservation_id, state, input_tokens, output_tokens, cached_input_tokens,
		reasoning_tokens, tool_calls, images, audio_ms, estimated FROM reservations WHERE tenant_id = $1`, tenant)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := map[string]charge{}
	for rows.Next() {
		var id string
		var c charge
		u := &c.usage
		if err := rows.Scan(&id, &c.state, &u.InputTokens, &u.OutputTokens, &u.CachedInputTokens, &u.ReasoningTokens,
			&u.ToolCalls, &u.Images, &u.AudioMillis, &c.estimated); err != nil {
			t.Fatal(err)
		}
		all[id] = c
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
