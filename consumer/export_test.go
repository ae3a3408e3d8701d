package consumer

import "time"

// SetPatience sets how long a revocation waits for what was sent, before Run.
func (w *Worker) SetPatience(d time.Duration) { w.assignment.patience = d }

// SetLeave sets for how long a stop commits and says good-bye, before Run.
func (w *Worker) SetLeave(d time.Duration) { w.leave = d }
