package limiter

import (
	"slices"
	"sync/atomic"
	"time"
)

const (
	// limitDecrease is the factor of the limit of heldSlots when a permit expires, as in CUBIC (RFC 9438).
	limitDecrease = 0.7
	// raiseRounds is the number of rounds in which the limit rises by one after it fell. In a round, as
	// many permits as the limit are spent. With fewer rounds, a limit below four exceeds the number of
	// permits that the process can spend in time after too few calls.
	raiseRounds = 8
	// heldTimeout is how long an expired permit counts as held if its caller calls neither Spend nor
	// Release.
	heldTimeout = time.Second
)

// heldSlots are the slots that this process holds: the reserved slots of its queues, and the permits whose
// callers have called neither Spend nor Release yet.
//
// A process without enough processor time spends its permits too late. If it continued to request a
// slot for each waiting call, nearly all of its permits would expire. So it then limits the number of
// held slots, as TCP limits the packets in flight. If a permit expires, the limit falls to limitDecrease
// of the held slots. Further expired permits lower the limit only if their slots were reserved later.
// Each spent permit raises the limit, by more the longer no permit has expired: after the limit fell, it
// rises by one in raiseRounds rounds, and then by the factor e in the same number of rounds. Before the
// first permit expires, there is no limit.
//
// A permit of Acquire can also expire because a new connection to the upstream takes long. So only two
// cases lower the limit: the process was too slow to give a reserved slot to a waiting call, or a permit
// of Reacquire expired.
//
// Both lanes share the limit, as they share the processor. HIGH takes its slots first. LOW can always hold
// one slot, so that HIGH does not starve it.
type heldSlots struct {
	limited atomic.Bool // true if there is a limit; Spend reads it without Limiter.mu

	full   bool      // the limit reduced the last demand
	limit  float64   // the limit, at least 1
	fallen float64   // the limit directly after it fell
	given  []*Permit // the held permits, in the order in which they were given
	newest time.Time // time of the latest slot that was reserved so far
	lowers time.Time // a permit that expires lowers the limit if its slot is later than this time
}

// reserve records that Redis has granted a slot.
func (h *heldSlots) reserve(s slot) {
	if s.notBefore.After(h.newest) {
		h.newest = s.notBefore
	}
}

// give records that p was given to its caller.
func (h *heldSlots) give(p *Permit) { h.given = append(h.given, p) }

// forget removes the permits that are no longer held.
func (h *heldSlots) forget(now time.Time) {
	h.given = slices.DeleteFunc(h.given, func(p *Permit) bool { return p.ended.Load() || now.After(p.slot.notAfter.Add(heldTimeout)) })
}

// room returns how many slots a limited process can request if it holds `held` slots. A small rest of
// the limit is not requested, so that the process does not make one call to Redis for each permit.
func (h *heldSlots) room(held int) int {
	limit := int(h.limit)
	if free := limit - held; 4*free >= limit {
		return free
	}
	return 0
}

// expire lowers the limit because the permit of s expired while `held` slots were held.
func (h *heldSlots) expire(s slot, held int) {
	if !s.notBefore.After(h.lowers) {
		return
	}
	limit := float64(held)
	if h.limited.Load() {
		limit = min(limit, h.limit)
	}
	h.limit, h.lowers = max(1, limit*limitDecrease), h.newest
	h.fallen = h.limit
	h.limited.Store(true)
}

// spend raises the limit because a permit was spent.
func (h *heldSlots) spend() {
	h.limit += (1 + h.limit - h.fallen) / raiseRounds / h.limit
	if h.limit >= maxSlotsPerCall {
		h.limited.Store(false)
	}
}
