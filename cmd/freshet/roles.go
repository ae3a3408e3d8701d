package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

func (p *program) query() *cobra.Command {
	var address, opsAddress string
	c := &cobra.Command{
		Use:   "query",
		Short: "Serve snapshots over HTTP and enqueue refreshes",
		Long: `Serve stored snapshots over HTTP, and enqueue a refresh if a snapshot is stale or missing.
The query service needs PostgreSQL. Without Redis or Kafka it still serves stored snapshots;
its responses then say that no refresh is queued.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := p.load()
			if err != nil {
				return err
			}
			override(&config.Query.Listen, address)
			override(&config.Ops.Listen, opsAddress)
			if err := config.Ops.checkRemote(); err != nil {
				return err
			}
			l, err := bind(cmd.Context(), config.Query.Listen, "query", "--listen", config.Query.TLS, false)
			if err != nil {
				return err
			}
			defer func() { _ = l.Close() }()
			ops, err := config.Ops.bind(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = ops.Close() }()
			parts, closeAll, err := p.connect(cmd.Context(), config)
			if err != nil {
				return err
			}
			defer closeAll()
			parts.opsListener = ops.listener(parts.log)
			return parts.run(cmd.Context(), serving(l.listener(parts.log)))
		},
	}
	c.Flags().StringVar(&address, "listen", "", "address to listen on (default from query.listen)")
	addOpsFlag(c, &opsAddress)
	return c
}

func (p *program) worker() *cobra.Command {
	var name, lane, opsAddress string
	c := &cobra.Command{
		Use:   "worker",
		Short: "Consume update requests, fetch the entities and store their snapshots",
		Long: `Consume the update requests of a source from Kafka, fetch each entity within the source's
quota, and store changed snapshots. Any number of workers may run; they share the quota.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lanes, ok := map[string][]schemas.Lane{
				"high": {schemas.High}, "low": {schemas.Low}, "both": {schemas.High, schemas.Low},
			}[lane]
			if !ok {
				return usageError{fmt.Errorf("--lane is %q; it must be high, low or both", lane)}
			}
			return p.runWithOps(cmd.Context(), opsAddress, func(parts parts, ops string) role {
				return working(lanes, func() { parts.log.Info("worker started", "lane", lane, "ops", ops) }, namesOrAll(name)...)
			})
		},
	}
	c.Flags().StringVar(&name, "source", "", "consume this source only (default all)")
	c.Flags().StringVar(&lane, "lane", "both", "lane to consume: high, low or both")
	addOpsFlag(c, &opsAddress)
	return c
}

func (p *program) scheduler() *cobra.Command {
	var name, opsAddress string
	c := &cobra.Command{
		Use:   "scheduler",
		Short: "Prefetch entities before their snapshots are read",
		Long: `Enqueue a refresh of each registered entity when it is due, with the quota that readers leave,
and delete snapshots that are older than keepFor. Any number of schedulers may run; each due
entity is claimed by one of them. Configure prefetching under sources.NAME.prefetch.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.runWithOps(cmd.Context(), opsAddress, func(parts parts, ops string) role {
				return scheduling(func() { parts.log.Info("scheduler started", "ops", ops) }, namesOrAll(name)...)
			})
		},
	}
	c.Flags().StringVar(&name, "source", "", "schedule this source only (default all)")
	addOpsFlag(c, &opsAddress)
	return c
}

// namesOrAll returns a list that holds only name. If name is empty, it returns nil, which means all
// sources.
func namesOrAll(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

func addOpsFlag(c *cobra.Command, address *string) {
	c.Flags().StringVar(address, "ops-listen", "", "address of the health and metrics endpoints (default from ops.listen)")
}

// runWithOps runs a worker or scheduler on real services, with its health and metrics endpoints.
// The parameter "of" returns the role, given its parts and the address of these endpoints.
func (p *program) runWithOps(ctx context.Context, opsAddress string, of func(parts parts, ops string) role) error {
	config, err := p.load()
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
	parts, closeAll, err := p.connect(ctx, config)
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
