package dlq

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// minDeleteAge is how old a letter is before what lies before it is deleted: those that lie
	// there have an entry in the index by then, or are written once more.
	minDeleteAge = 15 * time.Second
	// missingEntryTimeout is how old a letter is before one that lies before it and has no entry is taken
	// for one that never gets one: whoever buried it waits for the database, or is gone and
	// buried its record once more.
	missingEntryTimeout = 24 * time.Hour
	// deleteBatch are entries that one statement deletes.
	deleteBatch = 1000
)

// purge marks the next letters as purged. Behind the last of them it deletes from Kafka
// what can be.
func (l *Queue) purge(ctx context.Context, j store.DLQJob) (store.DLQJob, error) {
	letters, err := l.Store.DeadLettersByOffset(ctx, j.Filter, j.Position, chunkSize(j))
	if err != nil {
		return j, err
	}
	if len(letters) == 0 {
		if err := l.deleteHandled(ctx, schemas.DeadLetterTopic(j.Source)); err != nil {
			return j, err
		}
		return l.finishJob(ctx, j)
	}
	var handled []store.DeadLetterID
	for _, letter := range letters {
		handled = append(handled, letter.DeadLetterID)
	}
	after := j
	after.Position, after.Error = handled[len(handled)-1], ""
	after.Done += int64(len(handled))
	if after, err = l.saveProgress(ctx, after, handled); err != nil {
		return j, err
	}
	return after, nil
}

// deleteHandled deletes the handled letters with which the partitions of a topic begin, and the
// entries of all that it does not have any more, also for their age.
func (l *Queue) deleteHandled(ctx context.Context, topic string) error {
	now := time.Now()
	prefixes, err := l.Store.HandledPrefixes(ctx, topic, now.Add(-minDeleteAge), now.Add(-missingEntryTimeout))
	if err != nil || len(prefixes) == 0 {
		return err
	}
	bounds, err := l.Topics.Bounds(ctx, topic) // behind the entries: none of theirs can lie behind it
	if err != nil {
		return err
	}
	starts, err := l.Topics.DeleteBefore(ctx, topic, deletableOffsets(prefixes, bounds))
	if err != nil {
		return err
	}
	for partition, start := range starts {
		for n := deleteBatch; n == deleteBatch; {
			before := store.DeadLetterID{Topic: topic, Partition: partition, Offset: start}
			if n, err = l.Store.DeleteDeadLettersBefore(ctx, before, deleteBatch); err != nil {
				return err
			}
		}
	}
	return nil
}

// deletableOffsets returns for each partition the offset before which nothing is open, and nothing
// may yet get an entry.
func deletableOffsets(prefixes []store.HandledPrefix, bounds map[int32]PartitionBounds) map[int32]int64 {
	handled := map[int32]int64{}
	for _, p := range prefixes {
		b := bounds[p.Partition]
		switch {
		case p.Last >= b.End: // the topic was made anew: entries may be those of other letters
		case p.FirstIsRecent && p.First > b.Start: // an entry before the first may be missing
		default:
			handled[p.Partition] = p.HandledBefore
		}
	}
	return handled
}
