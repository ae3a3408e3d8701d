package app

import (
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/query"
)

// newCredits returns the service of credits. It is nil if the configuration has no plans: refreshes
// cost nothing then.
func newCredits(p parts) *credits.Service {
	if !p.config.Credits.Enabled() {
		return nil
	}
	return credits.New(p.config.Credits, credits.Deps{Store: p.store, Snapshots: p.store, Actor: actor, Now: time.Now, Log: p.log, Metrics: p.reg})
}

// withCredits adds the service of credits to the dependencies of the query service. It may be nil.
func withCredits(d query.Deps, guard *access.Guard, paid *credits.Service) query.Deps {
	if paid != nil {
		d.Credits, d.Maintenance = paid, guard.Cron(paid.MaintenanceHandler())
	}
	return d
}
