package limiter

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
)

// allocator gives the slots that Redis has granted to the waiting calls. It also collects the events
// for the next call to Redis. Limiter.mu guards all its fields except breaker and day.needed. The
// caller of its methods, and of the methods of its fields, holds this lock.
type allocator struct {
	breaker sourceBreaker
	active  activeSettings
	queues  queueSet
	buckets bucketTable
	pending pendingEvents
	day     dayCount
	clock   clock // the last reading of Redis' clock
	// backingOff means that Redis grants only probes, because of a backoff.
	backingOff bool
	log        *slog.Logger
	metrics    *metrics
	// forceCall requires a call to Redis even if no slot and no event needs one. The call sends new
	// settings, or a report of this process is published after the call.
	forceCall bool
}

// dayCount is the number of calls in the current calendar day.
type dayCount struct {
	counted Count         // the count that Redis reported last
	unsaved bool          // true if the count can't be saved, so no permit is granted
	needed  chan struct{} // a message makes the limiter's follower goroutine send the saved count to Redis
}

// request makes the limiter's follower goroutine send the saved count to Redis. The caller need not
// hold Limiter.mu.
func (d *dayCount) request() {
	select {
	case d.needed <- struct{}{}:
	default:
	}
}

// setQuota replaces the quota that the next call to Redis sends.
func (al *allocator) setQuota(q Quota, revision int64, stopped bool) {
	al.active.set(q, revision, stopped)
	al.buckets.scoped = q.scoped
}

// applySettings puts a quota and an emergency stop into force. The next call to Redis sends them.
func (al *allocator) applySettings(quota Quota, revision int64, stopped bool) {
	al.setQuota(quota, revision, stopped)
	al.active.unread = false
	now := time.Now()
	for _, q := range al.queues.all {
		if stopped {
			for _, s := range q.slots {
				al.refund(s)
			}
			q.slots = nil
		}
		if q.back.After(now) { // Redis may have rejected slots under the old quota that the new quota allows
			q.back = now
		}
	}
}

// step gives each due slot to a waiting call, as a permit. It returns the demand for the next
// call to Redis, and the time `next` at which step must run again at the latest. A zero time means
// that step runs again only after a wake-up.
func (al *allocator) step(now time.Time) (d demand, next time.Time) {
	al.queues.removeEmpty()
	for _, q := range al.queues.all {
		next = poll.Earlier(next, al.serveDue(q, now))
		missing := min(q.length-len(q.slots), maxSlotsPerCall)
		switch {
		case missing <= 0 || al.active.stopped:
			continue
		case now.Before(q.back):
			next = poll.Earlier(next, q.back)
			continue
		}
		switch q {
		case al.queues.high:
			d.high = missing
		case al.queues.low:
			d.low = missing
		default:
			d.queues = append(d.queues, queueDemand{q, min(missing, maxSlotsPerQueue)})
		}
	}
	if (al.breaker.open.Load() || al.backingOff) && d.high > 0 && d.low > 0 {
		// Only one lane, chosen at random, requests the probe, so that both lanes get probes. If
		// HIGH always came first, one HIGH entity that always fails could prevent all other calls.
		// If LOW always came first, it could block the probes when its share of the quota is used up.
		if rand.IntN(2) == 0 { //nolint:gosec // not a secret
			d.high = 0
		} else {
			d.low = 0
		}
	}
	d.queues = al.selectQueues(d.queues)
	next = poll.Earlier(next, al.limitDemand(&d, now))
	d.hasEvents = !al.pending.empty() || al.forceCall
	return d, next
}

// limitDemand reduces the demand to the slots that this process can still hold (see heldSlots). If the
// demand was reduced, it returns the time at which the first held permit is forgotten.
func (al *allocator) limitDemand(d *demand, now time.Time) (next time.Time) {
	h := al.queues.held
	h.forget(now)
	h.full = false
	if !h.limited.Load() {
		return time.Time{}
	}
	all, low := al.queues.countHeld()
	room := h.room(all)
	take := func(n int) int {
		got := min(n, max(0, room))
		room, h.full = room-got, h.full || got < n
		return got
	}
	takeQueues := func(lane schemas.Lane) {
		for i, c := range d.queues {
			if c.q.lane == lane {
				d.queues[i].n = take(c.n)
			}
		}
	}
	d.high = take(d.high)
	takeQueues(schemas.High)
	if low == 0 {
		room = max(room, 1)
	}
	d.low = take(d.low)
	takeQueues(schemas.Low)
	d.queues = slices.DeleteFunc(d.queues, func(c queueDemand) bool { return c.n == 0 })
	if h.full && len(h.given) > 0 {
		return h.given[0].slot.notAfter.Add(heldTimeout + 1)
	}
	return time.Time{}
}

// lapse refunds a slot that has expired. If `slow` is true, it expired because this process is too slow,
// and the limit of the held slots falls.
func (al *allocator) lapse(s slot, now time.Time, slow bool) {
	al.metrics.lapsed.Inc()
	if slow {
		al.queues.held.forget(now)
		all, _ := al.queues.countHeld()
		al.queues.held.expire(s, all)
	}
	al.refund(s)
}

// selectQueues picks at most maxQueuesPerCall queues for the next call to Redis. If there are
// more, it picks the queues that were sent to Redis longest ago. The result is sorted by lane,
// HIGH first, and then by the time at which the queue's next waiter arrived. While the circuit
// breaker is open it picks one queue at random, for the probe. During a backoff the order is random.
func (al *allocator) selectQueues(all []queueDemand) []queueDemand {
	if len(all) < 2 {
		return all
	}
	if al.breaker.open.Load() {
		fresh := slices.DeleteFunc(slices.Clone(all), func(d queueDemand) bool { return d.q.fresh.first == nil })
		if len(fresh) > 0 && rand.IntN(retryShare) > 0 { //nolint:gosec // not a secret
			all = fresh
		}
		return all[rand.IntN(len(all)):][:1] //nolint:gosec // not a secret
	}
	if len(all) > maxQueuesPerCall { // the queues sent longest ago come first, so that repeatedly rejected queues do not starve the others
		slices.SortStableFunc(all, func(a, b queueDemand) int { return cmp.Compare(a.q.lastCall, b.q.lastCall) })
		all = all[:maxQueuesPerCall]
	}
	if al.backingOff { // The first queue gets the probe. During a backoff the order is random, so that each queue can get it.
		rand.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] }) //nolint:gosec // not a secret
		first := slices.IndexFunc(all, func(d queueDemand) bool { return d.q.fresh.first != nil })
		if first > 0 && rand.IntN(retryShare) > 0 { //nolint:gosec // not a secret
			all[0], all[first] = all[first], all[0]
		}
		return all
	}
	slices.SortStableFunc(all, func(a, b queueDemand) int {
		if a.q.lane == b.q.lane {
			return a.q.next().since.Compare(b.q.next().since)
		}
		if a.q.lane == schemas.High {
			return -1
		}
		return 1
	})
	return all
}

// serveDue gives the slots of the queue that are due to its waiters, and refunds the slots that have
// expired. It returns the time at which the next slot is due, or, if no waiter is left for this slot,
// expires. Zero time: the queue has no slot.
func (al *allocator) serveDue(q *queue, now time.Time) time.Time {
	for len(q.slots) > 0 {
		s := q.slots[0]
		switch {
		case now.After(s.notAfter):
			al.lapse(s, now, q.length > 0)
		case q.length == 0:
			return s.notAfter.Add(1)
		case now.Before(s.notBefore):
			return s.notBefore
		default:
			p := q.serve()
			p.slot, p.given = s, true
			al.queues.held.give(p)
			if p.ready != nil {
				p.ready <- struct{}{}
			}
			al.metrics.waited[q.lane].Observe(now.Sub(p.since).Seconds())
		}
		q.slots = q.slots[1:]
	}
	return time.Time{}
}

// releaseSlots gives up all slots that this process has reserved but not yet handed to a caller.
func (al *allocator) releaseSlots() {
	for _, q := range al.queues.all {
		for _, s := range q.slots {
			al.refund(s)
		}
		q.slots = nil
	}
}

// refund returns an unused slot to Redis if another call can use it. A slot of a GCRA partition can't
// be used after its time. So, if the source has GCRA partitions and no buckets, only probes of the
// source are returned.
func (al *allocator) refund(s slot) {
	if s.candidate != nil {
		al.refundBuckets(s)
	}
	if len(al.active.quota.windowLogs) > 0 || al.active.quota.day != nil || al.breaker.open.Load() || s.sourceProbe {
		al.pending.refunds = append(al.pending.refunds, s)
	}
}

// refundBuckets returns an unused slot to the buckets that it was charged to.
func (al *allocator) refundBuckets(s slot) {
	for _, c := range s.candidate.costs {
		switch al.active.quota.scoped[c.policyIndex].kind() {
		case concurrencyKind:
			al.pending.addOfBucket(callEndedEvent(c.bucket, c.ticket(s)))
		case reportedKind:
			al.pending.addOfBucket(notSentEvent(c.bucket, c.ticket(s), s.at))
		case leakyBucketKind:
			al.pending.addOfBucket(bucketRefundEvent(c.bucket, int64(c.units), s.at))
		case unitLogKind:
			al.pending.addOfBucket(logRefundEvent(c.bucket, s.at, int64(c.units)))
		case breakerKind:
			if s.probe {
				al.pending.addOfBucket(probeNotSentEvent(c.bucket, s.at))
			}
		case minIntervalKind: // a minimum interval in which no call was sent can't be used later, so nothing is refunded
		}
	}
}

// queueFor returns the queue of a call. Sources without buckets have one queue per lane. Other
// sources have one queue for each combination of lane, costs and list of credentials.
func (al *allocator) queueFor(lane schemas.Lane, c Call) *queue {
	if len(al.active.quota.scoped) == 0 {
		return al.queues.ofLane(lane)
	}
	credentials := c.Credentials
	if len(credentials) == 0 {
		credentials = []string{""}
	}
	of := &queueKey{lane: lane}
	var id strings.Builder
	id.WriteString(string(lane))
	for _, credential := range credentials {
		w := al.buckets.candidate(c, credential)
		of.candidates = append(of.candidates, w)
		for _, charge := range w.costs {
			fmt.Fprintf(&id, " %s=%d", charge.name, charge.units)
		}
		fmt.Fprintf(&id, " %q", credential)
	}
	// A response can change the budget (resource) of a single endpoint, so each endpoint has its own
	// queues.
	if al.buckets.scopesBy("resource") {
		fmt.Fprintf(&id, " @%q", c.Endpoint)
	}
	if q := al.queues.byKey[id.String()]; q != nil {
		return q
	}
	return al.queues.live(&queue{lane: lane, key: of, keyText: id.String()})
}

// setResource records the upstream's name for the budget of an endpoint, and moves the
// endpoint's waiters to the queue of that budget.
func (al *allocator) setResource(endpoint, resource string) {
	al.buckets.resources[endpoint] = resource
	for _, q := range slices.Clone(al.queues.all) {
		if q.key == nil || q.key.candidates[0].call.Endpoint != endpoint {
			continue
		}
		call := q.key.candidates[0].call
		call.Credentials = nil
		for _, w := range q.key.candidates {
			call.Credentials = append(call.Credentials, w.credential)
		}
		for to := al.queueFor(q.lane, call); to != q && q.length > 0; {
			p := q.serve()
			p.queue = to
			to.push(p)
		}
	}
}
