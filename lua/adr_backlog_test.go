package lua_test

import (
	"math"
	"math/rand/v2"
	"testing"
)

// backlog simulates an hour of one lane in steps of a second. Clients visit (read) each entity
// repeatedly, and more entities become stale than can be fetched.
type backlog struct {
	entities, perSecond int
	fresh, lock         int     // seconds for which a snapshot is fresh, and seconds until a lock expires
	minGap, maxGap      float64 // average seconds between two reads of one entity: minGap for the entity with the most reads, maxGap for the entity with the fewest reads
	skip                func(e *behind, version int) bool
}

// behind is one entity of the backlog.
type behind struct {
	freshUntil, lockUntil int
	issued, done          int
	fetched               bool
}

func (b backlog) run(seed uint64) (never, fetches, longest int) {
	const hour = 3600
	rng := rand.New(rand.NewPCG(seed, 3))
	all := make([]behind, b.entities)
	visits := make([][]int32, hour)
	visit := func(e, after int) {
		if at := after + 1 + int(rng.ExpFloat64()*b.minGap*math.Pow(b.maxGap/b.minGap, float64(e)/float64(b.entities))); at < hour {
			visits[at] = append(visits[at], int32(e))
		}
	}
	for e := range all {
		first := rng.IntN(60) // all entities are stale and are visited in the first minute
		visits[first] = append(visits[first], int32(e))
	}
	type record struct {
		entity  int32
		version int
	}
	var queue []record
	for now := range hour {
		for _, i := range visits[now] {
			e := &all[i]
			if e.freshUntil <= now && e.lockUntil <= now {
				e.issued++
				e.lockUntil = now + b.lock
				queue = append(queue, record{i, e.issued})
			}
			visit(int(i), now)
		}
		longest = max(longest, len(queue))
		for left := b.perSecond; left > 0 && len(queue) > 0; queue = queue[1:] {
			r := queue[0]
			e := &all[r.entity]
			if b.skip(e, r.version) {
				continue
			}
			left--
			fetches++
			// The fetch satisfies all requests that were issued before it began.
			e.fetched, e.done, e.freshUntil, e.lockUntil = true, e.issued, now+b.fresh, 0
		}
	}
	for _, e := range all {
		if !e.fetched {
			never++
		}
	}
	return never, fetches, longest
}

// Under a backlog, the rules of adr-013 never refresh some entities: each new request makes the
// entity's queued request obsolete. Our rules refresh every entity with the same number of fetches.
// The test has a tenth of the real load: 20,000 entities and 25 fetches a second instead of 200,000
// entities and 250 fetches. A request therefore waits in the queue as long as under the real load.
func TestADRQueue_StarvesEntitiesUnderABacklog(t *testing.T) {
	t.Parallel()
	b := backlog{entities: 20_000, perSecond: 25, fresh: 300, lock: 60, minGap: 5, maxGap: 600}
	b.skip = func(e *behind, version int) bool { return version < e.issued }
	never, fetches, longest := b.run(1)
	t.Logf("ADR: %d of %d never refreshed (%.1f %%) by %d fetches; %d queued at most", never, b.entities, 100*float64(never)/float64(b.entities), fetches, longest)

	b.skip = func(e *behind, version int) bool { return version <= e.done }
	ours, same, longest := b.run(1)
	t.Logf("ours: %d of %d never refreshed by %d fetches; %d queued at most", ours, b.entities, same, longest)
	if never < b.entities/50 {
		t.Errorf("ADR: %d never refreshed: %s", never, gone)
	}
	if ours != 0 {
		t.Errorf("ours: %d were never refreshed", ours)
	}
	if diff := fetches - same; max(diff, -diff) > same/50 {
		t.Errorf("%d fetches by the ADR's rule and %d by ours: not the same work", fetches, same)
	}
}
