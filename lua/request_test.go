package lua_test

import "testing"

func TestPeek_SatisfiedIsSkippedAndSettled(t *testing.T) {
	eachRedis(t, func(e entity) {
		n := e.published(high)
		own := e.mustBegin(n, "HIGH")
		// The worker crashes after it has written a snapshot with the number of its fetch. Another
		// worker gets the record again.
		if got := e.peek(n, "HIGH", own); got != "SATISFIED" {
			e.t.Fatalf("peek: %s", got)
		}
		if e.field("lock") != "" {
			e.t.Error("the crashed worker's lock still covers requests")
		}
		if got := e.peek(n, "HIGH", 0); got != "SATISFIED" {
			e.t.Errorf("done was not stored: %s", got)
		}
	})
}

func TestPeek_OnlyConfirmedHighSupersedesLow(t *testing.T) {
	eachRedis(t, func(e entity) {
		lowly := e.published(low)
		twin := e.mustAcquire(high, "UPGRADED")
		if got := e.peek(lowly, "LOW", 0); got != "PROCEED" {
			e.t.Errorf("with a pending HIGH request: got %s", got)
		}
		e.confirm(twin, minute)
		if got := e.peek(lowly, "LOW", 0); got != "SUPERSEDED" {
			e.t.Errorf("peek: %s", got)
		}
		if v := e.begin(lowly, "LOW", 0); v.outcome != "SUPERSEDED" {
			e.t.Errorf("begin: %+v", v)
		}
		if got := e.peek(twin, "HIGH", 0); got != "PROCEED" {
			e.t.Errorf("the HIGH request itself: got %s", got)
		}
		e.confirm(twin, dead)
		if got := e.peek(lowly, "LOW", 0); got != "PROCEED" {
			e.t.Errorf("with an expired HIGH lock: got %s", got)
		}
	})
}

func TestBegin_FetchesNeverShareANumber(t *testing.T) {
	eachRedis(t, func(e entity) {
		n := e.published(high)
		last := n
		for range 20 {
			own := e.mustBegin(n, "HIGH") // each delivery of the same record begins another fetch
			if own <= last {
				e.t.Fatalf("number %d after %d", own, last)
			}
			last = own
		}
	})
}

func TestBegin_NumberIsAboveTheSnapshot(t *testing.T) {
	eachRedis(t, func(e entity) {
		n := e.published(high)
		stored := n + 1_000_000
		if v := e.begin(n, "HIGH", stored); v.outcome != "SATISFIED" {
			e.t.Errorf("begin below the stored version: %+v", v)
		}
		if v := e.begin(stored+5, "HIGH", stored); v.number != stored+6 {
			e.t.Errorf("begin above it: %+v, want %d", v, stored+6)
		}
	})
}

func TestPeek_UnknownVersionIsNeverSkipped(t *testing.T) {
	eachRedis(t, func(e entity) {
		own := e.mustBegin(e.published(high), "HIGH")
		e.settle(own, true, "", 0)
		e.published(high)
		if got := e.peek(0, "LOW", own); got != "PROCEED" {
			e.t.Errorf("peek: %s", got)
		}
		if v := e.begin(0, "LOW", own); v.outcome != "PROCEED" || v.number <= own {
			e.t.Errorf("begin: %+v", v)
		}
	})
}

func TestSettle_ReleasesSatisfiedLocks(t *testing.T) {
	eachRedis(t, func(e entity) {
		own := e.mustBegin(e.published(high), "HIGH")
		if !e.settle(own, true, "", 0) || e.settle(own, true, "", 0) {
			e.t.Error("settle must release the lock once")
		}
		e.mustAcquire(high, "PUBLISHED")
		e.settle(own-1, true, "", 0)
		if got := e.peek(own, "HIGH", 0); got != "SATISFIED" {
			e.t.Errorf("the settle of an older fetch lowered done: %s", got)
		}
	})
}

func TestSettle_DeadLetterSatisfiesNothing(t *testing.T) {
	eachRedis(t, func(e entity) {
		n := e.published(high)
		own := e.mustBegin(n, "HIGH")
		e.settle(own, false, "FAILED", dead)
		if got := e.peek(n, "HIGH", 0); got != "PROCEED" {
			e.t.Errorf("a request that failed is %s", got)
		}
		e.mustAcquire(high, "PUBLISHED")
	})
}

func TestBegin_IgnoresVersionsFarInTheFuture(t *testing.T) {
	eachRedis(t, func(e entity) {
		garbled := int64(1) << 52
		if got := e.peek(garbled, "HIGH", 0); got != "PROCEED" {
			e.t.Errorf("peek: %s", got)
		}
		own := e.begin(garbled, "HIGH", 0).number
		if day := int64(25 * hour); own > e.mustAcquire(high, "PUBLISHED")+day {
			e.t.Errorf("the fetch got number %d", own)
		}
	})
}

func TestSettle_KeepsTheCoolDown(t *testing.T) {
	eachRedis(t, func(e entity) {
		n := e.published(acquireArgs{lane: "HIGH", strict: true, cooldown: 6 * hour})
		e.settle(e.begin(n, "HIGH", 0).number, true, "", 0)
		if got := e.lifetime(); got < 6*hour-minute {
			e.t.Errorf("the hash lives for %d ms", got)
		}
		e.mustAcquire(high, "PUBLISHED")
		if got := e.lifetime(); got < 6*hour-minute {
			e.t.Errorf("after a reader's request it lives for %d ms", got)
		}
	})
}

func TestHash_MalformedFieldsCountAsMissing(t *testing.T) {
	eachRedis(t, func(e entity) {
		ctx := e.t.Context()
		everything := func() {
			e.t.Helper()
			e.peek(5, "LOW", 0)
			n := e.mustAcquire(high, "PUBLISHED")
			e.confirm(n, minute)
			own := e.mustBegin(n, "HIGH")
			e.settle(own, true, "NOT_FOUND", minute)
			e.mustAcquire(high, "HELD")
			e.settle(own, true, "", 0)
			e.rollback(n)
		}
		for _, garbage := range []string{"", "x", "HIGH", "HIGH 1 2", "HIGH a b CONFIRMED", "1e400 nan inf -"} {
			e.forget()
			if err := e.rdb.HSet(ctx, e.key, "lock", garbage, "ver", garbage, "done", garbage, "hold", garbage, "cooldown", garbage, "server", garbage).Err(); err != nil {
				e.t.Fatal(err)
			}
			everything()
		}
		for _, put := range []func() error{
			func() error { return e.rdb.Set(ctx, e.key, "x", 0).Err() },
			func() error { return e.rdb.RPush(ctx, e.key, "x").Err() },
		} {
			for _, first := range []func(){
				func() { e.peek(5, "LOW", 0) },
				func() { e.mustBegin(5, "HIGH") },
				func() { e.settle(5, true, "", 0) },
			} {
				e.forget()
				if err := put(); err != nil {
					e.t.Fatal(err)
				}
				first()
				everything()
			}
		}
	})
}
