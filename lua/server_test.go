package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestALockOfAnotherServerCountsAsAbsent(t *testing.T) {
	eachRedis(t, func(e entity) {
		for _, w := range []wish{low, high, {lane: "LOW", strict: true}, {lane: "HIGH", strict: true}} {
			n := e.published(w)
			own := e.field("server")
			e.set(map[string]string{"server": elsewhere})
			again := e.mustAcquire(high, "PUBLISHED") // and not UPGRADED: what it would supersede may have ended
			if again <= n {
				e.t.Errorf("number %d after %d", again, n)
			}
			if got := e.field("server"); serverID(got) != serverID(own) {
				e.t.Errorf("the new lock is of %q, want %q", got, own)
			}
			e.mustAcquire(w, "PENDING")
			e.settle(again, true, "", 0)
		}
	})
}

// Its confirm and its rollback are its own, and what it supersedes is as satisfied
// by its record as before.
func TestALockOfAnotherServerIsStillItsNumbers(t *testing.T) {
	eachRedis(t, func(e entity) {
		lowly := e.published(low)
		twin := e.mustAcquire(high, "UPGRADED")
		e.set(map[string]string{"server": elsewhere})
		if !e.confirm(twin, minute) {
			e.t.Error("it was not confirmed")
		}
		if got := e.peek(lowly, "LOW", 0); got != "SUPERSEDED" {
			e.t.Errorf("beside a twin that Kafka has acknowledged, peek says %s", got)
		}
		n := e.mustAcquire(high, "PUBLISHED")
		e.set(map[string]string{"server": elsewhere})
		if !e.rollback(n) || e.field("lock") != "" {
			e.t.Error("it was not rolled back")
		}
	})
}

// A rolling upgrade asks for nothing twice.
func TestALockOfAnOlderReleaseCovers(t *testing.T) {
	eachRedis(t, func(e entity) {
		e.published(low)
		if err := e.rdb.HDel(e.t.Context(), e.key, "server").Err(); err != nil {
			e.t.Fatal(err)
		}
		e.mustAcquire(low, "ALREADY_PROCESSING")
		e.mustAcquire(high, "UPGRADED")
	})
}

// The process is asked no longer than the moment in which none can take its place,
// and then the id decides.
func TestAServerIsKnownByItsIDAndForAMomentByItsProcess(t *testing.T) {
	eachRedis(t, func(e entity) {
		e.published(high)
		here := e.field("server")
		now, err := e.rdb.Time(e.t.Context()).Result()
		if err != nil {
			e.t.Fatal(err)
		}
		otherID := serverID(elsewhere) + here[len(serverID(here)):]
		for _, c := range []struct {
			server string
			ago    time.Duration
			want   string
		}{
			{here, 0, "ALREADY_PROCESSING"},
			{here, 20 * time.Second, "ALREADY_PROCESSING"},
			{here, -time.Hour, "ALREADY_PROCESSING"}, // its number is ahead of the clock
			{serverID(here) + " 0x7f0123456789", 0, "ALREADY_PROCESSING"},
			{otherID, 20 * time.Second, "PUBLISHED"},
			{otherID, -time.Hour, "PUBLISHED"},
			{elsewhere, 0, "PUBLISHED"},
		} {
			e.forget()
			e.set(map[string]string{
				"lock":   fmt.Sprintf("HIGH %d %d CONFIRMED", now.Add(-c.ago).UnixMilli(), now.Add(10*time.Minute).UnixMilli()),
				"server": c.server,
			})
			if v := e.acquire(high); v.outcome != c.want {
				e.t.Errorf("by %q on %q, %v ago: %+v, want %s", c.server, here, c.ago, v, c.want)
			}
		}
	})
}

func serverID(server string) string {
	id, _, _ := strings.Cut(server, " ")
	return id
}
