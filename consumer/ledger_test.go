package consumer

import (
	"math/rand/v2"
	"testing"
	"time"
)

func (l *ledger) at(t *testing.T) int64 {
	t.Helper()
	offset, due := l.commitPoint()
	if !due {
		return -1
	}
	return offset
}

func TestLedger_CommitPointEndsDonePrefix(t *testing.T) {
	l := newLedger()
	if l.at(t) != -1 {
		t.Error("commitPoint of an empty ledger: got true, want false")
	}
	for _, offset := range []int64{100, 101, 102, 110} {
		if !l.add(offset, 3, time.Time{}) {
			t.Fatalf("add %d: got false, want true", offset)
		}
	}
	for _, c := range []struct{ finish, want int64 }{
		{-1, 100}, {101, 100}, {100, 102}, {110, 102}, {999, 102}, {50, 102}, {102, 111}, {102, 111},
	} {
		l.markDone(c.finish, 3)
		if got := l.at(t); got != c.want {
			t.Errorf("commit point after %d: got %d, want %d", c.finish, got, c.want)
		}
	}
	l.noteCommitted(111)
	if l.at(t) != -1 {
		t.Error("commitPoint after a commit: got true, want false")
	}
}

func TestLedger_RereadsTruncatedLog(t *testing.T) {
	l := newLedger()
	for offset := range int64(100) {
		l.add(offset, 3, time.Time{})
		if offset < 60 {
			l.markDone(offset, 3)
		}
	}
	if l.add(50, 3, time.Time{}) {
		t.Error("repeated delivery: got it added, want it dropped")
	}
	if !l.add(50, 4, time.Time{}) || !l.add(51, 4, time.Time{}) {
		t.Fatal("record of a later leader epoch: got it dropped, want it added")
	}
	if l.at(t) != 50 {
		t.Errorf("commit point: got %d, want 50", l.at(t))
	}
	l.markDone(99, 3) // this record of leader epoch 3 was read before the log was truncated, and is not in the log any more
	l.markDone(50, 3) // this record's call was in flight when the log was truncated; a record of leader epoch 4 has the same offset now
	if l.at(t) != 50 {
		t.Errorf("commit point: got %d, want 50, whose record is not done", l.at(t))
	}
	l.markDone(50, 4)
	l.markDone(51, 4)
	if l.at(t) != 52 {
		t.Errorf("commit point: got %d, want 52", l.at(t))
	}
}

func TestLedger_DropsRepeatedDelivery(t *testing.T) {
	l := newLedger()
	l.add(5, 0, time.Time{})
	l.add(7, 0, time.Time{})
	for _, offset := range []int64{4, 5, 6, 7} {
		if l.add(offset, 0, time.Time{}) {
			t.Errorf("repeated %d: got it added, want it dropped", offset)
		}
	}
	l.markDone(5, 0)
	if l.add(5, 0, time.Time{}) || l.at(t) != 7 {
		t.Errorf("commit point: got %d, want 7, and the record 5 not added again", l.at(t))
	}
}

func TestLedger_RevokedCommitsNothing(t *testing.T) {
	l := newLedger()
	l.add(5, 0, time.Time{})
	if !l.startCall() {
		t.Fatal("startCall: got false for an open ledger, want true")
	}
	quiet := l.close()
	select {
	case <-quiet:
		t.Error("drained: got it closed with a call in flight")
	default:
	}
	if l.startCall() || l.add(6, 0, time.Time{}) {
		t.Error("closing ledger: got a call or a record accepted, want both rejected")
	}
	l.markDone(5, 0)
	if l.at(t) != 6 {
		t.Error("commitPoint while closing: got false, want true")
	}
	l.endCall()
	<-quiet
	<-l.close()
	l.revoke()
	if l.at(t) != -1 || l.startCall() || l.add(7, 0, time.Time{}) {
		t.Error("revoked ledger: got it active")
	}
}

// The test adds records and marks them as done at random. It compares the commit point with a plain
// set of the records that are not done.
func TestLedger_NeverCommitsPastOpenRecord(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 8))
		l := newLedger()
		undone := map[int64]bool{}
		next, last := rng.Int64N(1000), int64(-1)
		for range 300 {
			if rng.IntN(2) == 0 {
				next += 1 + rng.Int64N(3) // offsets have gaps
				if l.add(next, 0, time.Time{}) != true {
					t.Fatalf("seed %d: add %d: got false, want true", seed, next)
				}
				undone[next] = true
			} else {
				for offset := range undone { // takes one random record, because the order of a Go map is random
					l.markDone(offset, 0)
					delete(undone, offset)
					break
				}
			}
			at := l.at(t)
			if at < last {
				t.Fatalf("seed %d: commit point after %d: got %d, want no decrease", seed, last, at)
			}
			last = at
			for offset := range undone {
				if offset < at {
					t.Fatalf("seed %d: commit point: got %d, want at most the open record %d", seed, at, offset)
				}
			}
			if len(undone) == 0 && at != -1 && at != next+1 {
				t.Fatalf("seed %d: commit point with all records done: got %d, want %d", seed, at, next+1)
			}
		}
	}
}
