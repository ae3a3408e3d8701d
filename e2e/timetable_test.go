package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/store/prefetched"
)

// timetable is an installation with registered entities that become due once, and then not again for
// hours.
type timetable struct {
	*fleet
	store *postgres.Store
	keys  []string
	last  time.Time // the latest due time of all entities
	// harmed contains the claims that a killed or frozen scheduler did not finish, by the claim's
	// time in microseconds. harmedKeys contains the keys of their entities.
	harmed     map[int64]bool
	harmedKeys map[string]bool
}

// newTimetable registers n entities that become due within the given duration. All schedulers
// together may enqueue perSecond entities per second. They pause when 60*perSecond entities wait
// for workers. The setUp functions run before tables and topics are created.
func newTimetable(t *testing.T, n, perSecond int, within time.Duration, setUp ...func(*timetable)) *timetable {
	t.Helper()
	tt := &timetable{fleet: newSite(t), harmed: map[int64]bool{}, harmedKeys: map[string]bool{}}
	tt.Edits = []string{
		`rateCaps: [{from: 19, to: 24, rate: 150/s}, {rate: 250/s}]`, fmt.Sprintf("rateCaps: [{rate: %d/s}]", perSecond),
		`{mode: adaptive, notBefore: "02:00", timeZone: Asia/Seoul}`, "{mode: tiers}",
	}
	for _, f := range setUp {
		f(tt)
	}
	tt.prepare("--latency", "30ms")
	var err error
	tt.store, err = postgres.Open(t.Context(), tt.Database)
	tt.check(err)
	tt.OnClose(tt.store.Close)
	tt.register("k", n, time.Now(), within)
	return tt
}

// register registers n entities. Their due times are spread evenly over the duration `within`,
// which begins at `now`.
func (tt *timetable) register(prefix string, n int, now time.Time, within time.Duration) {
	tt.Helper()
	var all []prefetched.RegisteredEntity
	for i, key := range harness.Keys(prefix, n) {
		at := now.Add(time.Duration(i) * within / time.Duration(n))
		entity := schemas.Entity{Source: tt.Source, Facet: "character", Key: key}
		all = append(all, prefetched.RegisteredEntity{Entity: entity, Tier: prefetched.Cold, Enabled: true, Due: at})
		tt.keys = append(tt.keys, key)
		if at.After(tt.last) {
			tt.last = at
		}
	}
	_, err := tt.store.RegisterEntities(tt.Context(), all)
	tt.check(err)
}

func (tt *timetable) scheduler() *harness.Process {
	tt.Helper()
	p, err := tt.Scheduler(tt.Context(), "scheduler")
	tt.check(err)
	return p
}

// claim identifies one claim of a scheduler.
type claim struct {
	id string
	at int64 // time of the claim, in microseconds
}

// claims returns the claims that exist now, each with the keys of its entities.
func (tt *timetable) claims() map[claim][]string {
	tt.Helper()
	rows, err := tt.db.Query(tt.Context(), "SELECT id, claimed_at, entries FROM schedule_claims WHERE source = $1", tt.Source)
	tt.check(err)
	defer rows.Close()
	all := map[claim][]string{}
	for rows.Next() {
		var c claim
		var text string
		tt.check(rows.Scan(&c.id, &c.at, &text))
		var entries []struct{ Key string }
		tt.check(json.Unmarshal([]byte(text), &entries))
		all[c] = nil
		for _, e := range entries {
			all[c] = append(all[c], e.Key)
		}
	}
	return all
}

// enqueueTime is the approximate time that a scheduler needs to enqueue the entities of one claim.
const enqueueTime = 20 * time.Millisecond

// untilClaimed waits until a scheduler makes a new claim, and then for a random time up to
// enqueueTime. It returns false if all due entities are already enqueued.
func (tt *timetable) untilClaimed() bool {
	tt.Helper()
	known := tt.claims()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	limit := time.After(2 * timeout)
	for n := 1; ; n++ {
		for c := range tt.claims() {
			if _, old := known[c]; !old {
				<-time.After(rand.N(enqueueTime))
				return true
			}
		}
		if n%100 == 0 && tt.done() {
			return false
		}
		select {
		case <-look.C:
		case <-limit:
			tt.Fatalf("timed out after %v waiting for a new claim, with due entities left", 2*timeout)
		}
	}
}

// noteHarmed records the claims that no scheduler finishes, in the fields harmed and harmedKeys. These
// are the claims that exist at the beginning and still exist after a second.
func (tt *timetable) noteHarmed() {
	tt.Helper()
	before := time.Now().UnixMicro()
	<-time.After(time.Second)
	for c, keys := range tt.claims() {
		if c.at > before {
			continue
		}
		tt.harmed[c.at] = true
		for _, key := range keys {
			tt.harmedKeys[key] = true
		}
	}
}

// done reports whether all entities have become due and are enqueued.
func (tt *timetable) done() bool {
	tt.Helper()
	return time.Now().After(tt.last) && len(tt.claims()) == 0 &&
		tt.one("SELECT count(*) FROM entities WHERE source = $1 AND due_at <= $2", tt.Source, tt.last.UnixMicro()) == 0
}

func (tt *timetable) untilDone() {
	tt.Helper()
	began := time.Now()
	tt.until(2*time.Minute, "the last due entity", tt.done)
	tt.Logf("all were enqueued %v later", time.Since(began).Round(time.Second))
}

// enqueued returns the number of records ever written to the LOW topic.
func (tt *timetable) enqueued() (n int64) {
	tt.Helper()
	topic := schemas.RequestTopic(tt.Source, schemas.Low)
	ends, err := tt.admin.ListEndOffsets(tt.Context(), topic)
	tt.check(err)
	for _, end := range ends.Offsets()[topic] {
		n += end.At
	}
	return n
}

// records returns the number of records of each key on the LOW topic.
func (tt *timetable) records() map[string]int {
	tt.Helper()
	all, err := tt.Requests(tt.Context(), schemas.Low)
	tt.check(err)
	for _, r := range all {
		if r.Reason != schemas.Prefetch {
			tt.Errorf("reason of a record of %s: got %s, want %s", r.Key, r.Reason, schemas.Prefetch)
		}
	}
	return harness.CountByKey(all)
}

// expectRecords checks that each entity was enqueued exactly once. Only an entity of a harmed claim
// may be on the topic twice: its scheduler may have been killed after Kafka's ack and before the
// lock was confirmed.
func (tt *timetable) expectRecords() {
	tt.Helper()
	records := tt.records()
	missing, twice := 0, 0
	var wrong []string
	for _, key := range tt.keys {
		switch n := records[key]; {
		case n == 0:
			missing++
		case n > 1 && !tt.harmedKeys[key]:
			wrong = append(wrong, key)
		case n > 1:
			twice++
		}
	}
	tt.Logf("%d entities, %d of them in harmed claims; %d are on the topic twice", len(tt.keys), len(tt.harmedKeys), twice)
	equal(tt, "entities that were due and not enqueued", missing, 0)
	equal(tt, "entities on the topic", len(records), len(tt.keys))
	if len(wrong) > 0 {
		tt.Errorf("entities that were enqueued twice without harm: got %d, such as %s, want 0", len(wrong), wrong[0])
	}
}

// expectCalls waits until workers have fetched each entity. It checks that there were at most
// maxTwice additional calls. Normally a second record of an entity causes no call.
func (tt *timetable) expectCalls(maxTwice int) {
	tt.Helper()
	tt.untilStored(2*time.Minute, len(tt.keys))
	tt.untilCommitted()
	s := tt.stats()
	equal(tt, "entities that were called", s.DistinctKeys, len(tt.keys))
	atMost(tt, "calls", s.Arrivals, len(tt.keys)+maxTwice)
	equal(tt, "dead letters", tt.deadLetters(), 0)
}

// killSchedulers runs two schedulers. Whenever one of them has made a new claim, killSchedulers
// kills one of the two and starts another. It ends when the given number of claims is harmed, which
// means that their scheduler was killed before it finished them.
func (tt *timetable) killSchedulers(claims int) {
	tt.Helper()
	running := []*harness.Process{tt.scheduler(), tt.scheduler()}
	kills := 0
	for ; len(tt.harmed) < claims && tt.untilClaimed(); kills++ {
		running[kills%2].Kill()
		tt.noteHarmed()
		running[kills%2] = tt.scheduler()
	}
	tt.Logf("%d kills harmed %d claims", kills, len(tt.harmed))
	atLeast(tt, "claims whose scheduler was killed", len(tt.harmed), 1)
}
