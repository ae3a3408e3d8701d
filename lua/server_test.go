package lua_test

import "testing"

func TestServerID_ForeignLockCountsAsMissing(t *testing.T) {
	eachRedis(t, func(e entity) {
		for _, w := range []acquireArgs{low, high, {lane: "LOW", strict: true}, {lane: "HIGH", strict: true}} {
			n := e.published(w)
			own := e.field("server")
			e.set(map[string]string{"server": elsewhere})
			again := e.mustAcquire(high, "PUBLISHED") // not UPGRADED, because the request of a lock set by another server may have ended
			if again <= n {
				e.t.Errorf("number %d after %d", again, n)
			}
			if got := e.field("server"); got != own {
				e.t.Errorf("the new lock is of %q, want %q", got, own)
			}
			e.mustAcquire(w, "PENDING")
			e.settle(again, true, "", 0)
		}
	})
}

// A lock that another server set can still be confirmed and rolled back, and its record still
// supersedes LOW records.
func TestServerID_ForeignLockKeepsItsNumber(t *testing.T) {
	eachRedis(t, func(e entity) {
		lowly := e.published(low)
		twin := e.mustAcquire(high, "UPGRADED")
		e.set(map[string]string{"server": elsewhere})
		if !e.confirm(twin, minute) {
			e.t.Error("it was not confirmed")
		}
		if got := e.peek(lowly, "LOW", 0); got != "SUPERSEDED" {
			e.t.Errorf("beside an acknowledged HIGH record: got %s", got)
		}
		n := e.mustAcquire(high, "PUBLISHED")
		e.set(map[string]string{"server": elsewhere})
		if !e.rollback(n) || e.field("lock") != "" {
			e.t.Error("it was not rolled back")
		}
	})
}

// A lock of an older release has no server ID but still covers requests, so a rolling upgrade
// repeats no request.
func TestServerID_LockWithoutIDCovers(t *testing.T) {
	eachRedis(t, func(e entity) {
		e.published(low)
		if err := e.rdb.HDel(e.t.Context(), e.key, "server").Err(); err != nil {
			e.t.Fatal(err)
		}
		e.mustAcquire(low, "ALREADY_PROCESSING")
		e.mustAcquire(high, "UPGRADED")
	})
}
