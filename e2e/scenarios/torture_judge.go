package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// addExamples adds the first three of the wrong values to the note below the table.
func (t *table) addExamples(what string, all []string) {
	for _, text := range all[:min(3, len(all))] {
		t.note = strings.TrimPrefix(t.note+"\n  "+what+": "+text, "\n  ")
	}
}

// judgeNone judges that total is above 0 and that the list of wrong values is empty.
func (t *table) judgeNone(what string, total int, wrong []string) {
	t.judge(what, fmt.Sprintf("%d of %d", len(wrong), total), "0, of some", len(wrong) == 0 && total > 0)
	t.addExamples(what, wrong)
}

// judgeZero judges that the list of wrong values is empty.
func (t *table) judgeZero(what string, wrong []string) {
	t.judge(what, strconv.Itoa(len(wrong)), "0", len(wrong) == 0)
	t.addExamples(strings.TrimSpace(what), wrong)
}

// judgeNothingLost judges that every accepted request has ended. A refresh is answered with 202
// only when its update request is in Kafka, so this request must not be lost. A read is answered
// while its update request is still in the buffer of the query service. The request of a read may
// therefore be lost, and judgeNothingLost counts the lost requests.
func (t *table) judgeNothingLost(e *finalState, requests []requestRecord, l *tortureLoad, mayBeLost func(query string, from time.Time) (lost, long bool)) {
	var lost []string
	garbled := 0
	for _, a := range requests {
		if a.garbled {
			garbled++
		}
		if !e.settled(a) {
			lost = append(lost, fmt.Sprintf("%s in %s, version %d, %s, at %s, record %v; stored %+v, failed %+v, called at %s", a.Key, a.Lane, a.Version, a.Reason,
				a.RequestedAt.Format(time.StampMicro), a.recordID, e.stored[a.Key], e.failed[a.Key], e.lastCall[a.Key].Format(time.StampMicro)))
		}
	}
	t.judgeNone("records without an end", len(requests), lost)
	t.report("  poison records among them", "%d", garbled)
	var broken []string
	for _, p := range l.refreshes {
		if !e.fetchedAfter(p.key, p.asked) {
			broken = append(broken, fmt.Sprintf("%s by %s at %s; stored %+v", p.key, p.query, p.asked.Format(time.StampMicro), e.stored[p.key]))
		}
	}
	t.judgeNone("refreshes answered with 202 and not done", len(l.refreshes), broken)
	t.judgeQueuedReads(e, l, mayBeLost)
}

// maxExcusedPercent is the maximum percentage of queued reads whose update request may be lost. A
// request may be lost if a fault killed the query service or its connection to Kafka. Reads during a
// long Kafka outage (see injector.mayBeLost) are not counted, because all of their update requests
// may be lost.
const maxExcusedPercent = 10

// judgeQueuedReads judges the reads whose response said that an update was queued. Afterwards the
// entity must have a later check time than the one in the response, or a recorded failure.
func (t *table) judgeQueuedReads(e *finalState, l *tortureLoad, mayBeLost func(query string, from time.Time) (lost, long bool)) {
	var unmet []string
	excused, lost := 0, 0
	for _, p := range l.queuedReads {
		const life = time.Minute // maximum lifetime of a lock: a request that was sent up to this long before the read may cover the read, so a failure since then counts
		if now, ok := e.stored[p.key]; ok && now.checked != p.checked || e.failedSince(p.key, p.asked.Add(-life)) || e.coveredByHold(p.key, p.asked, life) {
			continue
		}
		switch possibly, long := mayBeLost(p.query, p.asked); {
		case long:
			lost++
		case possibly:
			excused++
		default:
			unmet = append(unmet, fmt.Sprintf("%s by %s at %s; stored %+v", p.key, p.query, p.asked.Format(time.StampMicro), e.stored[p.key]))
		}
	}
	t.judgeNone("keys whose queued update was not done", len(l.queuedReads), unmet)
	t.judge("  lost with a process or its connection to Kafka", fmt.Sprintf("%d of %d", excused, len(l.queuedReads)), fmt.Sprintf("<=%d %%", maxExcusedPercent),
		100*excused <= maxExcusedPercent*len(l.queuedReads))
	t.report("  lost in Kafka outages of about the delivery timeout", "%d", lost)
}

// judgeTortureContract judges that the calls in the upstream's log stayed within its quota.
func (t *table) judgeTortureContract(st simulator.Stats) {
	t.judge("max calls in a sliding second", strconv.Itoa(st.MaxInSlidingSecond), fmt.Sprint("<=", tortureLimit), st.MaxInSlidingSecond <= tortureLimit && st.Arrivals > 0)
	t.judge("calls rejected by the upstream's quota", strconv.Itoa(st.Refused), "0", st.Refused == 0)
}

// These constants limit the number of repeated calls. After a fault, another process may repeat the
// calls that the failed process had in flight, and the calls whose results were not stored yet. A few
// calls are repeated even without a fault, because an entity may be in both lanes at the same time.
const (
	maxRepeatsPerFault    = 10
	maxRepeatsPerThousand = 20
	repeatWindow          = 15 * time.Second // time until a failed worker's consumer session has expired and another worker consumes its partitions
	// confirmWithin is the time after a failed call within which a worker may call a known-good
	// entity, to confirm that the upstream works. See consumer/doc.go.
	confirmWithin = 2 * time.Second
)

// mayRepeatCalls reports whether the fault may cause repeated calls. Faults of query services and
// of the upstream cannot repeat calls.
func (d injectedFault) mayRepeatCalls() bool {
	return d.component != "upstream" && !slices.Contains(queries, d.victim)
}

// maxRepeats returns the number of faults that may cause repeated calls, and the maximum number
// of these calls. If a worker is killed during a database fault, it loses all results since the
// start of the database fault. The calls for these results are repeated.
func maxRepeats(done []injectedFault) (faults, repeats int) {
	for _, d := range done {
		if !d.mayRepeatCalls() {
			continue
		}
		faults++
		repeats += maxRepeatsPerFault
		for _, o := range done {
			if d.component == "process" && o.component == "database" && o.began.Before(d.began) && o.ended.After(d.began) {
				repeats += int(tortureLimit * d.began.Sub(o.began).Seconds())
			}
		}
	}
	return faults, repeats
}

// judgeDuplicates judges the number of unnecessary calls. A successful call is unnecessary if the
// entity was not requested again since its last successful call. A record without a version always
// needs its own call.
func (t *table) judgeDuplicates(all []harness.Arrival, requests []requestRecord, done []injectedFault) (repeated int) {
	wanted, own := map[string][]time.Time{}, map[string][]time.Time{}
	for _, a := range requests {
		if a.Version > 0 {
			wanted[a.Key] = append(wanted[a.Key], a.RequestedAt)
		} else {
			own[a.Key] = append(own[a.Key], a.RequestedAt)
		}
	}
	for key := range wanted {
		slices.SortFunc(wanted[key], time.Time.Compare)
	}
	for key := range own {
		slices.SortFunc(own[key], time.Time.Compare)
	}
	due := func(times []time.Time, at time.Time) bool { return len(times) > 0 && !times[0].After(at) }
	good, unanswered, unexplained, confirming := 0, 0, 0, 0
	var failures []time.Time // times of failed calls, each of which allows one confirming call
	faults, allowed := maxRepeats(done)
	for _, a := range all {
		switch {
		case a.Fault == "" && (a.Status == http.StatusOK || a.Status == http.StatusBadRequest):
			good++
			at := a.At
			switch {
			case due(wanted[a.Key], at):
			case due(own[a.Key], at):
				own[a.Key] = own[a.Key][1:]
			default:
				failures = slices.DeleteFunc(failures, func(f time.Time) bool { return at.Before(f) || at.Sub(f) > confirmWithin })
				if len(failures) > 0 {
					failures = failures[1:]
					confirming++
					break
				}
				repeated++
				if !slices.ContainsFunc(done, func(d injectedFault) bool {
					return d.mayRepeatCalls() && d.began.Before(at) && at.Before(d.ended.Add(repeatWindow))
				}) {
					unexplained++
				}
			}
			for due(wanted[a.Key], at) {
				wanted[a.Key] = wanted[a.Key][1:]
			}
		case a.Status == 0:
			unanswered++
		case a.Fault == simulator.BadParameter || a.Fault == simulator.InternalError:
			failures = append(failures, a.At)
		}
	}
	t.report("calls, answered, unanswered; records", "%d, %d, %d; %d", len(all), good, unanswered, len(requests))
	t.report("confirming calls of known-good entities after a failure", "%d", confirming)
	t.judge("unnecessary calls", strconv.Itoa(repeated), fmt.Sprintf("<=%d for %d faults", allowed, faults), repeated-unexplained <= allowed)
	t.judge("  without a fault", strconv.Itoa(unexplained), fmt.Sprintf("<=%d in a thousand", maxRepeatsPerThousand), 1000*unexplained <= maxRepeatsPerThousand*good)
	return repeated
}

// liveLocksScript returns the locks that have not expired. It ignores a lock that another server
// has set before a failover or restart, as lua/coalesce_acquire does.
const liveLocksScript = `local t = redis.call('TIME')
local now, live = t[1] * 1000 + math.floor(t[2] / 1000), {}
local id = string.sub(string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)'), 1, 16)
for _, key in ipairs(redis.call('KEYS', 'upd:*')) do
  local f = redis.call('HMGET', key, 'lock', 'server')
  local till = f[1] and string.match(f[1], '^%S+ %d+ (%d+) ')
  if till and tonumber(till) > now and f[2] == id then live[#live + 1] = key .. ' ' .. f[1] end
end
return live`

// liveLocks returns the locks that have not expired. It bypasses the proxies.
func (s *site) liveLocks(ctx context.Context) (live []string, err error) {
	client := redis.NewClient(&redis.Options{Addr: s.Redis.Address, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	return client.Eval(ctx, liveLocksScript, nil).StringSlice()
}
