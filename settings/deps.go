package settings

import (
	"context"

	"github.com/freshet/freshet/store"
)

// Store is where settings and counts outlive every process.
type Store interface {
	// Setting returns what was changed of a source; Revision is 0 if nothing ever
	// was. Every limiter asks about once a second.
	Setting(ctx context.Context, source string) (store.Setting, error)
	// ChangeSetting writes a setting and its entry of the audit, both or neither;
	// store.ErrConflict if the revision before it is not the stored one.
	ChangeSetting(ctx context.Context, s store.Setting, entry store.AuditEntry) error
	// Audit returns the newest entries, the newest first, limit of them at most.
	Audit(ctx context.Context, limit int) ([]store.AuditEntry, error)
	// Used returns the newest count of a policy's calls, or zero.
	Used(ctx context.Context, source, policy string) (store.Usage, error)
	// SetUsed writes a count, unless it is of an earlier day, or a lower one of
	// the same day.
	SetUsed(ctx context.Context, source, policy string, u store.Usage) error
}
