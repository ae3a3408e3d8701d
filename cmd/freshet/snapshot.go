package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/schemas"
)

func snapshotCommand(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "snapshot",
		Short: "Print, refresh, delete, export or import snapshots",
		Long: `Print, refresh or delete the snapshots of entities, through a query service. An entity is written
as source/facet/key. The key may contain slashes. export and import copy documents between the
database and a directory.`,
	}
	c.AddCommand(snapshotGet(p), snapshotRefresh(p), snapshotDelete(p), snapshotExport(p), snapshotImport(p))
	return c
}

// parseEntity parses source/facet/key.
func parseEntity(text string) (e schemas.Entity, err error) {
	parts := strings.SplitN(text, "/", 3)
	if len(parts) < 3 {
		return e, app.UsageErrorf("%q must be source/facet/key, as in nexon/character/somebody", text)
	}
	e = schemas.Entity{Source: parts[0], Facet: parts[1], Key: parts[2]}
	if err := e.Check(); err != nil {
		return e, app.UsageErrorf("%q: %w", text, err)
	}
	return e, nil
}

func entityPath(e schemas.Entity) string {
	return "/" + e.Source + "/" + e.Facet + "/" + url.PathEscape(e.Key)
}

// readResult is the response to a read.
type readResult struct {
	Snapshot  json.RawMessage `json:"snapshot"`
	Freshness string          `json:"freshness"`
	UpdatedAt *time.Time      `json:"lastUpdatedAt"`
	CheckedAt *time.Time      `json:"lastCheckedAt"`
	Refresh   refreshState    `json:"refresh"`
	MediaType string          `json:"-"` // media type of raw content, which has no other members than Snapshot; empty: JSON
	Degraded  string          `json:"-"` // why raw content may be outdated
}

// refreshState is the state of a refresh in a response.
type refreshState struct {
	Queued        bool       `json:"queued"`
	EstimatedWait *int64     `json:"estimatedWaitMs"`
	Reason        string     `json:"reason"`
	Until         *time.Time `json:"until"`
}

// state describes, in one line, the freshness of the snapshot and whether a refresh is queued.
func (s readResult) state() string {
	if s.MediaType != "" {
		text := fmt.Sprintf("%d bytes of %s", len(s.Snapshot), s.MediaType)
		if s.Degraded != "" {
			text += ", may be outdated: " + s.Degraded
		}
		return text
	}
	text := s.Freshness
	if s.CheckedAt != nil {
		text += ", checked " + s.CheckedAt.Format(time.RFC3339)
	}
	if s.UpdatedAt != nil {
		text += ", changed " + s.UpdatedAt.Format(time.RFC3339)
	}
	if s.Refresh.Queued || s.Refresh.Reason != "" {
		text += ", " + s.Refresh.String()
	}
	return text
}

// String returns the state as one line of text.
func (r refreshState) String() string {
	text := "no refresh is queued: " + r.Reason
	if r.Queued {
		if text = "a refresh is queued"; r.Reason != "" {
			text += " and waits: " + r.Reason
		}
	}
	if r.Until != nil {
		text += ", until " + r.Until.Format(time.RFC3339)
	}
	return text
}

// errRefreshDone reports a finished refresh to a client that may not read the snapshot.
var errRefreshDone = errors.New("the refresh is done; reading the snapshot needs the scope read")

// read sends a read or a refresh request. found is false if the response has no snapshot.
func (p *program) read(cmd *cobra.Command, api *adminClient, method, path string, scope access.Scope) (s readResult, found bool, err error) {
	r, err := api.Send(cmd.Context(), method, "/v1"+path, nil)
	if err != nil {
		return s, false, err
	}
	readable := json.Unmarshal(r.Text, &s) == nil
	mediaType, raw := r.Raw()
	switch {
	case raw:
		return readResult{Snapshot: r.Text, MediaType: mediaType, Degraded: r.Header.Get("Freshet-Degraded")}, true, nil
	case r.Code == http.StatusNoContent:
		return s, false, errRefreshDone
	case r.Code == http.StatusNotFound && s.Freshness != "":
		return s, false, app.NotFoundError{Err: errors.New("the upstream has no such entity: " + s.state())}
	case r.Code != http.StatusOK && r.Code != http.StatusAccepted:
		return s, false, api.ProblemError(r, scope)
	case !readable || (r.Code == http.StatusOK && s.Freshness == ""):
		return s, false, api.UnexpectedResponse(r)
	}
	return s, r.Code == http.StatusOK, nil
}

func snapshotGet(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "get SOURCE/FACET/KEY",
		Short: "Print an entity's snapshot",
		Long: `Print an entity's snapshot as JSON, and its freshness on stderr. The content of a raw facet, such as
XML, is written unchanged. Like any read, this enqueues a
refresh of a stale or missing snapshot. Exit code 3: the upstream has no such entity; 4: no
snapshot is stored yet.`,
		Example: `  freshet snapshot get nexon/character/somebody`,
		Args:    cobra.ExactArgs(1),
	}
	var e schemas.Entity
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		e, err = parseEntity(args[0])
		return err
	}
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		s, found, err := p.read(cmd, api, http.MethodGet, entityPath(e), access.Read)
		if err != nil {
			return err
		}
		if !found {
			return partialError{fmt.Errorf("no snapshot of %s is stored yet (%s); try again, or wait for it with `freshet snapshot refresh %s --wait 10s`", e, s.state(), e)}
		}
		fmt.Fprintln(p.Stderr, s.state())
		if s.MediaType != "" { // content of a raw facet is written unchanged
			_, err = p.Stdout.Write(s.Snapshot)
			return err
		}
		_, err = p.Stdout.Write(append(bytes.TrimSpace(s.Snapshot), '\n'))
		return err
	})
}

func snapshotDelete(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "delete SOURCE/FACET/KEY",
		Short: "Delete an entity's snapshot, status and registration",
		Long: `Delete an entity's snapshot, its failure status and its registration, which ends its prefetching.
A refresh in flight may store the snapshot again, and so may the next read.`,
		Example: `  freshet snapshot delete nexon/character/somebody`,
		Args:    cobra.ExactArgs(1),
	}
	addYesFlag(c)
	var e schemas.Entity
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		e, err = parseEntity(args[0])
		return err
	}
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		if err := p.confirm(cmd, "Delete the snapshot, status and registration of "+e.String()+"?"); err != nil {
			return err
		}
		var answer struct{ Deleted bool }
		if err := api.Call(cmd.Context(), http.MethodDelete, "/snapshots"+entityPath(e), nil, &answer); err != nil {
			return err
		}
		_, err := fmt.Fprintf(p.Stdout, "%s is deleted\n", e)
		return err
	})
}
