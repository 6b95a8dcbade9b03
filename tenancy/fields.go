package tenancy

import "strings"

// Published documents are kept under field names: "tenant:<id>", "key:<id>"
// and "platform".
const (
	FieldTenant   = "tenant"
	FieldKey      = "key"
	FieldPlatform = "platform"
)

// TenantField names a tenant's document.
func TenantField(id string) string { return FieldTenant + ":" + id }

// KeyField names an API key's document.
func KeyField(id string) string { return FieldKey + ":" + id }

// SplitField returns the kind of a field and the id after the colon.
func SplitField(field string) (kind, id string) {
	kind, id, _ = strings.Cut(field, ":")
	return kind, id
}
