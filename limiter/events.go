package limiter

import "time"

// eventKind is the name of an event that concerns the whole source. It is part of ARGV[5] of the script
// limiter_acquire.
type eventKind string

const (
	eventBackoff  eventKind = "backoff"
	eventResume   eventKind = "resume"
	eventOpen     eventKind = "open"
	eventClose    eventKind = "close"
	eventRefund   eventKind = "refund"
	eventDayCount eventKind = "used"
	eventStep     eventKind = "step"
	eventUnused   eventKind = "unused"
)

// event is an event of the whole source. The functions below set its numbers in the order that
// limiter_acquire expects. Times are in µs of Redis' clock.
type event struct {
	kind    eventKind
	numbers []int64
}

// backoffEvent reports that the upstream refused a call sent at `sent`. A pause of 0 means that the
// upstream named no time; then the first pause is `base`.
func backoffEvent(pause, base time.Duration, sent int64) event {
	return event{eventBackoff, []int64{pause.Microseconds(), base.Microseconds(), sent}}
}

// resumeEvent ends a backoff: the probe of a slot was answered and not refused.
func resumeEvent(slot int64) event { return event{eventResume, []int64{slot}} }

// openEvent opens the source's circuit breaker because of a call sent at `sent`.
func openEvent(first, maxPause time.Duration, sent int64) event {
	return event{eventOpen, []int64{first.Microseconds(), maxPause.Microseconds(), sent}}
}

// closeEvent closes the source's circuit breaker if it opened before `sent`.
func closeEvent(sent int64) event { return event{eventClose, []int64{sent}} }

// refundEvent returns an unused slot.
func refundEvent(slot int64) event { return event{eventRefund, []int64{slot}} }

// dayCountEvent sends the saved count of the day, and an upper bound for the calls since then: `most`
// calls at once, plus `rate` calls per second.
func dayCountEvent(c Count, rate, most int) event {
	return event{eventDayCount, []int64{c.DayEnd.UnixMicro(), c.Calls, c.At.UnixMicro(), int64(rate), int64(most)}}
}

// noDayCountEvent reports that no count of the day was saved.
func noDayCountEvent() event { return event{eventDayCount, make([]int64, 5)} }

// stepEvent reports that Redis' clock was set forward. This was detected when the clock showed `now`.
func stepEvent(now int64) event { return event{eventStep, []int64{now}} }

// unusedEvent reports that the source was never called.
func unusedEvent() event { return event{eventUnused, nil} }

// encodeEvents returns the events as ARGV[5] of limiter_acquire.
func encodeEvents(all []event) string {
	if len(all) == 0 {
		return ""
	}
	lists := make([][]any, 0, len(all))
	for _, e := range all {
		lists = append(lists, appendNumbers([]any{e.kind}, e.numbers))
	}
	return encodeJSON(lists)
}

func appendNumbers(list []any, numbers []int64) []any {
	for _, n := range numbers {
		list = append(list, n)
	}
	return list
}

// bucketEventKind is the name of an event of one bucket in limiter_buckets.
type bucketEventKind string

const (
	bucketCallEnded    bucketEventKind = "ended"
	bucketRefund       bucketEventKind = "refund"
	bucketLevel        bucketEventKind = "level"
	bucketLogRefund    bucketEventKind = "logRefund"
	bucketReport       bucketEventKind = "report"
	bucketOpenBreaker  bucketEventKind = "open"
	bucketProbeNotSent bucketEventKind = "notSent"
	bucketCloseBreaker bucketEventKind = "close"
)

// bucketEvent is an event of one bucket. The functions below set its ticket (doc.go) and its
// numbers in the order in which the Lua file of the bucket's kind reads them. Times are in µs of Redis' clock.
type bucketEvent struct {
	bucket  *bucket
	kind    bucketEventKind
	ticket  string // ticket of the call that the event is about; empty means none
	numbers []int64
	// once means that the event must not be sent again if it is unknown whether Redis has received it.
	// A refund is sent only once, because a second refund would allow one call too many. An extra
	// charge (a negative refund) is sent again, because a lost charge would allow one call too many.
	once bool
}

// callEndedEvent frees the in-flight slot of a call.
func callEndedEvent(b *bucket, ticket string) bucketEvent {
	return bucketEvent{bucket: b, kind: bucketCallEnded, ticket: ticket}
}

// refundedNow is written instead of the slot if the upstream gives the units back when it responds.
const refundedNow = 0

// bucketRefundEvent refunds units of a slot to a leaky bucket. Negative units are an extra charge.
func bucketRefundEvent(b *bucket, units, slot int64) bucketEvent {
	return bucketEvent{bucket: b, kind: bucketRefund, numbers: []int64{units, slot}, once: units >= 0}
}

// logRefundEvent refunds units of a slot to a sliding-window log. Negative units are an extra charge.
func logRefundEvent(b *bucket, slot, units int64) bucketEvent {
	return bucketEvent{bucket: b, kind: bucketLogRefund, numbers: []int64{slot, units}, once: units >= 0}
}

// levelEvent sends how many units a leaky bucket has left, as the response to the call of the slot has
// reported.
func levelEvent(b *bucket, units, slot int64) bucketEvent {
	return bucketEvent{bucket: b, kind: bucketLevel, numbers: []int64{units, slot}}
}

// callOutcome is the outcome of a call for a bucket with a reported limit.
type callOutcome int64

const (
	callNotSent         callOutcome = 0
	callOutcomeUnknown  callOutcome = 1
	callReported        callOutcome = 2 // the response reports the remaining units
	callAnsweredWithout callOutcome = 3 // the response does not report the remaining units
)

// callReport is the end of a call that was charged to a bucket with a reported limit.
type callReport struct {
	outcome   callOutcome
	units     int64 // number of units that the call cost
	slot      int64
	remaining int64 // number of units that remain, as the response reported it; -1 means not reported
	until     int64 // when the window ends; 0 means not reported
	slack     time.Duration
}

func reportEvent(b *bucket, ticket string, r callReport) bucketEvent {
	return bucketEvent{bucket: b, kind: bucketReport, ticket: ticket, numbers: []int64{int64(r.outcome), r.units, r.slot, r.remaining, r.until, r.slack.Microseconds()}}
}

// notSentEvent frees the units that a call has taken from the bucket, because the call was not sent
// or belongs to another bucket.
func notSentEvent(b *bucket, ticket string, slot int64) bucketEvent {
	return reportEvent(b, ticket, callReport{outcome: callNotSent, slot: slot, remaining: -1})
}

// openBreakerEvent opens a scope breaker because of a call sent at `sent`.
func openBreakerEvent(b *bucket, first, maxPause time.Duration, sent int64) bucketEvent {
	return bucketEvent{bucket: b, kind: bucketOpenBreaker, numbers: []int64{first.Microseconds(), maxPause.Microseconds(), sent}}
}

// probeNotSentEvent reports that the probe of a slot was not sent.
func probeNotSentEvent(b *bucket, slot int64) bucketEvent {
	return bucketEvent{bucket: b, kind: bucketProbeNotSent, numbers: []int64{slot}, once: true}
}

// closeBreakerEvent closes a scope breaker that opened before `sent`. If `sent` is 0, it closes the
// breaker in any case.
func closeBreakerEvent(b *bucket, sent int64) bucketEvent {
	return bucketEvent{bucket: b, kind: bucketCloseBreaker, numbers: []int64{sent}}
}

// list returns the event in the form that limiter_buckets takes. `number` is the bucket's number.
func (e bucketEvent) list(number int) []any {
	list := []any{e.kind, number}
	if e.ticket != "" {
		list = append(list, e.ticket)
	}
	return appendNumbers(list, e.numbers)
}

// maxEvents is the maximum number of refunds, and also of bucket events, that one call to Redis
// sends.
const maxEvents = 200

// pendingEvents are the events for the next call to Redis.
type pendingEvents struct {
	ofSource  []event
	refunds   []slot // unused slots that are given back
	ofBuckets []bucketEvent
	pause     bool // a backoff or an open breaker is not yet reported to Redis
}

// add adds an event of the source.
func (p *pendingEvents) add(e event) { p.ofSource = append(p.ofSource, e) }

// addOfBucket adds an event of a bucket to the pending events.
func (p *pendingEvents) addOfBucket(e bucketEvent) { p.ofBuckets = append(p.ofBuckets, e) }

func (p *pendingEvents) empty() bool {
	return len(p.ofSource)+len(p.refunds)+len(p.ofBuckets) == 0
}

// takeOfSource removes and returns the events of the source for the next call to Redis.
func (p *pendingEvents) takeOfSource() []event {
	taken := p.ofSource
	p.ofSource, p.pause = nil, false
	n := min(len(p.refunds), maxEvents)
	for _, s := range p.refunds[:n] {
		taken = append(taken, refundEvent(s.at))
	}
	p.refunds = p.refunds[n:]
	return taken
}

// takeOfBuckets removes and returns the bucket events for the next call to Redis.
func (p *pendingEvents) takeOfBuckets() []bucketEvent {
	n := min(len(p.ofBuckets), maxEvents)
	taken := p.ofBuckets[:n:n]
	p.ofBuckets = p.ofBuckets[n:]
	return taken
}

// restore adds the events of a failed call to Redis again. It is unknown whether the script ran. A
// repeated backoff or breaker event has no effect, but a repeated refund would allow one call too
// many.
func (p *pendingEvents) restore(d demand) {
	for _, e := range d.bucketEvents {
		if !e.once {
			p.ofBuckets = append(p.ofBuckets, e)
		}
	}
	for _, e := range d.events {
		if e.kind != eventRefund {
			p.ofSource = append(p.ofSource, e)
		}
		p.pause = p.pause || e.kind == eventBackoff || e.kind == eventOpen
	}
}
