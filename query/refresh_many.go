package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

// maxRefreshBody is the maximum body size in bytes of a refresh of several keys. A body with
// maxKeys keys of 256 bytes fits, even if every byte is escaped in JSON.
const maxRefreshBody = 256 << 10

// refreshItem is the result for one key. Status is the status that a refresh of the key alone
// would have.
type refreshItem struct {
	Key     string        `json:"key"`
	Status  int           `json:"status"`
	Refresh *refreshState `json:"refresh"`
	Detail  string        `json:"detail,omitempty"` // why the refresh is not queued
}

// refreshMany enqueues refreshes of several keys of a facet and waits until Kafka has
// acknowledged them. It responds 202 if all refreshes are queued, else 207. A refused key does not
// affect the other keys.
func (s *Server) refreshMany(c echo.Context, client access.Client) error {
	e, f, src, err := s.catalog.facetOf(c)
	if err != nil {
		return err
	}
	if p := c.QueryParams(); p.Has("wait") {
		return problem.New(http.StatusBadRequest, problem.BadWait, "A refresh of several keys does not support wait. Leave it out, and read the keys later.")
	}
	keys, err := refreshKeys(c)
	if err != nil {
		return err
	}
	if err := s.limiter.AllowRequests(client.Name, len(keys)-1); err != nil {
		return err
	}
	items, errs, results := make([]refreshItem, len(keys)), make([]error, len(keys)), make([]EnqueueResult, len(keys))
	var visible []schemas.Entity
	var indexes []int // for each element of visible, the index of its key in keys
	for i, key := range keys {
		key = f.FoldKey(key)
		e.Key, keys[i] = key, key
		if errs[i] = checkKey(e, src); errs[i] != nil {
			results[i].Reason = reasonBadKey
		} else if !client.Sees(src.Visibility(key)) {
			errs[i] = errNotVisible
		} else {
			visible, indexes = append(visible, e), append(indexes, i)
		}
	}
	enqueued, enqueueErrs := s.requester.enqueueAllAndWait(c, client, s.requester.newRefreshRequests(c.Request().Context(), client.Name, visible, f), "")
	for j, i := range indexes {
		results[i], errs[i] = enqueued[j], enqueueErrs[j]
	}
	status, queued := http.StatusAccepted, s.requester.queuedState(e.Source, 0)
	for i, key := range keys {
		if items[i] = s.newRefreshItem(c, key, queued, results[i], errs[i]); !items[i].Refresh.Queued {
			status = http.StatusMultiStatus
		}
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(status, struct {
		Items []refreshItem `json:"items"`
	}{items})
}

// refreshKeys reads the keys from the request body.
func refreshKeys(c echo.Context) ([]string, error) {
	var body struct {
		Keys []string `json:"keys"`
	}
	text, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, maxRefreshBody))
	if err != nil {
		return nil, problem.Body(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || d.More() || !utf8.Valid(text) || len(body.Keys) == 0 || len(body.Keys) > maxKeys {
		return nil, problem.New(http.StatusBadRequest, problem.BadKeys,
			fmt.Sprintf(`The body must be a JSON object with 1 to %d keys, as in {"keys":["a","b"]}.`, maxKeys))
	}
	for i, key := range body.Keys {
		if slices.Contains(body.Keys[:i], key) {
			return nil, problem.New(http.StatusBadRequest, problem.BadKeys, fmt.Sprintf("The key %.80q is listed twice.", key))
		}
	}
	return body.Keys, nil
}

// newRefreshItem returns the item of one key. `queued` is the state of a refresh that is queued.
func (s *Server) newRefreshItem(c echo.Context, key string, queued *refreshState, a EnqueueResult, err error) refreshItem {
	if err == nil {
		return refreshItem{Key: key, Status: http.StatusAccepted, Refresh: queued}
	}
	p := problemOf(s.log, err, c)
	reason, until := a.Reason, schemas.OptionalTime(a.Until)
	switch {
	case reason != "":
	case errors.Is(err, errNotVisible):
		reason = reasonNotFound
	default:
		reason = ReasonTooMany
	}
	if until == nil && p.After > 0 {
		retryAt := time.Now().Add(p.After).UTC().Truncate(time.Millisecond)
		until = &retryAt
	}
	return refreshItem{Key: key, Status: p.Status, Refresh: &refreshState{Reason: reason, Until: until}, Detail: p.Detail}
}
