package app

import (
	"context"
	"errors"
	"net"
	"slices"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// serving returns the query role on a listener. At shutdown the role first stops accepting requests,
// and parts.run then flushes the producer.
func serving(l net.Listener) role {
	return func(ctx context.Context, p parts) error { return queryRole{p}.serve(ctx, l) }
}

// queryRole joins the parts of the query service.
type queryRole struct{ parts }

func (p queryRole) serve(ctx context.Context, l net.Listener) error {
	p.secret = noSecret // the query service needs no credentials, because it sends no upstream calls
	sources, err := p.sources()
	if err != nil {
		return err
	}
	known := map[string]query.Source{}
	for name, s := range sources {
		known[name] = readable{s, slices.ContainsFunc(p.config.Sources[name].Credentials, func(c source.Credential) bool { return c.Visibility != "" })}
	}
	entityRegistry, err := p.entities(sources)
	if err != nil {
		return err
	}
	guard, clientLimiter, err := p.newGuard(ctx, l.Addr().String())
	if err != nil {
		return err
	}
	p.warnPlainHTTP(guard.AuthRequired(), l.Addr().String())
	if err := p.checkMigrations(ctx); err != nil {
		return err
	}
	deadLetters := p.deadLetters(sources)
	var server *query.Server
	h := newQueryHealth(p.parts, guard, func(ctx context.Context) error { return server.Ready(ctx, p.store.Ping) })
	ops := p.newOpsHandler(h)
	refresh := func(ctx context.Context, client access.Client, all []schemas.Entity, f source.Facet) []query.EnqueueResult {
		return server.Refresh(ctx, client, all, f)
	}
	var bounds *liveBounds
	if clientLimiter != nil {
		if bounds, err = newLiveBounds(p.config, p.settings(), p.log); err != nil {
			return err
		}
	}
	paid, runService, limiters := newCredits(p.parts), newRuns(p.parts, sources), newLimiterStates(p.parts)
	received, err := newHooks(p.parts, sources)
	if err != nil {
		return err
	}
	pages, runConsole := p.console(sources, guard, clientLimiter, h, deadLetters, refresh, limiters)
	waitEstimator := newWaits(p.lag, callsPerRecord(p.config.Sources), limiters.estimate, p.log)
	h.sources = waitEstimator.sourcesHealth
	server, err = query.New(query.Config{
		Memory: int64(p.config.Query.CacheMemory), ResponseMemory: p.config.Query.maxResponseMemory(), Origins: p.config.Access.AllowedOrigins, Proxies: p.config.Access.TrustedProxies,
	}, withHooks(withCredits(withMaintenance(withRuns(query.Deps{
		Store: newQueryStore(p.parts), Sources: known, Enqueuer: highEnqueuer{p.producer, bounds, waitEstimator}, IdempotencyKeys: producer.NewIdempotencyKeys(p.rdb), SettleSubscriber: settles{p.parts, paid, received}, WaitEstimator: waitEstimator, Authenticator: guard, ClientLimiter: clientLimiter, ReadRecorder: readers{entityRegistry},
		Ops: ops, Admin: p.admin(guard, entityRegistry, deadLetters, paid, runService), Console: pages, Log: p.log, Metrics: p.reg, Trace: p.trace,
	}, runService), p.parts, guard, paid), paid), received))
	if err != nil {
		return err
	}
	p.log.Info("query service started", p.startedWith("", "listen", l.Addr().String(), "ops", p.opsAddress(), "access", guard.AuthRequired())...)
	background := newGroup(context.WithoutCancel(ctx))
	background.run(guard.Run)
	background.run(server.Run)
	background.run(waitEstimator.Run)
	background.run(runConsole)
	if paid != nil {
		background.run(paid.Run)
	}
	if received != nil {
		background.run(received.run)
	}
	if bounds != nil {
		background.run(bounds.Run)
	}
	foreground := newGroup(withEither(ctx, background.ctx))
	foreground.run(func(ctx context.Context) error { return server.Serve(ctx, l) })
	foreground.run(deadLetters.Run)
	if p.opsListener != nil {
		foreground.run(func(ctx context.Context) error {
			return serveOps(ctx, p.opsListener, p.config.Ops.TLS.requireClientCert(ops), p.log)
		})
	}
	<-foreground.ctx.Done()
	return errors.Join(foreground.stop(), background.stop())
}

// readable adapts a source to query.Source.
type readable struct {
	*source.Source
	limits bool // true: at least one credential of the source limits the visibility of its data
}

// Visibility returns the visibility that data of this key would have if it were fetched now. If no
// credential of the source limits the visibility, the search for the key's credentials is skipped.
func (r readable) Visibility(key string) string {
	if !r.limits {
		return ""
	}
	return r.Source.Visibility(key)
}

func (p parts) opsAddress() string {
	if p.opsListener == nil {
		return ""
	}
	return p.opsListener.Addr().String()
}

// highEnqueuer adapts the producer to query.Enqueuer, for the HIGH lane. If the field bounds is nil, the
// producer does not limit clients. The field waits gets the number of published records.
type highEnqueuer struct {
	*producer.Producer
	bounds *liveBounds
	waits  *waits
}

// Enqueue enqueues update requests without waiting for Kafka's acknowledgement.
func (e highEnqueuer) Enqueue(ctx context.Context, all []query.UpdateRequest) []query.EnqueueResult {
	return e.enqueueAll(all, func(requests []producer.Request) []producer.Result { return e.EnqueueAll(ctx, requests) })
}

// EnqueueAndWait enqueues update requests and waits for Kafka's acknowledgement.
func (e highEnqueuer) EnqueueAndWait(ctx context.Context, all []query.UpdateRequest) []query.EnqueueResult {
	return e.enqueueAll(all, func(requests []producer.Request) []producer.Result { return e.EnqueueAllAndWait(ctx, requests) })
}

func (e highEnqueuer) enqueueAll(all []query.UpdateRequest, enqueue func([]producer.Request) []producer.Result) []query.EnqueueResult {
	requests := make([]producer.Request, len(all))
	for i, r := range all {
		requests[i] = e.toRequest(r)
	}
	results := make([]query.EnqueueResult, len(all))
	published := map[string]int{}
	for i, r := range enqueue(requests) {
		if results[i] = toEnqueueResult(r); r.Published() {
			published[all[i].Entity.Source]++
		}
	}
	for source, n := range published {
		e.waits.published(source, n)
	}
	return results
}

func (e highEnqueuer) toRequest(r query.UpdateRequest) producer.Request {
	out := producer.Request{
		Entity: r.Entity, Lane: schemas.High, Reason: r.Reason, Floor: r.Floor, Cooldown: r.Cooldown,
		CorrelationID: r.CorrelationID, TraceParent: r.TraceParent, New: r.New,
	}
	if e.bounds != nil {
		out.Client, out.Bound = r.Client, e.bounds.of(r.Entity)
	}
	return out
}

func toEnqueueResult(r producer.Result) query.EnqueueResult {
	a := query.EnqueueResult{Queued: r.Queued(), Pending: r.Outcome == producer.Pending, Number: r.Number, Until: r.Until}
	switch {
	case errors.Is(r.Err, producer.ErrBufferFull) || errors.Is(r.Err, producer.ErrStopped):
		a.Reason = query.ReasonBusy
	case r.Err != nil:
		a.Reason = query.ReasonDown
	case r.Outcome == producer.Held && r.HoldReason == schemas.HoldAlias: // the entity's stored retry is due as soon as its alias is fetched
		a.Queued = true
	case r.Outcome == producer.Held:
		a.Reason = query.HeldReason(r.HoldReason)
	case r.Outcome == producer.Cooling:
		a.Reason = query.ReasonCooldown
	case r.Refusal != nil:
		a.Reason, a.Refused = query.ReasonOutstanding, toAccessRefusal(*r.Refusal)
		if a.Refused.NewKeys {
			a.Reason = query.ReasonTooMany
		}
	}
	return a
}
