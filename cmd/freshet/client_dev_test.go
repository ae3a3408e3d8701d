package main

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/freshet/freshet/client"
)

// statuses counts the responses to the client by their HTTP status.
type statuses struct {
	http.RoundTripper
	unchanged, encoded atomic.Int64 // unchanged: number of responses with status 304; encoded: number of responses in zstd
}

func (s *statuses) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusNotModified {
		s.unchanged.Add(1)
	}
	if err == nil && resp.Header.Get("Content-Encoding") == "zstd" {
		s.encoded.Add(1)
	}
	return resp, err
}

func TestClient_UsesAQueryService(t *testing.T) {
	d := startDev(t)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	seen := &statuses{RoundTripper: transport}
	c, err := client.New(d.api, client.Options{Transport: seen, Zstd: func(r io.Reader) (io.ReadCloser, error) {
		z, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	e := client.Entity{Source: "nexon", Facet: "character", Key: "somebody"}
	first, err := client.GetAs[map[string]any](t.Context(), c, e, client.Wait(20*time.Second))
	if err != nil || first.Freshness != client.Fresh || len(first.Snapshot) == 0 {
		t.Fatalf("first read: got %+v, %v, want a fresh snapshot", first, err)
	}
	if seen.encoded.Load() != 1 {
		t.Errorf("first read: got %d responses in zstd, want 1", seen.encoded.Load())
	}
	second, err := c.Get(t.Context(), e)
	if err != nil || second.Freshness != client.Fresh || second.ETag != first.ETag {
		t.Errorf("second read: got %s with %s, %v, want FRESH with %s", second.Freshness, second.ETag, err, first.ETag)
	}
	if seen.unchanged.Load() != 1 {
		t.Errorf("second read: got %d responses 304, want 1", seen.unchanged.Load())
	}
	if off := second.LastCheckedAt.Sub(first.LastCheckedAt).Abs(); off > 5*time.Second {
		t.Errorf("LastCheckedAt after 304: got %v from the first, want about one second", off)
	}
	items, err := c.GetMany(t.Context(), e.Source, e.Facet, []string{e.Key, "no key\x01"})
	if err != nil || items[0].Freshness != client.Fresh || items[1].Status != http.StatusBadRequest {
		t.Errorf("read of two keys: got %+v, %v, want FRESH and 400", items, err)
	}
	refreshed, err := c.Refresh(t.Context(), e)
	if err != nil || refreshed.Refresh == nil || !refreshed.Refresh.Queued {
		t.Errorf("refresh: got %+v, %v, want it queued", refreshed, err)
	}
	for event, err := range c.Watch(t.Context(), e) {
		if err != nil || event.Type != client.Changed || event.ETag != first.ETag || event.ID == "" {
			t.Errorf("first event: got %+v, %v, want changed with %s", event, err, first.ETag)
		}
		break
	}
}
