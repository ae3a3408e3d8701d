package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/entities"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/outbox"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/retention"
	"github.com/freshet/freshet/retries"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/topics"
)

// parts are what the roles are wired from: the services, real or embedded.
type parts struct {
	config Config
	store  interface {
		query.Store
		consumer.Store
		settings.Store
		retries.Store
		outbox.Store
		scheduler.Store
		retention.Store
		access.KeyStore
		entities.Store
		dlq.Store
		backlogs
		Ping(ctx context.Context) error
	}
	rdb      redis.UniversalClient
	kafka    []kgo.Opt
	log      *slog.Logger
	levels   *logLevel
	trace    observe.Tracer
	registry *prometheus.Registry
	reg      prometheus.Registerer // registers there, under the namespace
	// secret returns the credential that is found there.
	secret func(secretRef) (string, error)

	// The door to the topics and the look at them, which all roles share; run sets
	// and runs them.
	client   *kgo.Client
	producer *producer.Producer
	lag      *topics.Sampler

	weather console.FaultScenarios // of dev's simulated upstream; nil: there is none

	opsListener net.Listener // where the query service tells of its health besides; may be nil
}

// role is what a process does with the parts, until ctx ends.
type role func(ctx context.Context, p parts) error

// run runs roles until ctx ends, and until the last of them has stopped what they
// all lean on.
func (p parts) run(ctx context.Context, roles ...role) error {
	var err error
	p.client, err = kgo.NewClient(append(append(producer.ClientOptions(producer.DefaultMaxBuffered), p.kafkaClient("producer")...), p.trace.Kafka()...)...)
	if err != nil {
		return fmt.Errorf("make the producer's client: %w", err)
	}
	defer p.client.Close()
	p.producer = producer.New(p.rdb, p.client, producer.DefaultMaxBuffered, p.log, p.reg, p.trace)
	p.lag = topics.NewSampler(kadm.NewClient(p.client), slices.Sorted(maps.Keys(p.config.Sources)), p.log, p.reg)
	behind := newGroup(context.WithoutCancel(ctx))
	behind.run(p.producer.Run)
	behind.run(p.lag.Run)
	front := newGroup(withEither(ctx, behind.ctx))
	for _, role := range roles {
		front.run(func(ctx context.Context) error { return role(ctx, p) })
	}
	<-front.ctx.Done()
	return errors.Join(front.stop(), behind.stop())
}

func (p parts) noSource(name string) error {
	return usageError{fmt.Errorf("there is no source %q; the configuration has %s", name,
		strings.Join(slices.Sorted(maps.Keys(p.config.Sources)), ", "))}
}

// sources builds the named sources, or all.
func (p parts) sources(names ...string) (map[string]*source.Source, error) {
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(p.config.Sources))
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

// settings returns the settings of all sources that can change while freshet runs.
func (p parts) settings() *settings.Settings {
	sources := map[string]settings.Source{}
	for name, s := range p.config.Sources {
		sources[name] = settings.Source{Quota: s.quota(), Prefetch: s.prefetch}
	}
	return settings.New(p.store, sources)
}

// serving serves reads on the listener until ctx ends. It stops before what it
// leans on: no further requests, then what was promised to Kafka.
func serving(l net.Listener) role {
	return func(ctx context.Context, p parts) error { return p.serve(ctx, l) }
}

func (p parts) serve(ctx context.Context, l net.Listener) error {
	p.secret = noSecret // the query service calls no upstream
	sources, err := p.sources()
	if err != nil {
		return err
	}
	known := map[string]query.Source{}
	for name, s := range sources {
		known[name] = readable{s, slices.ContainsFunc(p.config.Sources[name].Credentials, func(c source.Credential) bool { return c.Visibility != "" })}
	}
	prefetched, err := p.entities(sources)
	if err != nil {
		return err
	}
	guard, meters, err := p.newGuard(ctx, l.Addr().String())
	if err != nil {
		return err
	}
	p.warnPlainHTTP(guard.AuthRequired(), l.Addr().String())
	if err := p.checkMigrations(ctx); err != nil {
		return err
	}
	dead := p.letters(sources)
	var server *query.Server
	h := &health{checks: map[string]healthCheck{
		readsCheckName: {required: true, run: func(ctx context.Context) error { return server.Ready(ctx, p.store.Ping) }},
		"database":     {run: p.store.Ping},
		"redis":        {run: func(ctx context.Context) error { return p.rdb.Ping(ctx).Err() }},
		"kafka":        {run: p.client.Ping},
	}}
	ops := p.newOpsHandler(h)
	ask := func(ctx context.Context, client string, all []schemas.Entity, f source.Facet) []query.EnqueueResult {
		return server.Refresh(ctx, client, all, f)
	}
	var bounds *liveBounds
	if meters != nil {
		if bounds, err = newLiveBounds(p.config, p.settings(), p.log); err != nil {
			return err
		}
	}
	pages, beside := p.console(sources, guard, meters, h, dead, ask)
	waiting := newWaits(p.lag, slices.Sorted(maps.Keys(p.config.Sources)), p.opening, p.log)
	server, err = query.New(query.Config{
		Memory: int64(p.config.Query.CacheMemory), ResponseMemory: p.config.Query.maxResponseMemory(), Origins: p.config.Access.AllowedOrigins, Proxies: p.config.Access.TrustedProxies,
	}, query.Deps{
		Store: p.store, Sources: known, Enqueuer: highEnqueuer{p.producer, bounds}, SettleSubscriber: settles{p}, WaitEstimator: waiting, Authenticator: guard, ClientLimiter: meters, ReadRecorder: readers{prefetched},
		Ops: ops, Admin: p.admin(guard, prefetched, dead), Console: pages, Log: p.log, Metrics: p.reg, Trace: p.trace,
	})
	if err != nil {
		return err
	}
	p.log.Info("query service is up", "listen", l.Addr().String(), "ops", p.opsAddress(), "access", guard.AuthRequired())
	behind := newGroup(context.WithoutCancel(ctx))
	behind.run(guard.Run)
	behind.run(server.Run)
	behind.run(waiting.Run)
	behind.run(beside)
	if bounds != nil {
		behind.run(bounds.Run)
	}
	front := newGroup(withEither(ctx, behind.ctx))
	front.run(func(ctx context.Context) error { return server.Serve(ctx, l) })
	front.run(dead.Run)
	if p.opsListener != nil {
		front.run(func(ctx context.Context) error {
			return serveOps(ctx, p.opsListener, p.config.Ops.TLS.requireClientCert(ops), p.log)
		})
	}
	<-front.ctx.Done()
	return errors.Join(front.stop(), behind.stop())
}

// readable is a source as the query service knows it.
type readable struct {
	*source.Source
	limits bool // it has a credential of limited visibility
}

// Visibility returns who may see what would be fetched for a key now. A source that limits
// nothing need not look for the credentials of each key that is read.
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

// settles lets the query service hear of settled requests.
type settles struct{ parts }

// Subscribe tells of them until ctx ends.
func (s settles) Subscribe(ctx context.Context, heard func(schemas.Settled), line func(up bool)) error {
	return producer.SubscribeSettled(ctx, s.rdb, slices.Collect(maps.Keys(s.config.Sources)), heard, line)
}

// highEnqueuer lets the query service ask the producer. Without bounds no client is told apart.
type highEnqueuer struct {
	*producer.Producer
	bounds *liveBounds
}

// Enqueue asks for refreshes in the HIGH lane: a person waits.
func (w highEnqueuer) Enqueue(ctx context.Context, all []query.UpdateRequest) []query.EnqueueResult {
	return w.answers(all, func(asked []producer.Request) []producer.Result { return w.EnqueueAll(ctx, asked) })
}

// EnqueueAndWait enqueues refreshes that must not be lost in the HIGH lane.
func (w highEnqueuer) EnqueueAndWait(ctx context.Context, all []query.UpdateRequest) []query.EnqueueResult {
	return w.answers(all, func(asked []producer.Request) []producer.Result { return w.EnqueueAllAndWait(ctx, asked) })
}

func (w highEnqueuer) answers(all []query.UpdateRequest, request func([]producer.Request) []producer.Result) []query.EnqueueResult {
	asked := make([]producer.Request, len(all))
	for i, wish := range all {
		asked[i] = w.wanted(wish)
	}
	answers := make([]query.EnqueueResult, len(all))
	for i, r := range request(asked) {
		answers[i] = told(r)
	}
	return answers
}

func (w highEnqueuer) wanted(wish query.UpdateRequest) producer.Request {
	out := producer.Request{
		Entity: wish.Entity, Lane: schemas.High, Reason: wish.Reason, Floor: wish.Floor, Cooldown: wish.Cooldown,
		CorrelationID: wish.CorrelationID, TraceParent: wish.TraceParent, New: wish.New,
	}
	if w.bounds != nil {
		out.Client, out.Bound = wish.Client, w.bounds.of(wish.Entity)
	}
	return out
}

func told(r producer.Result) query.EnqueueResult {
	a := query.EnqueueResult{Queued: r.Queued(), Pending: r.Outcome == producer.Pending, Number: r.Number, Until: r.Until}
	switch {
	case errors.Is(r.Err, producer.ErrBufferFull) || errors.Is(r.Err, producer.ErrStopped):
		a.Reason = query.ReasonBusy
	case r.Err != nil:
		a.Reason = query.ReasonDown
	case r.Outcome == producer.Held:
		a.Reason = "HELD_" + r.HoldReason
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

// group runs parts side by side; the first error ends all of them.
type group struct {
	ctx    context.Context //nolint:containedctx // it is the group's own
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
			return // it was stopped as it started
		}
		if err != nil {
			g.mu.Lock()
			g.errs = append(g.errs, err)
			g.mu.Unlock()
			g.cancel(err)
		}
	})
}

// stop ends the parts, waits for them and returns their errors.
func (g *group) stop() error {
	g.cancel(nil)
	g.wg.Wait()
	return errors.Join(g.errs...)
}

// withEither returns a context that ends when one of the two does.
func withEither(a, b context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(a)
	context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx
}
