package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// MaxKeys is the maximum number of keys in one call of GetMany.
const MaxKeys = 100

// Entity identifies what is read: a key of a facet of a source.
type Entity struct{ Source, Facet, Key string }

// path returns the path of the entity, or an error if a part is empty.
func (e Entity) path() (string, error) {
	if e.Key == "" {
		return "", fmt.Errorf("the entity %s/%s has no key", e.Source, e.Facet)
	}
	facet, err := facetPath(e.Source, e.Facet)
	return facet + "/" + url.PathEscape(e.Key), err
}

func facetPath(source, facet string) (string, error) {
	if source == "" || facet == "" {
		return "", errors.New("the entity has no source or no facet")
	}
	return "/v1/" + url.PathEscape(source) + "/" + url.PathEscape(facet), nil
}

// Freshness is the state of an entity by the age of its snapshot.
type Freshness string

// The values of Freshness.
const (
	// Fresh: the snapshot was checked within the time freshFor of its facet.
	Fresh Freshness = "FRESH"
	// Stale: the snapshot is older, and a refresh is due.
	Stale Freshness = "STALE"
	// Updating: nothing is stored, and the first fetch is queued. Read again after RetryAfter.
	Updating Freshness = "UPDATING"
	// Missing: nothing is stored, and no refresh is queued. Only an Item has this value; Get returns
	// a *Problem instead.
	Missing Freshness = "MISSING"
	// NotFound: the upstream has no such entity.
	NotFound Freshness = "NOT_FOUND"
)

// Result is the answer for one entity.
type Result[T any] struct {
	// Freshness is empty if the response does not contain it: after a refresh without Wait, or
	// without the scope read.
	Freshness Freshness `json:"freshness"`
	// Snapshot has the documents of the facet by name. It is set if Freshness is Fresh or Stale. For
	// a raw facet it has the bytes of the document, and MediaType its media type.
	Snapshot  T      `json:"snapshot"`
	MediaType string `json:"-"`
	// LastUpdatedAt and LastCheckedAt are the times of the last change and of the last fetch, or
	// zero. After a response 304 LastCheckedAt has a precision of about one second.
	LastUpdatedAt time.Time `json:"lastUpdatedAt"`
	LastCheckedAt time.Time `json:"lastCheckedAt"`
	// Refresh is the state of the refresh, or nil if none is due. It is nil after a response 304.
	Refresh *RefreshState `json:"refresh"`
	// ETag identifies the content. It is empty if the response has none.
	ETag string `json:"-"`
	// Degraded is the reason why the content may be outdated, such as UPSTREAM_DOWN (the header
	// Freshet-Degraded). It is empty for current content.
	Degraded string `json:"-"`
	// RetryAfter is the time after which an entity that is Updating should be read again.
	RetryAfter time.Duration `json:"-"`
}

// RefreshState is the state of a refresh that is due or was requested.
type RefreshState struct {
	Queued          bool      `json:"queued"`
	EstimatedWaitMs *int64    `json:"estimatedWaitMs"` // estimated time until the refresh is processed, in milliseconds; nil: unknown
	MeasuredAt      time.Time `json:"measuredAt"`
	Reason          string    `json:"reason"` // why the refresh waits or was not queued: a RefreshReason of schemas/openapi.yaml, or empty
	Until           time.Time `json:"until"`  // when a refused refresh may be requested again; zero: unknown
}

// Item is the answer for one key of GetMany. A read of the key alone would have
// this Status; Detail says why an invalid key is rejected.
type Item struct {
	Key    string `json:"key"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Result[json.RawMessage]
}

// CallOption changes one call.
type CallOption func(*request)

// Wait lets the service delay its response until the refresh has ended, at most for d. The service
// allows up to 30 s. The time is rounded up to whole seconds.
func Wait(d time.Duration) CallOption { return func(r *request) { r.wait = d } }

// Get reads an entity. Fresh, Stale, Updating and NotFound are results; any other response of the
// service is a *Problem. If the client has the snapshot in memory, the read is conditional.
func (c *Client) Get(ctx context.Context, e Entity, options ...CallOption) (Result[json.RawMessage], error) {
	result, err := c.get(ctx, e, options)
	result.Snapshot = bytes.Clone(result.Snapshot) // return a copy, because the caller may change the snapshot and the cache keeps the original
	return result, err
}

// GetAs reads an entity and decodes its snapshot. T is usually a struct with a field for each
// document of the facet. The content of a raw facet can't be decoded; use Get.
func GetAs[T any](ctx context.Context, c *Client, e Entity, options ...CallOption) (Result[T], error) {
	raw, err := c.get(ctx, e, options)
	typed := Result[T]{
		Freshness: raw.Freshness, LastUpdatedAt: raw.LastUpdatedAt, LastCheckedAt: raw.LastCheckedAt,
		Refresh: raw.Refresh, ETag: raw.ETag, RetryAfter: raw.RetryAfter, MediaType: raw.MediaType, Degraded: raw.Degraded,
	}
	if err != nil || raw.Snapshot == nil {
		return typed, err
	}
	if raw.MediaType != "" {
		return typed, fmt.Errorf("the content of %s/%s is %s, which can't be decoded as %T; read it with Get", e.Source, e.Facet, raw.MediaType, typed.Snapshot)
	}
	if err := json.Unmarshal(raw.Snapshot, &typed.Snapshot); err != nil {
		return typed, fmt.Errorf("decode the snapshot of %s/%s as %T: %w", e.Source, e.Facet, typed.Snapshot, err)
	}
	return typed, nil
}

func (c *Client) get(ctx context.Context, e Entity, options []CallOption) (Result[json.RawMessage], error) {
	path, err := e.path()
	if err != nil {
		return Result[json.RawMessage]{}, err
	}
	known := c.cache.get(e)
	r := request{method: http.MethodGet, path: path, safe: true, etag: known.ETag}
	for _, change := range options {
		change(&r)
	}
	answer, err := c.do(ctx, &r)
	if err != nil {
		return Result[json.RawMessage]{}, err
	}
	if answer.Code == http.StatusNotModified && known.ETag != "" {
		return renewed(known, answer.Header), nil
	}
	result, err := c.result(answer)
	switch {
	case err != nil:
	case result.ETag != "":
		c.cache.put(e, result)
	case result.Freshness == NotFound || result.Freshness == Updating:
		c.cache.remove(e)
	}
	return result, err
}

// Refresh requests a refresh of an entity, with a fetch that begins after the call. Without Wait the
// result has only the state of the refresh. All requests of one call have the same idempotency key, so
// that a repeated request does not refresh the entity twice.
func (c *Client) Refresh(ctx context.Context, e Entity, options ...CallOption) (Result[json.RawMessage], error) {
	path, err := e.path()
	if err != nil {
		return Result[json.RawMessage]{}, err
	}
	r := request{method: http.MethodPost, path: path + "/refresh", idempotency: rand.Text(), safe: true}
	for _, change := range options {
		change(&r)
	}
	answer, err := c.do(ctx, &r)
	if err != nil {
		return Result[json.RawMessage]{}, err
	}
	if answer.Code == http.StatusNoContent {
		return Result[json.RawMessage]{}, nil
	}
	return c.result(answer)
}

// GetMany reads up to MaxKeys entities of one facet with one request. The items have the order of
// the keys. A key that can't be read is an item with its Status, and not an error.
func (c *Client) GetMany(ctx context.Context, source, facet string, keys []string) ([]Item, error) {
	if len(keys) == 0 || len(keys) > MaxKeys {
		return nil, fmt.Errorf("read %d keys: one call must have 1 to %d; split the keys", len(keys), MaxKeys)
	}
	path, err := facetPath(source, facet)
	if err != nil {
		return nil, err
	}
	answer, err := c.do(ctx, &request{method: http.MethodGet, path: path + "?" + url.Values{"key": keys}.Encode(), safe: true})
	if err != nil {
		return nil, err
	}
	if answer.Code != http.StatusOK {
		return nil, answer.Problem()
	}
	var body struct {
		Items []Item `json:"items"`
	}
	if err := json.Unmarshal(answer.Text, &body); err != nil || len(body.Items) != len(keys) {
		return nil, unexpected(answer)
	}
	return body.Items, nil
}

// result decodes the response to a read or a refresh.
func (c *Client) result(answer Response) (Result[json.RawMessage], error) {
	if mediaType, raw := answer.Raw(); raw {
		result := rawResult(answer, mediaType)
		result.Degraded = answer.Header.Get(degradedHeader)
		return result, nil
	}
	var result Result[json.RawMessage]
	readable := json.Unmarshal(answer.Text, &result) == nil
	switch {
	case answer.Code == http.StatusNotFound && readable && result.Freshness == NotFound:
	case answer.Code == http.StatusOK && readable && result.Freshness != "" && result.Snapshot != nil:
		result.ETag, result.Degraded = answer.Header.Get("ETag"), answer.Header.Get(degradedHeader)
	case answer.Code == http.StatusAccepted && readable:
		result.RetryAfter = retryAfter(answer.Header)
	case answer.Code < http.StatusBadRequest:
		return Result[json.RawMessage]{}, unexpected(answer)
	default:
		return Result[json.RawMessage]{}, answer.Problem()
	}
	return result, nil
}

// degradedHeader has the reason of a degraded response.
const degradedHeader = "Freshet-Degraded"

func unexpected(answer Response) error {
	answer.Text = nil
	return answer.Problem()
}

// renewed returns the snapshot that the client has in its cache, with new times, after the service
// has answered 304: the snapshot is current.
func renewed(known Result[json.RawMessage], h http.Header) Result[json.RawMessage] {
	known.Freshness, known.Degraded = freshnessOf(h), h.Get(degradedHeader)
	if at := checkedAt(h); !at.IsZero() {
		known.LastCheckedAt = at
	}
	if at, err := http.ParseTime(h.Get("Last-Modified")); err == nil && !known.LastUpdatedAt.Truncate(time.Second).Equal(at) {
		known.LastUpdatedAt = at
	}
	return known
}

// maxAge returns the value max-age of the header Cache-Control, in seconds. It is 0 for a stale
// snapshot.
func maxAge(h http.Header) int {
	for directive := range strings.SplitSeq(h.Get("Cache-Control"), ",") {
		if value, ok := strings.CutPrefix(strings.TrimSpace(directive), "max-age="); ok {
			seconds, _ := strconv.Atoi(value) // an invalid number counts as 0
			return seconds
		}
	}
	return 0
}
