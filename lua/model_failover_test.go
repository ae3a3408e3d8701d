package lua_test

import "slices"

// A failover of Redis: its replica follows late, so that the one that takes over
// may never have heard of the last writes, which were answered. Time goes on: what
// was past its life stays so, and the clock is above all numbers. One that forgets
// nothing is also a restart that keeps the hash, or a slot that moves to another
// node; a restart that loses the hash is another step (loseHash).
//
// What must hold, failover or not:
//
//  1. No older answer replaces a newer one, so no number is given to two fetches
//     of which the earlier could win.
//  2. An accepted request is followed by a fetch that began after it (a relaxed
//     one: that ended after it).

// replica is what it knows of the hash; of a replica that lacks nothing, nothing
// is noted.
type replica struct {
	lock      modelLock
	ver, done number
	behind    uint8 // writes that it lacks
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
			if s.lock.n == 0 || s.lock.foreign {
				return r, false // nothing that anybody would notice
			}
			*f = replica{lock: s.lock, ver: s.ver, done: s.done}
		}
		f.lock.foreign = f.lock.n != 0
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
