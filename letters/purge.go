package letters

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// settling is how old a letter is before what lies before it is deleted: those that lie
	// there have an entry in the index by then, or are written once more.
	settling = 15 * time.Second
	// missing is how old a letter is before one that lies before it and has no entry is taken
	// for one that never gets one: whoever buried it waits for the database, or is gone and
	// buried its record once more.
	missing = 24 * time.Hour
	// forgottenAtOnce are entries that one statement deletes.
	forgottenAtOnce = 1000
)

// purge marks the next letters as purged. Behind the last of them it deletes from Kafka
// what can be.
func (l *Letters) purge(ctx context.Context, j store.LetterJob) (store.LetterJob, error) {
	letters, err := l.Store.WalkLetters(ctx, j.Filter, j.At, chunkOf(j))
	if err != nil {
		return j, err
	}
	if len(letters) == 0 {
		if err := l.cut(ctx, schemas.DeadLetterTopic(j.Source)); err != nil {
			return j, err
		}
		return l.end(ctx, j)
	}
	var handled []store.LetterID
	for _, letter := range letters {
		handled = append(handled, letter.LetterID)
	}
	after := j
	after.At, after.Error = handled[len(handled)-1], ""
	after.Done += int64(len(handled))
	if after, err = l.advance(ctx, after, handled); err != nil {
		return j, err
	}
	return after, nil
}

// cut deletes the handled letters with which the partitions of a topic begin, and the
// entries of all that it does not have any more, also for their age.
func (l *Letters) cut(ctx context.Context, topic string) error {
	now := time.Now()
	prefixes, err := l.Store.LetterPrefixes(ctx, topic, now.Add(-settling), now.Add(-missing))
	if err != nil || len(prefixes) == 0 {
		return err
	}
	bounds, err := l.Mail.Bounds(ctx, topic) // behind the entries: none of theirs can lie behind it
	if err != nil {
		return err
	}
	starts, err := l.Mail.Cut(ctx, topic, handledIn(prefixes, bounds))
	if err != nil {
		return err
	}
	for partition, start := range starts {
		for n := forgottenAtOnce; n == forgottenAtOnce; {
			before := store.LetterID{Topic: topic, Partition: partition, Offset: start}
			if n, err = l.Store.ForgetLetters(ctx, before, forgottenAtOnce); err != nil {
				return err
			}
		}
	}
	return nil
}

// handledIn returns for each partition the offset before which nothing is open, and nothing
// may yet get an entry.
func handledIn(prefixes []store.LetterPrefix, bounds map[int32]Bound) map[int32]int64 {
	handled := map[int32]int64{}
	for _, p := range prefixes {
		b := bounds[p.Partition]
		switch {
		case p.Last >= b.End: // the topic was made anew: entries may be those of other letters
		case p.Fresh && p.First > b.Start: // an entry before the first may be missing
		default:
			handled[p.Partition] = p.Before
		}
	}
	return handled
}
