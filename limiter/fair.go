package limiter

import "maps"

// fair orders a line between clients: each is served in turn, however many of its calls
// wait (start-time fair queueing, Goyal, Vin and Cheng 1996). A call's turn is one behind
// the last of its client, or behind the turn that was served last if that is later. So the
// first call of a client waits for one call of each other client at most, and calls of one
// client are first come, first served.
type fair struct {
	served int64            // the turn that was served last
	last   map[string]int64 // the turn of each client's last call, while any call waits
}

// maxFairClients is how many clients a line remembers before it forgets those that have
// no call in it.
const maxFairClients = 4096

// place gives p its turn and returns whom it goes before; nil: it is the last.
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

// placeFirst gives p the turn of the first.
func (l *waitList) placeFirst(p *Permit) (after *Permit) {
	p.turn = l.fair.served
	return l.first
}
