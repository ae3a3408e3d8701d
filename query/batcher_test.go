package query

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowRedis is an Enqueuer that takes a fixed time per batch.
type slowRedis struct {
	took time.Duration

	mu                    sync.Mutex
	inFlight, maxInFlight int
	batches, larger       int // number of batches, and number of batches that were larger than maxBatchSize
	order                 []string
}

func (s *slowRedis) Enqueue(_ context.Context, requests []UpdateRequest) []EnqueueResult {
	s.mu.Lock()
	s.batches++
	s.inFlight++
	s.maxInFlight = max(s.maxInFlight, s.inFlight)
	if len(requests) > maxBatchSize {
		s.larger++
	}
	for _, w := range requests {
		s.order = append(s.order, w.Entity.Key)
	}
	s.mu.Unlock()
	time.Sleep(s.took) // this is virtual time, because the test runs in a synctest bubble
	s.mu.Lock()
	s.inFlight--
	s.mu.Unlock()
	answers := make([]EnqueueResult, len(requests))
	for i := range answers {
		answers[i] = EnqueueResult{Queued: true, Number: 1}
	}
	return answers
}

func (s *slowRedis) EnqueueAndWait(ctx context.Context, requests []UpdateRequest) []EnqueueResult {
	return s.Enqueue(ctx, requests)
}

// withSlowRedis runs a test in a synctest bubble, with a slowRedis as the Enqueuer.
func withSlowRedis(t *testing.T, took time.Duration, test func(r *rig, redis *slowRedis)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		r := newRig(t)
		redis := &slowRedis{took: took}
		r.server.requester.batcher.enqueuer = redis
		test(r, redis)
		synctest.Wait()
		time.Sleep(2 * took) // wait until the requests in the background have ended, because they must end in the bubble
	})
}

func TestColdRead_WaitsForASlowRedis(t *testing.T) {
	withSlowRedis(t, 900*time.Millisecond, func(r *rig, _ *slowRedis) {
		began := time.Now()
		if a := r.get("new"); a.StatusCode != 202 || !a.body.Refresh.Queued || time.Since(began) != 900*time.Millisecond {
			r.Errorf("got %d, queued %v, after %v; want 202, true, after 900ms", a.StatusCode, a.body.Refresh.Queued, time.Since(began))
		}
		began = time.Now()
		a := r.do(http.MethodGet, "/v1/nexon/character?key=new2&key=new3")
		if a.body.Items[1].Status != 202 || time.Since(began) != 900*time.Millisecond {
			r.Errorf("a batch: got %d after %v, want 202 after 900ms", a.body.Items[1].Status, time.Since(began))
		}
	})
}

func TestStaleRead_DoesNotWaitForASlowRedis(t *testing.T) {
	withSlowRedis(t, 900*time.Millisecond, func(r *rig, _ *slowRedis) {
		r.putSnapshot("stale", 2*time.Hour)
		for _, path := range []string{"/v1/nexon/character/stale", "/v1/nexon/character?key=stale"} {
			began := time.Now()
			a := r.do(http.MethodGet, path)
			body := a.body
			if len(body.Items) > 0 {
				body = body.Items[0]
			}
			if a.StatusCode != 200 || body.Refresh.Reason == "" || body.Refresh.Reason != reasonSlow || time.Since(began) != staleTimeout {
				r.Errorf("%s: got %d after %v: %s, want 200", path, a.StatusCode, time.Since(began), a.text)
			}
		}
	})
}

func TestColdRead_503ExplainsTheFailure(t *testing.T) {
	withSlowRedis(t, time.Minute, func(r *rig, _ *slowRedis) {
		for query, want := range map[string]time.Duration{"": acceptTimeout, "?wait=9s": 9 * time.Second, "?wait=10ms": acceptTimeout} {
			began := time.Now()
			a := r.get("new-" + strconv.Itoa(int(want)) + query)
			if a.StatusCode != 503 || a.body.Code != "not-queued" || a.Header.Get("Retry-After") != "1" || time.Since(began) != want ||
				a.body.Refresh.Reason != reasonSlow || !strings.Contains(a.text, "Redis did not accept the update request within "+want.String()) {
				r.Errorf("%q: got %d after %v, want 503 after %v: %s", query, a.StatusCode, time.Since(began), want, a.text)
			}
		}
		a := r.do(http.MethodGet, "/v1/nexon/character?key=other")
		if got := a.body.Items[0]; got.Status != 503 || got.Refresh.Reason != reasonSlow {
			r.Errorf("a batch: got %d %s, want 503 %s", got.Status, got.Refresh.Reason, reasonSlow)
		}
	})
}

// 256 clients read 5,000 new keys from a process whose Redis takes 100 ms per pipeline. Every read
// must get status 202. The pipelines must carry at least 8 keys on average, and each at most
// maxBatchSize.
func TestColdBurst_IsAcceptedBySlowRedis(t *testing.T) {
	withSlowRedis(t, 100*time.Millisecond, func(r *rig, redis *slowRedis) {
		const keys, clients = 5_000, 256
		next := make(chan string, keys)
		for i := range keys {
			next <- strconv.Itoa(i)
		}
		close(next)
		var mu sync.Mutex
		statuses := map[int]int{}
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				for key := range next {
					recorder := httptest.NewRecorder() // r.get is not used, because it also validates the response, which would take longer than the read itself
					r.server.ServeHTTP(recorder, httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/v1/nexon/character/"+key, nil))
					mu.Lock()
					statuses[recorder.Code]++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if statuses[202] != keys {
			r.Errorf("got %v, want 202 for all", statuses)
		}
		if redis.maxInFlight > maxBatches || redis.larger > 0 || redis.batches > keys/8 {
			r.Errorf("batches, most in flight, and too large: got %d, %d and %d, want at most %d, %d and 0",
				redis.batches, redis.maxInFlight, redis.larger, keys/8, maxBatches)
		}
	})
}

// While Redis is slow, the update requests of reads with a stale snapshot fill the queue, because
// such reads do not wait. The update request of a read without a snapshot must still be sent in the
// next batch.
func TestBatcher_SendsUrgentRequestsFirst(t *testing.T) {
	withSlowRedis(t, 200*time.Millisecond, func(r *rig, redis *slowRedis) {
		for i := range 20 * maxBatchSize {
			go r.server.requester.batcher.enqueue(UpdateRequest{Entity: entity("stale" + strconv.Itoa(i))}, false)
		}
		synctest.Wait()
		began := time.Now()
		if a := r.get("new"); a.StatusCode != 202 || time.Since(began) > 2*redis.took {
			r.Errorf("got %d after %v, want 202 within %v", a.StatusCode, time.Since(began), 2*redis.took)
		}
		time.Sleep(30 * redis.took)
		synctest.Wait() // wait until the last batch has ended
		if got, want := len(redis.order), 20*maxBatchSize+1; got != want {
			r.Errorf("sent requests: got %d, want %d", got, want)
		}
	})
}

func TestBatcher_IsBounded(t *testing.T) {
	withSlowRedis(t, time.Second, func(r *rig, _ *slowRedis) {
		q := r.server.requester.batcher
		answered := make(chan EnqueueResult, 2*maxEnqueued)
		fill := func(n int) bool {
			all := make([]queuedRequest, n)
			for i := range all {
				all[i] = queuedRequest{UpdateRequest{Entity: entity(strconv.Itoa(i))}, answered}
			}
			return q.add(all, false)
		}
		if !fill(2 * maxBatches * maxBatchSize) {
			r.Fatal("an empty queue is full")
		}
		synctest.Wait() // wait until the first batches are in flight
		enqueued := func() int {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.background)
		}
		if left := maxEnqueued - enqueued(); !fill(left) || fill(1) {
			r.Errorf("limit of the queue: want %d more requests accepted, and then none", left)
		}
		a := r.get("new")
		if a.StatusCode != 503 || a.body.Refresh.Reason != ReasonBusy || !strings.Contains(a.text, "Kafka or Redis is too slow") {
			r.Errorf("got %d %s, want 503 %s", a.StatusCode, a.text, ReasonBusy)
		}
		time.Sleep(maxEnqueued / maxBatchSize * time.Second)
		if got := enqueued(); got != 0 {
			r.Errorf("waiting requests after all were answered: got %d, want none", got)
		}
	})
}
