package consumer

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/collection"
)

// walkMetrics counts the fetched pages and the items of collections, and the walks that have ended.
type walkMetrics struct{ pages, items, ended *prometheus.CounterVec }

// Values of labels of the metrics of collections. A page with another value than pageChanged and
// pageUnchanged had no new items to store.
const (
	pageChanged     = "changed"      // at least one item of the page was changed
	pageUnchanged   = "unchanged"    // no item of the page was changed
	pageNotModified = "not_modified" // the upstream answered 304 for the first page
	pageMoved       = "moved"        // the page was not stored, because another request has stored a page meanwhile
	pageShrunk      = "shrunk"       // the page was not stored, because too many items would be deleted

	itemChanged = "changed"
	itemDeleted = "deleted"
	itemExpired = "expired" // the item was deleted because of the setting keep or maxItems

	walkComplete  = "complete"
	walkAbandoned = "abandoned" // the request of a page became a dead letter, or the settings have changed
)

func newWalkMetrics(counters func(name, help, label string) *prometheus.CounterVec) walkMetrics {
	m := walkMetrics{
		pages: counters("collection_pages_total", "Fetched pages of collections by outcome.", "outcome"),
		items: counters("collection_items_total", "Items of collections that were stored or deleted, by change.", "change"),
		ended: counters("collection_walks_total", "Ended walks of collections by result.", "result"),
	}
	for vec, values := range map[*prometheus.CounterVec][]string{
		m.pages: {pageChanged, pageUnchanged, pageNotModified, pageMoved, pageShrunk},
		m.items: {itemChanged, itemDeleted, itemExpired},
		m.ended: {walkComplete, walkAbandoned},
	} {
		for _, value := range values {
			vec.WithLabelValues(value)
		}
	}
	return m
}

// written counts a stored page, its items, and the end of its walk if it is the last page.
func (m walkMetrics) written(w collection.Write, p collection.Written) {
	outcome := pageUnchanged
	switch {
	case errors.Is(p.Refused, collection.ErrShrunk):
		outcome = pageShrunk
	case p.Result != collection.Stored:
		outcome = pageMoved
	case w.Page.NotModified:
		outcome = pageNotModified
	case p.State.Changed == w.Page.Version:
		outcome = pageChanged
	}
	m.pages.WithLabelValues(outcome).Inc()
	if p.Result != collection.Stored {
		return
	}
	m.items.WithLabelValues(itemChanged).Add(float64(p.Changed))
	m.items.WithLabelValues(itemDeleted).Add(float64(p.Deleted))
	m.items.WithLabelValues(itemExpired).Add(float64(p.Expired))
	if !p.State.Walk.Open() {
		m.ended.WithLabelValues(walkComplete).Inc()
	}
}
