package postgres_test

import (
	"testing"

	"tollgate/internal/testenv"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
	"tollgate/ledger/postgres"
)

func TestSmoke(t *testing.T) {
	pool := testenv.Postgres(t)
	s := postgres.New(pool, postgres.Options{})
	ctx := t.Context()
	log := ledgerbench.Log(ledgerbench.LogOptions{Events: 5000})
	lease, err := s.Acquire(ctx, "tollgate.events.v1", 0, "me")
	if err != nil {
		t.Fatal(err)
	}
	for rs := log[0]; len(rs) > 0; rs = rs[min(1000, len(rs)):] {
		b, err := ledger.NewBatch("tollgate.events.v1", 0, rs[:min(1000, len(rs))])
		if err != nil {
			t.Fatal(err)
		}
		var c ledger.Counts
		if lease, c, err = s.Flush(ctx, lease, b); err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v %v", c, len(b.DeadLetters))
		for _, d := range b.DeadLetters {
			t.Log(d.Reason, d.Detail)
			break
		}
	}
	if n, err := s.CloseHours(ctx, log[0][0].Time.Add(3*3600e9)); err != nil {
		t.Fatal(n, err)
	}
	p, err := s.Progress(ctx)
	t.Logf("%+v %v", p, err)
	r, err := s.Check(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	v, err := s.Verify(ctx, postgres.VerifyOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", v)
	if err := v.Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
}
