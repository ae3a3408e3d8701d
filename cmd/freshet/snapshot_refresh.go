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
	"github.com/freshet/freshet/schemas"
)

const (
	// maxWait is how long a query service holds an answer back.
	maxWait = 30 * time.Second
	// maxRefreshKeys is how many keys one request refreshes.
	maxRefreshKeys = 100
)

func (p *program) snapshotRefresh() *cobra.Command {
	var addr, file string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "refresh [SOURCE/FACET/KEY...]",
		Short: "Request a refresh of entities, before all requests that nobody waits for",
		Long: `Request a refresh of entities in the lane HIGH: of those that are named, and of those in a file,
one SOURCE/FACET/KEY a line. An entity that is refused does not keep the others back: its line says
why it is not queued. Exit code 4: some are not queued, or the one has not landed within --wait.`,
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
				return usageError{fmt.Errorf("--wait is %v; it must be from 0s to %v", wait, maxWait)}
			}
			if wait > 0 && len(all) > 1 {
				return usageError{errors.New("--wait is for one entity; leave it out, and read the entities afterwards")}
			}
			api, err := p.newAdminClient(addr)
			if err != nil {
				return err
			}
			if len(all) == 1 {
				return p.refreshOne(cmd, api, all[0], wait)
			}
			return p.refreshMany(cmd.Context(), api, all)
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "wait until the one entity is refreshed, for so long at most")
	c.Flags().StringVar(&file, "file", "", "refresh the entities in this file too, one SOURCE/FACET/KEY a line; -: stdin")
	addAddrFlag(c, &addr)
	return c
}

// readEntityNames returns the entities that arguments and the lines of a file name, each once.
func readEntityNames(args []string, file string, stdin io.Reader) (all []schemas.Entity, err error) {
	names := slices.Clone(args)
	if file != "" {
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
			if name := strings.TrimSpace(lines.Text()); name != "" {
				names = append(names, name)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	if len(names) == 0 {
		return nil, usageError{errors.New("name an entity, as in nexon/character/somebody, or a file of them with --file")}
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

func (p *program) refreshOne(cmd *cobra.Command, api *adminClient, e schemas.Entity, wait time.Duration) error {
	api.client.Timeout += wait
	path := entityPath(e) + "/refresh"
	if wait > 0 {
		path += "?wait=" + wait.String()
	}
	s, found, err := p.read(cmd, api, http.MethodPost, path, access.Refresh)
	if errors.Is(err, errRefreshDone) {
		_, err = fmt.Fprintf(p.stdout, "%s: %v\n", e, err)
		return err
	}
	if err != nil {
		return err
	}
	if found {
		_, err = fmt.Fprintf(p.stdout, "%s: %s\n", e, s.state())
		return err
	}
	text := fmt.Sprintf("%s: a refresh is queued", e)
	if s.EstimatedWait != nil {
		text += fmt.Sprintf(", and waits for about %v", time.Duration(*s.EstimatedWait)*time.Millisecond)
	}
	if wait > 0 {
		return partialError{fmt.Errorf("%s; it has not landed within %v", text, wait)}
	}
	_, err = fmt.Fprintln(p.stdout, text)
	return err
}

// refreshMany refreshes entities, as many of one facet with each request as it takes, and
// prints what became of each.
func (p *program) refreshMany(ctx context.Context, api *adminClient, all []schemas.Entity) error {
	defer api.keepAlive()()
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
			items, err := api.refresh(ctx, f.source, f.name, keys)
			if err != nil {
				return fmt.Errorf("%w; before that, %d of %d refreshes were queued", err, queued, len(all))
			}
			for _, it := range items {
				e := schemas.Entity{Source: f.source, Facet: f.name, Key: it.Key}
				if it.Queued {
					queued++
				} else {
					refused++
				}
				if _, err := fmt.Fprintf(p.stdout, "%s: %s\n", e, it); err != nil {
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

// refreshResult is what became of the refresh of one key.
type refreshResult struct {
	Key    string     `json:"key"`
	Queued bool       `json:"updateQueued"`
	Reason string     `json:"notQueuedReason"`
	Until  *time.Time `json:"notQueuedUntil"`
	Detail string     `json:"detail"`
}

// String says it in a line.
func (k refreshResult) String() string {
	if k.Queued {
		return "a refresh is queued"
	}
	text := "no refresh is queued: " + k.Reason
	if k.Until != nil {
		text += ", until " + k.Until.Format(time.RFC3339)
	}
	if k.Detail != "" {
		text += ": " + k.Detail
	}
	return text
}

// refresh refreshes keys of one facet.
func (a *adminClient) refresh(ctx context.Context, source, facet string, keys []string) ([]refreshResult, error) {
	r, err := a.send(ctx, http.MethodPost, "/v1/"+source+"/"+facet+"/refresh", map[string][]string{"keys": keys})
	if err != nil {
		return nil, err
	}
	if r.code != http.StatusAccepted && r.code != http.StatusMultiStatus {
		return nil, a.problemError(r, access.Refresh)
	}
	var answer struct{ Items []refreshResult }
	if err := json.Unmarshal(r.text, &answer); err != nil || len(answer.Items) != len(keys) {
		return nil, a.unexpectedResponse(r)
	}
	return answer.Items, nil
}
