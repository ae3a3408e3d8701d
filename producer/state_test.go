package producer

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// mustReadState returns the state of an entity. It fails the test if reading changed the hash in
// Redis.
func (r *rig) mustReadState(e schemas.Entity) CoalesceState {
	r.Helper()
	before, err := r.rdb.HGetAll(r.Context(), key(e)).Result()
	if err != nil {
		r.Fatal(err)
	}
	req, err := r.ReadState(r.Context(), e)
	if err != nil {
		r.Fatal(err)
	}
	after, err := r.rdb.HGetAll(r.Context(), key(e)).Result()
	if err != nil {
		r.Fatal(err)
	}
	if len(before) != len(after) {
		r.Errorf("ReadState changed the hash: got %v, want %v", after, before)
	}
	return req
}

// isWithin reports whether a time is in the future, by at most `limit`.
func isWithin(at time.Time, limit time.Duration) bool {
	left := time.Until(at)
	return left > 0 && left <= limit+time.Second // one second more than the limit, because the clocks of two hosts may differ
}

func TestReadState_FollowsARequest(t *testing.T) {
	eachRedis(t, func(r *rig) {
		held, release := r.blockProduce()
		req := r.request("가/a {b}", schemas.High, schemas.UserRequest)
		if got := r.mustReadState(req.Entity); got != (CoalesceState{}) {
			r.Errorf("no request: got %+v, want the zero value", got)
		}
		req.Cooldown = time.Hour
		asked := r.mustEnqueue(Published, req)
		<-held
		got := r.mustReadState(req.Entity)
		if got.Lane != schemas.High || got.Number != asked.Number || got.Confirmed || got.Issued != asked.Number || !isWithin(got.Until, pendingTTL) ||
			!isWithin(got.CooledUntil, pendingTTL) || got.Hold != "" {
			r.Errorf("pending: got %+v", got)
		}
		release()
		r.waitUntilConfirmed()
		got = r.mustReadState(req.Entity)
		if !got.Confirmed || got.Number != asked.Number || !isWithin(got.Until, highLockTTL) || !isWithin(got.CooledUntil, time.Hour) || isWithin(got.CooledUntil, 50*time.Minute) {
			r.Errorf("confirmed: got %+v", got)
		}

		verdict, fetch, err := r.Begin(r.Context(), schemas.UpdateRequest{Entity: req.Entity, Lane: req.Lane, Version: asked.Number}, 0)
		if err != nil || verdict != schemas.Proceed {
			r.Fatal(verdict, err)
		}
		if got = r.mustReadState(req.Entity); got.Number != asked.Number || got.Issued != fetch || fetch <= asked.Number {
			r.Errorf("during fetch %d: got %+v", fetch, got)
		}

		end := schemas.End{Entity: req.Entity, Number: fetch, Hold: "FAILED", HoldFor: time.Hour}
		if err := r.Settle(r.Context(), []schemas.End{end}); err != nil {
			r.Fatal(err)
		}
		got = r.mustReadState(req.Entity)
		if got.Lane != "" || got.Number != 0 || !got.Until.IsZero() || got.Hold != "FAILED" || !isWithin(got.HoldUntil, time.Hour) || got.Issued != fetch {
			r.Errorf("after the failure: got %+v", got)
		}
		if err := r.ClearHold(r.Context(), req.Entity); err != nil {
			r.Fatal(err)
		}
		if got = r.mustReadState(req.Entity); got != (CoalesceState{Issued: fetch}) {
			r.Errorf("after ClearHold: got %+v", got)
		}
		end = schemas.End{Entity: req.Entity, Number: fetch, Satisfied: true}
		if err := r.Settle(r.Context(), []schemas.End{end}); err != nil {
			r.Fatal(err)
		}
		if got = r.mustReadState(req.Entity); got != (CoalesceState{Issued: fetch, Done: fetch}) {
			r.Errorf("satisfied: got %+v", got)
		}
	})
}

func TestReadState_IgnoresExpiredAndInvalidFields(t *testing.T) {
	eachRedis(t, func(r *rig) {
		req := r.request("a", schemas.Low, schemas.Prefetch)
		n := r.mustEnqueue(Published, req).Number
		r.waitUntilConfirmed()
		set := func(fields ...string) {
			r.Helper()
			if err := r.rdb.HSet(r.Context(), key(req.Entity), fields).Err(); err != nil {
				r.Fatal(err)
			}
		}
		own := r.field(req.Entity, "server")
		if got := r.mustReadState(req.Entity); got.Lane != schemas.Low || got.Number != n {
			r.Fatalf("got %+v, want the lock", got)
		}
		set("server", "0123456789abcdef")
		if got := r.mustReadState(req.Entity); got != (CoalesceState{Issued: n}) {
			r.Errorf("lock of another server: got %+v, want none", got)
		}
		set("server", own, "lock", "LOW 5 1000 CONFIRMED", "hold", "FAILED 1000 5", "cooldown", "1000 5 1000")
		if got := r.mustReadState(req.Entity); got != (CoalesceState{Issued: n}) {
			r.Errorf("expired: got %+v, want no lock, hold or cool-down", got)
		}
		set("lock", "x", "hold", "y", "cooldown", "z", "ver", "", "done", "?")
		if got := r.mustReadState(req.Entity); got != (CoalesceState{}) {
			r.Errorf("invalid fields: got %+v, want the zero value", got)
		}
		if err := r.rdb.Del(r.Context(), key(req.Entity)).Err(); err != nil {
			r.Fatal(err)
		}
		if err := r.rdb.Set(r.Context(), key(req.Entity), "no hash", time.Minute).Err(); err != nil {
			r.Fatal(err)
		}
		if got, err := r.ReadState(r.Context(), req.Entity); err != nil || got != (CoalesceState{}) {
			r.Errorf("key of another type: got %+v, %v, want the zero value", got, err)
		}
	})
}

// A lock contains the ID of the Redis server that set it. An older release wrote locks without this
// ID. ReadState must still return such a lock.
func TestReadState_ReadsALockWithoutServer(t *testing.T) {
	eachRedis(t, func(r *rig) {
		req := r.request("a", schemas.Low, schemas.Prefetch)
		n := r.mustEnqueue(Published, req).Number
		r.waitUntilConfirmed()
		if err := r.rdb.HDel(r.Context(), key(req.Entity), "server").Err(); err != nil {
			r.Fatal(err)
		}
		if got := r.mustReadState(req.Entity); got.Number != n || !got.Confirmed {
			r.Errorf("got %+v, want a confirmed lock", got)
		}
	})
}

func TestReadState_FailsWithoutRedis(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	m.Close()
	if _, err := NewCoalescer(rdb).ReadState(t.Context(), schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}); err == nil {
		t.Error("got no error")
	}
}
