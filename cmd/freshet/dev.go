//go:build !production

package main

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
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store/sqlite"
)

// devOptions are the flags of `freshet dev`.
type devOptions struct {
	listen   string
	dataDir  string
	upstream string
	noDemo   bool
	open     bool
	// browser opens a URL in the user's browser.
	browser func(ctx context.Context, url string) error
}

func (p *program) dev() *cobra.Command {
	o := devOptions{browser: openBrowser}
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, to try it",
		Long: `Run the query service, the workers, the scheduler, Kafka, Redis, the database and a simulated
upstream in one process, with the sources and quotas of production. It listens on loopback only.
A demo reads some entities; their snapshots become stale within seconds. The output shows how
to inject faults into the simulated upstream, and how to clear them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := p.runDev(cmd.Context(), o, time.Now())
			if err == nil {
				fmt.Fprintln(p.stdout, "Stopped.")
			}
			return err
		},
	}
	c.Flags().StringVar(&o.listen, "listen", "127.0.0.1:8080", "address of the query API, on loopback")
	c.Flags().StringVar(&o.dataDir, "data-dir", "", "keep snapshots and topics in this directory (default: in memory, lost on exit)")
	c.Flags().StringVar(&o.upstream, "upstream", "", "call this upstream (scheme://host:port) instead of the simulator")
	c.Flags().BoolVar(&o.noDemo, "no-demo", false, "do not generate demo load")
	c.Flags().BoolVar(&o.open, "open", false, "open the console in the browser")
	return c
}

// runDev starts all roles and embedded services and runs them until ctx ends. It checks the
// settings and binds the address before it starts anything.
func (p *program) runDev(ctx context.Context, o devOptions, started time.Time) (err error) {
	config, err := p.load()
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(o.listen)
	if err != nil {
		return usageError{fmt.Errorf("--listen is %q; it must be host:port, as in 127.0.0.1:8080", o.listen)}
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usageError{fmt.Errorf("--listen is %s; dev listens on loopback only, as in 127.0.0.1:8080", o.listen)}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another address with --listen, as in --listen 127.0.0.1:0", o.listen, unwrapOpError(err))
	}
	// The server closes the listener when it ends. This Close is needed if the start fails earlier.
	defer func() { _ = l.Close() }()

	if !o.noDemo && o.upstream == "" {
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
	if !o.noDemo {
		foreground.run(func(ctx context.Context) error { return newDemo(base, config, in.upstream).run(ctx) })
	}
	if err := waitForOK(foreground.ctx, base+"/readyz"); err != nil {
		return errors.Join(err, foreground.stop())
	}
	p.printWelcome(base, in, o, time.Since(started))
	if o.open {
		foreground.run(func(ctx context.Context) error {
			if err := o.browser(ctx, base+consolePath); err != nil {
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

// embedded holds the parts of dev, which are built on embedded services.
type embedded struct {
	parts
	upstream  *simulatedUpstream // nil: the upstream is real (--upstream)
	addresses []address
}

// startEmbedded starts the embedded Kafka, Redis, database and, without --upstream, the
// simulator. The returned function closes them and is never nil.
func (p *program) startEmbedded(ctx context.Context, o devOptions, config Config, background *group) (embedded, func(), error) {
	var closers []func()
	closeAll := func() {
		for _, c := range slices.Backward(closers) {
			c()
		}
	}
	config.Log.Level = max(config.Log.Level, slog.LevelWarn) // log only warnings and errors, so that logs do not hide the printed table
	made := embedded{parts: parts{config: config, secret: optionalSecret}}
	made.log = p.logger(ctx, config.Log)
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
	if o.dataDir != "" {
		if err := os.MkdirAll(o.dataDir, 0o750); err != nil {
			return fail(fmt.Errorf("--data-dir: %w", err))
		}
		database = filepath.Join(o.dataDir, "snapshots.db")
		opts = append(opts, kfake.DataDir(filepath.Join(o.dataDir, "kafka")))
	}
	kafka, err := kfake.NewCluster(opts...)
	if err != nil {
		return fail(fmt.Errorf("start the embedded Kafka: %w", err))
	}
	closers = append(closers, kafka.Close)
	config.Kafka = KafkaConfig{Brokers: kafka.ListenAddrs()}
	if made.kafka, err = config.Kafka.kafkaOptions(); err != nil {
		return fail(err)
	}

	rds := miniredis.NewMiniRedis()
	if err := rds.Start(); err != nil {
		return fail(fmt.Errorf("start the embedded Redis: %w", err))
	}
	closers = append(closers, rds.Close)
	background.run(func(ctx context.Context) error { return expireKeys(ctx, rds) })
	config.Redis = RedisConfig{Mode: "single", Addresses: []string{rds.Addr()}}
	if made.rdb, err = config.Redis.newClient(embeddedTimeout); err != nil {
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

	upstream := address{"Upstream", o.upstream, "yours"}
	if o.upstream == "" {
		if made.upstream, err = startSimulator(ctx, background); err != nil {
			return fail(err)
		}
		made.faultScenarios = made.upstream
		upstream = address{"Upstream", made.upstream.url, "simulated; call counts: /_stats"}
	}
	if err := redirectSources(made.config.Sources, upstream.at); err != nil {
		return fail(err)
	}
	kept := "in memory"
	if database != "" {
		kept = database
	}
	made.addresses = []address{
		upstream,
		{"Kafka", kafka.ListenAddrs()[0], "embedded"},
		{"Redis", rds.Addr(), "embedded"},
		{"Snapshots", kept, "SQLite"},
	}
	return made, closeAll, nil
}

// optionalSecret reads a credential. Unlike requireSecret it returns no error for a missing
// credential: calls are then sent without one.
func optionalSecret(at secretRef) (string, error) {
	if at.file == "" && os.Getenv(at.env) == "" {
		return "", nil
	}
	return requireSecret(at)
}

// expireKeys advances the clock of the embedded Redis. miniredis expires keys only on
// FastForward.
func expireKeys(ctx context.Context, rds *miniredis.Miniredis) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			rds.FastForward(time.Second)
		}
	}
}

// startSimulator starts a simulated upstream with the limits of the real Nexon Open API.
func startSimulator(ctx context.Context, background *group) (*simulatedUpstream, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the simulated upstream: %w", err)
	}
	upstream := simulator.New(simulator.Config{
		Limits:  []simulator.Limit{{Limit: 500, Window: time.Second}, {Limit: 20_000_000, Window: 24 * time.Hour}},
		Latency: healthyLatency,
		Seed:    1,
	})
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

// redirectSources replaces scheme and host in the base URL of every source, and keeps the path.
func redirectSources(sources map[string]SourceConfig, to string) error {
	target, err := url.Parse(to)
	if err != nil || target.Host == "" || (target.Scheme != "http" && target.Scheme != "https") {
		return usageError{fmt.Errorf("--upstream is %q; it must be scheme://host:port", to)}
	}
	for name, s := range sources {
		base, err := url.Parse(s.BaseURL)
		if err != nil {
			return fmt.Errorf("sources.%s.baseURL: %w", name, err)
		}
		base.Scheme, base.Host = target.Scheme, target.Host
		s.BaseURL = base.String()
		if err := s.checkInsecure(); err != nil {
			return usageError{fmt.Errorf("--upstream: sources.%s.%w", name, err)}
		}
		sources[name] = s
	}
	return nil
}

// waitForOK polls a URL until it responds with 200, for at most 10 s.
func waitForOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
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
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("no 200 response from %s: %w", url, context.Cause(ctx))
		}
	}
}

// printWelcome prints the addresses and the commands to try.
func (p *program) printWelcome(base string, in embedded, o devOptions, took time.Duration) {
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
	fmt.Fprintf(p.stdout, "freshet %s\n\n", version())
	_ = printTable(p.stdout, rows)
	if o.dataDir == "" {
		fmt.Fprintf(p.stdout, "\nAll data is in memory and lost on exit. --data-dir DIR keeps snapshots and topics.\n")
	} else {
		fmt.Fprintf(p.stdout, "\nSnapshots and topics are kept in %s. The data in Redis is lost on exit.\n", o.dataDir)
	}
	fmt.Fprintf(p.stdout, "\nRead an entity, twice:  curl -i %s/v1/%s/%s/somebody\nRefresh it:             curl -i -X POST %s/v1/%s/%s/somebody/refresh\n", base, name, facet, base, name, facet)
	if in.upstream != nil {
		setFaults, clearFaults := in.upstream.curlCommands()
		fmt.Fprintf(p.stdout, "\nMake the upstream respond with 429:  %s\nClear the faults:                    %s\n", setFaults, clearFaults)
		if !o.noDemo {
			f := in.config.Sources[name].Facets[facet]
			fmt.Fprintf(p.stdout, "\nThe demo shortens intervals: %s is fresh for %v, prefetched every %v, and first retried after %v. --no-demo keeps the configured ones.\n", facet, f.FreshFor, demoPrefetchInterval, demoRetryDelays[0])
		}
	}
	fmt.Fprintf(p.stdout, "\nReady in %v. Ctrl-C stops.\n", took.Round(time.Millisecond))
}
