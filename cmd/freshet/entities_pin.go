package main

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/entities"
)

// entitiesPin returns the command "entities pin" if pin is true, and "entities unpin" otherwise.
func entitiesPin(p *program, pin bool) *cobra.Command {
	var c entityFilter
	cmd := &cobra.Command{
		Use:   "pin KEY...",
		Short: "Pin entities to a tier, independently of their reads",
		Long: `Pin registered entities to a tier. Reads do not move a pinned entity to another tier. In the
adaptive mode, the tier's interval is the maximum interval of a pinned entity. An import pins
each entity whose row has a tier.`,
		Example: `  freshet entities pin --source nexon --facet character --tier hot somebody somebody-else`,
		Args:    cobra.MinimumNArgs(1),
	}
	verb := "pin"
	if !pin {
		verb = "unpin"
		cmd.Use = "unpin KEY..."
		cmd.Short = "Unpin entities"
		cmd.Long = `Unpin entities. Each keeps its tier until its reads change it. An import unpins each entity
whose row has no tier.`
		cmd.Example = `  freshet entities unpin --source nexon --facet character somebody`
	}
	cmd.RunE = func(cmd *cobra.Command, keys []string) error {
		switch err := c.check(); {
		case err != nil:
			return err
		case c.facet == "":
			return app.UsageErrorf("--facet is required")
		case pin && c.tier == "":
			return app.UsageErrorf("--tier is required: hot, warm or cold")
		}
		api, err := p.newAdminClient(c.addr)
		if err != nil {
			return err
		}
		if c.source, err = resolveSource(cmd.Context(), api, c.source, ""); err != nil {
			return err
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		n := 0
		for part := range slices.Chunk(keys, maxKeysPerRequest) {
			var answer entities.PinResult
			body := entities.PinRequest{Source: c.source, Facet: c.facet, Tier: c.tier, Keys: part}
			if err := api.Call(cmd.Context(), http.MethodPost, "/entities/"+verb, body, &answer); err != nil {
				return err
			}
			n += answer.Changed
		}
		fmt.Fprintf(p.Stdout, "%d %sned\n", n, verb)
		if n < len(keys) {
			fmt.Fprintf(p.Stderr, "%d of %d %sned; the others already were, or are not registered\n", n, len(keys), verb)
		}
		return nil
	}
	f := cmd.Flags()
	f.StringVar(&c.source, "source", "", "select entities of this source (required if there are several)")
	f.StringVar(&c.facet, "facet", "", "change entities of this facet (required)")
	if pin {
		f.StringVar(&c.tier, "tier", "", "pin to this tier: hot, warm or cold (required)")
	}
	addAddrFlag(cmd, &c.addr)
	return cmd
}
