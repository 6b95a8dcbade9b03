package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"tollgate/admission"
	"tollgate/events/kafka"
	"tollgate/internal/app"
	"tollgate/internal/config"
	ledgerpg "tollgate/ledger/postgres"
	"tollgate/proxy/route"
	"tollgate/reconcile"
	"tollgate/tenancy"
)

// knownErrors maps the errors that parts return to exit statuses. Commands
// that know better wrap theirs with withStatus.
var knownErrors = []struct {
	err    error
	status int
}{
	{tenancy.ErrNotFound, ExitUsage},
	{tenancy.ErrInvalid, ExitUsage},
	{tenancy.ErrAlreadyThere, ExitConflict},
	{tenancy.ErrConflict, ExitConflict},
	{tenancy.ErrKeyRevoked, ExitConflict},
	{reconcile.ErrFrozen, ExitConflict},
	{reconcile.ErrNotFrozen, ExitConflict},
	{reconcile.ErrNotLeader, ExitConflict},
	{reconcile.ErrReasonMissing, ExitUsage},
	{admission.ErrUnavailable, ExitUnavailable},
	{admission.ErrNotRebuilt, ExitUnavailable},
	{os.ErrNotExist, ExitUsage},
	{os.ErrPermission, ExitUsage},
	{context.DeadlineExceeded, ExitUnavailable},
	{app.ErrNoDatabase, ExitUsage},
	{ledgerpg.ErrNotEmpty, ExitConflict},
}

// serviceStatus is the exit status of an error that a service or the network
// gave: out of reach (dialling fails, or PostgreSQL says that it is starting,
// stopping or full), or not set up as the configuration says.
func serviceStatus(err error) int {
	var op *net.OpError
	var dns *net.DNSError
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	var partitions *kafka.PartitionMismatchError
	var upstreams *route.InvalidError
	switch {
	case errors.As(err, &pg):
		return postgresStatus(pg.Code)
	case errors.As(err, &op) && op.Op == "listen", errors.As(err, &partitions), errors.As(err, &upstreams), app.IsTopicMissing(err):
		return ExitUsage
	case errors.As(err, &op), errors.As(err, &dns), errors.As(err, &connect):
		return ExitUnavailable
	}
	return ExitFailed
}

// postgresStatus reads an SQLSTATE.
func postgresStatus(code string) int {
	switch {
	case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "53"), strings.HasPrefix(code, "57P"):
		return ExitUnavailable
	case strings.HasPrefix(code, "28"), code == noSuchDatabase, code == noSuchTable, code == noSuchColumn:
		return ExitUsage
	}
	return ExitFailed
}

// SQLSTATEs that say that the database is not the one that was meant.
const (
	noSuchDatabase = "3D000"
	noSuchTable    = "42P01"
	noSuchColumn   = "42703"
)

// hint says what to do about an error whose own text does not; "" for none.
func hint(err error) string {
	var op *net.OpError
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && (pg.Code == noSuchTable || pg.Code == noSuchColumn):
		return "the database has not all tables of this version: run \"tollgate migrate\""
	case errors.As(err, &pg) && (pg.Code == noSuchDatabase || strings.HasPrefix(pg.Code, "28")):
		return "see postgres.url, or TOLLGATE_POSTGRES_URL"
	case app.IsTopicMissing(err):
		return "the topic is not there: run \"tollgate migrate\", and see kafka.topic_prefix"
	case errors.As(err, &op) && op.Op == "listen":
		return "another program has this address: see listen and admin_listen"
	case exitStatus(err) == ExitUnavailable:
		return "is the service up, and its address right? \"tollgate config print\" shows what is in force"
	}
	return ""
}

// asInvalid finds the list of a configuration's mistakes.
func asInvalid(err error) (*config.InvalidError, bool) {
	var invalid *config.InvalidError
	ok := errors.As(err, &invalid)
	return invalid, ok
}
