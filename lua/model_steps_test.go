package lua_test

// model contains the rules and the bounds of the search.
type model struct {
	rules
	most    int   // maximum number of outstanding requests of a client
	forgets uint8 // maximum number of writes that a failover can lose; 0: no failover
	keeps   bool  // if set, only a failover loses the hash
	calm    bool  // if set, workers do not crash or lose partitions, and the hash is not lost; only producers, publishes and writes to Redis fail
	reads   bool  // if set, every caller has read the stored snapshot before its request
	onStep  func(before *state, st step)
}

// happen performs a step, or returns false if it is impossible now.
func (m *model) happen(s *state, st step) (r reply, ok bool) {
	w := &s.work[min(st.i, 2)]
	f := &s.air[st.i]
	switch st.kind {
	case enqueue:
		return m.enqueue(s, st, false)
	case due: // a scheduled retry is a strict LOW request
		return m.enqueue(s, step{kind: enqueue, lane: lowLane, strict: true}, true)
	case land:
		if f.n == 0 || f.landed {
			return r, false
		}
		f.landed = true
		s.land(f.lane, queued{n: f.n, strict: f.strict})
		if f.disowned {
			s.dropFlight(st.i)
		}
		return r, true
	case ack, ackUnconfirmed:
		if f.n == 0 || !f.landed {
			return r, false
		}
		if st.kind == ack && (s.lock.n == f.n || m.confirmsAny && s.lock.n != 0) {
			s.lock.state = confirmed
		}
		s.owed = max(s.owed, f.asked)
		if f.retry && m.rowGoesWhenQueued {
			s.row = 0
		}
		s.dropFlight(st.i)
		return r, true
	case failPublish: // the producer sees a failure, but the record can be in its topic
		if f.n == 0 || f.disowned {
			return r, false
		}
		m.rollback(s, f.n)
		s.dropFlight(st.i)
		return r, true
	case failEarly:
		if f.n == 0 || f.disowned || f.landed {
			return r, false
		}
		m.rollback(s, f.n)
		*f = flight{lane: f.lane, n: f.n, strict: f.strict, disowned: true}
		return r, true
	case loseProducer:
		if f.n == 0 {
			return r, false
		}
		s.dropFlight(st.i)
		return r, true
	case outlive:
		if s.lock.n == 0 || s.lock.state == outlived {
			return r, false
		}
		s.lock = s.lock.pastItsLife()
		return r, true
	case loseHash:
		if !s.known() || m.keeps {
			return r, false
		}
		s.lock, s.ver, s.done, s.issued = modelLock{}, 0, 0, 0
		return r, true
	case peek:
		return m.peek(s, st.i)
	case begin:
		return m.begin(s, w, st.i)
	case write:
		return m.write(s, w, st.i)
	case breakFetch:
		if w.at != sent || m.noRows {
			return r, false
		}
		// A failure schedules a retry only if no later fetch has succeeded or failed.
		if w.own >= s.row && s.stored < w.own {
			s.row = w.own
		}
		w.at = broken
		return r, true
	case settle:
		if w.at != written && w.at != broken {
			return r, false
		}
		m.settle(s, w, w.at == written)
		m.finish(s, st.i)
		return r, true
	case commit:
		t := s.topic(st.lane)
		if !t[0].done {
			return r, false
		}
		copy(t[:], t[1:])
		t[mostOutstanding-1] = queued{}
		return r, true
	case crash, rebalance:
		old := s.work[st.lane]
		if st.kind == rebalance {
			if old.at == idle || s.work[former].at != idle {
				return r, false // the model skips this rebalance, because a crash would have the same effect
			}
			s.work[former] = old
		} else if old.at == idle && !s.topic(st.lane)[0].done {
			return r, false
		}
		s.work[st.lane] = worker{}
		t := s.topic(st.lane)
		for i := range t {
			t[i].done = false
		}
		return r, true
	case loseFormer:
		if s.work[former].at == idle {
			return r, false
		}
		s.work[former] = worker{}
		return r, true
	case failover: // the method apply performs this step
	}
	return r, false
}

// issue returns the next number. It is above `known`, the highest number that the caller knows,
// and above Redis' clock.
func (m *model) issue(s *state, known number) number {
	if m.counts {
		return s.ver + 1
	}
	if m.noClock {
		return max(s.ver, s.done, known) + 1
	}
	return s.highest() + 1
}

func (m *model) enqueue(s *state, st step, retry bool) (reply, bool) {
	if retry && (s.row == 0 || m.noRows) {
		return reply{}, false
	}
	var floor number
	if st.floor {
		if s.stored == 0 {
			return reply{}, false // skipped: without a stored snapshot no caller can have read one
		}
		floor = s.stored
	} else if m.reads && s.stored > 0 {
		return reply{}, false
	}
	asked := s.now()
	done := s.done
	if !m.counts {
		done = max(done, floor)
	}
	verdict := "PUBLISHED"
	if l := s.lock; l.n != 0 && l.state != outlived && (l.n > floor || m.counts) && (!l.foreign || m.noServer) {
		switch {
		case l.lane == lowLane && st.lane == highLane:
			verdict = "UPGRADED"
		case st.strict && !m.noStrict && s.ver > l.n:
		case l.state == pending && !m.noPending:
			return reply{verdict: "PENDING", n: l.n}, true
		default:
			s.owed = max(s.owed, m.promised(s, st.strict, asked, l.n))
			if retry && m.rowGoesWhenQueued {
				s.row = 0
			}
			return reply{verdict: "ALREADY_PROCESSING", n: l.n}, true
		}
	}
	if s.outstanding() >= m.most {
		return reply{}, false
	}
	n := m.issue(s, done)
	if !m.noRows {
		asked = m.promised(s, st.strict, asked, 0) // a relaxed request may be ended by the fetch of a scheduled retry
	}
	s.addFlight(flight{lane: st.lane, n: n, asked: asked, strict: st.strict && !m.noRows, retry: retry && m.rowGoesWhenQueued})
	lock := modelLock{lane: st.lane, n: n}
	if verdict == "UPGRADED" {
		lock.upgraded = m.upgradesOnlyPending
		if m.restores {
			lock.prevN, lock.prevState = s.lock.n, s.lock.state
		}
	}
	s.lock, s.ver, s.done = lock, n, done
	if m.skipsOlder {
		s.issued = n
	}
	return reply{verdict: verdict, n: n}, true
}

// promised returns the time after which a fetch must begin to satisfy a request that was accepted
// at the time `asked`. `lock` is the number of the lock that covers the request, or 0 if the
// request has its own record. A strict request needs a fetch that begins after the request. A
// relaxed request needs a fetch that ends after the request, so a fetch in flight is sufficient. In
// a model without failed fetches, this fetch must be for the lock's request or for a later request.
// In a model with failed fetches, any fetch in flight is sufficient, because the scheduled retry of
// a failed fetch can replace the request.
func (m *model) promised(s *state, strict bool, asked moment, lock number) moment {
	if strict {
		return asked
	}
	if lock > 0 && !s.ended && s.stored > lock {
		return 0 // no further fetch is needed, because a newer snapshot is stored whose fetch is not settled yet
	}
	for _, w := range s.work {
		if w.at == sent && (w.own >= lock || !m.noRows) && w.began > s.seen {
			asked = min(asked, w.began-1)
		}
	}
	return asked
}

func (m *model) rollback(s *state, n number) {
	if l := s.lock; l.n == n && l.state != confirmed {
		s.lock = modelLock{}
		if l.prevN != 0 {
			s.lock = modelLock{lane: lowLane, n: l.prevN, state: l.prevState}
		}
	}
}

// verdict returns the result of request_peek and of request_begin for a record.
func (m *model) verdict(s *state, l laneID, n, read number) string {
	if m.skipsOlder {
		if s.issued > n {
			return "SUPERSEDED"
		}
		return "PROCEED"
	}
	if max(s.done, read) >= n {
		return "SATISFIED"
	}
	supersedes := s.lock.state == confirmed || (m.upgradesOnlyPending && s.lock.state == pending && !s.lock.upgraded)
	if l == lowLane && s.lock.lane == highLane && supersedes && (s.lock.n > n || m.supersedesLater) {
		return "SUPERSEDED"
	}
	return "PROCEED"
}

// satisfied changes the state as the scripts do when they skip a record as SATISFIED.
func (m *model) satisfied(s *state, read number, writesDone bool) {
	done := max(s.done, read)
	if done >= s.stored {
		s.ended = true
	}
	if m.skipsUnsettled {
		return
	}
	if writesDone && s.known() {
		s.done = done
	}
	if s.lock.n <= done {
		s.lock = modelLock{}
	}
}

// known reports whether the entity has a hash.
func (s *state) known() bool { return s.lock.n != 0 || s.ver != 0 || s.done != 0 }

// first returns the index of a lane's first unfinished record, or -1.
func (s *state) first(l laneID) int {
	for i, q := range s.topic(l) {
		if q.n != 0 && !q.done {
			return i
		}
	}
	return -1
}

func (m *model) peek(s *state, who int) (reply, bool) {
	lane := laneID(who)
	if who == former || s.work[who].at != idle {
		return reply{}, false
	}
	i := s.first(lane)
	if i < 0 {
		return reply{}, false
	}
	q := &s.topic(lane)[i]
	v := m.verdict(s, lane, q.n, s.stored)
	switch {
	case v == "SATISFIED":
		m.satisfied(s, s.stored, true)
		q.done = true
	case v == "SUPERSEDED":
		q.done = true
	case s.row != 0 && (q.n <= s.row || (m.refusesHeld && !q.strict)):
		// The scheduled retry replaces this record, because the failed fetch began after the
		// record's request.
		if s.lock.n <= q.n && !m.rowKeepsLock {
			s.lock = modelLock{}
		}
		q.done = true
		return reply{verdict: v}, true
	default:
		w := worker{at: waiting, lane: lane, n: q.n, read: s.stored}
		if m.numberAtWait {
			w.own = m.issue(s, max(w.n, w.read))
			s.ver = w.own
		}
		if m.commitsFirst {
			q.done = true
		}
		s.work[who] = w
	}
	return reply{verdict: v}, true
}

func (m *model) begin(s *state, w *worker, who int) (reply, bool) {
	if w.at != waiting {
		return reply{}, false
	}
	if v := m.verdict(s, w.lane, w.n, w.read); v != "PROCEED" {
		if v == "SATISFIED" {
			m.satisfied(s, w.read, false)
		}
		m.finish(s, who)
		return reply{verdict: v}, true
	}
	switch {
	case m.numberAtWait:
	case m.eventNumber:
		w.own = w.n
	default:
		w.own = m.issue(s, max(w.n, w.read))
		s.ver = w.own
	}
	w.at, w.began = sent, s.now()
	if m.settlesFirst {
		m.settle(s, w, true)
	}
	return reply{verdict: "PROCEED", n: w.own}, true
}

func (m *model) write(s *state, w *worker, who int) (r reply, ok bool) {
	if w.at != sent {
		return r, false
	}
	w.at = written
	if w.own >= s.stored || m.noGuard {
		if w.began < s.seen {
			r.wrong = "an older answer replaced a newer one"
		}
		s.stored, s.seen, s.ended = w.own, w.began, m.settlesFirst
		if s.row <= w.own || m.rowGoesUnguarded {
			s.row = 0
		}
	}
	if m.settlesFirst {
		m.finish(s, who)
	}
	return r, true
}

func (m *model) settle(s *state, w *worker, satisfied bool) {
	if w.at == broken && m.rowKeepsLock {
		return
	}
	if satisfied {
		s.done = max(s.done, w.own)
		if w.own >= s.stored {
			s.ended = true
		}
	}
	if s.lock.n <= w.own {
		s.lock = modelLock{}
	}
}

// finish ends the work on a worker's record. The previous owner of a partition cannot mark the
// record as finished, because it cannot commit.
func (m *model) finish(s *state, who int) {
	if who != former {
		if i := s.first(laneID(who)); i >= 0 && !m.commitsFirst {
			s.topic(laneID(who))[i].done = true
		}
	}
	s.work[who] = worker{}
}
