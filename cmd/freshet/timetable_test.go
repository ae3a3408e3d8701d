package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/topics"
)

// timetable is a fleet whose schedulers have entities that come due, and are not due again
// for hours.
type timetable struct {
	*fleet
	t       *testing.T
	store   *postgres.Store
	brokers []string
	keys    []string
	last    time.Time // when the last of them is due
	// harmed are the claims whose scheduler came to harm with them, by when they were made,
	// and hurt their entities.
	harmed map[int64]bool
	hurt   map[string]bool
}

// newTimetable has n entities come due within a time from now on, and each scheduler feed
// so many a second; no more than a minute's may wait for workers.
func newTimetable(t *testing.T, n, perSecond int, within time.Duration) *timetable {
	t.Helper()
	tt := &timetable{fleet: newFleet(t, false, "--latency", "30ms"), t: t, brokers: servicetest.Kafka(t), harmed: map[int64]bool{}, hurt: map[string]bool{}}
	tt.muted = "level=WARN"
	tt.edit(`ceilings: [{from: 19, to: 24, rate: 150/s}, {rate: 250/s}]`, fmt.Sprintf("ceilings: [{rate: %d/s}]", perSecond))
	tt.edit(`{mode: adaptive, notBefore: "02:00", timeZone: Asia/Seoul}`, "{mode: tiers}")
	var err error
	if tt.store, err = postgres.Open(t.Context(), tt.database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tt.store.Close)
	tt.register("k", n, time.Now(), within)
	return tt
}

// edit changes the configuration, which must have what is replaced.
func (tt *timetable) edit(from, to string) {
	tt.t.Helper()
	text, err := os.ReadFile(tt.config)
	if err != nil || !strings.Contains(string(text), from) {
		tt.t.Fatalf("the configuration has no %s, %v", from, err)
	}
	if err := os.WriteFile(tt.config, []byte(strings.Replace(string(text), from, to, 1)), 0o600); err != nil {
		tt.t.Fatal(err)
	}
}

// register has entities come due, the first now.
func (tt *timetable) register(prefix string, n int, now time.Time, within time.Duration) {
	tt.t.Helper()
	var all []store.Registered
	for i, key := range characters(prefix, n) {
		at := now.Add(time.Duration(i) * within / time.Duration(n))
		all = append(all, store.Registered{Entity: tt.entity(key), Tier: store.Cold, Enabled: true, Due: at})
		tt.keys = append(tt.keys, key)
		if at.After(tt.last) {
			tt.last = at
		}
	}
	if _, err := tt.store.RegisterEntities(tt.t.Context(), all); err != nil {
		tt.t.Fatal(err)
	}
}

func (tt *timetable) entity(key string) schemas.Entity {
	return schemas.Entity{Source: tt.source, Facet: "character", Key: key}
}

func (tt *timetable) scheduler() *process {
	tt.t.Helper()
	return tt.start("scheduler is up", "scheduler", "--ops-listen", "127.0.0.1:0")
}

// claim is what a scheduler is asking for.
type claim struct {
	id string
	at int64 // in microseconds
}

// claims returns those that are kept now, and what of them is hurt if they stay.
func (tt *timetable) claims() (all map[claim][]string) {
	tt.t.Helper()
	all = map[claim][]string{}
	rows, err := tt.db.Query(tt.t.Context(), "SELECT id, claimed_at, entries FROM schedule_claims WHERE source = $1", tt.source)
	if err != nil {
		tt.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var c claim
		var text string
		if err := rows.Scan(&c.id, &c.at, &text); err != nil {
			tt.t.Fatal(err)
		}
		var entries []struct{ Key string }
		if err := json.Unmarshal([]byte(text), &entries); err != nil {
			tt.t.Fatal(err)
		}
		all[c] = nil
		for _, e := range entries {
			all[c] = append(all[c], e.Key)
		}
	}
	return all
}

// asking is about how long a scheduler asks for a claim.
const asking = 20 * time.Millisecond

// midst waits until a scheduler is in the midst of asking for what it has claimed anew,
// and reports false if all has been asked for.
func (tt *timetable) midst() bool {
	tt.t.Helper()
	known := tt.claims()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	limit := time.After(2 * patience)
	for n := 1; ; n++ {
		for c := range tt.claims() {
			if _, old := known[c]; !old {
				<-time.After(rand.N(asking))
				return true
			}
		}
		if n%100 == 0 && tt.done() {
			return false
		}
		select {
		case <-look.C:
		case <-limit:
			tt.t.Fatal("nothing is claimed any more, and not all was asked for")
		}
	}
}

// left remembers claims that stay, though they were made a second ago, as hurt.
func (tt *timetable) left() {
	tt.t.Helper()
	before := time.Now().UnixMicro()
	<-time.After(time.Second)
	for c, keys := range tt.claims() {
		if c.at > before {
			continue
		}
		tt.harmed[c.at] = true
		for _, key := range keys {
			tt.hurt[key] = true
		}
	}
}

// done reports whether each entity that has come due was asked for.
func (tt *timetable) done() bool {
	tt.t.Helper()
	return time.Now().After(tt.last) && len(tt.claims()) == 0 &&
		tt.one("SELECT count(*) FROM entities WHERE source = $1 AND due_at <= $2", tt.source, tt.last.UnixMicro()) == 0
}

// fed returns how many records were ever written to the LOW topic.
func (tt *timetable) fed() int64 {
	tt.t.Helper()
	lags, err := topics.Measure(tt.t.Context(), tt.admin, tt.source)
	if err != nil {
		tt.t.Fatal(err)
	}
	return lags[1].Records + lags[1].Committed
}

// records reads the LOW topic from its beginning, and returns how many of each key it has.
func (tt *timetable) records() map[string]int {
	tt.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(tt.brokers...), kgo.ConsumeTopics(schemas.RequestTopic(tt.source, schemas.Low)),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		tt.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(tt.t.Context(), patience)
	defer cancel()
	all := map[string]int{}
	for left := tt.fed(); left > 0; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			tt.t.Fatalf("%d records are left to be read: %v", left, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			request, err := schemas.DecodeUpdateRequest(r.Value)
			if err != nil || request.Reason != schemas.Prefetch {
				tt.t.Errorf("%s: %v", r.Value, err)
			}
			all[request.Key]++
		})
	}
	return all
}

// asked checks that each entity was asked for once. Of those that were hurt the record may
// be there twice: whoever was killed between Kafka's answer and its lock's confirmation
// told nobody of it.
func (tt *timetable) asked() {
	tt.t.Helper()
	missing, twice := 0, 0
	var wrong []string
	records := tt.records()
	for _, key := range tt.keys {
		switch n := records[key]; {
		case n == 0:
			missing++
		case n > 1 && !tt.hurt[key]:
			wrong = append(wrong, key)
		case n > 1:
			twice++
		}
	}
	tt.t.Logf("%d entities, %d of them in claims that were hurt: %d missing, %d twice in the topic", len(tt.keys), len(tt.hurt), missing, twice)
	if missing > 0 || len(records) != len(tt.keys) {
		tt.t.Errorf("%d of %d entities were asked for, %d of those that were due were not", len(records), len(tt.keys), missing)
	}
	if len(wrong) > 0 {
		tt.t.Errorf("%d entities were asked for twice, such as %s, and nothing had happened to who asked", len(wrong), wrong[0])
	}
}

// fetched waits until workers have fetched each, and checks that none but so many was
// fetched twice: a record that is there twice costs no call.
func (tt *timetable) fetched(twice int) {
	tt.t.Helper()
	tt.until(2*time.Minute, "a snapshot of each", func() bool { return tt.one(storedPayloads) == int64(len(tt.keys)) })
	tt.until(patience, "the commit of every offset", func() bool { return tt.behind() == 0 })
	s := tt.stats()
	tt.t.Logf("%d calls", s.Arrivals)
	if s.DistinctKeys != len(tt.keys) || s.Arrivals > len(tt.keys)+twice || tt.letters() > 0 {
		tt.t.Errorf("%d calls for %d entities, %d for one at most, %d letters", s.Arrivals, len(tt.keys), s.MaxPerKeyAndPath, tt.letters())
	}
}

func (tt *timetable) untilDone() {
	tt.t.Helper()
	began := time.Now()
	tt.until(2*time.Minute, "all that is due asked for", tt.done)
	tt.t.Logf("all was asked for %v later", time.Since(began).Round(time.Second))
}

// kill ends it at once, as a crash does.
func (p *process) kill() {
	_ = p.Process.Kill()
	<-p.done
}

// killSome kills schedulers in the midst of their work until so many claims were hurt by
// it, and starts another each time.
func (tt *timetable) killSome(most int) {
	tt.t.Helper()
	running := []*process{tt.scheduler(), tt.scheduler()}
	kills := 0
	for ; len(tt.harmed) < most && tt.midst(); kills++ {
		running[kills%2].kill()
		tt.left()
		running[kills%2] = tt.scheduler()
	}
	tt.t.Logf("%d kills hurt %d claims", kills, len(tt.harmed))
	if len(tt.harmed) == 0 {
		tt.t.Error("no scheduler was killed with a claim of its own")
	}
}
