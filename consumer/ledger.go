package consumer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// ledger tracks which records of one partition are not done yet, during one assignment of the
// partition.
//
// Invariants:
//   - Every record below the commit point is done, or never existed (compaction and transactions
//     leave gaps).
//   - The commit point never decreases, unless the log was truncated.
//   - A revoked ledger commits nothing. Another member owns the partition and may have continued
//     from the last commit, so a late commit could skip records that the other member has not
//     processed. Each assignment has a new ledger.
//
// Example: the records 5, 6 and 7 are read. After 5 and 7 are done the commit point is 6. After 6
// is done it is 8.
type ledger struct {
	mu        sync.Mutex
	window    []entry // records, beginning with the oldest record that is not done
	next      int64   // offset that follows the newest record
	epoch     int32   // leader epoch of the newest record
	read      bool    // at least one record was added
	committed int64   // last committed offset; -1 if unknown
	state     ledgerState

	lifetime    context.Context // ends when the state is no longer ledgerOpen
	endLifetime context.CancelCauseFunc

	inFlight int           // records whose call was sent and has not ended
	drained  chan struct{} // closed when inFlight falls to 0 after a call of the method close
}

func newLedger() *ledger {
	l := &ledger{committed: -1}
	l.lifetime, l.endLifetime = context.WithCancelCause(context.Background())
	return l
}

type entry struct {
	offset int64
	epoch  int32     // leader epoch of the Kafka record
	at     time.Time // the Kafka record's timestamp
	done   bool
}

type ledgerState uint8

const (
	ledgerOpen    ledgerState = iota
	ledgerClosing             // calls that were sent may end, but no further call may be sent
	ledgerRevoked
)

// add adds a record that was read. It reports false for a record that was added before (a repeated
// delivery), and for any record after close. A lower offset with a later leader epoch is not a
// repeated delivery: the log was truncated at that offset.
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

// markDone marks a record as done. It ignores a record that was truncated from the log: another
// record with the same offset and a later epoch has replaced it.
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

// commitPoint returns the offset after the unbroken prefix of done records. `due` is true if this
// offset must be committed: a record was read, the offset has changed, and the ledger is not revoked.
func (l *ledger) commitPoint() (offset int64, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	offset = l.next
	if len(l.window) > 0 {
		offset = l.window[0].offset
	}
	return offset, l.read && l.state != ledgerRevoked && offset != l.committed
}

// oldest returns the timestamp of the oldest record that is not done, or zero.
func (l *ledger) oldest() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.window) == 0 {
		return time.Time{}
	}
	return l.window[0].at
}

// noteCommitted records the offset that Kafka has committed.
func (l *ledger) noteCommitted(offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.committed = offset
}

// startCall counts a record whose call is about to be sent. It reports false if the assignment is
// ending, so that no call may be sent.
func (l *ledger) startCall() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != ledgerOpen {
		return false
	}
	l.inFlight++
	return true
}

// endCall stops counting a record as having a call in flight.
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

// close prevents further calls, and returns a channel that is closed when all sent calls have
// ended.
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

// bind returns a context that ends when ctx ends, or when the ledger is closed. If the function
// `keeps` returns true when the ledger is closed, the context does not end then. The caller must
// call the returned function when it no longer uses the context.
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
