package credits

import (
	"sync"

	"github.com/freshet/freshet/schemas"
)

// maxTracked is the maximum number of open holds in memory. The reaper ends further holds after they
// have expired.
const maxTracked = 100_000

// tracker finds the open holds that a settle message may end. It keeps the holds that this process has
// made or read. Its methods do not block.
type tracker struct {
	mu     sync.Mutex
	count  int
	open   map[schemas.Entity]map[string]*trackedHold
	due    map[string]Hold // holds whose outcome may be known
	wakeUp chan struct{}
}

type trackedHold struct {
	Hold
	settled int64 // highest number in the settle messages of the entity since the hold
}

func newTracker() *tracker {
	return &tracker{open: map[schemas.Entity]map[string]*trackedHold{}, due: map[string]Hold{}, wakeUp: make(chan struct{}, 1)}
}

// add keeps an open hold, or sets the number of a hold that is kept already. So a settle message that
// arrives before the number is known is not missed.
func (t *tracker) add(h Hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.open[h.Entity]
	if known := of[h.ID]; known != nil {
		if h.Number > known.Number {
			known.Number = h.Number
			t.check(known)
		}
		return
	}
	if t.count >= maxTracked {
		return
	}
	if of == nil {
		of = map[string]*trackedHold{}
		t.open[h.Entity] = of
	}
	of[h.ID] = &trackedHold{Hold: h}
	t.count++
}

// settled records a settle message.
func (t *tracker) settled(s schemas.Settled) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.open[s.Entity] {
		h.settled = max(h.settled, s.Number)
		t.check(h)
	}
}

func (t *tracker) check(h *trackedHold) {
	if h.Number == 0 || h.settled < h.Number {
		return
	}
	t.due[h.ID] = h.Hold
	select {
	case t.wakeUp <- struct{}{}:
	default: // an earlier value still wakes the reader up
	}
}

// takeDue returns the holds whose outcome may be known, and empties their list.
func (t *tracker) takeDue() []Hold {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Hold, 0, len(t.due))
	for _, h := range t.due {
		all = append(all, h)
	}
	clear(t.due)
	return all
}

// remove deletes a hold that has ended from the memory.
func (t *tracker) remove(h Hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.open[h.Entity]
	if of[h.ID] == nil {
		return
	}
	t.count--
	if delete(of, h.ID); len(of) == 0 {
		delete(t.open, h.Entity)
	}
}
