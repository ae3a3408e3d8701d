package app

import (
	"context"
	"net/http"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/retention"
)

// newMaintenance returns the Maintenance that deletes old rows. Every scheduler runs it, even a
// scheduler that works for only one source.
func newMaintenance(p parts) *retention.Maintenance {
	return retention.NewMaintenance(p.config.Retention, retention.MaintenanceDeps{
		Store: p.store, Poller: poll.New(retention.Channel, p.rdb, p.log, retention.PollFails), Now: time.Now, Log: p.log, Metrics: p.reg,
	})
}

// newMaintenanceAdmin returns the handler of /admin/v1/maintenance and the paths below it.
func newMaintenanceAdmin(p parts) http.Handler {
	return retention.Admin{
		Config: p.config.Retention, Store: p.store, Actor: actor, Now: time.Now, Log: p.log,
		Wake: func(ctx context.Context) { poll.WakeAt(ctx, p.rdb, retention.Channel, time.Now(), p.log) },
	}.Handler()
}

// withMaintenance adds the handler that lets an external scheduler, such as cron, start maintenance
// tasks with a secret. paid is nil if refreshes cost no credits.
func withMaintenance(d query.Deps, p parts, guard *access.Guard, paid *credits.Service) query.Deps {
	tasks := http.NewServeMux()
	tasks.Handle("/", newMaintenanceAdmin(p))
	if paid != nil {
		tasks.Handle("/admin/v1/maintenance/reap", paid.MaintenanceHandler())
	}
	d.Maintenance = guard.Cron(tasks)
	return d
}
