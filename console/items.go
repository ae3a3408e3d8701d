package console

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status/find"
	"github.com/freshet/freshet/store"
)

// itemsPage is the data of the list of items.
type itemsPage struct {
	Sources []string
	Facets  map[string][]string
	find.ItemQuery
	Problem string
	Items   []find.Item
	Next    string // URL of the next page; empty: this is the last page
	// Short is true if the page examined the maximum number of rows before it was full.
	Short bool
}

// itemFilterLabels are the labels of find.ItemFilters.
var itemFilterLabels = map[find.ItemFilter]string{
	find.AllItems: "all", find.FreshItems: "fresh", find.StaleItems: "stale", find.FailingItems: "failing, also held", find.HeldItems: "held",
	find.NotFound: "not found", find.NeverFetched: "registered, never fetched", find.ChangedHour: "changed in the last hour",
	find.ChangedDay: "changed in the last 24 h", find.ReadHour: "read in the last hour", find.ReadDay: "read in the last 24 h",
}

// Filters returns the options of the form field "show": each is a value and its label.
func (itemsPage) Filters() (all [][2]string) {
	for _, f := range find.ItemFilters {
		all = append(all, [2]string{string(f), itemFilterLabels[f]})
	}
	return all
}

// Label returns the label of the filter.
func (p itemsPage) Label() string { return itemFilterLabels[p.Filter] }

// query returns the URL of the filter. The page continues after the given key.
func (p itemsPage) query(after string) string {
	q := url.Values{"facet": {p.Source + "/" + p.Facet}, "prefix": {p.Prefix}, "show": {string(p.Filter)}, "after": {after}}
	for name, v := range q {
		if v[0] == "" {
			q.Del(name)
		}
	}
	return root + "/items?" + q.Encode()
}

// First returns the URL of the first page.
func (p itemsPage) First() string { return p.query("") }

// State returns the freshness or the failure of an item with its tone.
func (itemsPage) State(i find.Item) statusItem {
	switch i.Freshness {
	case store.Fresh:
		return statusItem{Text: "fresh", Tone: toneOK}
	case store.Stale:
		return statusItem{Text: "stale", Tone: toneWarn}
	case store.NotFound:
		return statusItem{Text: "not found"}
	case store.Updating:
		return statusItem{Text: "expired", Tone: toneWarn}
	}
	return statusItem{Text: "never fetched"}
}

// FailureOf describes the failure of an item.
func (itemsPage) FailureOf(f find.ItemFailure, now time.Time) statusItem {
	text := strings.ToLower(string(f.State)) + ": " + displayText(f.Reason, maxReasonShown)
	switch {
	case f.State == store.Retrying:
		text += ", retry at " + formatTime(f.Until, now)
	case f.Held && f.State == store.Failed:
		text += ", held until " + formatTime(f.Until, now)
	}
	return statusItem{Text: text, Tone: toneBad}
}

// showItems shows a page of the items of a facet.
func showItems(c *Console, w http.ResponseWriter, r *http.Request, client access.Client) {
	e := entityOf(r)
	if e.Facet == "" && len(c.Sources) > 0 {
		e.Source = c.Sources[0]
		e.Facet = c.Facets[e.Source][0]
	}
	p := itemsPage{Sources: c.Sources, Facets: c.Facets, Items: []find.Item{}, ItemQuery: find.ItemQuery{
		Source: e.Source, Facet: e.Facet, Prefix: strings.TrimSpace(r.FormValue("prefix")), After: r.FormValue("after"), Filter: find.ItemFilter(r.FormValue("show")),
	}}
	if p.Problem = p.check(); p.Problem != "" {
		c.render(w, r, http.StatusBadRequest, "items", "Items", p)
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	found, err := c.Items.Find(ctx, p.ItemQuery, func(e schemas.Entity, visibility string) bool { return c.Entities.Sees(client, e, visibility) })
	switch {
	case errors.Is(err, find.ErrUnknownFilter):
		p.Problem = "There is no such filter."
		c.render(w, r, http.StatusBadRequest, "items", "Items", p)
		return
	case err != nil:
		c.unavailable(w, r, "The items can't be read.", err)
		return
	}
	if p.Items = found.Items; found.Next != "" {
		p.Next, p.Short = p.query(found.Next), len(found.Items) < find.MaxItems
	}
	c.render(w, r, http.StatusOK, "items", "Items", p)
}

// check returns an error message if the query can't have a result.
func (p itemsPage) check() string {
	q := p.ItemQuery
	switch {
	case !slices.Contains(p.Sources, q.Source):
		return "There is no such source."
	case !slices.Contains(p.Facets[q.Source], q.Facet):
		return q.Source + " has no such facet."
	}
	for _, text := range []string{q.Prefix, q.After} {
		if text != "" && schemas.CheckKey(text+"x") != nil {
			return "No key begins with this text. A key is UTF-8 without control characters."
		}
	}
	return ""
}
