package lua_test

// An exhaustive model of one entity: every order in which requests, publishes,
// workers and faults can follow each other, with up to a few requests
// outstanding. model_state_test.go is what there is, model_steps_test.go what can
// happen, model_failover_test.go what a failover of Redis does, model_rules_test.go
// which rules can be broken, model_search_test.go the search,
// model_conformance_test.go what ties the model to the scripts, model_test.go what
// is asked of it.
//
// What it leaves out: holds and cool-downs (who is refused was not accepted), and
// hosts' clocks that differ; Redis' time is above all numbers whenever the hash, or
// a part of it, is lost.

import "math/bits"

// mostOutstanding bounds the arrays of a state; the search's own bound is a flag.
const mostOutstanding = 3

// laneID is 0 for none, so that the zero state is an entity nobody has heard of.
type laneID uint8

const (
	noLane laneID = iota
	lowLane
	highLane
)

func (l laneID) String() string { return [...]string{"-", "LOW", "HIGH"}[l] }

type lockState uint8

const (
	pending lockState = iota
	confirmed
	outlived // a pending lock past its life: it covers nobody, and a late confirm revives it
)

// Numbers and moments are ranks: only their order counts. 0 is none.
type (
	number uint8
	moment uint8
)

type modelLock struct {
	lane  laneID
	n     number
	state lockState
	// Only some broken rules look at these.
	upgraded  bool
	prevN     number
	prevState lockState
	foreign   bool // another server set it: model_failover_test.go
}

func (l *modelLock) below(n number) bool { return l.n != 0 && l.n <= n }

// flight is a publish whose outcome the producer does not know yet.
type flight struct {
	lane   laneID
	n      number
	asked  moment
	strict bool
	retry  bool // a scheduled retry's
	landed bool // in its topic; the acknowledgement is on its way
	// Its producer has given it up and rolled it back; it may arrive all the same.
	disowned bool
}

// queued is a record in a topic that is not committed.
type queued struct {
	n      number
	strict bool
	done   bool // finished, and its offset not committed
}

type phase uint8

const (
	idle    phase = iota
	waiting       // peeked, and waiting for a permit
	sent          // begun: the upstream is being looked at
	written       // its snapshot is stored, or was refused
	broken        // its failure is written down
)

// worker is the owner of a lane's partition at work, or the one before it.
type worker struct {
	at    phase
	lane  laneID
	n     number // of the record
	read  number // stored version when it peeked
	own   number // of the fetch
	began moment
}

// former is the index of the owner before the present one, which a rebalance
// has left at work; lowLane and highLane are those of the present ones.
const former = 0

// state is one entity's, everywhere. It is comparable, and two that differ only
// in what can't matter any more are equal once they are reduced.
type state struct {
	lock      modelLock
	ver, done number
	issued    number // the last by acquire; only a broken rule looks at it
	replica   replica

	air    [mostOutstanding]flight // in order of their numbers, none last
	topics [2][mostOutstanding]queued
	work   [3]worker

	stored number // version of the snapshot
	seen   moment // when its fetch began
	ended  bool   // its fetch has come to its end: it was settled
	row    number // of the last failed fetch, 0 if nothing is to be retried

	// owed is the latest moment after which an accepted request wants a fetch to
	// have begun. It is enough to know the latest: what pays it pays the rest.
	owed moment
}

func (s *state) numbers() [29]*number {
	a, t, w := &s.air, &s.topics, &s.work
	return [...]*number{
		&s.replica.lock.n, &s.replica.lock.prevN, &s.replica.ver, &s.replica.done,
		&s.lock.n, &s.lock.prevN, &s.ver, &s.done, &s.issued, &s.stored, &s.row,
		&a[0].n, &a[1].n, &a[2].n,
		&t[0][0].n, &t[0][1].n, &t[0][2].n, &t[1][0].n, &t[1][1].n, &t[1][2].n,
		&w[0].n, &w[0].read, &w[0].own, &w[1].n, &w[1].read, &w[1].own, &w[2].n, &w[2].read, &w[2].own,
	}
}

func (s *state) moments() [8]*moment {
	a, w := &s.air, &s.work
	return [...]*moment{&s.seen, &s.owed, &a[0].asked, &a[1].asked, &a[2].asked, &w[0].began, &w[1].began, &w[2].began}
}

// highest returns the highest number anywhere: what Redis' clock is above, also
// when the hash is lost.
func (s *state) highest() (most number) {
	for _, n := range s.numbers() {
		most = max(most, *n)
	}
	return most
}

// now returns a moment after all others. The one before it is free.
func (s *state) now() (last moment) {
	for _, m := range s.moments() {
		last = max(last, *m)
	}
	return last + 2
}

func (s *state) topic(l laneID) *[mostOutstanding]queued { return &s.topics[l-1] }

// outstanding counts the requests that are on their way. A record whose
// acknowledgement is, too, counts once.
func (s *state) outstanding() (n int) {
	for _, f := range s.air {
		if f.n != 0 {
			n++
		}
	}
	for l := range s.topics {
		for _, q := range s.topics[l] {
			if q.n != 0 && !s.inAir(q.n) {
				n++
			}
		}
	}
	return n
}

func (s *state) inAir(n number) bool { return s.air[0].n == n || s.air[1].n == n || s.air[2].n == n }

// quiet reports whether nothing is under way, so that nothing more will happen
// unless somebody asks again.
func (s *state) quiet() bool {
	return s.air[0].n == 0 && s.topics[0][0].n == 0 && s.topics[1][0].n == 0 && s.row == 0 &&
		s.work[former].at == idle && s.work[lowLane].at == idle && s.work[highLane].at == idle
}

// land puts a record at its topic's end; there is always room for it.
func (s *state) land(l laneID, q queued) {
	for i, t := 0, s.topic(l); i < len(t); i++ {
		if t[i].n == 0 {
			t[i] = q
			return
		}
	}
	panic("more records in a topic than are outstanding")
}

func (s *state) dropFlight(i int) {
	copy(s.air[i:], s.air[i+1:])
	s.air[mostOutstanding-1] = flight{}
}

func (s *state) addFlight(f flight) {
	i := 0
	for s.air[i].n != 0 && s.air[i].n <= f.n {
		i++
	}
	copy(s.air[i+1:], s.air[i:])
	s.air[i] = f
}

// reduce forgets what can't matter any more, and gives numbers and moments their
// ranks, so that states that will behave alike are one. Where numbers are counted
// (broken rules), their values matter and stay.
func (s *state) reduce(exact bool) {
	for _, l := range []*modelLock{&s.lock, &s.replica.lock} {
		if l.state == outlived && !s.inAir(l.n) {
			*l = modelLock{}
		}
	}
	if s.seen > s.owed {
		s.owed = 0
	}
	if !s.lock.below(s.stored) && !s.replica.lock.below(s.stored) {
		s.ended = true // only a lock below asks
	}
	waits := false
	for i := range s.work {
		switch w := &s.work[i]; w.at {
		case waiting:
			waits = true
		case written, broken:
			w.n, w.read, w.began = 0, 0, 0
		case sent:
			w.n, w.read = 0, 0
		case idle:
		}
	}
	if exact {
		return
	}
	// Whether there is a hash at all matters, and whether a fetch has begun behind
	// the lock; for what is issued next, all numbers count.
	r := &s.replica
	known, knew := s.known(), r.lock.n != 0 || r.ver != 0 || r.done != 0
	begun, began := s.ver > s.lock.n, r.ver > r.lock.n
	s.ver, r.ver = 0, 0
	if !waits && s.done <= s.stored {
		s.done = 0 // the next peek takes the stored version instead
	}
	if !waits && r.done <= s.stored {
		r.done = 0
	}
	rank(s.numbers())
	s.ver = s.verFor(s.lock, known, begun)
	r.ver = s.verFor(r.lock, knew, began)
	rankMoments(s.moments())
}

// verFor returns the least that a hash's ver could be.
func (s *state) verFor(l modelLock, known, begun bool) number {
	switch {
	case l.n != 0 && begun:
		return max(s.highest(), l.n+1)
	case l.n != 0:
		return l.n
	case known:
		return 1
	}
	return 0
}

func rank(numbers [29]*number) {
	var used uint64
	for _, n := range numbers {
		used |= 1 << *n
	}
	used &^= 1
	for _, n := range numbers {
		if *n != 0 {
			*n = number(bits.OnesCount64(used << (63 - *n)))
		}
	}
}

// rankMoments leaves a moment free between any two.
func rankMoments(moments [8]*moment) {
	var used uint64
	for _, m := range moments {
		used |= 1 << *m
	}
	used &^= 1
	for _, m := range moments {
		if *m != 0 {
			*m = moment(2 * bits.OnesCount64(used<<(63-*m)))
		}
	}
}
