package main

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/runs/api"
)

func runsCommand(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "runs",
		Short: "Start, list, show, cancel, retry and verify runs",
		Long: `Start, list, show, cancel, retry and verify runs, through a query service. A run fetches many
entities and collections as one unit of work (setting sources.SOURCE.runs).`,
	}
	c.AddCommand(runsStart(p), runsList(p), runsShow(p), runsChange(p, "cancel", "Cancel a run: no further page is requested or stored"),
		runsChange(p, "retry", "Retry the failed steps of an ended run"), runsVerify(p))
	return c
}

func runsStart(p *program) *cobra.Command {
	var file, prefix, key string
	var wait bool
	c := &cobra.Command{
		Use:   "start SOURCE NAME [KEY...]",
		Short: "Start a run for keys, or for the registered entities with a prefix",
		Long: `Start a run for the given keys, for the keys in a file, or for all enabled registered entities
whose key begins with --prefix. Exit code 4: --wait was given, and the run has not completed.`,
		Example: `  freshet runs start github profile octocat --wait
  freshet runs start github profile --file users.txt
  freshet runs start github profile --prefix ""`,
		Args: cobra.MinimumNArgs(2),
	}
	c.Flags().StringVar(&file, "file", "", "also use the keys in this file, one per line; -: stdin")
	c.Flags().StringVar(&prefix, "prefix", "", "use the registered entities whose key begins with this text; empty: all")
	c.Flags().StringVar(&key, "idempotency-key", "", "start only one run for all calls with this key within 24h (default: a random key)")
	c.Flags().BoolVar(&wait, "wait", false, "wait for the end of the run")
	return p.runWithAPI(c, func(cmd *cobra.Command, a *adminClient, args []string) error {
		keys := slices.Clone(args[2:])
		if file != "" {
			more, err := readLines(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			keys = append(keys, more...)
		}
		if byPrefix := cmd.Flags().Changed("prefix"); byPrefix == (len(keys) > 0) {
			return app.UsageErrorf("give either keys or --prefix")
		}
		run, started, err := a.StartRun(cmd.Context(), args[0], args[1], client.RunKeys{Keys: keys, Prefix: prefix}, key)
		if err != nil {
			return err
		}
		if !started {
			fmt.Fprintf(p.Stderr, "no new run: the run %s does the work\n", run.ID)
		}
		if !wait {
			fmt.Fprintln(p.Stdout, run.ID)
			return nil
		}
		return waitForRun(p, cmd, a, run.ID)
	})
}

// waitForRun prints the progress of a run until its end.
func waitForRun(p *program, cmd *cobra.Command, a *adminClient, id string) error {
	const wait = 30 * time.Second
	if err := a.AllowWait(wait); err != nil {
		return err
	}
	run, err := a.WaitRun(cmd.Context(), id, func(r client.Run) {
		s := r.Steps
		fmt.Fprintf(p.Stderr, "%s: %d of %d steps ended (%d not found, %d failed)\n", r.State, s.Total-s.Open, s.Total, s.NotFound, s.Failed)
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(p.Stdout, run.ID, run.State)
	if run.State != client.RunCompleted {
		return partialError{fmt.Errorf("the run is %s; `freshet runs show %s` shows its failures", run.State, run.ID)}
	}
	return nil
}

var runColumns = []string{"RUN", "SOURCE", "NAME", "SCOPE", "STATE", "STEPS", "DONE", "NOT FOUND", "FAILED", "STARTED", "ENDED"}

func runRow(r api.Run) [][]string {
	state := string(r.State)
	if r.Waiting {
		state += " (waits)"
	}
	return [][]string{{
		r.ID, r.Source, r.Name, r.Scope, state, strconv.Itoa(r.Steps.Total), strconv.Itoa(r.Steps.Done), strconv.Itoa(r.Steps.NotFound), strconv.Itoa(r.Steps.Failed),
		r.StartedAt.Format(time.RFC3339), timeOr(r.EndedAt, "-"),
	}}
}

func runsList(p *program) *cobra.Command {
	var output format
	var source, name, state string
	var limit int
	c := &cobra.Command{Use: "list", Short: "List runs, newest first", Args: cobra.NoArgs}
	c.Flags().StringVar(&source, "source", "", "only runs of this source")
	c.Flags().StringVar(&name, "name", "", "only runs of this name")
	c.Flags().StringVar(&state, "state", "", "only runs in this state: running, completed, failed or cancelled")
	c.Flags().IntVar(&limit, "limit", 100, "list at most this many runs (maximum 1000)")
	output.addFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, a *adminClient, _ []string) error {
		query := url.Values{"limit": {strconv.Itoa(limit)}}
		for param, value := range map[string]string{"source": source, "name": name, "state": strings.ToUpper(state)} {
			if value != "" {
				query.Set(param, value)
			}
		}
		var page api.Page
		if err := a.Call(cmd.Context(), http.MethodGet, "/runs?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		return printAll(p.Stdout, output, page.Runs, runColumns, runRow)
	})
}

func runsShow(p *program) *cobra.Command {
	var output format
	c := &cobra.Command{Use: "show RUN", Short: "Show the progress and the failures of a run", Args: cobra.ExactArgs(1)}
	output.addFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, a *adminClient, args []string) error {
		var d api.Details
		if err := a.Call(cmd.Context(), http.MethodGet, "/runs/"+url.PathEscape(args[0]), nil, &d); err != nil {
			return err
		}
		if output != "table" {
			return printAll(p.Stdout, output, []api.Details{d}, nil, nil)
		}
		if err := printTable(p.Stdout, append([][]string{runColumns}, runRow(d.Run)...)); err != nil {
			return err
		}
		fmt.Fprintf(p.Stdout, "triggered by %s, attempt %d, deadline %s\n", d.TriggeredBy, d.Attempt, d.Deadline.Format(time.RFC3339))
		if d.Error != "" {
			fmt.Fprintln(p.Stdout, "error:", d.Error)
		}
		rows := [][]string{{"FACET", "STEPS", "OPEN", "DONE", "NOT FOUND", "FAILED", "CANCELLED"}}
		for _, facet := range slices.Sorted(maps.Keys(d.Progress)) {
			n := d.Progress[facet]
			rows = append(rows, append([]string{facet}, numbers(n.Total, n.Open, n.Done, n.NotFound, n.Failed, n.Cancelled)...))
		}
		if err := printTable(p.Stdout, rows); err != nil || len(d.Failures) == 0 {
			return err
		}
		rows = [][]string{{"FAILED STEPS", "FIRST", "ERROR"}}
		for _, f := range d.Failures {
			rows = append(rows, []string{strconv.Itoa(f.Steps), f.Facet + "/" + f.Key, f.Error})
		}
		return printTable(p.Stdout, rows)
	})
}

func numbers(all ...int) (texts []string) {
	for _, n := range all {
		texts = append(texts, strconv.Itoa(n))
	}
	return texts
}

// runsChange returns the command that cancels or retries a run. verb is the name of the command.
func runsChange(p *program, verb, short string) *cobra.Command {
	c := &cobra.Command{Use: verb + " RUN", Short: short, Args: cobra.ExactArgs(1)}
	addYesFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, a *adminClient, args []string) error {
		if err := p.confirm(cmd, strings.ToUpper(verb[:1])+verb[1:]+" the run "+args[0]+"?"); err != nil {
			return err
		}
		var run api.Run
		if err := a.Call(cmd.Context(), http.MethodPost, "/runs/"+url.PathEscape(args[0])+"/"+verb, nil, &run); err != nil {
			return err
		}
		fmt.Fprintf(p.Stdout, "run %s is %s: %d of its %d steps are open\n", run.ID, run.State, run.Steps.Open, run.Steps.Total)
		return nil
	})
}

func runsVerify(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "verify [RUN...]", Short: "Compare the counters of runs with their steps",
		Long: "Compare the counters of the given runs with their steps, or of the newest 1000 runs.",
	}
	return p.runWithAPI(c, func(cmd *cobra.Command, a *adminClient, ids []string) error {
		if len(ids) == 0 {
			var page api.Page
			if err := a.Call(cmd.Context(), http.MethodGet, "/runs?limit=1000", nil, &page); err != nil {
				return err
			}
			for _, r := range page.Runs {
				ids = append(ids, r.ID)
			}
		}
		faults := 0
		for _, id := range ids {
			var v api.Verification
			if err := a.Call(cmd.Context(), http.MethodGet, "/runs/"+url.PathEscape(id)+"/verify", nil, &v); err != nil {
				return err
			}
			for _, fault := range v.Faults {
				fmt.Fprintln(p.Stdout, fault)
			}
			faults += len(v.Faults)
		}
		if faults > 0 {
			return errors.New("the counters do not match: report the lines above")
		}
		fmt.Fprintf(p.Stdout, "%d runs match their steps\n", len(ids))
		return nil
	})
}
