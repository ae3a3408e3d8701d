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
	// Version is the version of the fetch that changed the item last, and ChangedAt the start of that
	// fetch.
	Version   int64     `json:"version"`
	ChangedAt time.Time `json:"changedAt"`
	Hash      string    `json:"hash"` // SHA-256 of the canonical content without ignored values, in hexadecimal
	Deleted   bool      `json:"deleted"`
	// Content is the content of the item as JSON; nil for a deleted item.
	Content json.RawMessage `json:"item"`
}

// ItemRange selects items of a collection in the order of their last change.
type ItemRange struct {
	// After is ItemPage.Next of an earlier page. The items that follow include deleted ones.
	After string
	// ChangedSince selects the items that have changed at this time or later, with the deleted ones; zero:
	// all items.
	ChangedSince time.Time
	// Limit is the maximum number of items, at most MaxItems; 0: the default of the service.
	Limit int
}

// ItemPage is a page of items.
type ItemPage struct {
	Items []CollectionItem `json:"items"`
	// Next is the value of ItemRange.After for the items that follow, or that change later. More is true if
	// there are such items now.
	Next string `json:"next"`
	More bool   `json:"more"`
	// Freshness is the freshness of the collection. With Updating and NotFound there are no items.
	Freshness     Freshness     `json:"freshness"`
	LastUpdatedAt time.Time     `json:"lastUpdatedAt"`
	LastCheckedAt time.Time     `json:"lastCheckedAt"`
	Refresh       *RefreshState `json:"refresh"`
	// RetryAfter is the time after which a collection that is Updating should be read again.
	RetryAfter time.Duration `json:"-"`
}

// Items reads a page of items of a collection. Reading items counts as reading the collection.
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

// AllItems reads all items of a range, page by page, so that a failed request is repeated alone. An item that
// changes meanwhile follows once more. The sequence ends after the last item, or with an error. It is empty for
// a collection that is Updating or NotFound; Items returns its freshness.
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
