package query

import (
	"context"
	"log/slog"
	"sync"
)

const (
	// maxBatchSize is how many update requests go to Redis in one pipeline. Its
	// scripts must end within the client's read timeout of 1 s, on a busy machine too.
	maxBatchSize = 32
	// maxBatches is how many pipelines of a process are in flight. Fewer make larger
	// batches, more keep one slow node of a cluster from delaying the others.
	maxBatches = 8
	// maxEnqueued bounds the update requests of a process that wait for a pipeline. It
	// is a bound on memory, of about 20 MB: reads of stale snapshots do not wait for
	// their requests, so that a Redis that hangs leaves them here.
	maxEnqueued = 20_000
)

// batcher passes update requests to the Requester. A request that comes while no
// batch is in flight is passed on at once. Requests that come meanwhile make the next
// batches, those with a waiting client first: under load a pipeline carries many
// requests, and not each its own round trip.
type batcher struct {
	enqueuer Enqueuer
	log      *slog.Logger

	mu         sync.Mutex
	urgent     []queuedRequest // somebody waits for the answer, having nothing else
	background []queuedRequest
	batches    int // in flight
}

// queuedRequest is an update request and where its answer goes.
type queuedRequest struct {
	request UpdateRequest
	result  chan<- EnqueueResult // has room for it
}

// enqueue returns the answer to one update request when there is one. urgent: a
// client waits for it, for which nothing is stored.
func (q *batcher) enqueue(w UpdateRequest, urgent bool) EnqueueResult {
	return q.enqueueAll([]UpdateRequest{w}, urgent)[0]
}

// enqueueAll is request for several; the answers are in the order of the requests.
func (q *batcher) enqueueAll(wishes []UpdateRequest, urgent bool) []EnqueueResult {
	answered := make([]chan EnqueueResult, len(wishes))
	all := make([]queuedRequest, len(wishes))
	for i, w := range wishes {
		answered[i] = make(chan EnqueueResult, 1)
		all[i] = queuedRequest{w, answered[i]}
	}
	if !q.add(all, urgent) {
		return repeatResult(wishes, ReasonBusy)
	}
	answers := make([]EnqueueResult, len(wishes))
	for i := range answers {
		answers[i] = <-answered[i]
	}
	return answers
}

// add enqueues all or none, and starts as many batches as they fill and may be in
// flight.
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

// run passes batches on until nothing is enqueued.
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

// next returns the next batch; none, if nothing is enqueued: then run ends.
func (q *batcher) next() []queuedRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := make([]queuedRequest, 0, min(maxBatchSize, len(q.urgent)+len(q.background)))
	batch, q.urgent = move(batch, q.urgent)
	batch, q.background = move(batch, q.background)
	if len(batch) == 0 {
		q.batches--
	}
	return batch
}

// move moves the first requests of a queue into a batch, as many as it has room for.
func move(batch, from []queuedRequest) (filled, left []queuedRequest) {
	n := min(cap(batch)-len(batch), len(from))
	batch = append(batch, from[:n]...)
	clear(from[:n]) // what was answered is not kept
	if n == len(from) {
		return batch, nil
	}
	return batch, from[n:]
}

// send asks for a batch. A panic answers all of it.
func (q *batcher) send(batch []queuedRequest) []EnqueueResult {
	wishes := make([]UpdateRequest, len(batch))
	for i := range batch {
		wishes[i] = batch[i].request
	}
	v, err := withRecover(func() (any, error) { return q.enqueuer.Enqueue(context.Background(), wishes), nil })()
	answers, ok := v.([]EnqueueResult)
	if !ok {
		q.log.Error("update requests failed", "requests", len(wishes), "err", err)
		return repeatResult(wishes, ReasonDown)
	}
	return answers
}

// repeatResult returns one answer for each update request, all with this reason.
func repeatResult(wishes []UpdateRequest, reason string) []EnqueueResult {
	answers := make([]EnqueueResult, len(wishes))
	for i := range answers {
		answers[i].Reason = reason
	}
	return answers
}
