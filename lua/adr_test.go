package lua_test

// These tests show faults of the coalescing rules of adr-013. Each test compares our scripts with
// scripts by the ADR's rules, written for these tests (in testdata).

import (
	_ "embed"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

//go:embed testdata/adr_coalesce.lua
var adrCoalesce string

type adrEntity struct {
	t        *testing.T
	rdb      redis.UniversalClient
	lock     string
	versions string
}

func newADREntity(t *testing.T, rdb redis.UniversalClient) adrEntity {
	tag := "{" + servicetest.Name("adr") + "}"
	return adrEntity{t, rdb, "upd:" + tag + ":lock", "upd:" + tag + ":ver"}
}

func (a adrEntity) publish(lane string) (outcome, version int64) {
	a.t.Helper()
	v, err := a.rdb.Eval(a.t.Context(), adrCoalesce, []string{a.lock, a.versions}, lane, minute, minute, hour).Int64Slice()
	if err != nil {
		a.t.Fatal(err)
	}
	return v[0], v[1]
}

func (a adrEntity) expire(key string) {
	a.t.Helper()
	if err := a.rdb.Del(a.t.Context(), key).Err(); err != nil {
		a.t.Fatal(err)
	}
}

// obsolete reports whether a worker skips a record with this version, by adr-013 §2-4.
func (a adrEntity) obsolete(version int64) bool {
	a.t.Helper()
	newest, err := a.rdb.Get(a.t.Context(), a.versions).Int64()
	if err != nil {
		a.t.Fatal(err)
	}
	return version < newest
}

func TestADRNumbers_RestartBelowTheStoredSnapshot(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		a := newADREntity(t, rdb)
		var stored int64
		for range 5 {
			_, stored = a.publish("HIGH")
			a.expire(a.lock)
		}
		a.expire(a.versions) // the ADR's version counter expires after 45 minutes without a request
		if _, v := a.publish("HIGH"); v >= stored {
			t.Errorf("ADR: version %d is above the stored %d: the fault no longer occurs, so our rule has no reason", v, stored)
		}

		e := newEntity(t, rdb)
		own := e.mustBegin(e.published(high), "HIGH")
		e.forget()
		if n := e.mustAcquire(acquireArgs{lane: "HIGH", floor: own}, "PUBLISHED"); n <= own {
			t.Errorf("ours: number %d is not above the stored %d", n, own)
		}
	})
}

func TestADRQueue_SkipsAnOldRequestAtEachNewOne(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		// The first request of an entity waits in the queue longer than the lock's TTL. A reader
		// then requests the entity again. By the ADR's rules a worker skips the first request, at
		// the head of the queue, because the new request at the end has a higher version.
		a := newADREntity(t, rdb)
		_, queued := a.publish("LOW")
		a.expire(a.lock)
		a.publish("LOW")
		if !a.obsolete(queued) {
			t.Error("ADR: the fault no longer occurs, so our rule has no reason")
		}

		e := newEntity(t, rdb)
		ours := e.published(low)
		e.confirm(ours, dead)
		e.published(low)
		if got := e.peek(ours, "LOW", 0); got != "PROCEED" {
			t.Errorf("ours: the request at the head of the queue is %s", got)
		}
	})
}

func TestADRCoalesce_CoversByAFailedPublish(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		a := newADREntity(t, rdb)
		a.publish("HIGH")
		if outcome, _ := a.publish("HIGH"); outcome != 0 {
			t.Error("ADR: the second request was not covered")
		}
		a.expire(a.lock) // the publish of the first request failed; the second caller does not learn that

		e := newEntity(t, rdb)
		n := e.mustAcquire(high, "PUBLISHED")
		e.mustAcquire(high, "PENDING") // with the outcome PENDING the script promises no fetch yet, so by our rules the caller requests again later
		e.rollback(n)
		e.mustAcquire(high, "PUBLISHED")
	})
}

func TestADRCoalesce_FailedUpgradeSupersedesLow(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		a := newADREntity(t, rdb)
		_, queued := a.publish("LOW")
		a.publish("HIGH")
		a.expire(a.lock) // the publish of the HIGH request failed, and its lock is removed
		if !a.obsolete(queued) {
			t.Error("ADR: the fault no longer occurs, so our rule has no reason")
		}

		e := newEntity(t, rdb)
		ours := e.published(low)
		e.rollback(e.mustAcquire(high, "UPGRADED"))
		if v := e.begin(ours, "LOW", 0); v.outcome != "PROCEED" {
			t.Errorf("ours: the LOW request is %s by a record that was never written", v.outcome)
		}
	})
}

func TestADRNumbers_AreSharedByFetchesInFlight(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		// A record that is delivered to two workers has one version. By the ADR's rule both
		// snapshots get this version, so the older response can replace the newer one.
		e := newEntity(t, rdb)
		record := e.published(high)
		first, second := e.mustBegin(record, "HIGH"), e.mustBegin(record, "HIGH")
		if first == record || second <= first {
			t.Errorf("ours: fetches %d and %d of record %d", first, second, record)
		}
	})
}
