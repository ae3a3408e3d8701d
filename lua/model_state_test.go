package lua_test

// These files contain an exhaustive model of one entity. A search visits every order of requests,
// publishes, steps of workers, and faults, with a few outstanding requests.
//
// 	model_state_test.go        the state
// 	model_steps_test.go        the steps
// 	model_failover_test.go     failovers of Redis
// 	model_rules_test.go        the rules that can be broken
// 	model_search_test.go       the search
// 	model_conformance_test.go  comparison with the scripts
// 	model_test.go              the tests
//
// The model does not contain holds and cool-downs, because a request that they refuse was not
// accepted. It does not contain clocks of different hosts either. Redis' time is above all
// numbers whenever the hash, or a part of it, is lost.

import "math/bits"

// mostOutstanding is the maximum number of outstanding requests that a state has room for. A test
// flag sets the limit of a search.
const mostOutstanding = 3

// laneID is a lane. 0 means no lane, so that the zero value of type state is an entity without a
// hash in Redis.
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
	outlived // an expired pending lock: it covers nothing, and a late confirm revives it
)

// A number (of a request or fetch) and a moment (a time) are ranks, because only the order matters.
// 0 means that there is none.
type (
	number uint8
	moment uint8
)

type modelLock struct {
	lane  laneID
	n     number
	state lockState
	// Only some broken rules use the fields upgraded, prevN and prevState.
	upgraded  bool
	prevN     number
	prevState lockState
	foreign   bool // the lock was set by another Redis server, see model_failover_test.go
}

func (l *modelLock) below(n number) bool { return l.n != 0 && l.n <= n }

// flight is a publish with an unknown outcome.
type flight struct {
	lane   laneID
	n      number
	asked  moment
	strict bool
	retry  bool // true: the request is a scheduled retry
	landed bool // the record is in its topic; the acknowledgement is in flight
	// The producer has rolled the request back, but the record can still arrive in its topic.
	disowned bool
}

// queued is a record in a topic whose offset no worker has committed.
type queued struct {
	n      number
	strict bool
	done   bool // a worker has finished the record, but has not committed it
}

type phase uint8

const (
	idle    phase = iota
	waiting       // request_peek has run; the worker waits for a permit
	sent          // request_begin has run; the upstream call is in flight
	written       // the snapshot is stored, or was rejected as too old
	broken        // the failure of the fetch is stored
)

// worker is the owner of a lane's partition, or the previous owner.
type worker struct {
	at    phase
	lane  laneID
	n     number // number of the request in the worker's record
	read  number // version of the snapshot when the worker ran request_peek
	own   number // number of the fetch that the worker has begun
	began moment
}

// former is the index in state.work of the previous owner of a partition, which still works after
// a rebalance. lowLane and highLane are the indexes of the current owners.
const former = 0

// state is the global state of one entity. States can be compared with ==. After reduce, states
// from which the same steps can follow are equal.
type state struct {
	lock      modelLock
	ver, done number
	issued    number // the last number that acquire issued; used only if the model checks a rule that is wrong on purpose
	replica   replica

	air    [mostOutstanding]flight // publishes with an unknown outcome, sorted by number; unused entries come last
	topics [2][mostOutstanding]queued
	work   [3]worker

	stored number // version of the stored snapshot
	seen   moment // time at which the fetch of the stored snapshot began
	ended  bool   // true: the fetch of the stored snapshot was settled
	row    number // number of the last failed fetch, for which a retry is scheduled; 0: no retry is scheduled

	// owed is the time after which a fetch must begin to satisfy all accepted requests. It is the
	// latest of the requests' times, because a fetch that satisfies the latest request satisfies
	// all.
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

// highest returns the highest request number in the state. The next number comes from Redis' clock,
// which is above this number, even if Redis has lost the hash of the entity.
func (s *state) highest() (most number) {
	for _, n := range s.numbers() {
		most = max(most, *n)
	}
	return most
}

// now returns a time later than all times in the state, and leaves one unused time before it.
func (s *state) now() (last moment) {
	for _, m := range s.moments() {
		last = max(last, *m)
	}
	return last + 2
}

func (s *state) topic(l laneID) *[mostOutstanding]queued { return &s.topics[l-1] }

// outstanding returns the number of requests in flight. A record whose acknowledgement is in
// flight counts once.
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

// quiet reports whether nothing is in flight, so that nothing happens without a new request.
func (s *state) quiet() bool {
	return s.air[0].n == 0 && s.topics[0][0].n == 0 && s.topics[1][0].n == 0 && s.row == 0 &&
		s.work[former].at == idle && s.work[lowLane].at == idle && s.work[highLane].at == idle
}

// land appends a record to its topic. The array has room for all outstanding records.
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

// reduce drops facts that no longer matter, and replaces numbers and times by their ranks, so
// that equivalent states are equal. If `exact` is set, numbers keep their values.
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
		s.ended = true // no step reads `ended` without a lock whose number is below the stored version, so states that differ only in `ended` become equal
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
	// The scripts use the field ver for two decisions only: whether the hash exists, and whether a
	// fetch has begun since the lock was set. States that differ only in the value of ver are
	// therefore equal, and ver becomes a small number with the same two facts.
	r := &s.replica
	known, knew := s.known(), r.lock.n != 0 || r.ver != 0 || r.done != 0
	begun, began := s.ver > s.lock.n, r.ver > r.lock.n
	s.ver, r.ver = 0, 0
	if !waits && s.done <= s.stored {
		s.done = 0 // the stored version is at least as high as `done`, and the next request_peek uses the higher of the two, so `done` has no effect
	}
	if !waits && r.done <= s.stored {
		r.done = 0
	}
	rank(s.numbers())
	s.ver = s.verFor(s.lock, known, begun)
	r.ver = s.verFor(r.lock, knew, began)
	rankMoments(s.moments())
}

// verFor returns a value for the field "ver" of an entity's hash in Redis. The parameter l is the
// lock of the hash. known is true if the hash exists. begun is true if a fetch has begun since the
// lock was set. The scripts compare "ver" only with 0 and with the number of the lock, so every value
// for which these comparisons have the same results has the same effect.
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

// rankMoments replaces times by their ranks. It leaves an unused time between any two times,
// because promised can return the time just before the begin of a fetch.
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
