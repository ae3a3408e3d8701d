package app

import (
	"context"
	"encoding/json"
	"time"

	"github.com/freshet/freshet/store"
)

// auditStore stores audit entries.
type auditStore interface {
	WriteAudit(ctx context.Context, entry store.AuditEntry) error
}

// writeAudit stores the audit entry of an action that this process has performed for an operator.
func writeAudit(ctx context.Context, db auditStore, action, source string, after any) error {
	encoded, err := json.Marshal(after)
	if err != nil {
		return err
	}
	return db.WriteAudit(ctx, store.AuditEntry{At: time.Now(), Actor: workerName(), Action: action, Source: source, Before: json.RawMessage("{}"), After: encoded})
}
