package credits

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// maintenanceTimeout bounds a run of the reaper for a request. It is shorter than the time in which the
// query service must have written a response.
const maintenanceTimeout = 20 * time.Second

// reapResponse and reapFailure are the responses of the maintenance endpoint. Their members have the
// names that schedulers of other systems expect.
type (
	reapResponse struct {
		Message       string   `json:"message"`
		CleanedCount  int      `json:"cleaned_count"`
		UsersAffected []string `json:"users_affected"`
	}
	reapFailure struct {
		Error   string `json:"error"`
		Message string `json:"message"`
		Details string `json:"details"`
	}
)

// MaintenanceHandler returns the handler of POST /admin/v1/maintenance/reap, which runs the reaper once.
// The caller must have authenticated the client.
func (s *Service) MaintenanceHandler() http.Handler {
	reap := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), maintenanceTimeout)
		defer cancel()
		status := http.StatusOK
		var body any
		result, err := s.Reap(ctx)
		if err != nil {
			s.log.Error("ending expired holds of credits failed", "actor", s.actor(r), "err", err)
			status, body = http.StatusInternalServerError, reapFailure{"CLEANUP_FAILED", "Failed to end expired holds", "The holds can't be read or ended now; the log of the query service has the reason."}
		} else {
			body = reapResponse{"Cleanup completed", result.Holds, append([]string{}, result.Clients...)}
			s.log.Info("expired holds of credits ended", "actor", s.actor(r), "holds", result.Holds, "clients", len(result.Clients), "skipped", len(result.Skipped))
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(body); err != nil {
			s.log.Debug("client disconnected before the response", "err", err)
		}
	})
	return http.NewCrossOriginProtection().Handler(reap)
}
