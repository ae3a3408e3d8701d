package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

const (
	// maxContentShown is the maximum number of bytes of an entity's content that are shown.
	maxContentShown = 20 << 10
	// maxIndentBytes and maxIndentDepth are the maximum size and depth of JSON content that is
	// indented for display.
	maxIndentBytes, maxIndentDepth = 64 << 10, 32
)

// lookupPage is the data of the page of one entity.
type lookupPage struct {
	Sources []string
	Facets  map[string][]string
	Source  string
	Facet   string
	Key     string
	Problem string // error message for the submitted form
	Notice  string // message that is shown after a refresh
	// MaxKeys is the maximum number of keys in the form that refreshes several entities. Keys is
	// the submitted text of that form. Results contains the result for each key.
	MaxKeys  int
	Keys     string
	Results  []keyResult
	Entity   *Entity
	Why      string
	Content  string
	Timeline []timelineEntry
	Line     *entityLine
}

// timelineEntry is a past or planned event of an entity.
type timelineEntry struct {
	At   time.Time
	What string
	More string
	Link string
}

// entityPages are the pages of single entities.
type entityPages struct{ *Console }

func (c *entityPages) lookup(w http.ResponseWriter, r *http.Request, client access.Client) {
	c.showEntity(w, r, client, http.StatusOK, "")
}

// entityOf returns the entity that a form names. The field facet may also contain the source, as
// "source/facet". Spaces at the ends of a key belong to it.
func entityOf(r *http.Request) schemas.Entity {
	e := schemas.Entity{Source: r.FormValue("source"), Facet: r.FormValue("facet"), Key: r.FormValue("key")}
	if source, facet, both := strings.Cut(e.Facet, "/"); both {
		e.Source, e.Facet = source, facet
	}
	return e
}

// checkEntity returns an error message if the configuration has no such source or facet, or the key
// is invalid; empty: the entity can exist.
func (c *Console) checkEntity(e schemas.Entity) string {
	switch {
	case !c.hasSource(e.Source):
		return "There is no such source."
	case !slices.Contains(c.Facets[e.Source], e.Facet):
		return e.Source + " has no such facet."
	}
	err := e.Check()
	if err == nil {
		err = c.Entities.CheckKey(e)
	}
	if err != nil {
		return "Invalid entity: " + displayText(err.Error(), maxErrorShown) + "."
	}
	return ""
}

// AliasPath returns the URL of the page of the entity that has the value of an alias.
func (p lookupPage) AliasPath(a Alias) string {
	return entityPath(schemas.Entity{Source: p.Source, Facet: a.From, Key: p.Key})
}

func (c *entityPages) showEntity(w http.ResponseWriter, r *http.Request, client access.Client, status int, notice string) {
	e := entityOf(r)
	p := lookupPage{Sources: c.Sources, Facets: c.Facets, Source: e.Source, Facet: e.Facet, Key: e.Key, Notice: notice, MaxKeys: maxRefreshKeys}
	if e.Key == "" && e.Facet == "" {
		c.render(w, r, http.StatusOK, "lookup", "Look up", p)
		return
	}
	if p.Problem = c.checkEntity(e); p.Problem != "" {
		c.render(w, r, http.StatusBadRequest, "lookup", "Look up", p)
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	known, err := c.Entities.Entity(ctx, e, client)
	if err != nil {
		c.unavailable(w, r, "The entity can't be read.", err)
		return
	}
	now, a := c.Clock(), surroundings{lanes: c.Overview.Lanes(e.Source)}
	if v, err := c.Limits.View(ctx, e.Source); err == nil {
		a.limits = &v
	}
	p.Content = formatContent(known.Payload, known.State.MediaType)
	p.Entity, p.Why, p.Timeline = &known, whyStale(known, a, now), timelineOf(known, now)
	p.Line = newEntityLine(known, now)
	c.render(w, r, status, "lookup", "Look up", p)
}

// formatContent returns content for display, cut to maxContentShown bytes. JSON is indented unless
// it is large or deeply nested, because indentation could make such JSON many times larger. Content
// that is not text, such as an image, is not displayed. The media type is empty for JSON.
func formatContent(payload []byte, mediaType string) string {
	if mediaType != "" && !utf8.Valid(payload) {
		return fmt.Sprintf("%d bytes of %s that are not UTF-8 text", len(payload), displayText(mediaType, maxErrorShown))
	}
	var out bytes.Buffer
	if len(payload) <= maxIndentBytes && depthOf(payload) <= maxIndentDepth && json.Indent(&out, payload, "", "  ") == nil {
		payload = out.Bytes()
	}
	return displayText(string(payload[:min(len(payload), maxContentShown+1)]), maxContentShown)
}

// depthOf returns the maximum nesting depth of arrays and objects in JSON.
func depthOf(payload []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(payload); i++ {
		switch c := payload[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
			deepest = max(deepest, depth)
		case c == ']' || c == '}':
			depth--
		}
	}
	return deepest
}

// timelineOf returns the past and planned events of an entity, the latest first.
func timelineOf(e Entity, now time.Time) []timelineEntry {
	var all []timelineEntry
	add := func(at time.Time, what, more, link string) {
		if !at.IsZero() {
			all = append(all, timelineEntry{at, what, displayText(more, maxErrorShown), link})
		}
	}
	if e.Stored {
		s := e.State
		found := "Checked"
		if s.NotFound {
			found = "Checked: not found"
		}
		add(s.CheckedAt, found, "", "")
		add(s.FetchedAt, "Content fetched", "", "")
		add(s.UpdatedAt, "Content changed", "", "")
		switch {
		case s.NotFound:
			valid := e.NotFoundFor
			if s.AliasNotFound {
				valid = e.AliasNotFoundFor
			}
			add(s.CheckedAt.Add(valid), "Not-found result expires", "", "")
		case s.HasContent():
			if e.FreshFor < source.ImmutableFor {
				add(s.CheckedAt.Add(e.FreshFor), "Becomes stale", "", "")
			}
			if e.KeepFor > 0 {
				add(s.FetchedAt.Add(e.KeepFor), "No longer served", "", "")
			}
		}
	}
	if s := e.Status; s.State != "" {
		add(s.Since, "First failure of the series", "", "")
		add(s.UpdatedAt, "Last failure: "+displayText(s.Reason, 60), s.Error, "")
		switch s.State {
		case store.Retrying:
			add(s.Until, "Retry due", "", "")
		case store.Failed:
			add(s.Until, "Hold ends", "", "")
		case store.Suspended:
		}
	}
	for _, l := range e.DeadLetters {
		add(l.At, "Became a dead letter: "+displayText(string(l.Reason), 60), l.Error, deadLetterPath(l.ID, e.Entity.Source))
		if l.Handled != "" {
			add(l.HandledAt, "Dead letter "+displayText(l.Handled, 20), "by "+l.HandledBy, "")
		}
	}
	if e.Registered != nil && e.Registered.Enabled {
		add(e.Registered.Due, "Prefetch due", "", "")
	}
	if e.Request.HoldUntil.After(now) {
		add(e.Request.HoldUntil, "Hold in Redis ends", "", "")
	}
	slices.SortStableFunc(all, func(a, b timelineEntry) int { return b.At.Compare(a.At) })
	return all
}
