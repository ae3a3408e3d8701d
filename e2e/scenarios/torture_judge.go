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

// addExamples shows the first of what is wrong, below the table.
func (t *table) addExamples(what string, all []string) {
	for _, text := range all[:min(3, len(all))] {
		t.note = strings.TrimPrefix(t.note+"\n  "+what+": "+text, "\n  ")
	}
}

// judgeNone judges that nothing is wrong.
func (t *table) judgeNone(what string, of int, wrong []string) {
	t.judge(what, fmt.Sprintf("%d of %d", len(wrong), of), "0, of some", len(wrong) == 0 && of > 0)
	t.addExamples(what, wrong)
}

// judgeZero is none of what there need not be any.
func (t *table) judgeZero(what string, wrong []string) {
	t.judge(what, strconv.Itoa(len(wrong)), "0", len(wrong) == 0)
	t.addExamples(strings.TrimSpace(what), wrong)
}

// judgeNothingLost judges that what was accepted has ended. What a read tells of lies in the
// buffer of a process: it may be lost with that, and is counted. A refresh that was
// answered 202 is in Kafka.
func (t *table) judgeNothingLost(e *ledger, requests []requestRecord, l *tortureLoad, doubtful func(query string, from time.Time) (doubt, long bool)) {
	var lost []string
	garbled := 0
	for _, a := range requests {
		if a.garbled {
			garbled++
		}
		if !e.settled(a) {
			lost = append(lost, fmt.Sprintf("%s of %s, version %d, %s, at %s in %v; stored %+v, failed %+v, called at %s", a.Key, a.Lane, a.Version, a.Reason,
				a.RequestedAt.Format(time.StampMicro), a.recordID, e.stored[a.Key], e.failed[a.Key], e.lastCall[a.Key].Format(time.StampMicro)))
		}
	}
	t.judgeNone("records without an end", len(requests), lost)
	t.report("  of them no requests", "%d", garbled)
	var broken []string
	for _, p := range l.refreshes {
		if !e.fetchedAfter(p.key, p.asked) {
			broken = append(broken, fmt.Sprintf("%s by %s at %s; stored %+v", p.key, p.query, p.asked.Format(time.StampMicro), e.stored[p.key]))
		}
	}
	t.judgeNone("refreshes promised to readers and not made", len(l.refreshes), broken)
	t.judgeQueuedReads(e, l, doubtful)
}

// maxExcusedPercent of a hundred promises to readers may be lost, beside those that were made
// while Kafka was away for about as long as a delivery, when all may be.
const maxExcusedPercent = 10

// judgeQueuedReads judges that each reader who was told of a refresh has got something else since.
func (t *table) judgeQueuedReads(e *ledger, l *tortureLoad, doubtful func(query string, from time.Time) (doubt, long bool)) {
	var unmet []string
	excused, lost := 0, 0
	for _, p := range l.queuedReads {
		const life = time.Minute // of a lock that covers a read: what failed may have failed before
		if now, ok := e.stored[p.key]; ok && now.checked != p.checked || e.failedSince(p.key, p.asked.Add(-life)) || e.coveredByHold(p.key, p.asked, life) {
			continue
		}
		switch doubt, long := doubtful(p.query, p.asked); {
		case long:
			lost++
		case doubt:
			excused++
		default:
			unmet = append(unmet, fmt.Sprintf("%s by %s at %s; stored %+v", p.key, p.query, p.asked.Format(time.StampMicro), e.stored[p.key]))
		}
	}
	t.judgeNone("keys of which readers were told so, and none was made", len(l.queuedReads), unmet)
	t.judge("  lost with a process or its way to Kafka", fmt.Sprintf("%d of %d", excused, len(l.queuedReads)), fmt.Sprintf("<=%d %%", maxExcusedPercent),
		100*excused <= maxExcusedPercent*len(l.queuedReads))
	t.report("  lost while Kafka was away for about as long as a delivery", "%d", lost)
}

// judgeTortureContract judges by the upstream's own log.
func (t *table) judgeTortureContract(st simulator.Stats) {
	t.judge("most calls in a sliding second", strconv.Itoa(st.MaxInSlidingSecond), fmt.Sprint("<=", tortureLimit), st.MaxInSlidingSecond <= tortureLimit && st.Arrivals > 0)
	t.judge("refused by the upstream's quota", strconv.Itoa(st.Refused), "0", st.Refused == 0)
}

// perFault is how many calls a fault may have repeated: what was in flight in one
// process, and what had come and was not stored. So many in a thousand are repeated
// without one, for an entity may be in both lanes at once.
const (
	maxRepeatsPerFault    = 10
	maxRepeatsPerThousand = 20
	repeatWindow          = 15 * time.Second // until a session has ended, and its partitions have gone on
	// A worker may call a known-good entity within confirmWithin of a call that failed: see
	// consumer/doc.go.
	confirmWithin = 2 * time.Second
)

// mayRepeatCalls says whether calls may be repeated because of a fault: a worker's, or of what it
// needs to go on from where it was.
func (d injectedFault) mayRepeatCalls() bool {
	return d.component != "upstream" && !slices.Contains(queries, d.victim)
}

// maxRepeats is how many calls faults may have repeated: a worker that dies while nothing
// can be written takes along what it has fetched since.
func maxRepeats(done []injectedFault) (faults, most int) {
	for _, d := range done {
		if !d.mayRepeatCalls() {
			continue
		}
		faults++
		most += maxRepeatsPerFault
		for _, o := range done {
			if d.component == "process" && o.component == "database" && o.began.Before(d.began) && o.ended.After(d.began) {
				most += int(tortureLimit * d.began.Sub(o.began).Seconds())
			}
		}
	}
	return faults, most
}

// judgeDuplicates judges how many calls nobody needed: since the last that was answered
// well, nothing had been asked for. A record without a number has a call of its own.
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
	good, unanswered, without, confirming := 0, 0, 0, 0
	var failures []time.Time // of calls that failed, as long as a confirming call may follow
	faults, most := maxRepeats(done)
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
					without++
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
	t.report("calls of known-good entities after a failure", "%d", confirming)
	t.judge("calls that nobody needed", strconv.Itoa(repeated), fmt.Sprintf("<=%d of %d faults", most, faults), repeated-without <= most)
	t.judge("  without a fault", strconv.Itoa(without), fmt.Sprintf("<=%d in a thousand", maxRepeatsPerThousand), 1000*without <= maxRepeatsPerThousand*good)
	return repeated
}

// liveLocksScript asks Redis for the locks whose lives have not ended. One that another server
// set, before a failover or a restart, is none (lua/coalesce_acquire).
const liveLocksScript = `local t = redis.call('TIME')
local now, live = t[1] * 1000 + math.floor(t[2] / 1000), {}
local id = string.sub(string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)'), 1, 16)
for _, key in ipairs(redis.call('KEYS', 'upd:*')) do
  local f = redis.call('HMGET', key, 'lock', 'server')
  local till = f[1] and string.match(f[1], '^%S+ %d+ (%d+) ')
  if till and tonumber(till) > now and f[2] == id then live[#live + 1] = key .. ' ' .. f[1] end
end
return live`

// liveLocks returns the live ones, past the way that is hurt.
func (s *site) liveLocks(ctx context.Context) (live []string, err error) {
	client := redis.NewClient(&redis.Options{Addr: s.Redis.Address, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	return client.Eval(ctx, liveLocksScript, nil).StringSlice()
}
