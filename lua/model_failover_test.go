package lua_test

import "slices"

// A failover of Redis: its replica follows late, so that the one that takes over
// has never heard of the last writes, which were answered. Time goes on: what was
// past its life stays so, and the clock is above all numbers. A restart that loses
// the hash is another step (loseHash).
//
// What must hold, failover or not:
//
//  1. No older answer replaces a newer one, so no number is given to two fetches
//     of which the earlier could win.
//  2. An accepted request is followed by a fetch that began after it (a relaxed
//     one: that ended after it), but for what 3 and 4 except.
//  3. back: a lock comes back whose request was settled. What it covers is not
//     followed by a fetch, until its life ends.
//  4. unbegun: a lock stands, but it is forgotten that a fetch has begun behind
//     it. A strict request that it covers has what a relaxed one has: that fetch.
//
// Both exceptions are the lock's, and end with it: with its life at the latest,
// and nothing lengthens that but the one confirm of its number.

// replica is what it knows of the hash; of a replica that lacks nothing, nothing
// is noted.
type replica struct {
	lock      modelLock
	ver, done number
	behind    uint8 // writes that it lacks

	settled bool // it lacks that its lock was settled,
	begun   bool // that a fetch has begun behind it
}

func (r *replica) missSettle(n number) { r.settled = r.settled || r.lock.below(n) }

func (r *replica) missBegin() { r.begun = r.begun || r.lock.n != 0 && r.ver <= r.lock.n }

func (r *replica) simplify() {
	if r.lock.n == 0 {
		r.settled, r.begun = false, false
	}
	r.lock.simplify(r.ver)
	if r.settled {
		r.begun = false
	}
}

func (l *modelLock) simplify(ver number) {
	if l.back || ver > l.n {
		l.unbegun = false
	}
}

// steps lists what could be possible in any state.
func (m *model) steps() []step {
	if m.forgets == 0 {
		return every
	}
	all := []step{{kind: failover}}
	for _, st := range every {
		if m.calm && slices.Contains([]kind{crash, rebalance, loseFormer, loseHash}, st.kind) {
			continue
		}
		all = append(all, st)
		switch st.kind {
		case ask, due, ack, failPublish, failEarly, peek, begin, settle:
			st.unheard = true
			all = append(all, st)
		default: // nothing that Redis writes
		}
	}
	return all
}

// apply has a step happen; it reports false if it can't in this state.
func (m *model) apply(s *state, st step) (r reply, ok bool) {
	if m.forgets == 0 {
		return m.happen(s, st)
	}
	f := &s.replica
	if st.kind == failover {
		if f.behind == 0 {
			return r, false
		}
		f.lock.back = f.lock.back || f.settled
		f.lock.unbegun = f.lock.unbegun || f.begun
		s.lock, s.ver, s.done, s.replica = f.lock, f.ver, f.done, replica{}
		return r, true
	}
	if st.unheard {
		if f.behind > 0 {
			return r, false
		}
		*f = replica{lock: s.lock, ver: s.ver, done: s.done}
	}
	lock, ver, done := s.lock, s.ver, s.done
	if r, ok = m.happen(s, st); !ok {
		return r, false
	}
	wrote := s.lock != lock || s.ver != ver || s.done != done
	switch {
	case st.kind == loseHash:
		*f = replica{}
	case st.kind == outlive:
		// A lock's life is not longer where less is known of it.
		if f.lock.n == lock.n {
			f.lock = f.lock.pastItsLife()
		}
	case st.unheard && !wrote:
		return r, false
	case wrote && (st.unheard || f.behind > 0):
		if f.behind++; f.behind > m.forgets {
			*f = replica{} // it has caught up
		}
	}
	return r, true
}

// pastItsLife: a confirmed lock is then as good as none.
func (l modelLock) pastItsLife() modelLock {
	if l.state == confirmed {
		return modelLock{}
	}
	l.state = outlived
	return l
}

// covered returns what a request is promised that a lock covers.
func (m *model) covered(s *state, l modelLock, strict bool, asked moment) moment {
	if l.back && !m.noneBack {
		return 0
	}
	if l.unbegun && !m.noneUnbegun {
		strict = false
	}
	return m.promised(s, strict, asked, l.n)
}
