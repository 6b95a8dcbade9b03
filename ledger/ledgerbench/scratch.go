package ledgerbench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/migrations"
)

// Scratch is a migrated database of a measurement's own, beside the one that
// its URL names.
type Scratch struct {
	URL  string
	Pool *pgxpool.Pool

	admin, name string
}

// NewScratch makes a database on the server of pgURL, whose user must be
// allowed to.
func NewScratch(ctx context.Context, pgURL string) (_ *Scratch, err error) {
	u, err := url.Parse(pgURL)
	if err != nil {
		return nil, errors.New("the database's URL is malformed") // the error repeats the URL, and a password with it
	}
	suffix := make([]byte, 6)
	_, _ = rand.Read(suffix) // never fails
	s := &Scratch{admin: pgURL, name: "tollgate_bench_" + hex.EncodeToString(suffix)}
	if err := s.execute(ctx, "CREATE DATABASE "+s.name+" TEMPLATE template0"); err != nil {
		return nil, fmt.Errorf("create a database for the measurement: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	u.Path = "/" + s.name
	s.URL = u.String()
	if err := migrations.Up(ctx, s.URL); err != nil {
		return nil, err
	}
	s.Pool, err = pgxpool.New(ctx, s.URL)
	return s, err
}

// Close drops the database.
func (s *Scratch) Close() error {
	if s.Pool != nil {
		s.Pool.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return s.execute(ctx, "DROP DATABASE IF EXISTS "+s.name+" WITH (FORCE)")
}

func (s *Scratch) execute(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.admin)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}
