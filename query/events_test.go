package query

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

type event struct {
	id, name string
	data     struct {
		answerBody
		ETag *string `json:"etag"`
	}
}

// follower reads an event stream over a real connection.
type follower struct {
	*rig
	events chan event
	leave  func()
}

func (r *rig) follow(key, lastID string) *follower {
	r.Helper()
	server := httptest.NewServer(r.server)
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/v1/nexon/character/"+key+"/events", nil)
	if err != nil {
		r.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-Id", lastID)
	}
	resp, err := http.DefaultClient.Do(req) //nolint:bodyclose // leave closes it
	if err != nil {
		r.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("Cache-Control") != "no-store" {
		r.Fatalf("got %d %v, want 200", resp.StatusCode, resp.Header)
	}
	f := &follower{rig: r, events: make(chan event, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(f.events)
		var e event
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch field {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				if err := json.Unmarshal([]byte(value), &e.data); err != nil {
					r.Errorf("%s: invalid data: %v", value, err)
				}
			case "":
				if lines.Text() == "" && e.name != "" {
					f.events <- e
					e = event{}
				}
			}
		}
	}()
	f.leave = func() { cancel(); <-done; _ = resp.Body.Close(); server.Close() }
	r.Cleanup(f.leave)
	return f
}

func (f *follower) expect(name string, freshness store.Freshness) event {
	f.Helper()
	select {
	case e, open := <-f.events:
		if !open || e.name != name || e.data.Freshness != freshness {
			f.Fatalf("event: got %+v, open %v, want %s %s", e, open, name, freshness)
		}
		return e
	case <-time.After(testTimeout):
		f.Fatalf("event %s: got none within %v, want one", name, testTimeout)
	}
	return event{}
}

func TestEvents_ReportChangesAndMissedOnes(t *testing.T) {
	r := newRig(t)
	hash := func(version int64, b byte) func(*store.Snapshot) {
		return func(s *store.Snapshot) { s.Version, s.Hash[0] = version, b }
	}
	f := r.follow("a", "")
	if e := f.expect("state", store.Updating); e.id != "" || !e.data.Refresh.Queued || e.data.ETag != nil {
		t.Errorf("got %+v, want a queued update request without id and ETag", e)
	}
	r.putSnapshot("a", 0, hash(7, 1))
	first := f.expect("changed", store.Fresh)
	if a := r.get("a"); *first.data.ETag != a.Header.Get("ETag") {
		t.Errorf("tag of the event: got %s, want %s of a read", *first.data.ETag, a.Header.Get("ETag"))
	}
	r.settle("a", 8) // this request is settled without a new snapshot, so the stream must send no event
	r.putSnapshot("a", 0, hash(9, 1))
	checked := f.expect("checked", store.Fresh)
	r.putSnapshot("a", 0, func(s *store.Snapshot) { s.Version, s.Hash[0], s.NotFound = 10, 1, true })
	gone := f.expect("notFound", store.NotFound)
	r.putSnapshot("a", 0, hash(11, 2))
	f.expect("changed", store.Fresh)
	r.putSnapshot("a", 2*time.Hour, hash(12, 2))
	f.expect("checked", store.Stale)
	f.leave()

	r.putSnapshot("a", 0, hash(13, 2))
	for id, want := range map[string]string{first.id: "changed", checked.id: "changed", gone.id: "changed", "": "changed", "garbage": "changed", "0.x": "changed"} {
		f := r.follow("a", id)
		if e := f.expect(want, store.Fresh); e.id == id {
			t.Errorf("event after %s: got %+v, want another id", id, e)
		}
		f.leave()
	}
	// After a reconnect, a client that missed nothing gets no event until the next change.
	f = r.follow("a", streamState{version: 13, tag: strings.Trim(r.get("a").Header.Get("ETag"), `W/"`)}.id())
	servicetest.WaitFor(t, testTimeout, "the stream", func() bool { return r.server.waits.set.count.Load() == 1 })
	r.putSnapshot("a", 0, hash(14, 2))
	f.expect("checked", store.Fresh)
	f.leave()
	r.waitUntilNoWaiters()
}

func TestEvents_OfAnInvalidEntityAreAProblem(t *testing.T) {
	r := newRig(t)
	for path, status := range map[string]int{"/v1/nexon/character/x/events": 400, "/v1/nexon/union/a/events": 404} {
		if a := r.do(http.MethodGet, path); a.StatusCode != status || a.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: got %d %v, want a problem", path, a.StatusCode, a.Header)
		}
	}
	if a := r.do(http.MethodHead, "/v1/nexon/character/a/events"); a.StatusCode != 200 || a.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("HEAD: got %d %v, want 200", a.StatusCode, a.Header)
	}
	r.waitUntilNoWaiters()
}

// recordStream runs a stream in a synctest bubble for the time `during` and returns the text that
// it sent.
func recordStream(t *testing.T, during time.Duration, prepare func(*rig)) (text string, requests int, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		prepare(r)
		ctx, cancel := context.WithTimeout(t.Context(), during)
		defer cancel()
		began := time.Now()
		rec := httptest.NewRecorder()
		r.server.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/nexon/character/a/events", nil))
		text, requests, took = rec.Body.String(), len(r.enqueued()), time.Since(began)
	})
	return text, requests, took
}

func TestEvents_SendHeartbeats(t *testing.T) {
	text, requests, _ := recordStream(t, time.Minute+time.Second, func(r *rig) { r.putSnapshot("a", 0) })
	if strings.Count(text, ": alive\n\n") != 4 || strings.Count(text, "event:") != 1 || !strings.HasPrefix(text, "retry: 1") || requests != 0 {
		t.Errorf("stream of a fresh entity: got %d update requests and %s, want 0, 1 event and 4 heartbeats", requests, text)
	}
}

func TestEvents_EnqueueARefreshWhenStale(t *testing.T) {
	text, requests, _ := recordStream(t, 10*time.Minute, func(r *rig) { r.putSnapshot("a", 55*time.Minute) })
	if requests < 1 || strings.Count(text, "event: state") != 1 || !strings.Contains(text, "STALE") {
		t.Errorf("stream of a stale entity: got %d update requests and %s, want some, and 1 event with STALE", requests, text)
	}
}

func TestEvents_EndWhenTheTokenExpires(t *testing.T) {
	_, _, took := recordStream(t, time.Hour, func(r *rig) {
		r.putSnapshot("a", 0)
		r.client = access.Client{Name: "jwt:x", Scopes: everything.Scopes, Expires: time.Now().Add(90 * time.Second)}
	})
	if took != 90*time.Second {
		t.Errorf("duration of the stream: got %v, want 1m30s", took)
	}
}

func TestEvents_EndWhenTheKeyIsRevoked(t *testing.T) {
	text, _, took := recordStream(t, time.Hour, func(r *rig) {
		r.putSnapshot("a", 0)
		time.AfterFunc(50*time.Second, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.refused = errors.New("revoked")
		})
	})
	if took != time.Minute || strings.Count(text, ": alive") != 3 {
		t.Errorf("stream: got the end after %v and %s, want 1m0s and 3 heartbeats", took, text)
	}
}
