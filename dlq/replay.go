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
	"github.com/freshet/freshet/store"
)

// enqueueBatch are asked for together; between two such groups a process finds out that it
// has been frozen for longer than its chunk may take.
const enqueueBatch = 50

// readTimeout is how long the letters of a chunk are read. What was not read until then is in
// the next chunk: those that lie far apart are read one by one.
const readTimeout = chunkTimeout / 2

// errChunkTimeout ends a chunk that took too long; what was not asked for is in the next.
var errChunkTimeout = errors.New("the requests of a chunk could not all be asked for in time")

// replayItem is what is to become of one letter of a chunk.
type replayItem struct {
	id            store.DeadLetterID
	diedByThisJob bool   // it died by this very job, which passes it over
	refused       string // why it stays open; empty: it is to be asked for
	request       ReplayRequest
	enqueued      bool
}

// replay asks for the requests of the next letters.
func (l *Queue) replay(ctx context.Context, j store.DLQJob) (store.DLQJob, error) {
	if !j.ChunkStartedAt.IsZero() {
		return l.reconcile(ctx, j)
	}
	var letters []store.DeadLetter
	if j.Max == 0 || j.Done < j.Max {
		var err error
		if letters, err = l.Store.DeadLettersByOffset(ctx, j.Filter, j.Position, chunkSize(j)); err != nil {
			return j, err
		}
	}
	if len(letters) == 0 {
		return l.finishJob(ctx, j)
	}
	fates, err := l.prepareItems(ctx, j, letters)
	if err != nil {
		return j, err
	}
	// From here on, whoever goes on with the job must look which were asked for.
	begun := j
	begun.ChunkStartedAt, begun.Error = time.Now().UTC(), ""
	if begun, err = l.saveProgress(ctx, begun, nil); err != nil {
		return j, err
	}
	if begun.State != store.JobRunning { // somebody has stopped it, and nothing was asked for
		begun.ChunkStartedAt = time.Time{}
		return begun, nil
	}
	trouble := l.enqueue(ctx, begun.ChunkStartedAt.Add(chunkTimeout), fates)
	after, handled := afterChunk(begun, fates)
	if trouble == nil {
		after.ChunkStartedAt = time.Time{}
	}
	if after, err = l.saveProgress(ctx, after, handled); err != nil {
		return begun, err
	}
	return after, trouble
}

// finishJob says that a job is done.
func (l *Queue) finishJob(ctx context.Context, j store.DLQJob) (store.DLQJob, error) {
	ended := j
	ended.State, ended.Error = store.JobDone, ""
	ended, err := l.saveProgress(ctx, ended, nil)
	if err != nil {
		return j, err
	}
	return ended, nil
}

// afterChunk is the job after a chunk, and the letters that were asked for. It stands behind
// the last letter of which everything before it is known too.
func afterChunk(j store.DLQJob, fates []*replayItem) (after store.DLQJob, handled []store.DeadLetterID) {
	j.Refused = maps.Clone(j.Refused)
	if j.Refused == nil {
		j.Refused = map[string]int64{}
	}
	known := true
	for _, f := range fates {
		if f.enqueued {
			handled = append(handled, f.id)
		}
		known = known && (f.enqueued || f.diedByThisJob || f.refused != "")
		if !known {
			continue
		}
		j.Position = f.id
		if f.refused != "" && !f.diedByThisJob {
			j.Refused[f.refused]++
		}
	}
	j.Done += int64(len(handled))
	return j, handled
}

// prepareItems says what is to become of each of the letters, or of the first of them if there is
// no time to read all.
func (l *Queue) prepareItems(ctx context.Context, j store.DLQJob, letters []store.DeadLetter) ([]*replayItem, error) {
	var ids []store.DeadLetterID
	for _, letter := range letters {
		ids = append(ids, letter.DeadLetterID)
	}
	fates := make([]*replayItem, len(ids))
	of := make(map[store.DeadLetterID]int, len(ids))
	for i, id := range ids {
		fates[i] = &replayItem{id: id, refused: RefusedGone}
		of[id] = i
	}
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	known := 0
	err := l.Topics.ReadDeadLetters(reading, ids, func(id store.DeadLetterID, r ReadResult) {
		i := of[id]
		// It was chosen if its worker's clock is behind that of who ordered the job.
		fates[i].diedByThisJob = r.Err == nil && r.DeadLetter.Replay().ID == j.ID
		// Of each no more is kept than is asked for: a letter may have megabytes.
		fates[i].request, fates[i].refused = l.buildRequest(j, id, r)
		known = i + 1 // they are found in their order: those before it that were not are gone
	})
	if err != nil && reading.Err() != nil && known > 0 {
		return fates[:known], nil
	}
	if err != nil {
		return nil, fmt.Errorf("read letters: %w", err)
	}
	return fates, nil
}

// buildRequest returns how a letter's request is asked for, or why it can't be.
func (l *Queue) buildRequest(j store.DLQJob, id store.DeadLetterID, r ReadResult) (a ReplayRequest, refused string) {
	if r.Err != nil {
		return a, RefusedUndecodable
	}
	request, err := schemas.DecodeUpdateRequest(r.DeadLetter.Value)
	if err != nil || r.DeadLetter.ValueBytes != 0 {
		return a, RefusedUndecodable
	}
	source, known := l.Sources[request.Source]
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
		// A longer one is none, and could make the request too large for its topic for good.
		if h.Key == schemas.TraceParent && len(h.Value) == observe.TraceParentSize {
			a.TraceParent = string(h.Value)
		}
	}
	return a, ""
}

// encodable reports whether a request can be asked for at all, whatever number and time it gets:
// one that is too large would keep its job waiting for good, and no worker takes it.
func encodable(a ReplayRequest) bool {
	_, err := schemas.UpdateRequest{
		EventID: uuid.Nil.String(), Entity: a.Request.Entity, Params: a.Request.Params, Lane: a.Lane, Reason: schemas.Replay,
		RequestedAt: time.Unix(1, 999_999_999).UTC(), CorrelationID: a.Request.CorrelationID, Version: schemas.MaxVersion,
	}.Encode()
	return err == nil
}

func formatID(id store.DeadLetterID) string { return fmt.Sprintf("%d:%d", id.Partition, id.Offset) }

// enqueue asks for what is to be asked for, until then, or until the process is to end: with no
// error, what was not asked for surely was not.
func (l *Queue) enqueue(ctx context.Context, until time.Time, fates []*replayItem) (trouble error) {
	var left []*replayItem
	for _, f := range fates {
		if f.refused == "" && !f.diedByThisJob {
			left = append(left, f)
		}
	}
	for len(left) > 0 {
		// Before each group: somebody else may hold the job when a process has been frozen.
		if !time.Now().Before(until) || ctx.Err() != nil {
			return errors.Join(trouble, errChunkTimeout)
		}
		select {
		case <-l.stopping:
			return nil
		default:
		}
		some := left[:min(enqueueBatch, len(left))]
		left = left[len(some):]
		asks := make([]ReplayRequest, len(some))
		for i, f := range some {
			asks[i] = f.request
		}
		for i, err := range l.Enqueuer.Enqueue(ctx, asks) {
			if some[i].enqueued = err == nil; err != nil {
				trouble = err
			}
		}
		if trouble != nil {
			return fmt.Errorf("ask for requests: %w", trouble)
		}
	}
	return nil
}

// reconcile marks those letters of a chunk that were asked for by a process that could not
// say so, and only then lets the job go on.
func (l *Queue) reconcile(ctx context.Context, j store.DLQJob) (store.DLQJob, error) {
	asked, err := l.Topics.EnqueuedByJob(ctx, schemas.RequestTopic(j.Source, j.Lane), j.ID, j.ChunkStartedAt, j.ChunkStartedAt.Add(leaseDuration))
	if err != nil {
		return j, fmt.Errorf("look which requests were asked for: %w", err)
	}
	var handled []store.DeadLetterID
	// More may lie among a chunk's letters by now than were in it: entries come late.
	for at, more := j.Position, len(asked) > 0; more; {
		letters, err := l.Store.DeadLettersByOffset(ctx, j.Filter, at, maxChunk)
		if err != nil {
			return j, err
		}
		for _, letter := range letters {
			if at = letter.DeadLetterID; asked[formatID(at)] {
				handled = append(handled, at)
			}
		}
		more = len(letters) == maxChunk && anyAfter(asked, at)
	}
	after := j
	after.Done += int64(len(handled))
	after.ChunkStartedAt, after.Error = time.Time{}, ""
	if after, err = l.saveProgress(ctx, after, handled); err != nil {
		return j, err
	}
	return after, nil
}

// anyAfter reports whether a letter behind that one is among the marks.
func anyAfter(marks map[string]bool, id store.DeadLetterID) bool {
	for m := range marks {
		if p, offset, err := ParseID(m); err == nil && (p > id.Partition || p == id.Partition && offset > id.Offset) {
			return true
		}
	}
	return false
}
