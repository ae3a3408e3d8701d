package consumer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// ledger knows which records of one partition are not done yet, for one
// assignment of the partition.
//
// Invariants:
//   - Everything below the commit point is done: settled, or never there (a gap
//     left by compaction or a transaction holds nothing to do).
//   - The commit point never falls, unless the log itself was cut back.
//   - Once revoked, nothing is committed any more: another member owns the
//     partition, may have read on from the last commit, and a late commit would
//     pass over what it has not done. A ledger dies with its assignment; the next
//     assignment gets a new one.
type ledger struct {
	mu        sync.Mutex
	window    []entry // the records read, from the oldest that is not done on
	next      int64   // the offset behind the newest
	epoch     int32   // leader epoch of the newest
	read      bool    // something was
	committed int64   // the commit point that Kafka has; -1 if unknown
	state     ledgerState

	lifetime    context.Context // ends when it is no longer open
	endLifetime context.CancelCauseFunc

	inFlight int           // records whose upstream call was sent and that have not ended
	drained  chan struct{} // closed when sent falls to 0 after close
}

func newLedger() *ledger {
	l := &ledger{committed: -1}
	l.lifetime, l.endLifetime = context.WithCancelCause(context.Background())
	return l
}

type entry struct {
	offset int64
	epoch  int32     // leader epoch
	at     time.Time // when the record was written
	done   bool
}

type ledgerState uint8

const (
	ledgerOpen    ledgerState = iota
	ledgerClosing             // what was sent may end, nothing further is sent
	ledgerRevoked
)

// add takes in a record that was read. It reports false for one that was read
// before in this assignment, a repeated delivery, and for all once it is closing.
// A lower offset of a later leader epoch is no repetition: the log was cut back,
// and what it held from there on is gone.
func (l *ledger) add(offset int64, epoch int32, at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != ledgerOpen || (l.read && offset < l.next && epoch <= l.epoch) {
		return false
	}
	if offset < l.next {
		i, _ := l.find(offset)
		l.window = l.window[:i]
	}
	l.window = append(l.window, entry{offset: offset, epoch: epoch, at: at})
	l.next, l.epoch, l.read = offset+1, epoch, true
	return true
}

// markDone marks a record as done. The end of one that was cut off the log says nothing
// of its successor, which has the same offset and a later epoch.
func (l *ledger) markDone(offset int64, epoch int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, found := l.find(offset)
	if !found || l.window[i].epoch != epoch {
		return
	}
	l.window[i].done = true
	n := 0
	for n < len(l.window) && l.window[n].done {
		n++
	}
	l.window = l.window[n:]
}

func (l *ledger) find(offset int64) (int, bool) {
	return slices.BinarySearchFunc(l.window, offset, func(e entry, offset int64) int { return cmp.Compare(e.offset, offset) })
}

// commitPoint returns the end of the unbroken prefix of done records, and
// whether it is to be committed: not before anything was read, not again, and
// never once revoked.
func (l *ledger) commitPoint() (offset int64, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	offset = l.next
	if len(l.window) > 0 {
		offset = l.window[0].offset
	}
	return offset, l.read && l.state != ledgerRevoked && offset != l.committed
}

// oldest returns when the oldest record that is not done was written; zero if
// there is none.
func (l *ledger) oldest() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.window) == 0 {
		return time.Time{}
	}
	return l.window[0].at
}

// noteCommitted notes what Kafka has taken.
func (l *ledger) noteCommitted(offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.committed = offset
}

// startCall counts a record whose call is about to be sent. It reports false when
// the assignment is ending: then nothing may be sent.
func (l *ledger) startCall() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != ledgerOpen {
		return false
	}
	l.inFlight++
	return true
}

// endCall ends what enter began.
func (l *ledger) endCall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
	if l.inFlight == 0 && l.drained != nil {
		close(l.drained)
		l.drained = nil
	}
}

func (l *ledger) callsInFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight
}

// close lets nothing further be sent, and returns a channel that is closed when
// what was sent has ended.
func (l *ledger) close() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = max(l.state, ledgerClosing)
	l.endLifetime(errRevoked)
	quiet := make(chan struct{})
	if l.inFlight == 0 {
		close(quiet)
	} else {
		l.drained = quiet
	}
	return quiet
}

func (l *ledger) revoke() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = ledgerRevoked
	l.endLifetime(errRevoked)
}

// bind returns a context that ends with ctx, and when the ledger is no longer open
// unless keeps says, at that moment, that what is done goes on.
func (l *ledger) bind(ctx context.Context, keeps func() bool) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.lifetime, func() {
		if !keeps() {
			cancel(errRevoked)
		}
	})
	return ctx, func() { stop(); cancel(nil) }
}

func (l *ledger) is(s ledgerState) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == s
}
