package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/entities"
)

func entitiesCommand(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "entities",
		Short: "Manage the entities that are prefetched: import, list, show, enable, disable, pin",
		Long: `Manage the entities that are prefetched, through a query service. The first read of an entity
registers it if its facet is prefetched (sources.{source}.prefetch). An import registers
entities before their first read.`,
	}
	c.AddCommand(entitiesImport(p), entitiesList(p), entitiesShow(p), entitiesSwitch(p, true), entitiesSwitch(p, false), entitiesPin(p, true), entitiesPin(p, false))
	return c
}

// entityFilter holds the flags that select entities.
type entityFilter struct {
	addr, source, facet, tier, prefix string
	enabled                           string
}

func (c *entityFilter) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.facet, "facet", "", "select entities of this facet")
	f.StringVar(&c.tier, "tier", "", "select entities in this tier: hot, warm or cold")
	f.StringVar(&c.prefix, "prefix", "", "select entities whose key has this prefix")
	addAddrFlag(cmd, &c.addr)
}

func (c *entityFilter) check() error {
	if c.tier != "" && !slices.Contains([]string{"hot", "warm", "cold"}, c.tier) {
		return app.UsageErrorf("--tier is %q; it must be hot, warm or cold", c.tier)
	}
	if c.enabled != "" && c.enabled != "true" && c.enabled != "false" {
		return app.UsageErrorf("--enabled is %q; it must be true or false", c.enabled)
	}
	return nil
}

// label returns source, or source/facet, for messages.
func (c *entityFilter) label() string { return strings.TrimRight(c.source+"/"+c.facet, "/") }

func (c *entityFilter) toQuery() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"source": c.source, "facet": c.facet, "tier": c.tier, "prefix": c.prefix, "enabled": c.enabled} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// countEntities returns the number of selected entities, and this number as text for messages:
// "about N" if the number is an estimate of the database.
func countEntities(ctx context.Context, api *adminClient, c entityFilter) (n entities.CountResult, text string, err error) {
	err = api.Call(ctx, http.MethodGet, "/entities/count?"+c.toQuery().Encode(), nil, &n)
	text = strconv.FormatInt(n.Count, 10)
	if !n.Exact {
		text = "about " + text
	}
	return n, text, err
}

const maxPageSize = 1000

func entitiesList(p *program) *cobra.Command {
	var c entityFilter
	var output format
	var limit int
	var count bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List registered entities, or count them",
		Example: `  freshet entities list --source nexon --facet character --tier hot
  freshet entities list --enabled false --limit 0 -o jsonl
  freshet entities list --count`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.check(); err != nil {
				return err
			}
			if limit < 0 {
				return app.UsageErrorf("--limit is %d; it must be a positive number, or 0 for no limit", limit)
			}
			api, err := p.newAdminClient(c.addr)
			if err != nil {
				return err
			}
			if c.facet != "" {
				if c.source, err = resolveSource(cmd.Context(), api, c.source, ""); err != nil {
					return err
				}
			}
			if !count {
				return p.listEntities(cmd.Context(), api, c, output, limit)
			}
			n, text, err := countEntities(cmd.Context(), api, c)
			if err != nil {
				return err
			}
			if output != "table" {
				return json.NewEncoder(p.Stdout).Encode(n)
			}
			_, err = fmt.Fprintln(p.Stdout, text)
			return err
		},
	}
	c.addFlags(cmd)
	cmd.Flags().StringVar(&c.source, "source", "", "select entities of this source (default all)")
	cmd.Flags().StringVar(&c.enabled, "enabled", "", "select enabled entities (true) or disabled ones (false)")
	cmd.Flags().IntVar(&limit, "limit", 100, "print at most this number of entities; 0: all")
	cmd.Flags().BoolVar(&count, "count", false, "print only the number of entities, which may be an estimate")
	output.addFlag(cmd)
	return cmd
}

// listEntities prints each page as it arrives, because all entities may not fit into memory.
func (p *program) listEntities(ctx context.Context, api *adminClient, c entityFilter, f format, limit int) error {
	defer api.KeepAlive(maxBatchesInFlight)()
	query, printed := c.toQuery(), 0
	out := &entityPrinter{w: p.Stdout, format: f}
	for limit == 0 || printed < limit {
		size := maxPageSize
		if limit > 0 {
			size = min(size, limit-printed)
		}
		query.Set("limit", strconv.Itoa(size))
		var page entities.Page
		err := api.Call(ctx, http.MethodGet, "/entities?"+query.Encode(), nil, &page)
		if err == nil {
			err = out.print(page.Entities)
		}
		if err != nil {
			return err
		}
		printed += len(page.Entities)
		if page.Next == nil {
			return out.end()
		}
		query.Set("after", *page.Next)
	}
	fmt.Fprintf(p.Stderr, "%d entities shown, there may be more; --limit 0 shows all\n", printed)
	return out.end()
}

// entityPrinter prints a list of entities page by page.
type entityPrinter struct {
	w      io.Writer
	format format
	begun  bool
}

func (s *entityPrinter) print(page []entities.Entity) error {
	switch s.format {
	case "jsonl":
		return printAll(s.w, s.format, page, nil, nil)
	case "json":
		for _, e := range page {
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(s.w, "%s\n  %s", s.separator(), text); err != nil {
				return err
			}
		}
		return nil
	}
	var lines [][]string
	if !s.begun {
		lines = [][]string{{"SOURCE", "FACET", "KEY", "TIER", "PINNED", "ENABLED", "DUE", "READS", "LAST READ", "CHANGES", "PARAMS"}}
		s.begun = true
	}
	for _, e := range page {
		lines = append(lines, entityRow(e))
	}
	return printTable(s.w, lines)
}

// separator returns the text before the next element of a JSON array: "[" before the first element,
// and "," before all others.
func (s *entityPrinter) separator() string {
	if s.begun {
		return ","
	}
	s.begun = true
	return "["
}

func (s *entityPrinter) end() error {
	if s.format != "json" {
		return nil
	}
	text := "\n]\n"
	if !s.begun {
		text = "[]\n"
	}
	_, err := io.WriteString(s.w, text)
	return err
}

func entityRow(e entities.Entity) []string {
	read, params := "never", "-"
	if e.LastReadAt != nil {
		read = e.LastReadAt.Format(time.RFC3339)
	}
	if len(e.Params) > 0 {
		text, err := json.Marshal(e.Params)
		if err != nil {
			panic(err) // a map of strings can always be encoded
		}
		params = string(text)
	}
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }
	return []string{
		e.Source, e.Facet, e.Key, e.Tier, strconv.FormatBool(e.Pinned), strconv.FormatBool(e.Enabled), e.DueAt.Format(time.RFC3339),
		number(e.Reads), read, number(e.Changes), params,
	}
}

const maxKeysPerRequest = 1000

func entitiesSwitch(p *program, enable bool) *cobra.Command {
	var c entityFilter
	var all bool
	verb := map[bool]string{true: "enable", false: "disable"}[enable]
	cmd := &cobra.Command{
		Use:   verb + " [KEY...]",
		Short: map[bool]string{true: "Enable prefetching of entities", false: "Disable prefetching of entities"}[enable],
		Long: map[bool]string{
			true:  "Enable prefetching of entities: of the given keys, of the entities that --prefix and --tier\nselect, or with --all of every entity of the source or facet.",
			false: "Disable prefetching of entities: of the given keys, of the entities that --prefix and --tier\nselect, or with --all of every entity of the source or facet. Their snapshots stay, are served,\nand are refreshed after a read.",
		}[enable],
		Example: strings.ReplaceAll(`  freshet entities VERB --source nexon --facet character --tier cold
  freshet entities VERB --source nexon --facet character --all
  freshet entities VERB --facet character --yes somebody somebody-else`, "VERB", verb),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, keys []string) error {
			if err := c.check(); err != nil {
				return err
			}
			if len(keys) > 0 && (c.facet == "" || c.tier != "" || c.prefix != "") {
				return app.UsageErrorf("keys need --facet, and exclude --tier and --prefix")
			}
			some := len(keys) > 0 || c.prefix != "" || c.tier != ""
			if some && all {
				return app.UsageErrorf("--all excludes keys, --prefix and --tier")
			}
			api, err := p.newAdminClient(c.addr)
			if err != nil {
				return err
			}
			if c.source, err = resolveSource(cmd.Context(), api, c.source, ""); err != nil {
				return err
			}
			if !some && !all {
				return app.UsageErrorf("pass keys, --prefix or --tier, or --all for every entity of %s", c.label())
			}
			slices.Sort(keys)
			keys = slices.Compact(keys)
			if err := confirmSwitch(p, cmd, api, c, keys, enable); err != nil {
				return err
			}
			n, err := switchEntities(cmd.Context(), api, c, keys, verb)
			if err != nil && n > 0 {
				err = fmt.Errorf("%w; %d entities are %sd already; run the command again to continue", err, n, verb)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(p.Stdout, "%d %sd\n", n, verb)
			if n < len(keys) {
				fmt.Fprintf(p.Stderr, "%d of %d %sd; the others already were, or are not registered\n", n, len(keys), verb)
			}
			return nil
		},
	}
	c.addFlags(cmd)
	cmd.Flags().StringVar(&c.source, "source", "", "select entities of this source (required if there are several)")
	cmd.Flags().BoolVar(&all, "all", false, "select every entity of the source, or of the facet")
	addYesFlag(cmd)
	return cmd
}

// confirmSwitch asks the user whether to enable or disable the entities. The question shows their
// number.
func confirmSwitch(p *program, cmd *cobra.Command, api *adminClient, c entityFilter, keys []string, enable bool) error {
	if isConfirmed(cmd) {
		return nil // with --yes no question is asked, so the number of entities is not needed
	}
	text := strconv.Itoa(len(keys))
	if len(keys) == 0 {
		var err error
		c.enabled = strconv.FormatBool(!enable)
		if _, text, err = countEntities(cmd.Context(), api, c); err != nil {
			return err
		}
	}
	question := fmt.Sprintf("%s %s entities of %s?", map[bool]string{true: "Enable", false: "Disable"}[enable], text, c.label())
	return p.confirm(cmd, question)
}

// switchEntities enables or disables the entities in several requests, and returns the number of
// changed entities.
func switchEntities(ctx context.Context, api *adminClient, c entityFilter, keys []string, verb string) (n int, err error) {
	defer api.KeepAlive(maxBatchesInFlight)()
	parts := slices.Collect(slices.Chunk(keys, maxKeysPerRequest))
	if len(keys) == 0 {
		parts = [][]string{nil}
	}
	for _, part := range parts {
		order := entities.NewEnableRequest(c.source, c.facet, c.tier, c.prefix, part)
		for done := false; !done; {
			var answer entities.EnableResult
			if err := api.Call(ctx, http.MethodPost, "/entities/"+verb, order, &answer); err != nil {
				return n, err
			}
			n += answer.Changed
			if done = answer.Done; answer.Next != nil {
				order.After = *answer.Next
			}
		}
	}
	return n, nil
}
