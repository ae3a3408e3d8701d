package dlq

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

const (
	// minDeleteAge is the minimum age of a dead letter that is deleted from Kafka. Workers write
	// the row in dead_letters after the record, so a younger record may have no row yet.
	minDeleteAge = 15 * time.Second
	// missingEntryTimeout is how long a record without a row in dead_letters blocks the deletion of
	// itself and of all later records of its partition. The worker that wrote the record may still
	// be waiting for the database, and write the row later. If that worker crashed, the record was
	// written again at another offset, and the first record never gets a row.
	missingEntryTimeout = 24 * time.Hour
	// deleteBatch is how many rows of dead_letters one statement deletes.
	deleteBatch = 1000
)

// purge marks the dead letters of the job's next chunk as purged. When all dead letters of the job
// are marked, it deletes the handled records at the start of each partition from Kafka, and
// finishes the job.
func (w *runner) purge(ctx context.Context, j deadletters.Job) (deadletters.Job, error) {
	deadLetters, err := w.Store.DeadLettersByOffset(ctx, j.Filter, j.Position, chunkSize(j))
	if err != nil {
		return j, err
	}
	if len(deadLetters) == 0 {
		if err := w.deleteHandled(ctx, schemas.DeadLetterTopic(j.Source)); err != nil {
			return j, err
		}
		return w.finishJob(ctx, j)
	}
	var handled []deadletters.ID
	for _, d := range deadLetters {
		handled = append(handled, d.ID)
	}
	after := j
	after.Position, after.Error = handled[len(handled)-1], ""
	after.Done += int64(len(handled))
	if after, err = w.saveProgress(ctx, after, handled); err != nil {
		return j, err
	}
	return after, nil
}

// deleteHandled deletes the handled records at the start of each partition of a topic. It then
// deletes the rows of all records that the topic no longer has, for example because of
// the topic's retention time.
func (w *runner) deleteHandled(ctx context.Context, topic string) error {
	now := time.Now()
	prefixes, err := w.Store.HandledPrefixes(ctx, topic, now.Add(-minDeleteAge), now.Add(-missingEntryTimeout))
	if err != nil || len(prefixes) == 0 {
		return err
	}
	bounds, err := w.Topics.Bounds(ctx, topic) // bounds are read after the rows of dead_letters, so End is above the offset of each row
	if err != nil {
		return err
	}
	starts, err := w.Topics.DeleteBefore(ctx, topic, deletableOffsets(prefixes, bounds))
	if err != nil {
		return err
	}
	for partition, start := range starts {
		for n := deleteBatch; n == deleteBatch; {
			before := deadletters.ID{Topic: topic, Partition: partition, Offset: start}
			if n, err = w.Store.DeleteDeadLettersBefore(ctx, before, deleteBatch); err != nil {
				return err
			}
		}
	}
	return nil
}

// deletableOffsets returns for each partition the offset before which every record is handled and
// no row in dead_letters is missing.
func deletableOffsets(prefixes []deadletters.HandledPrefix, bounds map[int32]PartitionBounds) map[int32]int64 {
	handled := map[int32]int64{}
	for _, p := range prefixes {
		b := bounds[p.Partition]
		switch {
		case p.Last >= b.End: // the topic was recreated, and the rows belong to the deleted topic: delete nothing
		case p.FirstIsRecent && p.First > b.Start: // a record before the first row may still get a row: delete nothing
		default:
			handled[p.Partition] = p.HandledBefore
		}
	}
	return handled
}
