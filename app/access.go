package app

import (
	"context"
	"net/http"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/entities"
	"github.com/freshet/freshet/runs/api"
)

// newGuard returns the access control and the limits of clients for a service with this listen
// address. It returns an error if other machines could reach the service without authentication,
// although the configuration does not allow that. The ClientLimiter is nil for a service on loopback
// without authentication: all its requests come from one address, so it can't distinguish clients.
func (p queryRole) newGuard(ctx context.Context, listen string) (*access.Guard, *access.ClientLimiter, error) {
	guard, err := access.New(p.config.Access, p.store, p.log, p.reg)
	if err != nil {
		return nil, nil, err
	}
	if err := guard.Load(ctx); err != nil {
		return nil, nil, err
	}
	if err := guard.SetListenAddress(listen); err != nil {
		return nil, nil, err
	}
	if !guard.AuthRequired() && access.Loopback(listen) {
		return guard, nil, nil
	}
	limiter := access.NewClientLimiter(p.config.Access.Limits, p.reg)
	if p.config.Access.Limits.Shared {
		limiter.Share(p.rdb, p.log)
	}
	return guard, limiter, nil
}

// warnPlainHTTP logs a warning if clients on other machines may send tokens unencrypted. They may do
// so if the query service listens beyond loopback and has neither TLS nor a trusted proxy that could
// terminate TLS.
func (p queryRole) warnPlainHTTP(tokens bool, listen string) {
	if tokens && !access.Loopback(listen) && !p.config.Query.TLS.enabled() && len(p.config.Access.TrustedProxies) == 0 {
		p.log.Warn("query service accepts tokens over plain HTTP beyond loopback", "listen", listen,
			"fix", "set query.tls, or access.trustedProxies if a proxy terminates TLS")
	}
}

// admin returns the handler of the admin API. The query service authenticates the client and
// checks the scope admin before it calls the handler.
func (p queryRole) admin(guard *access.Guard, entityRegistry *entities.Entities, deadLetters *dlq.Queue, paid *credits.Service, runService *api.Service) http.Handler {
	keys, entityRoutes, dlqRoutes := guard.Handler(actor), entityRegistry.Handler(), deadLetters.Handler()
	mux := http.NewServeMux()
	mux.Handle("/admin/v1/keys", keys)
	mux.Handle("/admin/v1/keys/", keys)
	mux.Handle("/admin/v1/entities", entityRoutes)
	mux.Handle("/admin/v1/entities/", entityRoutes)
	mux.Handle("/admin/v1/snapshots/", entityRoutes)
	for _, path := range []string{"/admin/v1/dlq/", "/admin/v1/dlq-jobs", "/admin/v1/dlq-jobs/"} {
		mux.Handle(path, dlqRoutes)
	}
	mux.Handle("/admin/v1/maintenance", newMaintenanceAdmin(p.parts))
	mux.Handle("/admin/v1/maintenance/", newMaintenanceAdmin(p.parts))
	if paid != nil {
		mux.Handle("/admin/v1/credits", paid.Handler())
		mux.Handle("/admin/v1/credits/", paid.Handler())
	}
	mux.Handle("/admin/v1/runs", runService.Handler())
	mux.Handle("/admin/v1/runs/", runService.Handler())
	mux.Handle("/", p.settings().Handler(p.limiterView, actor, p.log))
	return mux
}

// actor returns the name of the client, for the audit log.
func actor(r *http.Request) string {
	c, _ := access.ClientFromContext(r.Context())
	return c.Name
}
