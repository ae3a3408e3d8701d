package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
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

// small is a facet whose documents are small: what is judged is not how fast they are
// read.
const small = "small"

var onlySmall = map[string]string{small: "basic"}

// reader reads through one query process.
type reader struct {
	api    string // of the source
	client *http.Client
}

// readers starts query processes, and returns a reader of each.
func (s *site) readers(ctx context.Context, n int, freshFor string) (all []reader, err error) {
	for i := range n {
		api, err := s.query(ctx, fmt.Sprint("query-", i), freshFor)
		if err != nil {
			return nil, err
		}
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}, Timeout: patience}
		s.later(client.CloseIdleConnections)
		all = append(all, reader{api + "/v1/" + s.source, client})
	}
	return all, nil
}

// reply is what a reader got.
type reply struct {
	status    int
	Snapshot  json.RawMessage
	Freshness string
	Queued    bool `json:"updateQueued"`
}

// read reads an entity of small documents; query is behind its key, or empty.
func (r reader) read(ctx context.Context, key, query string) (reply, error) {
	text, status, err := r.do(ctx, http.MethodGet, r.api+"/"+small+"/"+key+query, "")
	if err != nil {
		return reply{}, err
	}
	a := reply{status: status}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("%d %.100s: %w", status, text, err)
	}
	return a, nil
}

// queue reads until a refresh is queued or no longer needed, a few times: where
// coalescing takes too long a read goes out without it.
func (r reader) queue(ctx context.Context, key string) (queued bool, err error) {
	for range 10 {
		a, err := r.read(ctx, key, "")
		if err != nil || a.Queued || a.Freshness == "FRESH" {
			return a.Queued, err
		}
	}
	return false, nil
}

// many reads up to a hundred at once.
func (r reader) many(ctx context.Context, keys []string) error {
	text, status, err := r.do(ctx, http.MethodGet, r.api+"/"+small+"?"+url.Values{"key": keys}.Encode(), "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d %.200s", status, text)
	}
	return err
}

// refresh asks for one as a person does, and returns the status.
func (r reader) refresh(ctx context.Context, key string) (int, error) {
	_, status, err := r.do(ctx, http.MethodPost, r.api+"/"+small+"/"+key+"/refresh", "")
	return status, err
}

func (r reader) do(ctx context.Context, method, url, encoding string) (text []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	if encoding != "" {
		req.Header.Set("Accept-Encoding", encoding)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err = io.ReadAll(resp.Body)
	return text, resp.StatusCode, err
}

// keys are prefix0, prefix1 and so on.
func keys(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(prefix, i)
	}
	return all
}

// steadily does something so often a second for some time, each in its own goroutine:
// one that takes long delays no other. It returns when all are done.
func steadily(ctx context.Context, rate int, length time.Duration, do func(n int)) error {
	var under sync.WaitGroup
	defer under.Wait()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for next := 0; ; {
		passed := min(time.Since(began), length)
		for due := int(passed.Seconds() * float64(rate)); next < due; next++ {
			n := next
			under.Go(func() { do(n) })
		}
		if passed == length {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// publish puts requests of a lane on its topic, past coalescing: of the LOW lane
// because nobody asks in it over HTTP.
func (s *site) publish(ctx context.Context, client *kgo.Client, lane schemas.Lane, keys ...string) error {
	records := make([]*kgo.Record, len(keys))
	for i, key := range keys {
		r := schemas.UpdateRequest{
			EventID: rand.Text(), Entity: schemas.Entity{Source: s.source, Facet: small, Key: key},
			Lane: lane, Reason: schemas.Prefetch, RequestedAt: time.Now(), CorrelationID: strings.ToLower(rand.Text()),
		}
		value, err := r.Encode()
		if err != nil {
			return err
		}
		records[i] = &kgo.Record{Topic: schemas.RequestTopic(s.source, lane), Key: r.RecordKey(), Value: value}
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}
