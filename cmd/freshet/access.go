package main

import (
	"context"
	"net/http"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/entities"
)

// newGuard returns who knows whom a request is from, and what bounds them, of a
// service that listens at the address. It fails if that would be open to everybody
// by mistake. Where only this machine asks, and nobody is asked who they are,
// nobody is bounded: the meters are nil.
func (p parts) newGuard(ctx context.Context, listen string) (*access.Guard, *access.ClientLimiter, error) {
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
	return guard, access.NewClientLimiter(p.config.Access.Limits, p.reg), nil
}

// warnPlainHTTP logs that tokens can be read on their way to an address, unless
// the service or a proxy in front of it speaks TLS.
func (p parts) warnPlainHTTP(tokens bool, listen string) {
	if tokens && !access.Loopback(listen) && !p.config.Query.TLS.enabled() && len(p.config.Access.TrustedProxies) == 0 {
		p.log.Warn("query service accepts tokens over plain HTTP beyond loopback", "listen", listen,
			"fix", "set query.tls, or access.trustedProxies if a proxy terminates TLS")
	}
}

// admin returns the admin API. Whoever serves it lets only those in who may
// administer, and says who they are.
func (p parts) admin(guard *access.Guard, prefetched *entities.Entities, dead *dlq.Queue) http.Handler {
	keys, all, letters := guard.Handler(actor), prefetched.Handler(), dead.Handler()
	mux := http.NewServeMux()
	mux.Handle("/admin/v1/keys", keys)
	mux.Handle("/admin/v1/keys/", keys)
	mux.Handle("/admin/v1/entities", all)
	mux.Handle("/admin/v1/entities/", all)
	mux.Handle("/admin/v1/snapshots/", all)
	for _, path := range []string{"/admin/v1/dlq/", "/admin/v1/dlq-jobs", "/admin/v1/dlq-jobs/"} {
		mux.Handle(path, letters)
	}
	mux.Handle(logLevelPath, p.levels.handler(p.log, p.store.WriteAudit))
	mux.Handle("/", p.settings().Handler(p.limiterView, actor, p.log))
	return mux
}

// actor names who asks, for the audit.
func actor(r *http.Request) string {
	c, _ := access.ClientFromContext(r.Context())
	return c.Name
}
