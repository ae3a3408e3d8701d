package lua_test

import "slices"

// This file models a failover of Redis. Replication is asynchronous, so the promoted replica can
// lack the last acknowledged writes. Expired locks stay expired, and the new server's clock is
// above all numbers. A failover without lost writes also represents a restart with data, and the
// migration of a hash slot. A restart that loses the hash is another step (loseHash).
//
// Invariants, with and without failovers:
//
//  1. No older response replaces a newer one. So two fetches have the same number only
//     if the earlier fetch cannot replace the response of the later fetch.
//  2. An accepted request is followed by a fetch that began after it. An accepted relaxed
//     request needs only a fetch that ended after it.

// replica is the version of the hash in Redis' replica. It is used only while the replica lacks
// writes.
type replica struct {
	lock      modelLock
	ver, done number
	behind    uint8 // number of writes that the replica lacks; 0: none
}

// steps returns all steps that are possible in some state of this model.
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
		case enqueue, due, ack, failPublish, failEarly, peek, begin, settle:
			st.unheard = true
			all = append(all, st)
		default: // all other steps write nothing to Redis, so the replica can miss no write
		}
	}
	return all
}

// apply performs a step, or returns false if it is impossible now.
func (m *model) apply(s *state, st step) (r reply, ok bool) {
	if m.forgets == 0 {
		return m.happen(s, st)
	}
	f := &s.replica
	if st.kind == failover {
		if f.behind == 0 {
			if s.lock.n == 0 || s.lock.foreign {
				return r, false // a failover without lost writes and without a lock changes nothing
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
		// When a lock expires, it expires on the replica too, even if the replica has missed a
		// write that extended the TTL of the lock.
		if f.lock.n == lock.n {
			f.lock = f.lock.pastItsLife()
		}
	case st.unheard && !wrote:
		return r, false
	case wrote && (st.unheard || f.behind > 0):
		if f.behind++; f.behind > m.forgets {
			*f = replica{} // the replica has received all writes
		}
	}
	return r, true
}

// pastItsLife returns the lock as it is when its TTL has passed: a confirmed lock no longer
// exists. A pending lock gets the state outlived: it covers nothing, but a confirm can revive it.
func (l modelLock) pastItsLife() modelLock {
	if l.state == confirmed {
		return modelLock{}
	}
	l.state = outlived
	return l
}
