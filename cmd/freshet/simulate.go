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

	"github.com/freshet/freshet/simulator"
)

func (p *program) simulate() *cobra.Command {
	var address, latency string
	var limits []string
	var c simulator.Config
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run the upstream simulator alone",
		Long: `Run an upstream with documents of the Nexon Open API's shape and size, a real quota and
misbehaviour on request. GET /_stats is the judge of what arrived, GET /_arrivals lists
every call, POST /_control changes latency, quota, content and faults while it runs.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if c.Latency, err = parseRange(latency); err != nil {
				return usageError{err}
			}
			for _, text := range limits {
				limit, err := parseLimit(text)
				if err != nil {
					return usageError{err}
				}
				c.Limits = append(c.Limits, limit)
			}
			if err := c.Validate(); err != nil {
				return usageError{err}
			}
			l, err := listen(cmd.Context(), address, "the simulator's address", "--listen")
			if err != nil {
				return err
			}
			upstream := simulator.New(c)
			server := &http.Server{Handler: upstream, ReadHeaderTimeout: 5 * time.Second}
			context.AfterFunc(cmd.Context(), func() { upstream.Close(); _ = server.Close() })
			fmt.Fprintf(p.stderr, "upstream at http://%s/maplestory/v1, its judge at http://%s/_stats\n", l.Addr(), l.Addr())
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "listen", "127.0.0.1:9090", "address to listen on")
	cmd.Flags().StringArrayVar(&limits, "limit", []string{"500/1s", "20000000/24h"}, "calls in any sliding window; may be given several times")
	cmd.Flags().StringVar(&latency, "latency", "30ms-1.7s", "range of the answers' latency; 0 for none")
	cmd.Flags().Uint64Var(&c.Seed, "seed", 1, "seed of the made-up content")
	cmd.Flags().BoolVar(&c.Identity, "identity", false, "never compress")
	cmd.Flags().BoolVar(&c.Pretty, "pretty", false, "indent the documents, as the real API does")
	return cmd
}

// parseLimit reads a limit such as 500/1s.
func parseLimit(text string) (simulator.Limit, error) {
	count, window, found := strings.Cut(text, "/")
	n, err := strconv.Atoi(count)
	d, errWindow := time.ParseDuration(window)
	if !found || err != nil || errWindow != nil {
		return simulator.Limit{}, fmt.Errorf("--limit is %q; write calls/window, as in 500/1s", text)
	}
	return simulator.Limit{Limit: n, Window: d}, nil
}

// parseRange reads a range of durations such as 30ms-1.7s, or one alone.
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
