package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/entities"
	"github.com/freshet/freshet/schemas"
)

func (p *program) entitiesShow() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "show SOURCE/FACET/KEY",
		Short: "Show the registration of one entity: enabled, tier, pin, due time, reads",
		Long: `Show the registration of one entity: whether it is enabled, its tier and pin, its due time, its
reads and its changes. It enqueues nothing. Exit code 3: the entity is not registered, so it is
not prefetched. For its snapshot and the time of the last check, use freshet snapshot get.`,
		Example: `  freshet entities show nexon/character/somebody
  freshet entities show nexon/character/somebody -o json`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "print in this format: text or json")
	return p.runWithAPI(c, func(cmd *cobra.Command, api *client.Client, args []string) error {
		if output != "text" && output != "json" {
			return app.UsageErrorf("-o is %q; it must be text or json", output)
		}
		of, err := parseEntity(args[0])
		if err != nil {
			return err
		}
		e, err := readRegistration(cmd.Context(), api, of)
		if err != nil {
			return err
		}
		if output == "json" {
			encoder := json.NewEncoder(p.Stdout)
			encoder.SetIndent("", "  ")
			return encoder.Encode(e)
		}
		header := []string{"source", "facet", "key", "tier", "pinned", "enabled", "due", "reads", "last read", "changes", "params"}
		var rows [][]string
		for i, value := range entityRow(e) {
			rows = append(rows, []string{header[i], escapeUnprintable(value)})
		}
		return printTable(p.Stdout, rows)
	})
}

// readRegistration returns the registration of an entity. The list is sorted by key, so the entity
// is the first whose key has its key as prefix.
func readRegistration(ctx context.Context, api *client.Client, of schemas.Entity) (entities.Entity, error) {
	query := url.Values{"source": {of.Source}, "facet": {of.Facet}, "prefix": {of.Key}, "limit": {"1"}}
	var page entities.Page
	if err := api.Call(ctx, http.MethodGet, "/entities?"+query.Encode(), nil, &page); err != nil {
		return entities.Entity{}, err
	}
	if len(page.Entities) == 0 || page.Entities[0].Key != of.Key {
		return entities.Entity{}, client.NotFoundError{Err: errors.New(fmt.Sprint(of, " is not registered; a read of a prefetched facet or `freshet entities import` registers it"))}
	}
	return page.Entities[0], nil
}
