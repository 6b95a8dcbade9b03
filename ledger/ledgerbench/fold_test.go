package ledgerbench_test

import (
	"os"
	"strconv"
	"testing"

	"tollgate/internal/testenv"
	"tollgate/ledger/ledgerbench"
)

// size is how many events a benchmark uses; TOLLGATE_BENCH_EVENTS overrides it.
func size(b *testing.B, usual int) int {
	if v := os.Getenv("TOLLGATE_BENCH_EVENTS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	return usual
}

func BenchmarkFold(b *testing.B) {
	url := testenv.PostgresURL(b)
	for b.Loop() {
		fold, raw, err := ledgerbench.FoldRate(b.Context(), url, size(b, 200_000))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(fold, "events/s")
		b.ReportMetric(raw, "raw-events/s")
		b.ReportMetric(fold/raw, "ratio")
	}
}

func BenchmarkReplay(b *testing.B) {
	url := testenv.PostgresURL(b)
	for b.Loop() {
		rates, err := ledgerbench.ReplayRate(b.Context(), url, size(b, 400_000))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(rates.Replay, "replay-events/s")
		b.ReportMetric(rates.Verify, "verify-events/s")
		b.ReportMetric(rates.Both, "events/s")
	}
}

// A measurement fails where not every event arrives, or what was replayed does
// not verify. The log is longer than a batch of each partition.
func TestMeasurementsCheckWhatTheyMeasure(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	rates, err := ledgerbench.ReplayRate(t.Context(), url, 40_000)
	if err != nil || rates.Both <= 0 || rates.Both >= rates.Replay || rates.Both >= rates.Verify {
		t.Errorf("replay: %+v, %v", rates, err)
	}
	fold, raw, err := ledgerbench.FoldRate(t.Context(), url, 4_000)
	if err != nil || fold <= 0 || raw <= 0 {
		t.Errorf("fold: %v of %v, %v", fold, raw, err)
	}
}
