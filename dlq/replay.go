package dlq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

// enqueueBatch is how many requests are enqueued together. Before each batch the process checks
// that the chunk has not exceeded chunkTimeout, for example because the process was suspended.
const enqueueBatch = 50

// readTimeout limits the time for reading a chunk's dead letters from Kafka. If their offsets are
// far apart, each needs a separate read. Dead letters that were not read in time go into the next
// chunk.
const readTimeout = chunkTimeout / 2

// errChunkTimeout ends a chunk that has lasted for chunkTimeout. The next chunk enqueues the remaining
// dead letters.
var errChunkTimeout = errors.New("enqueuing the chunk timed out; the next chunk contains the remaining dead letters")

// replayItem is one dead letter of a chunk and its outcome.
type replayItem struct {
	id deadletters.ID
	// The dead letter was written for a request that this job has enqueued before. So the job skips it.
	isOfThisJob bool
	refused     string // why the dead letter stays open; empty if it is enqueued
	request     ReplayRequest
	enqueued    bool
}

// replay enqueues the requests of the job's next chunk, or reconciles a chunk in flight. The
// package documentation lists the steps.
func (w *runner) replay(ctx context.Context, j deadletters.Job) (deadletters.Job, error) {
	if !j.ChunkStartedAt.IsZero() {
		return w.reconcile(ctx, j)
	}
	var deadLetters []deadletters.DeadLetter
	if j.Max == 0 || j.Done < j.Max {
		var err error
		if deadLetters, err = w.Store.DeadLettersByOffset(ctx, j.Filter, j.Position, chunkSize(j)); err != nil {
			return j, err
		}
	}
	if len(deadLetters) == 0 {
		return w.finishJob(ctx, j)
	}
	items, err := w.prepareItems(ctx, j, deadLetters)
	if err != nil {
		return j, err
	}
	// Before the job enqueues the chunk's requests, it saves ChunkStartedAt. If this process then
	// loses the lease, the next lease holder sees the time and reconciles the chunk.
	started := j
	started.ChunkStartedAt, started.Error = time.Now().UTC(), ""
	if started, err = w.saveProgress(ctx, started, nil); err != nil {
		return j, err
	}
	if started.State != deadletters.JobRunning { // an operator has stopped the job; nothing was enqueued
		started.ChunkStartedAt = time.Time{}
		return started, nil
	}
	enqueueErr := w.enqueue(ctx, started.ChunkStartedAt.Add(chunkTimeout), items)
	after, handled := afterChunk(started, items)
	if enqueueErr == nil {
		after.ChunkStartedAt = time.Time{}
	}
	if after, err = w.saveProgress(ctx, after, handled); err != nil {
		return started, err
	}
	return after, enqueueErr
}

// finishJob sets the job's state to DONE.
func (w *runner) finishJob(ctx context.Context, j deadletters.Job) (deadletters.Job, error) {
	done := j
	done.State, done.Error = deadletters.JobDone, ""
	done, err := w.saveProgress(ctx, done, nil)
	if err != nil {
		return j, err
	}
	return done, nil
}

// afterChunk returns the job with the chunk's results, and the dead letters that were enqueued. The
// job's position becomes the last item before the first item with an unknown outcome.
func afterChunk(j deadletters.Job, items []*replayItem) (after deadletters.Job, handled []deadletters.ID) {
	j.Refused = maps.Clone(j.Refused)
	if j.Refused == nil {
		j.Refused = map[string]int64{}
	}
	known := true
	for _, item := range items {
		if item.enqueued {
			handled = append(handled, item.id)
		}
		known = known && (item.enqueued || item.isOfThisJob || item.refused != "")
		if !known {
			continue
		}
		j.Position = item.id
		if item.refused != "" && !item.isOfThisJob {
			j.Refused[item.refused]++
		}
	}
	j.Done += int64(len(handled))
	return j, handled
}

// prepareItems reads the dead letters from Kafka and decides which of them can be enqueued. After
// readTimeout it returns the items that were read until then.
func (w *runner) prepareItems(ctx context.Context, j deadletters.Job, deadLetters []deadletters.DeadLetter) ([]*replayItem, error) {
	var ids []deadletters.ID
	for _, d := range deadLetters {
		ids = append(ids, d.ID)
	}
	items := make([]*replayItem, len(ids))
	index := make(map[deadletters.ID]int, len(ids))
	for i, id := range ids {
		items[i] = &replayItem{id: id, refused: RefusedGone}
		index[id] = i
	}
	readCtx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	known := 0
	err := w.Topics.ReadDeadLetters(readCtx, ids, func(id deadletters.ID, r ReadResult) {
		i := index[id]
		// A request that this job enqueued may be dead-lettered again. The new dead letter is normally
		// later than the filter's Until, so the filter does not match it. But the filter matches it
		// if the worker's clock is behind the clock of the process that created the job.
		items[i].isOfThisJob = r.Err == nil && r.DeadLetter.Replay().ID == j.ID
		// Keep only the request in memory, because a dead letter may have 1 MiB.
		items[i].request, items[i].refused = w.buildRequest(j, id, r)
		// The first i+1 items are known now, because ReadDeadLetters reads the items in order. If it
		// has not passed one of them to this function, that item's record was deleted from the topic.
		known = i + 1
	})
	if err != nil && readCtx.Err() != nil && known > 0 {
		return items[:known], nil
	}
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	return items, nil
}

// buildRequest returns the request of a dead letter with the job's replay mark, or the reason why
// it can't be enqueued.
func (w *runner) buildRequest(j deadletters.Job, id deadletters.ID, r ReadResult) (a ReplayRequest, refused string) {
	if r.Err != nil {
		return a, RefusedUndecodable
	}
	request, err := schemas.DecodeUpdateRequest(r.DeadLetter.Value)
	// ValueBytes is not 0 if the dead letter has only a part of the request.
	if err != nil || r.DeadLetter.ValueBytes != 0 {
		return a, RefusedUndecodable
	}
	source, known := w.Sources[request.Source]
	if !known || request.Source != j.Source || source.CheckKey(request.Facet, request.Key) != nil {
		return a, RefusedInvalid
	}
	before := r.DeadLetter.Replay()
	if before.Count >= schemas.MaxReplays {
		return a, RefusedLimit
	}
	a = ReplayRequest{Request: request, Lane: j.Lane, Mark: schemas.ReplayMark{ID: j.ID, Count: before.Count + 1, Of: formatID(id)}}
	if !encodable(a) {
		return a, RefusedUndecodable
	}
	for _, h := range r.DeadLetter.Headers {
		// A trace parent of another length is invalid, and could exceed the topic's record size.
		if h.Key == schemas.TraceParent && len(h.Value) == observe.TraceParentSize {
			a.TraceParent = string(h.Value)
		}
	}
	return a, ""
}

// encodable reports whether the request can be encoded with any version and time that it can get
// when it is enqueued. A request that is too large would block its job forever, and workers would
// not accept it.
func encodable(a ReplayRequest) bool {
	_, err := schemas.UpdateRequest{
		EventID: uuid.Nil.String(), Entity: a.Request.Entity, Params: a.Request.Params, Lane: a.Lane, Reason: schemas.Replay,
		RequestedAt: time.Unix(1, 999_999_999).UTC(), CorrelationID: a.Request.CorrelationID, Version: schemas.MaxVersion,
	}.Encode()
	return err == nil
}

// formatID returns partition:offset, which ParseID reads.
func formatID(id deadletters.ID) string { return fmt.Sprintf("%d:%d", id.Partition, id.Offset) }

// enqueue enqueues the items' requests until the deadline or the shutdown of the process. If it
// returns nil, every item that is not marked as enqueued has certainly not been published.
func (w *runner) enqueue(ctx context.Context, deadline time.Time, items []*replayItem) (failure error) {
	var pending []*replayItem
	for _, item := range items {
		if item.refused == "" && !item.isOfThisJob {
			pending = append(pending, item)
		}
	}
	for len(pending) > 0 {
		// Enqueue nothing after the deadline. If this process was suspended since the last batch,
		// another process may hold the lease now and may have reconciled the chunk.
		if !time.Now().Before(deadline) || ctx.Err() != nil {
			return errors.Join(failure, errChunkTimeout)
		}
		select {
		case <-w.stopping:
			return nil
		default:
		}
		batch := pending[:min(enqueueBatch, len(pending))]
		pending = pending[len(batch):]
		requests := make([]ReplayRequest, len(batch))
		for i, item := range batch {
			requests[i] = item.request
		}
		for i, err := range w.Enqueuer.Enqueue(ctx, requests) {
			if batch[i].enqueued = err == nil; err != nil {
				failure = err
			}
		}
		if failure != nil {
			return fmt.Errorf("enqueue requests: %w", failure)
		}
	}
	return nil
}

// reconcile finds out which dead letters of a chunk in flight were enqueued, by reading the
// request topic, and saves them as handled. The former holder of the lease could not save this.
func (w *runner) reconcile(ctx context.Context, j deadletters.Job) (deadletters.Job, error) {
	enqueued, err := w.Topics.EnqueuedByJob(ctx, schemas.RequestTopic(j.Source, j.Lane), j.ID, j.ChunkStartedAt, j.ChunkStartedAt.Add(leaseDuration))
	if err != nil {
		return j, fmt.Errorf("find the enqueued requests of job %s: %w", j.ID, err)
	}
	var handled []deadletters.ID
	// The row of a dead letter is written after its record. The range of the chunk may therefore
	// contain more rows now than when the chunk started.
	for position, more := j.Position, len(enqueued) > 0; more; {
		deadLetters, err := w.Store.DeadLettersByOffset(ctx, j.Filter, position, maxChunk)
		if err != nil {
			return j, err
		}
		for _, d := range deadLetters {
			if position = d.ID; enqueued[formatID(position)] {
				handled = append(handled, position)
			}
		}
		more = len(deadLetters) == maxChunk && anyAfter(enqueued, position)
	}
	after := j
	after.Done += int64(len(handled))
	after.ChunkStartedAt, after.Error = time.Time{}, ""
	if after, err = w.saveProgress(ctx, after, handled); err != nil {
		return j, err
	}
	return after, nil
}

// anyAfter reports whether one of the ids (partition:offset) is a position after id.
func anyAfter(ids map[string]bool, id deadletters.ID) bool {
	for text := range ids {
		if p, offset, err := ParseID(text); err == nil && (p > id.Partition || p == id.Partition && offset > id.Offset) {
			return true
		}
	}
	return false
}
