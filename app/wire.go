package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/entities"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/outbox"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/renewal"
	"github.com/freshet/freshet/retention"
	"github.com/freshet/freshet/retries"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/status/find"
	"github.com/freshet/freshet/topics"
	"github.com/freshet/freshet/webhooks"
)

// parts holds the components from which the roles are wired, on real or embedded services.
type parts struct {
	config Config
	store  interface {
		snapshotStore
		consumer.Store
		settings.Store
		dayCountStore
		retries.Store
		outbox.Store
		scheduler.Store
		retention.Store
		access.KeyStore
		credits.Store
		entities.Store
		dlq.Store
		status.Backlogs
		find.Walker
		find.Lookup
		console.DLQIndex
		renewal.Store
		renewal.Editor
		webhooks.Store
		Ping(ctx context.Context) error
	}
	rdb   redis.UniversalClient
	kafka []kgo.Opt
	dial  Dialer // opens the connections to the upstreams; nil: they are TCP connections
	log   *slog.Logger
	name  string // name of the process in dead letters, the limiter's reports, audit and console; empty: workerName
	// startAttrs are attributes of the log line that a role writes when it has started.
	startAttrs []any
	trace      observe.Tracer
	registry   *prometheus.Registry
	reg        *status.Metrics // registers metrics in `registry`, and adds the namespace as a prefix to their names
	// secret reads the secret of a credential.
	secret func(secretRef) (string, error)
	// simulated is true if the calls go to another address than the configured upstreams. Tokens are
	// then not requested.
	simulated bool
	unused    bool // no source was ever called, because Redis and the database are new
	kafkaParts

	faultScenarios console.FaultScenarios // fault scenarios of dev's simulated upstream; nil: no upstream is simulated

	role      string      // role in the log, such as worker
	lastError *lastError  // keeps the last log line of level WARN or ERROR; nil: no line is kept
	workers   *ownWorkers // the workers of this process; run creates the list

	opsListener net.Listener // the query service's listener of health and metrics; may be nil
}

// kafkaParts are the parts of a process that all its roles share for Kafka. run creates and runs them.
type kafkaParts struct {
	client   *kgo.Client
	producer *producer.Producer
	lag      *topics.Sampler
}

// role is a function that runs one role of a process, such as the query service, with the parts
// until ctx ends.
type role func(ctx context.Context, p parts) error

// run runs roles until ctx ends. It stops the roles first, and then the producer and the lag
// sampler, which they use.
func (p parts) run(ctx context.Context, roles ...role) error {
	var err error
	p.workers = &ownWorkers{}
	p.client, err = kgo.NewClient(append(append(producer.ClientOptions(producer.DefaultMaxBuffered), p.kafkaClient("producer")...), p.trace.Kafka()...)...)
	if err != nil {
		return fmt.Errorf("create the producer's Kafka client: %w", err)
	}
	defer p.client.Close()
	p.producer = producer.New(p.rdb, p.client, producer.DefaultMaxBuffered, p.log, p.reg, p.trace)
	p.lag = topics.NewSampler(kadm.NewClient(p.client), p.config.sourceNames(), p.log, p.reg)
	background := newGroup(context.WithoutCancel(ctx))
	background.run(p.producer.Run)
	background.run(p.lag.Run)
	background.run(p.watchConnections)
	background.run(func(ctx context.Context) error { return shareCounts(ctx, p) })
	foreground := newGroup(withEither(ctx, background.ctx))
	for _, role := range roles {
		foreground.run(func(ctx context.Context) error { return role(ctx, p) })
	}
	<-foreground.ctx.Done()
	logStopped := p.logStopping(context.Cause(foreground.ctx))
	err = errors.Join(foreground.stop(), background.stop())
	logStopped()
	return err
}

func (p parts) noSource(name string) error {
	return UsageErrorf("unknown source %q; the configuration has %s", name,
		strings.Join(p.config.sourceNames(), ", "))
}

// sources builds the named sources, or all sources if no name is given.
func (p parts) sources(names ...string) (map[string]*source.Source, error) {
	if len(names) == 0 {
		names = p.config.sourceNames()
	}
	built := map[string]*source.Source{}
	var errs []error
	for _, name := range names {
		c, ok := p.config.Sources[name]
		if !ok {
			return nil, p.noSource(name)
		}
		secrets, err := p.secrets(c.Config)
		if err == nil {
			c.Dial = p.dial
			built[name], err = source.New(name, c.Config, secrets, c.maxConnections())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sources.%s.%w", name, err))
		}
	}
	return built, errors.Join(errs...)
}

// secrets returns a source's credentials by name.
func (p parts) secrets(c source.Config) (map[string]string, error) {
	found := map[string]string{}
	for _, at := range secretRefs(c) {
		secret, err := p.secret(at)
		if err != nil {
			return nil, err
		}
		found[at.name] = secret
	}
	return found, nil
}

// settings returns the run-time settings of all sources.
func (p parts) settings() *settings.Settings {
	sources := map[string]settings.Source{}
	for name, s := range p.config.Sources {
		sources[name] = settings.Source{Quota: s.quota(), Prefetch: s.prefetch}
	}
	return settings.New(p.store, sources)
}

// serving returns the query role on a listener. At shutdown the role first stops accepting requests,
// and parts.run then flushes the producer.
func serving(l net.Listener) role {
	return func(ctx context.Context, p parts) error { return p.serve(ctx, l) }
}

func (p parts) serve(ctx context.Context, l net.Listener) error {
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
	h := newQueryHealth(p, guard, func(ctx context.Context) error { return server.Ready(ctx, p.store.Ping) })
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
	paid, runService, limiters := newCredits(p), newRuns(p, sources), newLimiterStates(p)
	received, err := newHooks(p, sources)
	if err != nil {
		return err
	}
	pages, runConsole := p.console(sources, guard, clientLimiter, h, deadLetters, refresh, limiters)
	waitEstimator := newWaits(p.lag, callsPerRecord(p.config.Sources), limiters.estimate, p.log)
	h.sources = waitEstimator.sourcesHealth
	server, err = query.New(query.Config{
		Memory: int64(p.config.Query.CacheMemory), ResponseMemory: p.config.Query.maxResponseMemory(), Origins: p.config.Access.AllowedOrigins, Proxies: p.config.Access.TrustedProxies,
	}, withHooks(withCredits(withMaintenance(withRuns(query.Deps{
		Store: newQueryStore(p), Sources: known, Enqueuer: highEnqueuer{p.producer, bounds, waitEstimator}, IdempotencyKeys: producer.NewIdempotencyKeys(p.rdb), SettleSubscriber: settles{p, paid, received}, WaitEstimator: waitEstimator, Authenticator: guard, ClientLimiter: clientLimiter, ReadRecorder: readers{entityRegistry},
		Ops: ops, Admin: p.admin(guard, entityRegistry, deadLetters, paid, runService), Console: pages, Log: p.log, Metrics: p.reg, Trace: p.trace,
	}, runService), p, guard, paid), paid), received))
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

// group runs functions concurrently. The first error cancels all of them.
type group struct {
	ctx    context.Context //nolint:containedctx // the context that the group cancels
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

func newGroup(ctx context.Context) *group {
	ctx, cancel := context.WithCancelCause(ctx)
	return &group{ctx: ctx, cancel: cancel}
}

func (g *group) run(part func(context.Context) error) {
	g.wg.Go(func() {
		err := part(g.ctx)
		if g.ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return // the function ended because the group was stopped, which is not an error
		}
		if err != nil {
			g.mu.Lock()
			g.errs = append(g.errs, err)
			g.mu.Unlock()
			g.cancel(err)
		}
	})
}

// stop cancels the functions, waits until they return, and returns their errors.
func (g *group) stop() error {
	g.cancel(nil)
	g.wg.Wait()
	return errors.Join(g.errs...)
}

// withEither returns a child of the context a, which also ends when the context b ends.
func withEither(a, b context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(a)
	context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx
}
