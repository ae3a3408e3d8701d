package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/entities"
)

func entitiesShow(p *program) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "show SOURCE/FACET/KEY",
		Short: "Show the last fetch, change, next check, failures and registration of one entity",
		Long: `Show one entity: its state, the time and result of its last fetch, its last change, its next check,
its tier and pin, its reads and its changes. It enqueues nothing. Exit code 3: nothing is stored of
the entity, and it is not registered. For its content, use freshet snapshot get.`,
		Example: `  freshet entities show nexon/character/somebody
  freshet entities show nexon/character/somebody -o json`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "print in this format: text or json")
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, args []string) error {
		if output != "text" && output != "json" {
			return app.UsageErrorf("-o is %q; it must be text or json", output)
		}
		of, err := parseEntity(args[0])
		if err != nil {
			return err
		}
		var s entities.State
		if err := api.Call(cmd.Context(), http.MethodGet, "/snapshots"+entityPath(of), nil, &s); err != nil {
			return err
		}
		if output == "json" {
			encoder := json.NewEncoder(p.Stdout)
			encoder.SetIndent("", "  ")
			return encoder.Encode(s)
		}
		rows := append([][]string{{"entity", of.String()}}, stateRows(s)...)
		for i := range rows {
			rows[i][1] = escapeUnprintable(rows[i][1])
		}
		return printTable(p.Stdout, rows)
	})
}

// stateRows returns the names and values of an entity's state: the last fetch, the last change and
// failures, then the registration.
func stateRows(s entities.State) (rows [][]string) {
	row := func(name, value string) { rows = append(rows, []string{name, value}) }
	at := func(t *time.Time, none string) string {
		if t == nil {
			return none
		}
		return t.Format(time.RFC3339)
	}
	state, fetched, changed := "no fetch has ended", "never", "never"
	if c := s.Snapshot; c != nil {
		result := fmt.Sprintf("content of %d bytes", c.Bytes)
		if c.MediaType != "" {
			result += " (" + c.MediaType + ")"
		}
		if c.NotFound {
			result = "not found"
		}
		state, fetched, changed = "healthy", c.CheckedAt.Format(time.RFC3339)+", "+result, at(c.UpdatedAt, "never")
	}
	next := "on a read"
	if f := s.Failure; f != nil {
		state, fetched = string(f.State), f.LastAt.Format(time.RFC3339)+", "+f.Reason+": "+f.Error
		next = "after an operator enables it"
		if f.Until != nil {
			next = f.Until.Format(time.RFC3339) + " at the earliest"
		}
	} else if r := s.Registration; r != nil && r.Enabled {
		next = r.DueAt.Format(time.RFC3339)
	}
	row("state", state)
	row("last fetch", fetched)
	if f := s.Failure; f != nil {
		row("failing since", f.Since.Format(time.RFC3339))
		if c := s.Snapshot; c != nil {
			row("last success", c.CheckedAt.Format(time.RFC3339))
		}
	}
	row("last change", changed)
	row("next check", next)
	if s.Registration == nil {
		row("registered", "no, so it is not prefetched")
		return rows
	}
	header := []string{"tier", "pinned", "enabled", "due", "reads", "last read", "changes", "params"}
	for i, value := range entityRow(*s.Registration)[3:] {
		row(header[i], value)
	}
	return rows
}
