//go:build !production

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store/sqlite"
)

// consolePath is the path of the console on the query service.
const consolePath = "/console"

// firstFacet returns the source and the facet that dev uses in its demo and its examples: the
// first source by name, and the first facet of that source by name.
func firstFacet(config Config) (name, facet string) {
	name = slices.Sorted(maps.Keys(config.Sources))[0]
	return name, slices.Sorted(maps.Keys(config.Sources[name].Facets))[0]
}

// DevOptions are the flags of `freshet dev`.
type DevOptions struct {
	Listen   string // address of the query API, on loopback
	DataDir  string // directory of snapshots and topics; empty keeps them in memory
	Upstream string // URL that replaces scheme and host of every baseURL; empty changes nothing
	Simulate bool   // call the simulator instead of the configured baseURL
	NoDemo   bool   // no demo load
	// Browser opens the URL of the console; nil opens nothing.
	Browser func(ctx context.Context, url string) error
}

// RunDev starts all roles and embedded services and runs them until ctx ends. It checks the
// settings and binds the address before it starts anything.
func (p *Process) RunDev(ctx context.Context, o DevOptions, started time.Time) (err error) {
	config, err := p.Load(builtInSources)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return UsageErrorf("--listen is %q; it must be host:port, as in 127.0.0.1:8080", o.Listen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return UsageErrorf("--listen is %s; dev listens on loopback only, as in 127.0.0.1:8080", o.Listen)
	}
	if o.Simulate && o.Upstream != "" {
		return UsageErrorf("--simulate and --upstream exclude each other; use one of them")
	}
	o.Simulate = o.Simulate || (config.builtIn && o.Upstream == "")
	if o.callsBaseURL() {
		if err := p.checkSecrets(config.Sources); err != nil {
			return err
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another address with --listen, as in --listen 127.0.0.1:0", o.Listen, unwrapOpError(err))
	}
	// The HTTP server closes the listener when the server ends. This Close is for a start that fails
	// before the server runs.
	defer func() { _ = l.Close() }()

	o.NoDemo = o.NoDemo || !o.Simulate || !config.builtIn // the demo must not use the quota of a real upstream, and the demo's keys are valid for the built-in source only
	if !o.NoDemo {
		shortenIntervals(config)
	}
	background := newGroup(context.WithoutCancel(ctx))
	defer func() { err = errors.Join(err, background.stop()) }()
	in, closeAll, err := p.startEmbedded(ctx, o, config, background)
	defer closeAll()
	if err != nil {
		return err
	}
	foreground := newGroup(withEither(ctx, background.ctx))
	foreground.run(func(ctx context.Context) error {
		return in.run(ctx, serving(l), working([]schemas.Lane{schemas.High, schemas.Low}, func() {}), scheduling(func() {}))
	})
	base := "http://" + l.Addr().String()
	if !o.NoDemo {
		d, err := newDemo(base, config, in.upstream)
		if err != nil {
			return errors.Join(err, foreground.stop())
		}
		foreground.run(d.run)
	}
	if err := waitForOK(foreground.ctx, base+"/readyz"); err != nil {
		return errors.Join(err, foreground.stop())
	}
	p.printWelcome(base, in, o, time.Since(started))
	if o.Browser != nil {
		foreground.run(func(ctx context.Context) error {
			if err := o.Browser(ctx, base+consolePath); err != nil {
				in.log.Warn("browser could not be opened; open the URL yourself", "url", base+consolePath, "err", err)
			}
			return nil
		})
	}
	<-foreground.ctx.Done()
	return foreground.stop()
}

// address is one line of the table of addresses that dev prints.
type address struct{ name, at, note string }

// embedded holds the parts of dev, which use embedded services, and the addresses that dev prints.
type embedded struct {
	parts
	upstream  *simulatedUpstream // nil: no upstream is simulated
	addresses []address
}

// startEmbedded starts the embedded Kafka, Redis, database and, if o.Simulate is set, the simulator.
// The returned function closes them and is never nil.
func (p *Process) startEmbedded(ctx context.Context, o DevOptions, config Config, background *group) (embedded, func(), error) {
	var closers []func()
	closeAll := func() {
		for _, c := range slices.Backward(closers) {
			c()
		}
	}
	config.Log.Level = max(config.Log.Level, slog.LevelInfo)
	made := embedded{parts: parts{config: config, secret: optionalSecret}}
	made.simulated = !o.callsBaseURL()
	if o.callsBaseURL() {
		made.secret = p.requireSecret
	}
	made.role, made.lastError = "dev", newLastError(p.mask)
	// This handler drops INFO lines, so that they do not hide the table of addresses that dev prints.
	made.log = slog.New(conditionsOnly{made.lastError.handler(p.logger(ctx, config.Log, "dev").Handler())})
	made.registry, made.reg = newRegistry(config.Metrics.Namespace)
	fail := func(err error) (embedded, func(), error) { return made, closeAll, err }

	tracer, flush, err := config.Tracing.newTracer(ctx, made.log)
	if err != nil {
		return fail(err)
	}
	made.trace, closers = tracer, append(closers, flush)
	names := slices.Sorted(maps.Keys(config.Sources))
	opts := []kfake.Opt{kfake.NumBrokers(1)}
	for _, name := range names {
		for _, t := range schemas.Topics(name) {
			// The topics keep all records. If kfake deleted old records, it would restart the
			// topic's offsets at 0 after a restart, and the consumer group would skip new records.
			opts = append(opts, kfake.SeedTopics(t.Partitions, t.Name))
		}
	}
	database := ""
	made.unused = true
	if o.DataDir != "" {
		if err := os.MkdirAll(o.DataDir, 0o750); err != nil {
			return fail(fmt.Errorf("--data-dir: %w", err))
		}
		database = filepath.Join(o.DataDir, "snapshots.db")
		_, err := os.Stat(database)
		made.unused = errors.Is(err, os.ErrNotExist)
		opts = append(opts, kfake.DataDir(filepath.Join(o.DataDir, "kafka")))
	}
	kafka, err := kfake.NewCluster(opts...)
	if err != nil {
		return fail(fmt.Errorf("start the embedded Kafka: %w", err))
	}
	closers = append(closers, kafka.Close)
	config.Kafka = KafkaConfig{Brokers: kafka.ListenAddrs()}
	if made.kafka, err = config.Kafka.Options(); err != nil {
		return fail(err)
	}

	rds := miniredis.NewMiniRedis()
	if err := rds.Start(); err != nil {
		return fail(fmt.Errorf("start the embedded Redis: %w", err))
	}
	closers = append(closers, rds.Close)
	background.run(func(ctx context.Context) error { return expireKeys(ctx, rds) })
	config.Redis = RedisConfig{Mode: "single", Addresses: []string{rds.Addr()}}
	if made.rdb, err = config.Redis.newClient(embeddedTimeout, nil); err != nil {
		return fail(err)
	}
	closers = append(closers, func() { _ = made.rdb.Close() })
	registerRedisMetrics(made.rdb, made.reg)

	db, err := sqlite.Open(ctx, database)
	if err != nil {
		return fail(err)
	}
	closers = append(closers, func() { _ = db.Close() })
	made.store = db

	upstreams, err := made.startUpstream(ctx, o, background)
	if err != nil {
		return fail(err)
	}
	kept := "in memory"
	if database != "" {
		kept = database
	}
	made.addresses = append(upstreams,
		address{"Kafka", kafka.ListenAddrs()[0], "embedded"},
		address{"Redis", rds.Addr(), "embedded"},
		address{"Snapshots", kept, "SQLite"},
	)
	return made, closeAll, nil
}

// startUpstream starts the simulator if the sources call it, and returns the addresses that the
// sources call.
func (e *embedded) startUpstream(ctx context.Context, o DevOptions, background *group) (all []address, err error) {
	to := o.Upstream
	if o.Simulate {
		if e.upstream, err = startSimulator(ctx, e.config.builtIn, background); err != nil {
			return nil, err
		}
		e.faultScenarios = e.upstream
		to = e.upstream.url
	}
	if to != "" {
		if err := redirectSources(e.config.Sources, to); err != nil {
			return nil, err
		}
		note := "called instead of every baseURL (--upstream)"
		if o.Simulate {
			note = "simulated, needs no credential; call counts: /_stats"
		}
		return []address{{"Upstream", to, note}}, nil
	}
	for _, name := range slices.Sorted(maps.Keys(e.config.Sources)) {
		for _, base := range baseURLsOf(e.config.Sources[name].Config) {
			all = append(all, address{"Upstream", redactValue(base.url, "baseURL"), base.setting + " of " + name + ", called within its quota (--simulate: a simulator)"})
		}
	}
	return all, nil
}

// callsBaseURL reports whether the sources call their configured baseURL.
func (o DevOptions) callsBaseURL() bool { return !o.Simulate && o.Upstream == "" }

// checkSecrets returns an error if a credential of a source is missing.
func (p *Process) checkSecrets(sources map[string]SourceConfig) error {
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		for _, at := range secretRefs(sources[name].Config) {
			if _, err := p.requireSecret(at); err != nil {
				return fmt.Errorf("sources.%s.%w, or add --simulate, which needs no credential", name, err)
			}
		}
	}
	return nil
}

// optionalSecret reads a credential. Unlike requireSecret it returns no error for a missing
// credential: calls are then sent without a credential.
func optionalSecret(at secretRef) (string, error) {
	if at.file == "" && os.Getenv(at.env) == "" {
		return "", nil
	}
	return requireSecret(at)
}

// expireKeys advances the clock of the embedded Redis until ctx ends. This Redis (miniredis) expires
// keys only when its method FastForward is called.
func expireKeys(ctx context.Context, rds *miniredis.Miniredis) error {
	poll.Every(ctx, time.Second, func(context.Context) { rds.FastForward(time.Second) })
	return nil
}

// startSimulator starts a simulated upstream. For the built-in source, the upstream has the limits of
// the real Nexon Open API. For other sources, it has no limits and responds to any path.
func startSimulator(ctx context.Context, builtIn bool, background *group) (*simulatedUpstream, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the simulated upstream: %w", err)
	}
	c := simulator.Config{Latency: healthyLatency, Seed: 1, AnyPath: !builtIn}
	if builtIn {
		c.Limits = []simulator.Limit{{Limit: 500, Window: time.Second}, {Limit: 20_000_000, Window: 24 * time.Hour}}
	}
	upstream := simulator.New(c)
	server := &http.Server{Handler: upstream, ReadHeaderTimeout: 5 * time.Second}
	background.run(func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { upstream.Close(); _ = server.Close() })
		defer stop()
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the simulated upstream: %w", err)
		}
		return nil
	})
	return &simulatedUpstream{upstream, "http://" + l.Addr().String()}, nil
}

// redirectSources replaces scheme and host in every base URL of every source, and keeps the path.
func redirectSources(sources map[string]SourceConfig, to string) error {
	target, err := url.Parse(to)
	if err != nil || target.Host == "" || (target.Scheme != "http" && target.Scheme != "https") {
		return UsageErrorf("--upstream is %q; it must be scheme://host:port", to)
	}
	for name, s := range sources {
		if err := replaceBaseURLs(&s.Config, func(base *url.URL) { base.Scheme, base.Host = target.Scheme, target.Host }); err != nil {
			return fmt.Errorf("sources.%s.%w", name, err)
		}
		if err := s.checkInsecure(); err != nil {
			return UsageErrorf("--upstream: sources.%s.%w", name, err)
		}
		sources[name] = s
	}
	return nil
}

// waitForOK polls a URL until it responds with 200, for at most 10 s.
func waitForOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if !poll.Pause(ctx, 5*time.Millisecond) {
			return fmt.Errorf("no 200 response from %s: %w", url, context.Cause(ctx))
		}
	}
}

// printWelcome prints the addresses and the commands to try.
func (p *Process) printWelcome(base string, in embedded, o DevOptions, took time.Duration) {
	name, facet := firstFacet(in.config)
	rows := [][]string{
		{"Console", base + consolePath, "live state of this process"},
		{"Query API", base + "/v1/" + name + "/" + facet + "/{key}", "contract: " + base + "/docs"},
		{"Metrics", base + "/metrics", "health: /healthz"},
	}
	for _, a := range in.addresses {
		rows = append(rows, []string{a.name, a.at, a.note})
	}
	for i := range rows {
		rows[i][0] = "  " + rows[i][0]
	}
	fmt.Fprintf(p.Stdout, "freshet %s\n\n", Version())
	table := tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	_ = table.Flush()
	if o.DataDir == "" {
		fmt.Fprintf(p.Stdout, "\nAll data is in memory and lost on exit. --data-dir DIR keeps snapshots and topics.\n")
	} else {
		fmt.Fprintf(p.Stdout, "\nSnapshots and topics are kept in %s. The data in Redis is lost on exit.\n", o.DataDir)
	}
	entity := base + "/v1/" + name + "/" + facet + "/"
	if in.config.builtIn {
		fmt.Fprintf(p.Stdout, "\nRead an entity, twice:  curl -i %ssomebody\nRefresh it:             curl -i -X POST %ssomebody/refresh\n", entity, entity)
	} else {
		fmt.Fprintf(p.Stdout, "\nRead an entity (replace KEY):  curl -i '%sKEY?wait=5s'\nRefresh it:                    curl -i -X POST %sKEY/refresh\n", entity, entity)
	}
	if in.upstream != nil {
		setFaults, clearFaults := in.upstream.curlCommands()
		fmt.Fprintf(p.Stdout, "\nMake the upstream respond with 429:  %s\nClear the faults:                    %s\n", setFaults, clearFaults)
		if !o.NoDemo {
			f := in.config.Sources[name].Facets[facet]
			fmt.Fprintf(p.Stdout, "\nThe demo shortens intervals: %s is fresh for %v, prefetched every %v, and first retried after %v. --no-demo keeps the configured ones.\n", facet, f.FreshFor, demoPrefetchInterval, demoRetryDelays[0])
		}
	}
	fmt.Fprintf(p.Stdout, "\nReady in %v. Ctrl-C stops.\n", took.Round(time.Millisecond))
}
