package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/schemas"
)

const (
	// maxWait is the maximum of the query parameter "wait" that the query service allows.
	maxWait = 30 * time.Second
	// maxRefreshKeys is the maximum number of keys in one request.
	maxRefreshKeys = 100
)

func snapshotRefresh(p *program) *cobra.Command {
	var addr, file string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "refresh [SOURCE/FACET/KEY...]",
		Short: "Enqueue refreshes of entities in the HIGH lane",
		Long: `Enqueue a refresh of each given entity in the HIGH lane, and of each entity in a file, one
SOURCE/FACET/KEY per line. If a refresh is rejected, its line shows the reason, and the command
continues. Exit code 4: some refreshes are not queued, or the refresh is not done within --wait.`,
		Example: `  freshet snapshot refresh nexon/character/somebody --wait 10s
  freshet snapshot refresh nexon/character/somebody nexon/character/somebody-else
  sed 's|^|nexon/character/|' keys.txt | freshet snapshot refresh --file -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := readEntityNames(args, file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			if wait < 0 || wait > maxWait {
				return app.UsageErrorf("--wait is %v; it must be between 0s and %v", wait, maxWait)
			}
			if wait > 0 && len(all) > 1 {
				return app.UsageErrorf("--wait needs exactly one entity; remove it, and read the entities later")
			}
			api, err := p.newAdminClient(addr)
			if err != nil {
				return err
			}
			if len(all) == 1 {
				return refreshOne(p, cmd, api, all[0], wait)
			}
			return p.refreshMany(cmd.Context(), api, all)
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "wait this long for the refresh of the one entity to finish")
	c.Flags().StringVar(&file, "file", "", "also refresh the entities in this file, one SOURCE/FACET/KEY per line; -: stdin")
	addAddrFlag(c, &addr)
	return c
}

// readLines returns the lines of a file. It removes spaces around a line, and leaves out empty lines.
// The file name "-" means stdin.
func readLines(file string, stdin io.Reader) (all []string, err error) {
	in := stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = opened.Close() }()
		in = opened
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" {
			all = append(all, line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return all, nil
}

// readEntityNames returns the entities in the arguments and in the lines of a file, without
// duplicates.
func readEntityNames(args []string, file string, stdin io.Reader) (all []schemas.Entity, err error) {
	names := slices.Clone(args)
	if file != "" {
		more, err := readLines(file, stdin)
		if err != nil {
			return nil, err
		}
		names = append(names, more...)
	}
	if len(names) == 0 {
		return nil, app.UsageErrorf("pass an entity, as in nexon/character/somebody, or a file of entities with --file")
	}
	known := map[schemas.Entity]bool{}
	for _, name := range names {
		e, err := parseEntity(name)
		if err != nil {
			return nil, err
		}
		if !known[e] {
			known[e] = true
			all = append(all, e)
		}
	}
	return all, nil
}

func refreshOne(p *program, cmd *cobra.Command, api *adminClient, e schemas.Entity, wait time.Duration) error {
	if err := api.AllowWait(wait); err != nil {
		return err
	}
	path := entityPath(e) + "/refresh"
	if wait > 0 {
		path += "?wait=" + wait.String()
	}
	s, found, err := p.read(cmd, api, http.MethodPost, path, access.Refresh)
	if errors.Is(err, errRefreshDone) {
		_, err = fmt.Fprintf(p.Stdout, "%s: %v\n", e, err)
		return err
	}
	if err != nil {
		return err
	}
	if found {
		_, err = fmt.Fprintf(p.Stdout, "%s: %s\n", e, s.state())
		return err
	}
	text := fmt.Sprintf("%s: %s", e, s.Refresh)
	if s.Refresh.EstimatedWait != nil {
		text += fmt.Sprintf(", estimated wait %v", time.Duration(*s.Refresh.EstimatedWait)*time.Millisecond)
	}
	if wait > 0 {
		return partialError{fmt.Errorf("%s; it is not done after %v", text, wait)}
	}
	_, err = fmt.Fprintln(p.Stdout, text)
	return err
}

// refreshMany enqueues refreshes, with up to maxRefreshKeys keys of one facet per request, and
// prints the result for each key.
func (p *program) refreshMany(ctx context.Context, api *adminClient, all []schemas.Entity) error {
	defer api.KeepAlive(maxBatchesInFlight)()
	type facet struct{ source, name string }
	var facets []facet
	of := map[facet][]string{}
	for _, e := range all {
		f := facet{e.Source, e.Facet}
		if of[f] == nil {
			facets = append(facets, f)
		}
		of[f] = append(of[f], e.Key)
	}
	queued, refused := 0, 0
	for _, f := range facets {
		for keys := range slices.Chunk(of[f], maxRefreshKeys) {
			items, err := refreshKeys(ctx, api, f.source, f.name, keys)
			if err != nil {
				return fmt.Errorf("%w; %d of %d refreshes are queued already", err, queued, len(all))
			}
			for _, it := range items {
				e := schemas.Entity{Source: f.source, Facet: f.name, Key: it.Key}
				if it.Refresh.Queued {
					queued++
				} else {
					refused++
				}
				if _, err := fmt.Fprintf(p.Stdout, "%s: %s\n", e, it); err != nil {
					return err
				}
			}
		}
	}
	if refused > 0 {
		return partialError{fmt.Errorf("%d of %d refreshes are not queued", refused, len(all))}
	}
	return nil
}

// refreshResult is the result for one key in the response to a refresh.
type refreshResult struct {
	Key     string       `json:"key"`
	Refresh refreshState `json:"refresh"`
	Detail  string       `json:"detail"`
}

// String returns the result as one line of text.
func (k refreshResult) String() string {
	text := k.Refresh.String()
	if k.Detail != "" {
		text += ": " + k.Detail
	}
	return text
}

// refreshKeys enqueues refreshes of keys of one facet.
func refreshKeys(ctx context.Context, api *adminClient, source, facet string, keys []string) ([]refreshResult, error) {
	r, err := api.Send(ctx, http.MethodPost, "/v1/"+source+"/"+facet+"/refresh", map[string][]string{"keys": keys})
	if err != nil {
		return nil, err
	}
	if r.Code != http.StatusAccepted && r.Code != http.StatusMultiStatus {
		return nil, api.ProblemError(r, access.Refresh)
	}
	var answer struct{ Items []refreshResult }
	if err := json.Unmarshal(r.Text, &answer); err != nil || len(answer.Items) != len(keys) {
		return nil, api.UnexpectedResponse(r)
	}
	return answer.Items, nil
}
