package query

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

func TestWait_EndsWithASettle(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("stale", 2*time.Hour)
	for _, key := range []string{"new", "stale"} {
		for _, how := range [][]string{{"?wait=20s"}, {"?wait=20"}, {"", "Prefer", "respond-async, wait=20"}} {
			r.mu.Lock()
			r.requests = nil
			r.mu.Unlock()
			answered := make(chan answer, 1)
			go func() { answered <- r.get(key+how[0], how[1:]...) }()
			servicetest.WaitFor(t, testTimeout, "an enqueued request", func() bool { return len(r.enqueued()) > 0 })
			select {
			case a := <-answered:
				t.Fatalf("%s %v: got %d %s at once, want a wait", key, how, a.StatusCode, a.text)
			default:
			}
			r.putSnapshot(key, 0)
			a := <-answered
			if a.StatusCode != 200 || a.body.Freshness != store.Fresh {
				t.Errorf("%s %v: got %d %s, want 200 FRESH", key, how, a.StatusCode, a.text)
			}
			if applied := a.Header.Get("Preference-Applied"); (applied == "wait=20") != (how[0] == "") {
				t.Errorf("%v: Preference-Applied: got %q, want wait=20 only with Prefer", how, applied)
			}
			r.putSnapshot("stale", 2*time.Hour)
			delete(r.snapshots, entity("new"))
			r.settle("new", 9)
		}
	}
	r.waitUntilNoWaiters()
}

func (r *rig) waitUntilNoWaiters() {
	r.Helper()
	n := 0
	for i := range r.server.waits.set.shards {
		n += len(r.server.waits.set.shards[i].waiting)
	}
	if n != 0 || r.server.waits.set.count.Load() != 0 {
		r.Errorf("entities still waited for: got %d, by %d, want 0, by 0", n, r.server.waits.set.count.Load())
	}
}

func TestWait_MissesNoSettleBeforeTheFirstRead(t *testing.T) {
	r := newRig(t)
	first := true
	r.respond = func(context.Context, UpdateRequest) EnqueueResult {
		if first { // the snapshot of the first update request is stored at once, before the client begins to wait
			first = false
			r.putSnapshot("a", 0)
		}
		return EnqueueResult{Queued: true}
	}
	if a := r.get("a?wait=20s"); a.StatusCode != 200 || a.body.Freshness != store.Fresh {
		t.Errorf("got %d %s, want 200 FRESH", a.StatusCode, a.text)
	}
}

func TestWait_EndsIfNothingIsExpected(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("fresh", time.Minute)
	r.putSnapshot("notfound", time.Minute, func(s *store.Snapshot) { s.NotFound = true })
	until := time.Now().Add(time.Hour)
	r.respond = func(context.Context, UpdateRequest) EnqueueResult {
		return EnqueueResult{Reason: "HELD_FAILED", Until: until}
	}
	for key, status := range map[string]int{"fresh": 200, "notfound": 404, "held": 503} {
		if a := r.get(key + "?wait=30s"); a.StatusCode != status {
			t.Errorf("%s: got %d %s, want %d", key, a.StatusCode, a.text, status)
		}
	}
}

func TestWait_EndsWithAFailure(t *testing.T) {
	r := newRig(t)
	answered := make(chan answer, 1)
	go func() { answered <- r.get("a?wait=30s") }()
	servicetest.WaitFor(t, testTimeout, "an enqueued request", func() bool { return len(r.enqueued()) > 0 })
	r.mu.Lock()
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: "HELD_RETRYING"} }
	r.mu.Unlock()
	r.settle("a", 101)
	if a := <-answered; a.StatusCode != 503 || a.body.Refresh.Reason != "HELD_RETRYING" {
		t.Errorf("got %d %s, want 503", a.StatusCode, a.text)
	}
}

func TestWait_EndsAtItsTimeout(t *testing.T) {
	r := newRig(t)
	for how, want := range map[string]time.Duration{"?wait=0": 0, "?wait=250ms": 250 * time.Millisecond, "?wait=4s": 4 * time.Second, "?wait=1h": maxWait, "?wait=99999": maxWait, "?wait=18446744074": maxWait} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t) // the query service is created in the bubble, so that it uses virtual time
			began := time.Now()
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nexon/character/a"+how, nil)
			c := r.server.echo.NewContext(req, httptest.NewRecorder())
			timeout, err := parseWait(c)
			if err != nil || timeout != want {
				t.Errorf("%s: got %v, %v, want %v", how, timeout, err, want)
			}
			if timeout == 0 {
				return
			}
			v, timedOut, err := r.server.waits.waitUntil(c, everything, timeout, entity("a"), func(*waiter) (view, bool, error) { return view{freshness: store.Updating}, true, nil })
			if took := time.Since(began); err != nil || !timedOut || v.freshness != store.Updating || took != want {
				t.Errorf("%s: got a wait of %v, %v, want %v", how, took, err, want)
			}
		})
	}
	for _, how := range []string{"?wait=soon", "?wait=-1", "?wait=-5s", "?wait=NaN", "?wait="} {
		if a := r.get("a" + how); a.StatusCode != 400 || a.body.Code != "bad-wait" {
			t.Errorf("%s: got %d %s, want 400 bad-wait", how, a.StatusCode, a.text)
		}
	}
	for _, prefer := range []string{"wait=soon", "wait=-1", "return=minimal", "wait", ""} { // these preferences are ignored (RFC 7240)
		if a := r.get("a", "Prefer", prefer); a.StatusCode != 202 || a.Header.Get("Preference-Applied") != "" {
			t.Errorf("%s: got %d, want 202", prefer, a.StatusCode)
		}
	}
	r.waitUntilNoWaiters()
}

func TestRefresh_WaitReturnsTheNewSnapshot(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	refresh := func() chan answer {
		r.mu.Lock()
		r.requests = nil
		r.mu.Unlock()
		answered := make(chan answer, 1)
		go func() { answered <- r.do(http.MethodPost, "/v1/nexon/character/a/refresh?wait=20s") }()
		servicetest.WaitFor(t, testTimeout, "an enqueued request", func() bool { return len(r.enqueued()) > 0 })
		return answered
	}
	version := func(n int64) func(*store.Snapshot) { return func(s *store.Snapshot) { s.Version = n } }
	answered := refresh()
	r.putSnapshot("a", 0, version(99)) // version 99 is the result of an earlier fetch: it must not end the wait for the update request 100
	select {
	case a := <-answered:
		t.Fatalf("answer after an earlier fetch: got %s, want none", a.text)
	case <-time.After(50 * time.Millisecond): // if the earlier fetch ended the wait, the response would arrive within this time
	}
	s := r.putSnapshot("a", 0, version(101))
	if a := <-answered; a.StatusCode != 200 || !a.body.LastCheckedAt.Equal(s.CheckedAt) {
		t.Errorf("got %d %s, want 200", a.StatusCode, a.text)
	}
	answered = refresh()
	r.settle("a", 102) // the second request ends with a failure: no new snapshot is stored
	r.putSnapshot("a", 2*time.Hour, version(98))
	if a := <-answered; a.StatusCode != 200 {
		t.Errorf("got %d %s, want 200", a.StatusCode, a.text)
	}
	r.respond = func(context.Context, UpdateRequest) EnqueueResult {
		return EnqueueResult{Reason: ReasonCooldown, Until: time.Now().Add(time.Minute)}
	}
	if a := r.do(http.MethodPost, "/v1/nexon/character/a/refresh?wait=20s"); a.StatusCode != 429 {
		t.Errorf("got %d %s, want 429", a.StatusCode, a.text)
	}
}

func TestShutdown_AnswersTensOfThousandsOfWaiters(t *testing.T) {
	r := newRig(t)
	const many = 20_000
	var wg sync.WaitGroup
	statuses := make([]int, many)
	for i := range many {
		wg.Go(func() {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nexon/character/a?wait=30s", nil)
			rec := httptest.NewRecorder()
			r.server.ServeHTTP(rec, req)
			statuses[i] = rec.Code
		})
	}
	servicetest.WaitFor(t, testTimeout, "all wait", func() bool { return r.server.waits.set.count.Load() == many })
	if n := len(r.enqueued()); n > many/10 { // concurrent reads share update requests, so fewer than one per ten reads are expected
		t.Logf("%d update requests", n)
	}
	close(r.server.waits.set.stopping)
	wg.Wait()
	for i, status := range statuses {
		if status != 202 {
			t.Fatalf("reader %d: got %d, want 202", i, status)
		}
	}
	r.waitUntilNoWaiters()
}

func TestWait_LimitsWaitersOfTheProcess(t *testing.T) {
	r := newRig(t)
	r.server.waits.set.count.Store(maxWaiters)
	for _, path := range []string{"a?wait=5s", "a/events"} {
		if a := r.get(path); a.StatusCode != 503 || a.body.Code != "too-many-waiters" || a.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: got %d %s, want 503 too-many-waiters", path, a.StatusCode, a.text)
		}
	}
	if a := r.get("a"); a.StatusCode != 202 {
		t.Errorf("without waiting: got %d, want 202", a.StatusCode)
	}
}
