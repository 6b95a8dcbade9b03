package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"tollgate/admission"
	"tollgate/internal/config"
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
}

// unavailable says whether an error means that a service cannot be reached:
// dialling fails, or PostgreSQL says that it is starting, stopping or full
// (SQLSTATE classes 08, 53 and 57P).
func unavailable(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53") || strings.HasPrefix(pg.Code, "57P")
	case errors.As(err, &op), errors.As(err, &dns), errors.As(err, &connect):
		return true
	}
	return false
}

// asInvalid finds the list of a configuration's mistakes.
func asInvalid(err error) (*config.InvalidError, bool) {
	var invalid *config.InvalidError
	ok := errors.As(err, &invalid)
	return invalid, ok
}
