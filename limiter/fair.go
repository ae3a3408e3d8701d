package limiter

import "maps"

// fair implements start-time fair queueing between clients (Goyal, Vin and Cheng, 1996). Each call
// gets a turn: the last turn of its client plus one, or the last served turn plus one if that is
// greater. Calls are served in the order of their turns. A client's first call therefore waits for
// at most one call of each other client, and the calls of one client are served in order.
//
// Example: client A enqueues three calls (turns 1, 2, 3), then client B one call (turn 1). The calls
// are served in the order A, B, A, A.
type fair struct {
	served int64            // the turn of the call that was served last
	last   map[string]int64 // the last turn given to each client; cleared when no call waits
}

// maxFairClients limits the clients whose turns a wait list remembers. At the limit the list forgets
// all clients without waiting calls.
const maxFairClients = 4096

// place gives the waiter p its turn. It returns the waiter before which p must be inserted; nil means
// that p is the last waiter.
func (l *waitList) place(p *Permit) (after *Permit) {
	if l.last == nil {
		clear(l.fair.last)
	}
	if l.fair.last == nil {
		l.fair.last = map[string]int64{}
	}
	if len(l.fair.last) >= maxFairClients {
		maps.DeleteFunc(l.fair.last, func(_ string, turn int64) bool { return turn <= l.fair.served })
	}
	p.turn = max(l.fair.served, l.fair.last[p.client]) + 1
	l.fair.last[p.client] = p.turn
	for other := l.last; other != nil && other.turn > p.turn; other = other.before {
		after = other
	}
	return after
}

// placeFirst gives the waiter p the earliest turn. It returns the waiter that was first before.
func (l *waitList) placeFirst(p *Permit) (after *Permit) {
	p.turn = l.fair.served
	return l.first
}
