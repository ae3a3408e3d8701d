package dlq

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

// TestPurge_DeletesExactlyTheHandledPrefix purges random subsets of the dead letters. The other
// dead letters stay open, are replayed, or are younger than minDeleteAge. Exactly the handled
// records at the start of each partition must be deleted.
func TestPurge_DeletesExactlyTheHandledPrefix(t *testing.T) {
	for seed := range cmp.Or(*seedCount, 4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, func(g *rig) { g.purgeSome(rand.New(rand.NewPCG(seed, 9))) })
		})
	}
}

func (g *rig) purgeSome(r *rand.Rand) {
	kept := 2 + r.IntN(40) // a dead letter is kept with the probability 1/kept, and purged otherwise
	add := func(from, to int64) {
		for offset := from; offset < to; offset++ {
			for partition := range int32(4) {
				g.deadLetter(idOf(partition, offset), func(l *deadletters.DeadLetter, _ *ReadResult) {
					if r.IntN(kept) == 0 {
						l.Fingerprint = "kept"
					}
				})
			}
		}
	}
	for partition := range int32(4) {
		g.starts[partition] = 1
	}
	add(1, 300)
	<-time.After(time.Minute)
	add(300, 310+r.Int64N(20)) // the purge must keep these records: they are younger than minDeleteAge
	<-time.After(2 * time.Second)
	p := g.process()
	p.faultOf = func(what string) fault {
		if what == "delete" && r.IntN(3) == 0 {
			return []fault{refused, lost, killed, killedAfter}[r.IntN(4)]
		}
		return none
	}
	replayed := p.start(JobSpec{Filter: deadletters.Filter{Fingerprint: "kept"}, Max: int64(1 + r.IntN(20))})
	j := p.start(JobSpec{Kind: deadletters.PurgeJob, Filter: deadletters.Filter{Fingerprint: "f"}})
	p.run()
	<-time.After(3 * time.Second)
	g.process().run()
	g.waitUntilDone(replayed.ID)
	g.waitUntilDone(j.ID)

	all, err := g.db.DeadLetters(g.Context(), deadletters.Filter{Source: theSource}, deadletters.DeadLetter{}, 100_000)
	if err != nil {
		g.Fatal(err)
	}
	first := map[int32]int64{} // lowest offset with a row in dead_letters, by partition
	for _, l := range all {
		if l.Offset < g.starts[l.Partition] {
			g.Errorf("%+v has an index entry, but its record was deleted", l)
		}
		if first[l.Partition] == 0 || l.Offset < first[l.Partition] {
			first[l.Partition] = l.Offset
		}
		if l.Handled == "" && l.Fingerprint == "f" {
			g.Errorf("%+v was not purged", l)
		}
	}
	for id := range g.records {
		if id.Offset < first[id.Partition] && id.Offset >= g.starts[id.Partition] {
			g.Errorf("record %+v has no index entry", id)
		}
	}
	for _, l := range all {
		if l.Offset == first[l.Partition] && l.Handled != "" && l.At.Before(j.CreatedAt.Add(-minDeleteAge)) {
			g.Errorf("%+v is in the handled prefix, but was not deleted", l)
		}
	}
	n := 0
	for _, l := range all {
		if l.Fingerprint == "kept" {
			n++
		}
	}
	if enqueued := g.enqueued(); len(g.requests) != len(enqueued) {
		g.Errorf("got %d requests for %d dead letters", len(g.requests), len(enqueued))
	}
	if len(all) == 0 || n == 0 {
		g.Error("every record was deleted")
	}
}

// TestPurge_DeletesEntriesOfExpiredRecords: a purge must delete the rows of dead letters whose records
// the topic no longer has, even if these dead letters are open.
func TestPurge_DeletesEntriesOfExpiredRecords(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(2500)
		g.starts[0] = 2400
		p := g.process().run()
		one := int64(2450)
		g.waitUntilDone(p.start(JobSpec{Kind: deadletters.PurgeJob, Filter: deadletters.Filter{Offset: &one}}).ID)
		all, err := g.db.DeadLetters(g.Context(), deadletters.Filter{Source: theSource}, deadletters.DeadLetter{}, 10_000)
		if err != nil || len(all) != 100 || g.starts[0] != 2400 {
			t.Errorf("got %d entries, %v, start offset %d", len(all), err, g.starts[0])
		}
	})
}

// purgeOf purges all dead letters and returns the new start offset of partition 0.
func (g *rig) purgeOf() int64 {
	g.Helper()
	p := g.process().run()
	g.waitUntilDone(p.start(JobSpec{Kind: deadletters.PurgeJob}).ID)
	p.shutdown()
	return g.starts[0]
}

// TestPurge_KeepsRecordsWithoutIndexEntry: the first record has no row in dead_letters, because its
// worker can't reach the database. Later records have rows. A purge must keep all these records until
// missingEntryTimeout has passed.
func TestPurge_KeepsRecordsWithoutIndexEntry(t *testing.T) {
	for _, waits := range []int64{0, 7} {
		inBubble(t, func(g *rig) {
			for offset := range int64(20) {
				if offset != waits {
					g.deadLetter(idOf(0, offset))
				}
			}
			g.records[idOf(0, waits)] = ReadResult{DeadLetter: schemas.DeadLetter{Time: time.Now()}}
			<-time.After(missingEntryTimeout - time.Minute)
			if start := g.purgeOf(); start != waits {
				t.Errorf("start offset %d is after the record without an entry at %d", start, waits)
			}
			g.deadLetter(idOf(0, 20))
			<-time.After(2 * time.Minute) // now the record without a row is older than missingEntryTimeout
			if start := g.purgeOf(); start != 21 {
				t.Errorf("start offset: got %d, want the end", start)
			}
		})
	}
}

// TestPurge_KeepsRecordsOfRecreatedTopics: a topic was deleted and created again. Old rows of
// dead_letters refer to offsets of the deleted topic. They must not cause the deletion of new records.
func TestPurge_KeepsRecordsOfRecreatedTopics(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(20)
		p := g.process().run()
		g.waitUntilDone(p.start(JobSpec{}).ID)
		p.shutdown()
		<-time.After(2 * missingEntryTimeout)
		clear(g.records)
		for offset := range int64(20) {
			if start := g.purgeOf(); start != 0 {
				t.Fatalf("with %d records the start offset is %d", offset, start)
			}
			g.records[idOf(0, offset)] = ReadResult{DeadLetter: schemas.DeadLetter{Time: time.Now()}}
		}
	})
}

// TestPurge_OfNothingDeletesHandledRecords: a purge without matching dead letters still deletes
// records that a replay has handled. The replay itself deletes no records.
func TestPurge_OfNothingDeletesHandledRecords(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(30)
		p := g.process().run()
		g.waitUntilDone(p.start(JobSpec{}).ID)
		j := g.waitUntilDone(p.start(JobSpec{Kind: deadletters.PurgeJob}).ID)
		all, err := g.db.DeadLetters(g.Context(), deadletters.Filter{Source: theSource}, deadletters.DeadLetter{}, 100)
		if err != nil || len(all) != 0 || g.starts[0] != 30 || j.Total != 0 {
			t.Errorf("%d entries are left, %v; the topic begins at %d, and %d were chosen", len(all), err, g.starts[0], j.Total)
		}
	})
}
