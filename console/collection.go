package console

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/items"
)

// maxListed is the maximum number of items on a page of the console.
const maxListed = 50

// collectionPage has the data that the page of one collection shows.
type collectionPage struct {
	Entity  schemas.Entity
	Prefix  string // only items whose ids begin with this text are listed; empty: all items, the newest change first
	Problem string
	State   collection.State
	Items   []collection.Item
	First   string // URL of the first page of the list; empty: this is the first page
	Next    string // URL of the next page of the list; empty: this is the last page
	// Item is the item whose content the page shows; nil: it shows no content. Content is this content
	// as text.
	Item    *collection.Item
	Content string
}

// collectionPath returns the URL of the page of a collection. more are additional query parameters.
func collectionPath(e schemas.Entity, more url.Values) string {
	q := url.Values{"facet": {e.Source + "/" + e.Facet}, "key": {e.Key}}
	for name, values := range more {
		if values[0] != "" {
			q[name] = values
		}
	}
	return root + "/collection?" + q.Encode()
}

// ItemPath returns the URL of this page with the content of an item.
func (p collectionPage) ItemPath(id string) string {
	return collectionPath(p.Entity, url.Values{"prefix": {p.Prefix}, "item": {id}})
}

// WalkText describes the open walk.
func (p collectionPage) WalkText(now time.Time) string {
	w := p.State.Walk
	if !w.Open() {
		return "none"
	}
	whole := "the items since the cursor"
	if w.Full {
		whole = "the whole list"
	}
	return "page " + strconv.Itoa(w.Page) + " is next; the walk began " + formatAgo(w.Began, now) + "; it requests " + whole
}

// showCollection shows the state of a collection and a part of the list of its items.
func showCollection(c *Console, w http.ResponseWriter, r *http.Request, client access.Client) {
	p := collectionPage{Entity: entityOf(r), Prefix: strings.TrimSpace(r.FormValue("prefix")), Items: []collection.Item{}}
	show := func(status int) { c.render(w, r, status, "collection", "Collection", p) }
	if p.Problem = c.checkEntity(p.Entity); p.Problem == "" {
		p.Problem = checkItemID(p.Prefix)
	}
	if p.Problem != "" {
		show(http.StatusBadRequest)
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	version, id, _ := strings.Cut(r.FormValue("after"), ".")
	l := collection.Listing{Prefix: p.Prefix, AfterID: id, Limit: maxListed + 1}
	l.AfterVersion, _ = strconv.ParseInt(version, 10, 64) // an invalid number is ignored: then the first page is shown
	state, items, err := c.Items.Collection(ctx, p.Entity, l)
	if err != nil {
		c.unavailable(w, r, "The collection can't be read.", err)
		return
	}
	if state.Version == 0 || !c.Entities.Sees(client, p.Entity, state.Visibility) {
		show(http.StatusOK)
		return
	}
	if p.State = state; len(items) > maxListed {
		last := items[maxListed-1]
		items = items[:maxListed]
		p.Next = collectionPath(p.Entity, url.Values{"prefix": {p.Prefix}, "after": {strconv.FormatInt(last.Version, 10) + "." + last.ID}})
	}
	if p.Items = append(p.Items, items...); id != "" {
		p.First = collectionPath(p.Entity, url.Values{"prefix": {p.Prefix}})
	}
	if id := r.FormValue("item"); id != "" {
		if p.Item, err = c.Items.Item(ctx, p.Entity, id); err != nil {
			c.unavailable(w, r, "The item can't be read.", err)
			return
		}
		if p.Item != nil {
			p.Content = formatContent(p.Item.Content, "")
		}
	}
	show(http.StatusOK)
}

// checkItemID returns an error message if the text can't be the start of an item's id. Otherwise it
// returns an empty text.
func checkItemID(prefix string) string {
	if prefix != "" && (len(prefix) > items.MaxIDBytes || schemas.CheckKey(prefix) != nil) {
		return "No id begins with this text. An id is UTF-8 without control characters, of at most 256 bytes."
	}
	return ""
}
