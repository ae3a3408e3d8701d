package consumer

import "time"

// SetRevokeTimeout sets how long a revocation waits for what was sent, before Run.
func (w *Worker) SetRevokeTimeout(d time.Duration) { w.assignment.revokeTimeout = d }

// SetLeaveTimeout sets for how long a stop commits and says good-bye, before Run.
func (w *Worker) SetLeaveTimeout(d time.Duration) { w.leaveTimeout = d }
