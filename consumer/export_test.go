package consumer

import "time"

// SetRevokeTimeout sets how long a revocation waits for calls in flight. It must be called before
// Run.
func (w *Worker) SetRevokeTimeout(d time.Duration) { w.assignment.revokeTimeout = d }

// SetLeaveTimeout sets the time limit of the last commit and of leaving the group.
func (w *Worker) SetLeaveTimeout(d time.Duration) { w.leaveTimeout = d }
