package settings

import (
	"context"

	"github.com/freshet/freshet/store"
)

// Store persists settings, the audit log and counts of calls.
type Store interface {
	// Setting returns the stored override of a source, with Revision 0 if there is none. Every
	// limiter and scheduler calls it about once a second.
	Setting(ctx context.Context, source string) (store.Setting, error)
	// ChangeSetting writes a setting and its audit entry in one transaction. It returns
	// store.ErrConflict if the stored revision is not s.Revision-1.
	ChangeSetting(ctx context.Context, s store.Setting, entry store.AuditEntry) error
	// Audit returns the newest audit entries, newest first, at most `limit`.
	Audit(ctx context.Context, limit int) ([]store.AuditEntry, error)
}
