package main

import "github.com/spf13/cobra"

func queryCommand(p *program) *cobra.Command {
	var address, opsAddress string
	c := &cobra.Command{
		Use:   "query",
		Short: "Serve snapshots over HTTP and enqueue refreshes",
		Long: `Serve stored snapshots over HTTP, and enqueue a refresh if a snapshot is stale or missing.
The query service needs PostgreSQL. Without Redis or Kafka it still serves stored snapshots;
its responses then say that no refresh is queued.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.RunQuery(cmd.Context(), address, opsAddress) },
	}
	c.Flags().StringVar(&address, "listen", "", "listen on this address (default from query.listen)")
	addOpsFlag(c, &opsAddress)
	return c
}

func workerCommand(p *program) *cobra.Command {
	var name, lane, opsAddress string
	c := &cobra.Command{
		Use:   "worker",
		Short: "Consume update requests, fetch the entities and store their snapshots",
		Long: `Consume the update requests of a source from Kafka, fetch each entity within the source's
quota, and store changed snapshots. Any number of workers may run; they share the quota.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.RunWorker(cmd.Context(), name, lane, opsAddress) },
	}
	c.Flags().StringVar(&name, "source", "", "consume this source only (default all)")
	c.Flags().StringVar(&lane, "lane", "both", "consume this lane: high, low or both")
	addOpsFlag(c, &opsAddress)
	return c
}

func schedulerCommand(p *program) *cobra.Command {
	var name, opsAddress string
	c := &cobra.Command{
		Use:   "scheduler",
		Short: "Prefetch entities before their snapshots are read",
		Long: `Enqueue a refresh of each registered entity when it is due, with the quota that readers leave,
and delete snapshots that are older than keepFor. Any number of schedulers may run; each due
entity is claimed by one of them. Configure prefetching under sources.NAME.prefetch.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.RunScheduler(cmd.Context(), name, opsAddress) },
	}
	c.Flags().StringVar(&name, "source", "", "schedule this source only (default all)")
	addOpsFlag(c, &opsAddress)
	return c
}

func addOpsFlag(c *cobra.Command, address *string) {
	c.Flags().StringVar(address, "ops-listen", "", "serve health and metrics on this address (default from ops.listen)")
}
