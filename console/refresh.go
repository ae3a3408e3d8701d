package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// maxRefreshKeys is the maximum number of keys that one form can refresh. One request to the
	// HTTP API has the same maximum.
	maxRefreshKeys = 100
	// auditKeys is the maximum number of keys that one audit entry contains.
	auditKeys = 10
)

// writeAudit stores the audit entry of an action. "after" describes the action. Callers call
// writeAudit before the action, so that every action has an audit entry.
func (c *Console) writeAudit(ctx context.Context, client access.Client, action, source string, after any) error {
	text, err := json.Marshal(after)
	if err != nil {
		return err
	}
	return c.Store.WriteAudit(ctx, store.AuditEntry{
		At: c.Clock().UTC().Truncate(time.Microsecond), Actor: client.Name, Action: action, Source: source,
		Before: json.RawMessage("{}"), After: text,
	})
}

// refreshAudit is the content of the audit entry for refreshes of one facet's entities.
type refreshAudit struct {
	Facet    string   `json:"facet"`
	Entities int      `json:"entities"`
	Keys     []string `json:"keys"`
	More     int      `json:"moreKeys,omitempty"`
}

// enqueue enqueues refreshes of entities of one facet. It stores the audit entry first.
func (c *entityPages) enqueue(ctx context.Context, client access.Client, all []schemas.Entity) ([]RefreshResult, error) {
	audit := refreshAudit{Facet: all[0].Facet, Entities: len(all), More: max(0, len(all)-auditKeys)}
	for _, e := range all[:len(all)-audit.More] {
		audit.Keys = append(audit.Keys, e.Key)
	}
	if err := c.writeAudit(ctx, client, "refresh", all[0].Source, audit); err != nil {
		return nil, err
	}
	return c.Entities.Refresh(ctx, all, client)
}

// refresh enqueues a manual refresh of one entity, and then shows the page of the entity.
func (c *entityPages) refresh(w http.ResponseWriter, r *http.Request, client access.Client) {
	e := entityOf(r)
	if why := c.checkEntity(e); why != "" {
		c.showEntity(w, r, client, http.StatusBadRequest, "")
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	results, err := c.enqueue(ctx, client, []schemas.Entity{e})
	if err != nil {
		c.unavailable(w, r, "The refresh could not be requested.", err)
		return
	}
	c.showEntity(w, r, client, http.StatusOK, results[0].Message)
}

// keyResult is the result of the refresh of one key in the form for several keys.
type keyResult struct {
	Key string
	RefreshResult
}

// refreshMany enqueues a refresh for each key of the form, which has one key in each line, and
// shows the result of each key. If one key is rejected, the other keys are still refreshed.
func (c *entityPages) refreshMany(w http.ResponseWriter, r *http.Request, client access.Client) {
	of := entityOf(r)
	p := lookupPage{Sources: c.Sources, Facets: c.Facets, Source: of.Source, Facet: of.Facet, MaxKeys: maxRefreshKeys, Keys: r.PostFormValue("keys")}
	fail := func(problem string) {
		p.Problem = problem
		c.render(w, r, http.StatusBadRequest, "lookup", "Look up", p)
	}
	keys := parseKeys(p.Keys)
	switch {
	case !c.hasSource(of.Source) || !slices.Contains(c.Facets[of.Source], of.Facet):
		fail("Choose a source and facet of the list.")
		return
	case len(keys) == 0 || len(keys) > maxRefreshKeys:
		fail(fmt.Sprintf("Enter 1 to %d keys, one per line; there are %d.", maxRefreshKeys, len(keys)))
		return
	}
	if !client.May(access.Admin) {
		if err := c.Meters.AllowRequests(client.Name, len(keys)-1); err != nil {
			c.identifyFailed(w, r, err)
			return
		}
	}
	var all []schemas.Entity
	var at []int // for each element of `all`, the index of its key in `keys`
	p.Results = make([]keyResult, len(keys))
	for i, key := range keys {
		of.Key = key
		p.Results[i] = keyResult{Key: key, RefreshResult: RefreshResult{Message: c.checkEntity(of)}}
		if p.Results[i].Message == "" {
			all, at = append(all, of), append(at, i)
		}
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	if len(all) > 0 {
		results, err := c.enqueue(ctx, client, all)
		if err != nil {
			c.unavailable(w, r, "The refreshes could not be requested.", err)
			return
		}
		for j, i := range at {
			p.Results[i].RefreshResult = results[j]
		}
	}
	queued := 0
	for _, result := range p.Results {
		if result.Queued {
			queued++
		}
	}
	p.Notice = fmt.Sprintf("%d of %d refreshes are queued.", queued, len(keys))
	c.render(w, r, http.StatusOK, "lookup", "Look up", p)
}

// parseKeys returns the keys of a text with one key in each line, without duplicates.
func parseKeys(text string) (keys []string) {
	for line := range strings.Lines(text) {
		if key := strings.TrimSpace(line); key != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
