package query

import (
	"context"
	"log/slog"
	"sync"
)

const (
	// maxBatchSize is the maximum number of update requests in one Redis pipeline. The scripts of
	// a pipeline must complete within the Redis client's read timeout of 1 s, even on a busy
	// machine.
	maxBatchSize = 32
	// maxBatches is the maximum number of pipelines in flight per process. Fewer pipelines would
	// carry larger batches. With more pipelines, a slow node of the Redis cluster delays a smaller
	// share of the requests.
	maxBatches = 8
	// maxEnqueued is the maximum number of update requests that wait for a pipeline, about 20 MB
	// of memory. The queue fills if Redis hangs, because reads of stale snapshots do not wait
	// for their requests.
	maxEnqueued = 20_000
)

// batcher sends update requests to the Enqueuer. While fewer than maxBatches batches are in flight,
// a request is sent at once. Otherwise it waits for a later batch; urgent requests go first. Under
// load one pipeline carries many requests, which saves round trips.
type batcher struct {
	enqueuer Enqueuer
	log      *slog.Logger

	mu         sync.Mutex
	urgent     []queuedRequest // requests of waiting clients for entities without a snapshot
	background []queuedRequest
	batches    int // number of batches in flight
}

// queuedRequest is an update request with the channel for its result.
type queuedRequest struct {
	request UpdateRequest
	result  chan<- EnqueueResult // buffered channel, so that a send never blocks
}

// enqueue sends one update request and returns its result. `urgent` means that a client waits and
// that nothing is stored for the entity.
func (q *batcher) enqueue(req UpdateRequest, urgent bool) EnqueueResult {
	return q.enqueueAll([]UpdateRequest{req}, urgent)[0]
}

// enqueueAll sends several update requests and returns their results, in the order of the
// requests.
func (q *batcher) enqueueAll(requests []UpdateRequest, urgent bool) []EnqueueResult {
	channels := make([]chan EnqueueResult, len(requests))
	all := make([]queuedRequest, len(requests))
	for i, req := range requests {
		channels[i] = make(chan EnqueueResult, 1)
		all[i] = queuedRequest{req, channels[i]}
	}
	if !q.add(all, urgent) {
		return repeatResult(requests, ReasonBusy)
	}
	results := make([]EnqueueResult, len(requests))
	for i := range results {
		results[i] = <-channels[i]
	}
	return results
}

// add queues all requests. It starts one goroutine per maxBatchSize requests, as long as fewer than
// maxBatches batches are in flight. If the queue has no room for all requests, add queues none and
// returns false.
func (q *batcher) add(all []queuedRequest, urgent bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.urgent)+len(q.background)+len(all) > maxEnqueued {
		return false
	}
	if urgent {
		q.urgent = append(q.urgent, all...)
	} else {
		q.background = append(q.background, all...)
	}
	for range (len(all) + maxBatchSize - 1) / maxBatchSize {
		if q.batches < maxBatches {
			q.batches++
			go q.run()
		}
	}
	return true
}

// run sends batches until the queue is empty.
func (q *batcher) run() {
	for {
		batch := q.next()
		if len(batch) == 0 {
			return
		}
		for i, a := range q.send(batch) {
			batch[i].result <- a
		}
	}
}

// next returns the next batch of queued requests. If no request is queued, the batch is empty; the
// caller must then stop sending batches.
func (q *batcher) next() []queuedRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := make([]queuedRequest, 0, min(maxBatchSize, len(q.urgent)+len(q.background)))
	batch, q.urgent = moveTo(batch, q.urgent)
	batch, q.background = moveTo(batch, q.background)
	if len(batch) == 0 {
		q.batches--
	}
	return batch
}

// moveTo moves requests from the start of a queue into a batch, up to the batch's capacity.
func moveTo(batch, from []queuedRequest) (filled, left []queuedRequest) {
	n := min(cap(batch)-len(batch), len(from))
	batch = append(batch, from[:n]...)
	clear(from[:n]) // the queue must not keep sent requests in memory
	if n == len(from) {
		return batch, nil
	}
	return batch, from[n:]
}

// send sends one batch. If the Enqueuer panics, all requests of the batch get ReasonDown.
func (q *batcher) send(batch []queuedRequest) []EnqueueResult {
	requests := make([]UpdateRequest, len(batch))
	for i := range batch {
		requests[i] = batch[i].request
	}
	v, err := withRecover(func() (any, error) { return q.enqueuer.Enqueue(context.Background(), requests), nil })()
	results, ok := v.([]EnqueueResult)
	if !ok {
		q.log.Error("enqueueing update requests panicked", "requests", len(requests), "err", err)
		return repeatResult(requests, ReasonDown)
	}
	return results
}

// repeatResult returns one result per update request. All results have the given reason.
func repeatResult(requests []UpdateRequest, reason RefreshReason) []EnqueueResult {
	results := make([]EnqueueResult, len(requests))
	for i := range results {
		results[i].Reason = reason
	}
	return results
}
