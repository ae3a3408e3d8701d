package producer

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// mustReadState returns the state and fails if reading changed the hash.
func (r *rig) mustReadState(e schemas.Entity) CoalesceState {
	r.Helper()
	before, err := r.rdb.HGetAll(r.Context(), key(e)).Result()
	if err != nil {
		r.Fatal(err)
	}
	w, err := r.ReadState(r.Context(), e)
	if err != nil {
		r.Fatal(err)
	}
	after, err := r.rdb.HGetAll(r.Context(), key(e)).Result()
	if err != nil {
		r.Fatal(err)
	}
	if len(before) != len(after) {
		r.Errorf("a look made %v of %v", after, before)
	}
	return w
}

// isWithin reports whether a time is in the future, by at most max.
func isWithin(at time.Time, most time.Duration) bool {
	left := time.Until(at)
	return left > 0 && left <= most+time.Second // allows for the difference between the clocks of two hosts
}

func TestReadState_FollowsARequest(t *testing.T) {
	eachRedis(t, func(r *rig) {
		held, release := r.blockProduce()
		w := r.request("가/a {b}", schemas.High, schemas.UserRequest)
		if got := r.mustReadState(w.Entity); got != (CoalesceState{}) {
			r.Errorf("nobody has asked: %+v", got)
		}
		w.Cooldown = time.Hour
		asked := r.mustEnqueue(Published, w)
		<-held
		got := r.mustReadState(w.Entity)
		if got.Lane != schemas.High || got.Number != asked.Number || got.Confirmed || got.Issued != asked.Number || !isWithin(got.Until, pendingTTL) ||
			!isWithin(got.CooledUntil, pendingTTL) || got.Hold != "" {
			r.Errorf("in the air: %+v", got)
		}
		release()
		r.waitUntilConfirmed()
		got = r.mustReadState(w.Entity)
		if !got.Confirmed || got.Number != asked.Number || !isWithin(got.Until, highLockTTL) || !isWithin(got.CooledUntil, time.Hour) || isWithin(got.CooledUntil, 50*time.Minute) {
			r.Errorf("in Kafka: %+v", got)
		}

		verdict, fetch, err := r.Begin(r.Context(), schemas.UpdateRequest{Entity: w.Entity, Lane: w.Lane, Version: asked.Number}, 0)
		if err != nil || verdict != schemas.Proceed {
			r.Fatal(verdict, err)
		}
		if got = r.mustReadState(w.Entity); got.Number != asked.Number || got.Issued != fetch || fetch <= asked.Number {
			r.Errorf("while fetch %d is under way: %+v", fetch, got)
		}

		end := schemas.End{Entity: w.Entity, Number: fetch, Hold: "FAILED", HoldFor: time.Hour}
		if err := r.Settle(r.Context(), []schemas.End{end}); err != nil {
			r.Fatal(err)
		}
		got = r.mustReadState(w.Entity)
		if got.Lane != "" || got.Number != 0 || !got.Until.IsZero() || got.Hold != "FAILED" || !isWithin(got.HoldUntil, time.Hour) || got.Issued != fetch {
			r.Errorf("after its failure: %+v", got)
		}
		if err := r.ClearHold(r.Context(), w.Entity); err != nil {
			r.Fatal(err)
		}
		if got = r.mustReadState(w.Entity); got != (CoalesceState{Issued: fetch}) {
			r.Errorf("released: %+v", got)
		}
		end = schemas.End{Entity: w.Entity, Number: fetch, Satisfied: true}
		if err := r.Settle(r.Context(), []schemas.End{end}); err != nil {
			r.Fatal(err)
		}
		if got = r.mustReadState(w.Entity); got != (CoalesceState{Issued: fetch, Done: fetch}) {
			r.Errorf("satisfied: %+v", got)
		}
	})
}

func TestReadState_IgnoresExpiredAndInvalidFields(t *testing.T) {
	eachRedis(t, func(r *rig) {
		w := r.request("a", schemas.Low, schemas.Prefetch)
		n := r.mustEnqueue(Published, w).Number
		r.waitUntilConfirmed()
		set := func(fields ...string) {
			r.Helper()
			if err := r.rdb.HSet(r.Context(), key(w.Entity), fields).Err(); err != nil {
				r.Fatal(err)
			}
		}
		own := r.field(w.Entity, "server")
		if got := r.mustReadState(w.Entity); got.Lane != schemas.Low || got.Number != n {
			r.Fatalf("%+v", got)
		}
		set("server", "0123456789abcdef")
		if got := r.mustReadState(w.Entity); got != (CoalesceState{Issued: n}) {
			r.Errorf("the lock of another server: %+v", got)
		}
		set("server", own, "lock", "LOW 5 1000 CONFIRMED", "hold", "FAILED 1000 5", "cooldown", "1000 5 1000")
		if got := r.mustReadState(w.Entity); got != (CoalesceState{Issued: n}) {
			r.Errorf("all of it is over: %+v", got)
		}
		set("lock", "x", "hold", "y", "cooldown", "z", "ver", "", "done", "?")
		if got := r.mustReadState(w.Entity); got != (CoalesceState{}) {
			r.Errorf("garbled: %+v", got)
		}
		if err := r.rdb.Del(r.Context(), key(w.Entity)).Err(); err != nil {
			r.Fatal(err)
		}
		if err := r.rdb.Set(r.Context(), key(w.Entity), "no hash", time.Minute).Err(); err != nil {
			r.Fatal(err)
		}
		if got, err := r.ReadState(r.Context(), w.Entity); err != nil || got != (CoalesceState{}) {
			r.Errorf("where something else lies: %+v, %v", got, err)
		}
	})
}

// An older release wrote locks without a server id.
func TestReadState_ReadsALockWithoutServer(t *testing.T) {
	eachRedis(t, func(r *rig) {
		w := r.request("a", schemas.Low, schemas.Prefetch)
		n := r.mustEnqueue(Published, w).Number
		r.waitUntilConfirmed()
		if err := r.rdb.HDel(r.Context(), key(w.Entity), "server").Err(); err != nil {
			r.Fatal(err)
		}
		if got := r.mustReadState(w.Entity); got.Number != n || !got.Confirmed {
			r.Errorf("%+v", got)
		}
	})
}

func TestReadState_FailsWithoutRedis(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	m.Close()
	if _, err := NewCoalescer(rdb).ReadState(t.Context(), schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}); err == nil {
		t.Error("it found something")
	}
}
