package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// scheduleSize returns the size of most tests in this file: the number of entities, the number of
// entities that may be enqueued per second, and the duration within which all entities become due.
func scheduleSize() (n, rate int, within time.Duration) {
	return size(900, 3000), 60, size(8*time.Second, 20*time.Second)
}

func TestScheduler_LosesNothingWhenKilled(t *testing.T) {
	longOnly(t)
	t.Parallel()
	n, rate, within := scheduleSize()
	tt := newTimetable(t, n, rate, within)
	tt.killSchedulers(4)
	tt.untilDone()
	tt.expectRecords()
	tt.worker()
	tt.expectCalls(0)
}

func TestScheduler_LosesNothingWhenKilledBesideWorkers(t *testing.T) {
	t.Parallel()
	n, rate, within := scheduleSize()
	tt := newTimetable(t, n, rate, within)
	tt.worker()
	tt.worker()
	tt.killSchedulers(size(1, 4))
	tt.untilDone()
	tt.expectRecords()
	tt.expectCalls(0)
}

// A scheduler with a claim is frozen until the claim has expired. Another scheduler takes over
// the claim, workers fetch its entities, and then the first scheduler continues. Only the
// entities of this claim may be enqueued a second time.
func TestScheduler_RepeatsOneClaimAfterItsLease(t *testing.T) {
	t.Parallel()
	n, rate, within := scheduleSize()
	tt := newTimetable(t, n, rate, within)
	tt.worker()
	running := []*harness.Process{tt.scheduler(), tt.scheduler()}
	var frozen *harness.Process
	for i := 0; len(tt.harmed) == 0 && tt.untilClaimed(); i++ {
		if frozen != nil {
			tt.check(frozen.Continue())
		}
		frozen = running[i%2]
		tt.check(frozen.Freeze())
		tt.OnClose(func() { _ = frozen.Continue() })
		tt.noteHarmed()
	}
	if len(tt.harmed) == 0 {
		t.Fatal("schedulers that were frozen with a claim: got 0, want 1")
	}
	tt.untilDone()
	tt.until(timeout, "a lag of 0", func() bool { return tt.lag() == 0 })
	tt.check(frozen.Continue())
	tt.register("later", 100, time.Now(), time.Second) // new entities, so that both schedulers have work
	tt.untilDone()
	tt.expectRecords()
	// A scheduler that is frozen after its last check of the claim, but before its Redis call,
	// enqueues the entities of the claim a second time.
	tt.expectCalls(len(tt.harmedKeys))
}

func TestScheduler_LosesNothingWhenRedisHangs(t *testing.T) {
	t.Parallel()
	n, _, _ := scheduleSize()
	tt := newTimetable(t, n, 100, size(5*time.Second, 10*time.Second))
	for range 2 {
		tt.scheduler()
	}
	for _, length := range size([]time.Duration{3 * time.Second}, []time.Duration{3 * time.Second, 20 * time.Second}) {
		if !tt.untilClaimed() {
			t.Fatal("all were enqueued before Redis was frozen")
		}
		tt.check(tt.Redis.FreezeFor(t.Context(), length))
	}
	tt.untilDone()
	tt.expectRecords()
	tt.worker()
	tt.expectCalls(0)
}

// The site's own Kafka broker is frozen twice, the second time for longer than the delivery
// timeout of a record. No entity may be lost. A record that is in flight during the second freeze
// may be on the topic twice.
func TestScheduler_LosesNothingWhenKafkaHangs(t *testing.T) {
	longOnly(t)
	t.Parallel()
	tt := newTimetable(t, 3000, 100, 10*time.Second, func(tt *timetable) { tt.check(tt.StartKafka(t.Context())) })
	for range 2 {
		tt.scheduler()
	}
	for _, length := range []time.Duration{3 * time.Second, 20 * time.Second} {
		if !tt.untilClaimed() {
			t.Fatal("all were enqueued before Kafka was frozen")
		}
		tt.signalKafka("STOP")
		<-time.After(length)
		if length > 10*time.Second {
			tt.noteHarmed()
		}
		tt.signalKafka("CONT")
	}
	tt.untilDone()
	tt.expectRecords()
	tt.worker()
	tt.expectCalls(0)
}

// signalKafka sends a signal such as STOP to the site's own broker.
func (tt *timetable) signalKafka(signal string) {
	tt.Helper()
	_, err := tt.RunServices(tt.Context(), "signal", "kafka", signal)
	tt.check(err)
}

// Two schedulers enqueue entities while no worker runs. They must pause when as many records wait
// on the topic as may be enqueued in a minute. Then a worker starts, and they must continue.
func TestScheduler_StaysWithinBudget(t *testing.T) {
	longOnly(t)
	t.Parallel()
	const rate, both = 20, 2
	tt := newTimetable(t, 6000, rate, 0)
	api := tt.query()
	began := time.Now()
	for range both {
		tt.scheduler()
	}
	tt.until(timeout, "the first record", func() bool { return tt.enqueued() > 0 })
	tt.expectNothingDuringAStop(api) // test the emergency stop now, while no worker runs, and again at the end with a worker
	// limit is the number of records that the schedulers may have enqueued by now. The five extra
	// seconds allow for one burst, and for the time between the reads of the topic and of the clock.
	limit := func() int64 { return int64(both * rate * (time.Since(began) + 5*time.Second).Seconds()) }
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	unchanged, enqueued := 0, int64(0)
	for ; unchanged < 20; <-look.C {
		now := tt.enqueued()
		if bound := limit(); now > bound {
			t.Fatalf("enqueued in %v: got %d, want at most %d", time.Since(began), now, bound)
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("%d were enqueued in %v, and more are: want an end when a minute's entities wait", now, time.Since(began))
		}
		if unchanged++; now != enqueued || now == 0 {
			unchanged, enqueued = 0, now
		}
	}
	// The upper limit is higher than 60*rate, because schedulers measure the lag only every five
	// seconds and continue in between.
	atLeast(t, "records that wait for a worker", enqueued, 60*rate)
	atMost(t, "records that wait for a worker", enqueued, 60*rate+both*rate*8)
	tt.worker()
	tt.until(2*timeout, "more records after the lag has fallen", func() bool { return tt.enqueued() > enqueued+5*rate })
	tt.expectNothingDuringAStop(api)
}

// expectNothingDuringAStop checks that nothing is enqueued during an emergency stop.
func (tt *timetable) expectNothingDuringAStop(api string) {
	tt.Helper()
	addr := strings.TrimPrefix(api, "http://")
	tt.must("stop", "--yes", "--addr", addr)
	<-time.After(obeyed + time.Second) // one more second, in which a scheduler may still enqueue the entities of its current claim
	before := tt.enqueued()
	<-time.After(5 * time.Second)
	equal(tt, "enqueued during an emergency stop", tt.enqueued()-before, 0)
	tt.must("resume", "--addr", addr)
	tt.until(timeout, "more records after the stop", func() bool { return tt.enqueued() > before })
}

// Two entities are refreshed shortly before they are due, and one of these refreshes fails. The
// scheduler must move both due times: one by the prefetch interval, the other by the backoff after
// a failure.
func TestScheduler_RefreshMovesDueTime(t *testing.T) {
	t.Parallel()
	tt := newTimetable(t, 200, 100, 30*time.Second)
	tt.worker()
	api := tt.query()
	const ahead = 20 * time.Second
	tt.keys = tt.keys[:0]
	before := time.Now()
	tt.register("healthy", 1, before.Add(ahead), 0)
	tt.register("failing", 1, before.Add(ahead), 0)
	tt.control(simulator.Control{Faults: []simulator.Fault{{Key: "^failing0$", Kind: simulator.InternalError}}})
	for _, key := range []string{"healthy0", "failing0"} {
		status, err := tt.reader(api).Refresh(t.Context(), key)
		tt.check(err)
		equal(t, "status of the refresh of "+key, status, http.StatusAccepted)
	}
	due := func(key string) time.Time {
		return time.UnixMicro(tt.one("SELECT due_at FROM entities WHERE source = $1 AND key = $2", tt.Source, key))
	}
	tt.until(timeout, "both results", func() bool {
		return tt.one("SELECT count(*) FROM snapshot_state WHERE key = 'healthy0'") == 1 && tt.one("SELECT count(*) FROM update_status WHERE key = 'failing0'") == 1
	})
	for _, key := range []string{"healthy0", "failing0"} { // both due times must be unchanged: only a scheduler changes them, and none runs yet
		equal(t, "due time of "+key, due(key).UnixMicro(), before.Add(ahead).UnixMicro())
	}
	tt.scheduler()
	tt.untilDone()
	atLeast(t, "time until the refreshed entity is due", due("healthy0").Sub(before), 30*time.Minute)
	atLeast(t, "time until the failed entity is due", due("failing0").Sub(before), 9*time.Minute)
	atMost(t, "time until the failed entity is due", due("failing0").Sub(before), 30*time.Minute)
	records := tt.records()
	equal(t, "records of the refreshed entity", records["healthy0"], 0)
	equal(t, "records of the failed entity, which has a retry", records["failing0"], 0)
	equal(t, "entities on the topic", len(records), 200)
}
