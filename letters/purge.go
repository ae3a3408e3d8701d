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
	handled, err := l.Store.LetterPrefixes(ctx, topic, time.Now().Add(-settling))
	if err != nil || len(handled) == 0 {
		return err
	}
	starts, err := l.Mail.Cut(ctx, topic, handled)
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
