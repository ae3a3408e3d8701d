//go:build !production

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/simulator/contract"
)

func simulateCommand(p *program) *cobra.Command {
	var address, latency, name string
	var speed float64
	var limits []string
	var c simulator.Config
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run only the upstream simulator",
		Long: `Run a simulated upstream. Its documents have the shape and size of the Nexon Open API's, it
enforces a quota, and it injects faults on request. GET /_stats counts calls and violations of
the quota, GET /_arrivals lists every call, and POST /_control changes latency, quota, content
and faults while it runs.

--contract simulates another API: its quotas, rate-limit headers and refusals, with small
made-up documents. GET /_stats counts calls, and POST /_reset clears the counts.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if c.Latency, err = parseRange(latency); err != nil {
				return app.UsageErrorf("%w", err)
			}
			if speed <= 0 {
				return app.UsageErrorf("--speed is %v; it must be above 0; for example, 60 shortens an hour to a minute", speed)
			}
			if name != "" {
				for _, other := range []string{"limit", "no-compression", "pretty"} {
					if cmd.Flags().Changed(other) {
						return app.UsageErrorf("--%s and --contract exclude each other: a contract has its own settings; remove one of them", other)
					}
				}
				upstream, err := contract.New(name, contract.Options{Speed: speed, Latency: c.Latency, Seed: c.Seed})
				if err != nil {
					return app.UsageErrorf("%w", err)
				}
				return p.serveUpstream(cmd.Context(), address, "", upstream)
			}
			if cmd.Flags().Changed("speed") {
				return app.UsageErrorf("--speed needs --contract, because it shortens a contract's windows")
			}
			for _, text := range limits {
				limit, err := parseLimit(text)
				if err != nil {
					return app.UsageErrorf("%w", err)
				}
				c.Limits = append(c.Limits, limit)
			}
			if err := c.Validate(); err != nil {
				return app.UsageErrorf("%w", err)
			}
			upstream := simulator.New(c)
			context.AfterFunc(cmd.Context(), upstream.Close)
			return p.serveUpstream(cmd.Context(), address, "/maplestory/v1", upstream)
		},
	}
	cmd.Flags().StringVar(&address, "listen", "127.0.0.1:9090", "listen on this address")
	cmd.Flags().StringArrayVar(&limits, "limit", []string{"500/1s", "20000000/24h"}, "allow at most these calls per sliding window; repeat the flag for several limits")
	cmd.Flags().StringVar(&latency, "latency", "30ms-1.7s", "delay responses by a time in this range; 0: no delay")
	cmd.Flags().Uint64Var(&c.Seed, "seed", 1, "generate the content from this random seed")
	cmd.Flags().BoolVar(&c.Identity, "no-compression", false, "never compress responses")
	cmd.Flags().BoolVar(&c.Pretty, "pretty", false, "indent the JSON documents, as the real API does")
	cmd.Flags().StringVar(&name, "contract", "", "simulate this API instead, such as github-rest")
	cmd.Flags().Float64Var(&speed, "speed", 1, "divide the contract's windows of 10s or longer by this factor")
	return cmd
}

// serveUpstream serves the simulated upstream until ctx ends.
func (p *program) serveUpstream(ctx context.Context, address, base string, upstream http.Handler) error {
	l, err := app.Listen(ctx, address, "the simulator's address", "--listen")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: upstream, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Fprintf(p.Stderr, "upstream: http://%s%s, statistics: http://%s/_stats\n", l.Addr(), base, l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// parseLimit parses a limit such as 500/1s.
func parseLimit(text string) (simulator.Limit, error) {
	count, window, found := strings.Cut(text, "/")
	n, err := strconv.Atoi(count)
	d, errWindow := time.ParseDuration(window)
	if !found || err != nil || errWindow != nil {
		return simulator.Limit{}, fmt.Errorf("--limit is %q; write calls/window, as in 500/1s", text)
	}
	return simulator.Limit{Limit: n, Window: d}, nil
}

// parseRange parses a range of durations such as 30ms-1.7s, or a single duration.
func parseRange(text string) (simulator.Range, error) {
	low, high, found := strings.Cut(text, "-")
	if !found {
		high = low
	}
	from, err := time.ParseDuration(low)
	to, errHigh := time.ParseDuration(high)
	if err != nil || errHigh != nil {
		return simulator.Range{}, fmt.Errorf("--latency is %q; write a range, as in 30ms-1.7s, or one duration", text)
	}
	return simulator.Range{Min: from, Max: to}, nil
}
