package app

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

// RunQuery runs the query service on real services until ctx ends. If listen or opsListen is not
// empty, it replaces the address in the configuration.
func (p *Process) RunQuery(ctx context.Context, listen, opsListen string) error {
	config, err := p.Load(RequiredSources)
	if err != nil {
		return err
	}
	override(&config.Query.Listen, listen)
	override(&config.Ops.Listen, opsListen)
	if err := config.Ops.checkRemote(); err != nil {
		return err
	}
	l, err := bind(ctx, config.Query.Listen, "query", "--listen", config.Query.TLS, false)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	ops, err := config.Ops.bind(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = ops.Close() }()
	parts, closeAll, err := p.connect(ctx, config, "query")
	if err != nil {
		return err
	}
	defer closeAll()
	parts.opsListener = ops.listener(parts.log)
	return parts.run(ctx, serving(l.listener(parts.log)))
}

// RunWorker runs a worker on real services until ctx ends. It consumes a lane ("high", "low" or
// "both") of a source, or of all sources if source is empty. If opsListen is not empty, it replaces
// the address in the configuration.
func (p *Process) RunWorker(ctx context.Context, source, lane, opsListen string) error {
	lanes, ok := map[string][]schemas.Lane{
		"high": {schemas.High}, "low": {schemas.Low}, "both": {schemas.High, schemas.Low},
	}[lane]
	if !ok {
		return UsageErrorf("--lane is %q; it must be high, low or both", lane)
	}
	return p.runWithOps(ctx, "worker", opsListen, func(parts parts, ops string) role {
		return working(lanes, func() {
			parts.log.Info("worker started", parts.startedWith(source, "lane", lane, "ops", ops)...)
		}, namesOrAll(source)...)
	})
}

// RunScheduler runs a scheduler on real services until ctx ends, for a source or, if source is
// empty, for all sources. If opsListen is not empty, it replaces the address in the configuration.
func (p *Process) RunScheduler(ctx context.Context, source, opsListen string) error {
	return p.runWithOps(ctx, "scheduler", opsListen, func(parts parts, ops string) role {
		return scheduling(func() {
			parts.log.Info("scheduler started", parts.startedWith(source, "ops", ops)...)
		}, namesOrAll(source)...)
	})
}

// namesOrAll returns a list that holds only name. If name is empty, it returns nil, which means all
// sources.
func namesOrAll(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// runWithOps runs a worker or scheduler on real services, with its health and metrics endpoints.
// roleName is the role's name in the log. The function "of" builds the role from the parts of the
// process and from the address of these endpoints.
func (p *Process) runWithOps(ctx context.Context, roleName, opsAddress string, of func(parts parts, ops string) role) error {
	config, err := p.Load(RequiredSources)
	if err != nil {
		return err
	}
	override(&config.Ops.Listen, opsAddress)
	if err := config.Ops.checkRemote(); err != nil {
		return err
	}
	ops, err := config.Ops.bind(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = ops.Close() }()
	parts, closeAll, err := p.connect(ctx, config, roleName)
	if err != nil {
		return err
	}
	defer closeAll()
	probe, err := kgo.NewClient(parts.kafkaClient("probe")...)
	if err != nil {
		return fmt.Errorf("make a Kafka client: %w", err)
	}
	defer probe.Close()
	g := newGroup(ctx)
	g.run(func(ctx context.Context) error { return parts.run(ctx, of(parts, ops.Addr().String())) })
	g.run(func(ctx context.Context) error {
		return serveOps(ctx, ops.listener(parts.log), config.Ops.TLS.requireClientCert(parts.newOpsHandler(newHealth(map[string]healthCheck{
			"database": {required: true, run: parts.store.Ping},
			"redis":    {required: true, run: func(ctx context.Context) error { return parts.rdb.Ping(ctx).Err() }},
			"kafka":    {required: true, run: probe.Ping},
		}, parts.log))), parts.log)
	})
	<-g.ctx.Done()
	return g.stop()
}

func override(setting *string, flag string) {
	if flag != "" {
		*setting = flag
	}
}
