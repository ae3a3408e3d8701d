package harness

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

// Reader reads entities of one facet through one query service.
type Reader struct {
	API    string // URL of the source's API
	Facet  string
	Client *http.Client
}

// Readers starts n query services, query-0 and so on, and returns one reader for each.
func (s *Site) Readers(ctx context.Context, n int, facet, freshFor string) (all []Reader, err error) {
	for i := range n {
		api, err := s.Query(ctx, fmt.Sprint("query-", i), freshFor)
		if err != nil {
			return nil, err
		}
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}, Timeout: Timeout}
		s.OnClose(client.CloseIdleConnections)
		all = append(all, Reader{api + "/v1/" + s.Source, facet, client})
	}
	return all, nil
}

// Reply is the response to a read.
type Reply struct {
	Status    int `json:"-"`
	Snapshot  json.RawMessage
	Freshness string
	Refresh   RefreshState
}

// RefreshState is the state of the refresh in a response; zero if no refresh is due.
type RefreshState struct {
	Queued bool
	Reason string
}

// Read reads an entity. query is the query string including its question mark, or empty.
func (r Reader) Read(ctx context.Context, key, query string) (Reply, error) {
	text, status, err := r.Do(ctx, http.MethodGet, r.API+"/"+r.Facet+"/"+key+query, "")
	if err != nil {
		return Reply{}, err
	}
	a := Reply{Status: status}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("%d %.100s: %w", status, text, err)
	}
	return a, nil
}

// Queue reads an entity until a refresh is queued or not needed, at most ten times. One read may
// not be enough: a query service that waits too long for Redis answers without queueing.
func (r Reader) Queue(ctx context.Context, key string) (queued bool, err error) {
	for range 10 {
		a, err := r.Read(ctx, key, "")
		if err != nil || a.Refresh.Queued || a.Freshness == "FRESH" {
			return a.Refresh.Queued, err
		}
	}
	return false, nil
}

// ErrUnavailable is wrapped by errors about a response with the status 503.
var ErrUnavailable = errors.New("503")

// Freshness reads an entity and returns its freshness. tag is the entity tag of the client's
// snapshot, or empty.
func (r Reader) Freshness(ctx context.Context, key, tag string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.API+"/"+r.Facet+"/"+key, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("If-None-Match", tag)
	resp, err := r.Client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	switch {
	case resp.StatusCode == http.StatusNotModified && strings.Contains(resp.Header.Get("Cache-Control"), "max-age=0,"):
		return "STALE", nil
	case resp.StatusCode == http.StatusNotModified:
		return "FRESH", nil
	case resp.StatusCode == http.StatusServiceUnavailable:
		return "", fmt.Errorf("%w: %.200s", ErrUnavailable, text)
	}
	const member = `"freshness":"` // in the response this member follows the long snapshot, so search for it from the end
	i := bytes.LastIndex(text, []byte(member))
	if resp.StatusCode >= http.StatusInternalServerError || i < 0 {
		return "", fmt.Errorf("%d %.200s", resp.StatusCode, text)
	}
	freshness, _, _ := strings.Cut(string(text[i+len(member):]), `"`)
	return freshness, nil
}

// CountFreshness reads each key once, with inFlight requests at a time, and counts the responses by
// their freshness. `tag` is the value of If-None-Match, or empty. A read with the response 503 is
// retried up to ten times, once a second. The error contains the first error of a read.
func (r Reader) CountFreshness(ctx context.Context, keys []string, inFlight int, tag string) (map[string]int, error) {
	work := make(chan string, len(keys))
	for _, key := range keys {
		work <- key
	}
	close(work)
	var mu sync.Mutex
	count := map[string]int{}
	var first error
	var wg sync.WaitGroup
	for range inFlight {
		wg.Go(func() {
			for key := range work {
				freshness, err := r.Freshness(ctx, key, tag)
				for retries := 0; errors.Is(err, ErrUnavailable) && retries < 10; retries++ {
					_ = Pause(ctx, time.Second)
					freshness, err = r.Freshness(ctx, key, tag)
				}
				mu.Lock()
				count[freshness]++
				if err != nil && first == nil {
					first = fmt.Errorf("%s: %w", key, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if first != nil {
		first = fmt.Errorf("%d of %d reads failed, the first: %w", count[""], len(keys), first)
	}
	return count, first
}

// ReadMany reads up to 100 entities with one request.
func (r Reader) ReadMany(ctx context.Context, keys []string) error {
	text, status, err := r.Do(ctx, http.MethodGet, r.API+"/"+r.Facet+"?"+url.Values{"key": keys}.Encode(), "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d %.200s", status, text)
	}
	return err
}

// Refresh requests a refresh of an entity and returns the HTTP status code of the response.
func (r Reader) Refresh(ctx context.Context, key string) (int, error) {
	_, status, err := r.Do(ctx, http.MethodPost, r.API+"/"+r.Facet+"/"+key+"/refresh", "")
	return status, err
}

// Do sends a request without a body. encoding is the value of Accept-Encoding, or empty.
func (r Reader) Do(ctx context.Context, method, url, encoding string) (text []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	if encoding != "" {
		req.Header.Set("Accept-Encoding", encoding)
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err = io.ReadAll(resp.Body)
	return text, resp.StatusCode, err
}

// Keys returns n keys: prefix0, prefix1 and so on.
func Keys(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(prefix, i)
	}
	return all
}

// Publish writes update requests directly to a lane's topic, without coalescing. Tests use it for
// the LOW lane, because no HTTP endpoint enqueues LOW requests.
func (s *Site) Publish(ctx context.Context, client *kgo.Client, facet string, lane schemas.Lane, keys ...string) error {
	records := make([]*kgo.Record, len(keys))
	for i, key := range keys {
		r := schemas.UpdateRequest{
			EventID: rand.Text(), Entity: schemas.Entity{Source: s.Source, Facet: facet, Key: key},
			Lane: lane, Reason: schemas.Prefetch, RequestedAt: time.Now(), CorrelationID: strings.ToLower(rand.Text()),
		}
		value, err := r.Encode()
		if err != nil {
			return err
		}
		records[i] = &kgo.Record{Topic: schemas.RequestTopic(s.Source, lane), Key: r.RecordKey(), Value: value}
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}
