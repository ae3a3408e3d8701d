package consumer

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/collection"
)

// walkMetrics are the metrics of collections.
type walkMetrics struct{ pages, items, ended *prometheus.CounterVec }

// Values of the labels of the metrics of collections.
const (
	pageChanged     = "changed"      // at least one item has changed
	pageUnchanged   = "unchanged"    // no item has changed
	pageNotModified = "not_modified" // the upstream answered 304
	pageMoved       = "moved"        // nothing was written, because another request has stored a page
	pageShrunk      = "shrunk"       // nothing was written, because too many items would be deleted

	itemChanged = "changed"
	itemDeleted = "deleted"
	itemExpired = "expired" // deleted because of keep or maxItems

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

// written counts a page with its items, and the end of its walk.
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
