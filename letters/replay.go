package letters

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

// askedAtOnce are asked for together; between two such groups a process finds out that it
// has been frozen for longer than its chunk may take.
const askedAtOnce = 50

// readTime is how long the letters of a chunk are read. What was not read until then is in
// the next chunk: those that lie far apart are read one by one.
const readTime = chunkTime / 2

// errTimeOver ends a chunk that took too long; what was not asked for is in the next.
var errTimeOver = errors.New("the requests of a chunk could not all be asked for in time")

// fate is what is to become of one letter of a chunk.
type fate struct {
	id      store.LetterID
	own     bool   // it died by this very job, which passes it over
	refused string // why it stays open; empty: it is to be asked for
	ask     ReplayRequest
	asked   bool
}

// replay asks for the requests of the next letters.
func (l *Letters) replay(ctx context.Context, j store.LetterJob) (store.LetterJob, error) {
	if !j.ChunkAt.IsZero() {
		return l.reconcile(ctx, j)
	}
	var letters []store.Letter
	if j.Most == 0 || j.Done < j.Most {
		var err error
		if letters, err = l.Store.WalkLetters(ctx, j.Filter, j.At, chunkOf(j)); err != nil {
			return j, err
		}
	}
	if len(letters) == 0 {
		return l.end(ctx, j)
	}
	fates, err := l.fates(ctx, j, letters)
	if err != nil {
		return j, err
	}
	// From here on, whoever goes on with the job must look which were asked for.
	begun := j
	begun.ChunkAt, begun.Error = time.Now().UTC(), ""
	if begun, err = l.advance(ctx, begun, nil); err != nil {
		return j, err
	}
	if begun.State != store.JobRunning { // somebody has stopped it, and nothing was asked for
		begun.ChunkAt = time.Time{}
		return begun, nil
	}
	trouble := l.ask(ctx, begun.ChunkAt.Add(chunkTime), fates)
	after, handled := outcome(begun, fates)
	if trouble == nil {
		after.ChunkAt = time.Time{}
	}
	if after, err = l.advance(ctx, after, handled); err != nil {
		return begun, err
	}
	return after, trouble
}

// end says that a job is done.
func (l *Letters) end(ctx context.Context, j store.LetterJob) (store.LetterJob, error) {
	ended := j
	ended.State, ended.Error = store.JobDone, ""
	ended, err := l.advance(ctx, ended, nil)
	if err != nil {
		return j, err
	}
	return ended, nil
}

// outcome is the job after a chunk, and the letters that were asked for. It stands behind
// the last letter of which everything before it is known too.
func outcome(j store.LetterJob, fates []*fate) (after store.LetterJob, handled []store.LetterID) {
	j.Refused = maps.Clone(j.Refused)
	if j.Refused == nil {
		j.Refused = map[string]int64{}
	}
	known := true
	for _, f := range fates {
		if f.asked {
			handled = append(handled, f.id)
		}
		known = known && (f.asked || f.own || f.refused != "")
		if !known {
			continue
		}
		j.At = f.id
		if f.refused != "" && !f.own {
			j.Refused[f.refused]++
		}
	}
	j.Done += int64(len(handled))
	return j, handled
}

// fates says what is to become of each of the letters, or of the first of them if there is
// no time to read all.
func (l *Letters) fates(ctx context.Context, j store.LetterJob, letters []store.Letter) ([]*fate, error) {
	var ids []store.LetterID
	for _, letter := range letters {
		ids = append(ids, letter.LetterID)
	}
	fates := make([]*fate, len(ids))
	of := make(map[store.LetterID]int, len(ids))
	for i, id := range ids {
		fates[i] = &fate{id: id, refused: RefusedGone}
		of[id] = i
	}
	reading, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	known := 0
	err := l.Mail.Read(reading, ids, func(id store.LetterID, r Read) {
		i := of[id]
		// It was chosen if its worker's clock is behind that of who ordered the job.
		fates[i].own = r.Err == nil && r.Letter.Replay().ID == j.ID
		// Of each no more is kept than is asked for: a letter may have megabytes.
		fates[i].ask, fates[i].refused = l.askFor(j, id, r)
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

// askFor returns how a letter's request is asked for, or why it can't be.
func (l *Letters) askFor(j store.LetterJob, id store.LetterID, r Read) (a ReplayRequest, refused string) {
	if r.Err != nil {
		return a, RefusedUndecodable
	}
	request, err := schemas.DecodeUpdateRequest(r.Letter.Value)
	if err != nil || r.Letter.ValueBytes != 0 {
		return a, RefusedUndecodable
	}
	source, known := l.Sources[request.Source]
	if !known || request.Source != j.Source || source.CheckKey(request.Facet, request.Key) != nil {
		return a, RefusedInvalid
	}
	before := r.Letter.Replay()
	if before.Count >= schemas.MaxReplays {
		return a, RefusedLimit
	}
	a = ReplayRequest{Request: request, Lane: j.Lane, Mark: schemas.ReplayMark{ID: j.ID, Count: before.Count + 1, Of: mark(id)}}
	if !fits(a) {
		return a, RefusedUndecodable
	}
	for _, h := range r.Letter.Headers {
		// A longer one is none, and could make the request too large for its topic for good.
		if h.Key == schemas.TraceParent && len(h.Value) == observe.ParentSize {
			a.TraceParent = string(h.Value)
		}
	}
	return a, ""
}

// fits reports whether a request can be asked for at all, whatever number and time it gets:
// one that is too large would keep its job waiting for good, and no worker takes it.
func fits(a ReplayRequest) bool {
	_, err := schemas.UpdateRequest{
		EventID: uuid.Nil.String(), Entity: a.Request.Entity, Params: a.Request.Params, Lane: a.Lane, Reason: schemas.Replay,
		RequestedAt: time.Unix(1, 999_999_999).UTC(), CorrelationID: a.Request.CorrelationID, Version: schemas.MaxVersion,
	}.Encode()
	return err == nil
}

func mark(id store.LetterID) string { return fmt.Sprintf("%d:%d", id.Partition, id.Offset) }

// ask asks for what is to be asked for, until then, or until the process is to end: with no
// error, what was not asked for surely was not.
func (l *Letters) ask(ctx context.Context, until time.Time, fates []*fate) (trouble error) {
	var left []*fate
	for _, f := range fates {
		if f.refused == "" && !f.own {
			left = append(left, f)
		}
	}
	for len(left) > 0 {
		// Before each group: somebody else may hold the job when a process has been frozen.
		if !time.Now().Before(until) || ctx.Err() != nil {
			return errors.Join(trouble, errTimeOver)
		}
		select {
		case <-l.ending:
			return nil
		default:
		}
		some := left[:min(askedAtOnce, len(left))]
		left = left[len(some):]
		asks := make([]ReplayRequest, len(some))
		for i, f := range some {
			asks[i] = f.ask
		}
		for i, err := range l.Enqueuer.Enqueue(ctx, asks) {
			if some[i].asked = err == nil; err != nil {
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
func (l *Letters) reconcile(ctx context.Context, j store.LetterJob) (store.LetterJob, error) {
	asked, err := l.Mail.Asked(ctx, schemas.RequestTopic(j.Source, j.Lane), j.ID, j.ChunkAt, j.ChunkAt.Add(lease))
	if err != nil {
		return j, fmt.Errorf("look which requests were asked for: %w", err)
	}
	var handled []store.LetterID
	// More may lie among a chunk's letters by now than were in it: entries come late.
	for at, more := j.At, len(asked) > 0; more; {
		letters, err := l.Store.WalkLetters(ctx, j.Filter, at, chunkMost)
		if err != nil {
			return j, err
		}
		for _, letter := range letters {
			if at = letter.LetterID; asked[mark(at)] {
				handled = append(handled, at)
			}
		}
		more = len(letters) == chunkMost && anyBehind(asked, at)
	}
	after := j
	after.Done += int64(len(handled))
	after.ChunkAt, after.Error = time.Time{}, ""
	if after, err = l.advance(ctx, after, handled); err != nil {
		return j, err
	}
	return after, nil
}

// anyBehind reports whether a letter behind that one is among the marks.
func anyBehind(marks map[string]bool, id store.LetterID) bool {
	for m := range marks {
		if p, offset, err := ParseID(m); err == nil && (p > id.Partition || p == id.Partition && offset > id.Offset) {
			return true
		}
	}
	return false
}
