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
		Short: "Serve reads over HTTP and ask for refreshes",
		Long: `Serve reads over HTTP from what is stored, and ask for a refresh where one is due.
It needs PostgreSQL; without Redis or Kafka it goes on serving what is stored, and says
that nothing is refreshed.`,
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
		Short: "Fetch what was asked for and store it",
		Long: `Read the requests of a source from Kafka, fetch each within the source's quota, and store
what changed. Any number of workers may run; the quota holds for all of them together.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lanes, ok := map[string][]schemas.Lane{
				"high": {schemas.High}, "low": {schemas.Low}, "both": {schemas.High, schemas.Low},
			}[lane]
			if !ok {
				return usageError{fmt.Errorf("--lane is %q; it must be high, low or both", lane)}
			}
			return p.runWithOps(cmd.Context(), opsAddress, func(parts parts, ops string) role {
				return working(lanes, func() { parts.log.Info("worker is up", "lane", lane, "ops", ops) }, namesOrAll(name)...)
			})
		},
	}
	c.Flags().StringVar(&name, "source", "", "work this source only (default all)")
	c.Flags().StringVar(&lane, "lane", "both", "work this lane: high, low or both")
	addOpsFlag(c, &opsAddress)
	return c
}

func (p *program) scheduler() *cobra.Command {
	var name, opsAddress string
	c := &cobra.Command{
		Use:   "scheduler",
		Short: "Ask for what readers will want before they do",
		Long: `Ask for the entities of each source as they come due, on what readers leave of its quota, and
delete what was kept for longer than keepFor. Any number may run; none asks for what
another has claimed. What is prefetched stands under sources.NAME.prefetch.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.runWithOps(cmd.Context(), opsAddress, func(parts parts, ops string) role {
				return scheduling(func() { parts.log.Info("scheduler is up", "ops", ops) }, namesOrAll(name)...)
			})
		},
	}
	c.Flags().StringVar(&name, "source", "", "schedule this source only (default all)")
	addOpsFlag(c, &opsAddress)
	return c
}

// namesOrAll returns the one name, or none for all.
func namesOrAll(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

func addOpsFlag(c *cobra.Command, address *string) {
	c.Flags().StringVar(address, "ops-listen", "", "address of health and metrics (default from ops.listen)")
}

// runWithOps runs a role that serves nobody on real services, beside its health and metrics.
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
		return serveOps(ctx, ops.listener(parts.log), config.Ops.TLS.requireClientCert(parts.newOpsHandler(&health{checks: map[string]healthCheck{
			"database": {required: true, run: parts.store.Ping},
			"redis":    {required: true, run: func(ctx context.Context) error { return parts.rdb.Ping(ctx).Err() }},
			"kafka":    {required: true, run: probe.Ping},
		}})), parts.log)
	})
	<-g.ctx.Done()
	return g.stop()
}

func override(setting *string, flag string) {
	if flag != "" {
		*setting = flag
	}
}
