package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
)

// TestKilledSchedulersForgetNothing plays what happens to the processes of schedulers, some
// at once, for they mostly wait; and beside no other test here, for they are many.
func TestKilledSchedulersForgetNothing(t *testing.T) { //nolint:paralleltest // see above
	var tests sync.WaitGroup
	room := make(chan struct{}, 4)
	for name, test := range map[string]func(*testing.T){
		"killed":                  schedulersAreKilled,
		"killed, workers at work": schedulersAreKilledWhileWorkersWork,
		"frozen":                  aSchedulerIsFrozenBeyondItsLease,
		"Redis":                   redisHangsWhileSchedulersAsk,
		"Kafka":                   kafkaHangsWhileSchedulersAsk,
		"budget":                  noMoreIsFedThanTheBudgetHas,
		"refreshed":               aRefreshPutsTheScheduleBackAndAFailedOneDoesNot,
	} {
		room <- struct{}{}
		tests.Go(func() {
			t.Run(name, test)
			<-room
		})
	}
	tests.Wait()
}

func schedulersAreKilled(t *testing.T) {
	tt := newTimetable(t, 3000, 60, 20*time.Second)
	tt.killSome(4)
	tt.untilDone()
	tt.asked()
	tt.worker()
	tt.fetched(0)
}

func schedulersAreKilledWhileWorkersWork(t *testing.T) {
	tt := newTimetable(t, 3000, 60, 20*time.Second)
	tt.worker()
	tt.worker()
	tt.killSome(4)
	tt.untilDone()
	tt.asked()
	tt.fetched(0)
}

// aSchedulerIsFrozenBeyondItsLease stops one with a claim, which another takes over and
// workers work on, and has it go on.
func aSchedulerIsFrozenBeyondItsLease(t *testing.T) {
	tt := newTimetable(t, 3000, 60, 20*time.Second)
	tt.worker()
	running := []*process{tt.scheduler(), tt.scheduler()}
	var frozen *process
	for n := 0; len(tt.harmed) == 0 && tt.midst(); n++ {
		if frozen != nil {
			_ = frozen.Process.Signal(syscall.SIGCONT)
		}
		frozen = running[n%2]
		if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = frozen.Process.Signal(syscall.SIGCONT) })
		tt.left()
	}
	if len(tt.harmed) == 0 {
		t.Fatal("no scheduler was frozen with a claim of its own")
	}
	tt.untilDone()
	tt.until(patience, "the end of all work", func() bool { return tt.behind() == 0 })
	if err := frozen.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	tt.register("later", 100, time.Now(), time.Second) // they go on together
	tt.untilDone()
	tt.asked()
	// Between its last look at the lease and its question to Redis nothing can hold it back.
	tt.fetched(len(tt.hurt))
}

func redisHangsWhileSchedulersAsk(t *testing.T) {
	tt := newTimetable(t, 3000, 100, 10*time.Second)
	own := servicetest.PrivateRedis(t)
	tt.edit(servicetest.RedisAddress(t), own.Address)
	for range 2 {
		tt.scheduler()
	}
	for _, length := range []time.Duration{3 * time.Second, 20 * time.Second} {
		if !tt.midst() {
			t.Fatal("all was asked for before Redis hung")
		}
		own.Stop()
		<-time.After(length)
		own.Continue()
	}
	tt.untilDone()
	tt.asked()
	tt.worker()
	tt.fetched(0)
}

// kafkaHangsWhileSchedulersAsk stops a broker of its own, the second time for longer than
// a record waits for its acknowledgement: one that was given up then may arrive all the
// same, beside the one by which it was asked for again.
func kafkaHangsWhileSchedulersAsk(t *testing.T) {
	tt := newTimetable(t, 3000, 100, 10*time.Second)
	services := ownServices(t)
	before := tt.brokers
	address, ok := strings.CutPrefix(strings.TrimSpace(services("up", "kafka")), "export FRESHET_TEST_KAFKA=")
	if !ok {
		t.Fatalf("scripts/services does not say where Kafka is: %q", address)
	}
	tt.edit(strings.Join(before, `", "`), address)
	tt.brokers = strings.Split(address, ",")
	client, err := kgo.NewClient(kgo.SeedBrokers(tt.brokers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	tt.admin = kadm.NewClient(client)
	tt.must("topics", "ensure")
	for range 2 {
		tt.scheduler()
	}
	for _, length := range []time.Duration{3 * time.Second, 20 * time.Second} {
		if !tt.midst() {
			t.Fatal("all was asked for before Kafka hung")
		}
		services("signal", "kafka", "STOP")
		<-time.After(length)
		if length > 10*time.Second {
			tt.left()
		}
		services("signal", "kafka", "CONT")
	}
	tt.untilDone()
	tt.asked()
	tt.worker()
	tt.fetched(0)
}

// ownServices returns what runs scripts/services for a set of the test's own.
func ownServices(t *testing.T) func(args ...string) string {
	t.Helper()
	dir := t.TempDir()
	run := func(args ...string) (string, error) {
		c := exec.CommandContext(context.Background(), filepath.Join(root, "scripts", "services"), args...)
		c.Env = append(os.Environ(), "FRESHET_SERVICES_DIR="+dir)
		text, err := c.Output()
		return string(text), err
	}
	t.Cleanup(func() {
		_, _ = run("signal", "kafka", "KILL") // nobody will want its data
		_, _ = run("down")
	})
	return func(args ...string) string {
		t.Helper()
		text, err := run(args...)
		if err != nil {
			t.Fatalf("scripts/services %v: %v", args, err)
		}
		return text
	}
}

// noMoreIsFedThanTheBudgetHas has two schedulers feed what nobody works on, until a
// minute's work waits, and then what a worker works on.
func noMoreIsFedThanTheBudgetHas(t *testing.T) {
	const rate, both = 20, 2
	tt := newTimetable(t, 6000, rate, 0)
	api := tt.query()
	began := time.Now()
	for range both {
		tt.scheduler()
	}
	tt.until(patience, "the first", func() bool { return tt.fed() > 0 })
	tt.stops(api) // also where no worker is, who would obey it
	// A burst more, and what was fed between a look at the clock and one at the topic.
	most := func(since time.Time) int64 {
		return int64(both * rate * (time.Since(since) + 5*time.Second).Seconds())
	}
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	unchanged, fed := 0, int64(0)
	for ; unchanged < 20; <-look.C {
		now := tt.fed()
		if bound := most(began); now > bound {
			t.Fatalf("%d were fed in %v, the budget has %d", now, time.Since(began), bound)
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("%d were fed in %v, and it goes on", now, time.Since(began))
		}
		if unchanged++; now != fed || now == 0 {
			unchanged, fed = 0, now
		}
	}
	t.Logf("%d were fed in %v; a minute's work is %d", fed, time.Since(began).Round(time.Second), 60*rate)
	// The lag is measured every five seconds, and each feeds on until it is known.
	if fed < 60*rate || fed > 60*rate+both*rate*8 {
		t.Errorf("%d wait for workers, a minute's work is %d", fed, 60*rate)
	}
	tt.worker()
	tt.until(2*patience, "more, as what waited is worked on", func() bool { return tt.fed() > fed+5*rate })
	tt.stops(api)
}

// stops has nothing fed while an emergency stop is in force, and more when it is over.
func (tt *timetable) stops(api string) {
	tt.t.Helper()
	addr := strings.TrimPrefix(api, "http://")
	tt.must("stop", "--yes", "--addr", addr)
	<-time.After(3 * time.Second) // it is obeyed within two, and what was being asked for is asked for
	before := tt.fed()
	<-time.After(5 * time.Second)
	if after := tt.fed(); after != before {
		tt.t.Errorf("%d were fed while nothing may be called", after-before)
	}
	tt.must("resume", "--addr", addr)
	tt.until(patience, "more, as calls may be made again", func() bool { return tt.fed() > before })
}

// aRefreshPutsTheScheduleBackAndAFailedOneDoesNot refreshes entities shortly before they
// are due. What has failed comes round by its own back-off, and not by what holds after
// a refresh.
func aRefreshPutsTheScheduleBackAndAFailedOneDoesNot(t *testing.T) {
	tt := newTimetable(t, 200, 100, 30*time.Second)
	tt.worker()
	api := tt.query()
	const ahead = 20 * time.Second
	tt.keys = tt.keys[:0]
	before := time.Now()
	tt.register("well", 1, before.Add(ahead), 0)
	tt.register("ill", 1, before.Add(ahead), 0)
	tt.call(http.MethodPost, "/_control", simulator.Control{Faults: []simulator.Fault{{Key: "^ill0$", Kind: simulator.InternalError}}}, nil)
	for _, key := range []string{"well0", "ill0"} {
		resp, err := tt.client.Post(api+"/v1/"+tt.source+"/character/"+key+"/refresh", "", nil)
		if err != nil || resp.StatusCode != http.StatusAccepted {
			t.Fatalf("the refresh of %s: %v, %v", key, resp, err)
		}
		_ = resp.Body.Close()
	}
	due := func(key string) time.Time {
		return time.UnixMicro(tt.one("SELECT due_at FROM entities WHERE source = $1 AND key = $2", tt.source, key))
	}
	tt.until(patience, "both answers", func() bool {
		return tt.one("SELECT count(*) FROM snapshot_state WHERE key = 'well0'") == 1 && tt.one("SELECT count(*) FROM update_status WHERE key = 'ill0'") == 1
	})
	for _, key := range []string{"well0", "ill0"} { // nothing is moved but by a scheduler
		if at := due(key); !at.Equal(time.UnixMicro(before.Add(ahead).UnixMicro())) {
			t.Errorf("%s is due at %v, it was registered for %v", key, at, before.Add(ahead))
		}
	}
	tt.scheduler()
	tt.untilDone()
	well, ill := due("well0").Sub(before), due("ill0").Sub(before)
	t.Logf("refreshed: due again after %v; failed: after %v", well.Round(time.Minute), ill.Round(time.Minute))
	if well < 30*time.Minute {
		t.Errorf("an entity that was refreshed is due again after %v", well)
	}
	if ill < 9*time.Minute || ill > 30*time.Minute {
		t.Errorf("an entity whose refresh failed is due again after %v", ill)
	}
	records := tt.records()
	if records["well0"]+records["ill0"] != 0 || len(records) != 200 {
		t.Errorf("%d entities were asked for, the refreshed one %d times, the failed one, which has a retry, %d times", len(records), records["well0"], records["ill0"])
	}
}
