package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// MaxItems is the maximum number of items in one page of Items.
const MaxItems = 1000

// CollectionItem is one element of a collection.
type CollectionItem struct {
	ID string `json:"id"`
	// Version is the version of the fetch that changed the item last. ChangedAt is the start of that
	// fetch.
	Version   int64     `json:"version"`
	ChangedAt time.Time `json:"changedAt"`
	Hash      string    `json:"hash"` // SHA-256 of the content in hexadecimal, without the values that the facet's setting ignore names
	Deleted   bool      `json:"deleted"`
	// Content is the content of the item as JSON; nil for a deleted item.
	Content json.RawMessage `json:"item"`
}

// ItemRange selects items of a collection. The items are ordered by their last changes.
type ItemRange struct {
	// After selects the items that follow a page: it is the field Next of this page. These items
	// include deleted ones.
	After string
	// ChangedSince selects the items that have changed at this time or later, including deleted ones;
	// zero: all items.
	ChangedSince time.Time
	// Limit is the maximum number of items, at most MaxItems; 0: the default of the service.
	Limit int
}

// ItemPage is a page of items.
type ItemPage struct {
	Items []CollectionItem `json:"items"`
	// Next is the value for ItemRange.After that selects the items after this page, and the items that
	// change later. More is true if there are such items already.
	Next string `json:"next"`
	More bool   `json:"more"`
	// Freshness is the freshness of the collection. If it is Updating or NotFound, there are no items.
	Freshness     Freshness     `json:"freshness"`
	LastUpdatedAt time.Time     `json:"lastUpdatedAt"`
	LastCheckedAt time.Time     `json:"lastCheckedAt"`
	Refresh       *RefreshState `json:"refresh"`
	// RetryAfter is set if Freshness is Updating: it is the time until the collection should be read
	// again.
	RetryAfter time.Duration `json:"-"`
}

// Items reads one page of a collection's items. Like a read of the collection, it enqueues a refresh if
// the collection is stale.
func (c *Client) Items(ctx context.Context, e Entity, of ItemRange) (ItemPage, error) {
	path, err := e.path()
	if err != nil {
		return ItemPage{}, err
	}
	if of.Limit < 0 || of.Limit > MaxItems {
		return ItemPage{}, fmt.Errorf("read %d items: one page has at most %d", of.Limit, MaxItems)
	}
	query := url.Values{}
	if of.After != "" {
		query.Set("after", of.After)
	}
	if !of.ChangedSince.IsZero() {
		query.Set("changedSince", of.ChangedSince.UTC().Format(time.RFC3339Nano))
	}
	if of.Limit > 0 {
		query.Set("limit", strconv.Itoa(of.Limit))
	}
	answer, err := c.do(ctx, &request{method: http.MethodGet, path: path + "/items?" + query.Encode(), safe: true})
	if err != nil {
		return ItemPage{}, err
	}
	var page ItemPage
	readable := json.Unmarshal(answer.Text, &page) == nil
	switch {
	case answer.Code == http.StatusOK && readable && page.Next != "":
	case answer.Code == http.StatusNotFound && readable && page.Freshness == NotFound:
	case answer.Code == http.StatusAccepted && readable:
		page.RetryAfter = retryAfter(answer.Header)
	case answer.Code < http.StatusBadRequest:
		return ItemPage{}, unexpected(answer)
	default:
		return ItemPage{}, answer.Problem()
	}
	return page, nil
}

// AllItems reads all items of a range, one page after the other. If the request of a page fails, only
// this request is repeated. An item that changes meanwhile is returned again. The sequence ends after
// the last item, or with an error. It is empty if the collection is Updating or NotFound; the method
// Items returns which of the two it is.
func (c *Client) AllItems(ctx context.Context, e Entity, of ItemRange) iter.Seq2[CollectionItem, error] {
	return func(yield func(CollectionItem, error) bool) {
		if of.Limit == 0 {
			of.Limit = MaxItems
		}
		for more := true; more; {
			page, err := c.Items(ctx, e, of)
			if err != nil {
				yield(CollectionItem{}, err)
				return
			}
			for _, i := range page.Items {
				if !yield(i, nil) {
					return
				}
			}
			of.After, more = page.Next, page.More
		}
	}
}
