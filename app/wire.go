package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	"github.com/freshet/freshet/renewal"
	"github.com/freshet/freshet/retention"
	"github.com/freshet/freshet/retries"
	"github.com/freshet/freshet/scheduler"
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
