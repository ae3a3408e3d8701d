package consumer

import "time"

// SetRevokeTimeout sets how long a revocation waits for calls in flight. It must be called before
// Run.
func (w *Worker) SetRevokeTimeout(d time.Duration) { w.group.assignment.revokeTimeout = d }

// SetLeaveTimeout sets the time limit of the last commit and of leaving the group.
func (w *Worker) SetLeaveTimeout(d time.Duration) { w.group.leaveTimeout = d }

// OpenEndpoint opens the breaker of a facet. Its next probe is due at once.
func (h *Health) OpenEndpoint(facet string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endpoints[facet] = &endpointBreaker{pause: endpointPause}
}
