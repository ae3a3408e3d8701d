package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/freshet/freshet/simulator"
)

const upstreamReady = `upstream: (http://[0-9.:]+)`

// Control changes the behaviour of the upstream.
func (s *Site) Control(ctx context.Context, c simulator.Control) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Upstream+"/_control", bytes.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("change the upstream's behaviour: %s", text)
	}
	return nil
}

// SetLatency sets the range of the upstream's response times.
func (s *Site) SetLatency(ctx context.Context, shortest, longest time.Duration) error {
	return s.Control(ctx, simulator.Control{Latency: &simulator.Range{Min: shortest, Max: longest}})
}

// Arrival is one call in the upstream's log.
type Arrival struct {
	At     time.Time
	Key    string
	Status int
	Fault  simulator.Kind
}

// Reset clears the upstream's counters and its log.
func (s *Site) Reset(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Upstream+"/_reset", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// get sends a GET request to one of the simulator's control endpoints and returns the body of the
// response. The caller must close the body.
func (s *Site) get(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Upstream+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Stats returns the upstream's counters.
func (s *Site) Stats(ctx context.Context) (st simulator.Stats, err error) {
	text, err := s.get(ctx, "/_stats")
	if err != nil {
		return st, err
	}
	defer func() { _ = text.Close() }()
	return st, json.NewDecoder(text).Decode(&st)
}

// Arrivals returns the upstream's log of calls, oldest first.
func (s *Site) Arrivals(ctx context.Context) (all []Arrival, err error) {
	st, err := s.Stats(ctx)
	if err != nil || st.Arrivals == 0 {
		return nil, err
	}
	text, err := s.get(ctx, "/_arrivals")
	if err != nil {
		return nil, err
	}
	defer func() { _ = text.Close() }()
	var start time.Time
	for lines := json.NewDecoder(text); lines.More(); {
		var l struct {
			At     int64 // time of the call in microseconds since the upstream's start
			Key    string
			Status int
			Fault  simulator.Kind
		}
		if err := lines.Decode(&l); err != nil {
			return nil, err
		}
		at := time.Duration(l.At) * time.Microsecond
		if start.IsZero() {
			start = st.FirstArrival.Add(-at)
		}
		all = append(all, Arrival{start.Add(at), l.Key, l.Status, l.Fault})
	}
	return all, nil
}

// CountCalls counts the calls for keys with a prefix in the interval [from, to).
func CountCalls(all []Arrival, prefix string, from, to time.Time) (n int) {
	for _, a := range all {
		if strings.HasPrefix(a.Key, prefix) && !a.At.Before(from) && a.At.Before(to) {
			n++
		}
	}
	return n
}

// MaxInSecond returns the largest number of calls in any sliding second that ends in the
// interval [from, to).
func MaxInSecond(all []Arrival, from, to time.Time) (count int) {
	first := 0
	for i, a := range all {
		for a.At.Sub(all[first].At) > time.Second {
			first++
		}
		if !a.At.Before(from) && a.At.Before(to) {
			count = max(count, i-first+1)
		}
	}
	return count
}

// DistinctKeys counts the different keys of the calls.
func DistinctKeys(all []Arrival) int {
	keys := map[string]bool{}
	for _, a := range all {
		keys[a.Key] = true
	}
	return len(keys)
}
