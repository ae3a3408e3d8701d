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

	"github.com/freshet/freshet/retention"
)

// maintainPollInterval is the interval at which `freshet maintain run` reads the state of the requested
// runs.
const maintainPollInterval = 500 * time.Millisecond

func maintainCommand(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "maintain",
		Short: "Show and run the deletion of old rows",
		Long: `Show and run the deletion of rows that are older than their period in the section retention of the
configuration, through a query service. The schedulers delete the rows, by themselves once an hour.`,
	}
	c.AddCommand(maintainStatus(p), maintainRun(p))
	return c
}

func maintainStatus(p *program) *cobra.Command {
	var output format
	c := &cobra.Command{
		Use:   "status",
		Short: "Show for each table its retention period, its oldest row and its last run",
	}
	output.addFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		var s retention.Status
		if err := api.Call(cmd.Context(), http.MethodGet, "/maintenance", nil, &s); err != nil {
			return err
		}
		return printMaintenance(p, output, s)
	})
}

func maintainRun(p *program) *cobra.Command {
	var output format
	var wait time.Duration
	c := &cobra.Command{
		Use:   "run",
		Short: "Delete the old rows of all tables now",
		Long: `Delete the rows of all tables that are older than their period, and wait until the schedulers have
deleted them. The request is stored: a scheduler that is started later executes it.`,
		Example: "  freshet maintain run\n  freshet maintain run --wait 0s",
	}
	output.addFlag(c)
	c.Flags().DurationVar(&wait, "wait", time.Minute, "wait for the end of the run for at most this time; 0s: do not wait")
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		var s retention.Status
		if err := api.Call(cmd.Context(), http.MethodPost, "/maintenance/run", nil, &s); err != nil {
			return err
		}
		if wait > 0 {
			if err := followMaintenance(cmd.Context(), api, &s, wait); err != nil {
				return err
			}
		}
		if err := printMaintenance(p, output, s); err != nil {
			return err
		}
		if open := requestedTables(s); len(open) > 0 && wait > 0 {
			return partialError{fmt.Errorf("the run has not ended after %v for: %s; it continues without this command. Show it with `freshet maintain status`; if NEXT RUN stays at now, start a scheduler", wait, strings.Join(open, ", "))}
		}
		return nil
	})
}

// followMaintenance waits until the requested runs have ended, but at most for the duration `wait`.
// It stores the state that it reads in s.
func followMaintenance(ctx context.Context, api *adminClient, s *retention.Status, wait time.Duration) error {
	defer api.KeepAlive(1)()
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(maintainPollInterval)
	defer tick.Stop()
	for len(requestedTables(*s)) > 0 {
		select {
		case <-waiting.Done():
			return nil
		case <-tick.C:
		}
		var now retention.Status
		if err := api.Call(ctx, http.MethodGet, "/maintenance", nil, &now); err != nil {
			return errors.Join(errors.New("the run was requested, but its state can't be read"), err)
		}
		*s = now
	}
	return nil
}

// requestedTables returns the tables whose requested run has not ended.
func requestedTables(s retention.Status) (names []string) {
	for _, t := range s.Tables {
		if t.Requested {
			names = append(names, t.Table)
		}
	}
	return names
}

func printMaintenance(p *program, output format, s retention.Status) error {
	return printAll(p.Stdout, output, s.Tables, []string{"TABLE", "KEEP", "OLDEST ROW", "LAST RUN", "DELETED", "NEXT RUN"}, func(t retention.TableStatus) [][]string {
		keep, next := keepText(t.KeepSeconds), timeOr(t.NextAt, "now")
		if t.KeepSeconds == 0 {
			next = "never"
		}
		last := timeOr(t.EndedAt, "never")
		if t.Running {
			last = "running"
		}
		return [][]string{{t.Table, keep, timeOr(t.Oldest, "none"), last, strconv.FormatInt(t.Deleted, 10), next}}
	})
}

// keepText formats a retention period: in days, if it is a whole number of days.
func keepText(seconds int64) string {
	const day = 24 * 60 * 60
	switch {
	case seconds == 0:
		return "without limit"
	case seconds%day == 0:
		return strconv.FormatInt(seconds/day, 10) + "d"
	}
	return (time.Duration(seconds) * time.Second).String()
}
