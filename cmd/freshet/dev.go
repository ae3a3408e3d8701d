//go:build !production

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
)

func devCommand(p *program) *cobra.Command {
	var o app.DevOptions
	var open bool
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, to try it",
		Long: `Run the query service, the workers, the scheduler, Kafka, Redis and the database in one process,
with the sources and quotas of production. It listens on loopback only.

The sources of a configuration file call their baseURL, within their quota. Without a file, the
built-in source calls a simulated upstream, and a demo reads some entities; their snapshots become
stale within seconds. The output shows how to inject faults into the simulated upstream, and how to
clear them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if open {
				o.Browser = openBrowser
			}
			err := p.RunDev(cmd.Context(), o, time.Now())
			if err == nil {
				fmt.Fprintln(p.Stdout, "Stopped.")
			}
			return err
		},
	}
	c.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:8080", "serve the query API on this address, on loopback")
	c.Flags().StringVar(&o.DataDir, "data-dir", "", "keep snapshots and topics in this directory (default: in memory, lost on exit)")
	c.Flags().StringVar(&o.Upstream, "upstream", "", "URL (scheme://host:port) that replaces scheme and host of every baseURL")
	c.Flags().BoolVar(&o.Simulate, "simulate", false, "call a simulated upstream instead of every baseURL; credentials are not needed")
	c.Flags().BoolVar(&o.NoDemo, "no-demo", false, "do not generate demo load")
	c.Flags().BoolVar(&open, "open", false, "open the console in the browser")
	return c
}
