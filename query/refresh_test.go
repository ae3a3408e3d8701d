package query

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

func TestAnExplicitRefreshIsQueuedOrToldWhyNot(t *testing.T) {
	r := newRig(t)
	r.stored("a", time.Minute)
	r.wait = time.Second
	a := r.refresh("a")
	if a.StatusCode != 202 || !a.body.UpdateQueued || *a.body.EstimatedWaitMs != 1000 {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	if w := r.wishes[0]; w.Reason != schemas.UserRequest || w.Floor != 7 || w.Cooldown != time.Minute {
		t.Errorf("wish %+v", w)
	}
	until := time.Now().Add(30 * time.Second)
	r.answer = func(context.Context, Wish) Answer { return Answer{Reason: ReasonCooldown, Until: until} }
	if a := r.refresh("a"); a.StatusCode != 429 || a.body.Code != "cooldown" || a.Header.Get("Retry-After") != "30" {
		t.Errorf("%d %s, Retry-After %s", a.StatusCode, a.text, a.Header.Get("Retry-After"))
	}
	r.answer = func(context.Context, Wish) Answer { return Answer{Reason: ReasonDown} }
	if a := r.refresh("a"); a.StatusCode != 503 || a.body.Code != "not-queued" || a.Header.Get("Retry-After") != "1" {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	r.storeErr, r.answer = errors.New("down"), nil // the floor is unknown, the wish is not lost
	if a := r.refresh("b"); a.StatusCode != 202 || r.wishes[len(r.wishes)-1].Floor != 0 {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
}

func TestAnExplicitRefreshIsAskedAgainUntilItIsCertain(t *testing.T) {
	r := newRig(t)
	r.answer = func(context.Context, Wish) Answer {
		if len(r.wishes) < 3 {
			return Answer{Pending: true}
		}
		return Answer{Queued: true}
	}
	if a := r.refresh("a"); a.StatusCode != 202 || len(r.wishes) != 3 {
		t.Errorf("%d %s after %d wishes", a.StatusCode, a.text, len(r.wishes))
	}
	r.answer = func(context.Context, Wish) Answer { return Answer{Pending: true} }
	if a := r.refresh("a"); a.StatusCode != 503 || !strings.Contains(a.text, "PENDING") {
		t.Errorf("never certain: %d %s", a.StatusCode, a.text)
	}
}
