package query

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// refreshWith sends a refresh of the entity `key` with an idempotency key.
func (r *rig) refreshWith(key, idempotencyKey string) answer {
	r.Helper()
	return r.do(http.MethodPost, "/v1/nexon/character/"+key+"/refresh", idempotencyHeader, idempotencyKey)
}

func TestIdempotencyKey_RepeatedRefreshIsNotEnqueuedAgain(t *testing.T) {
	r := newRig(t)
	first := r.refreshWith("a", "k1")
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: ReasonCooldown} }
	again := r.refreshWith("a", "k1")
	if first.StatusCode != 202 || again.StatusCode != 202 || again.text != first.text {
		t.Errorf("got %d %s, then %d %s, want 202 twice with one body", first.StatusCode, first.text, again.StatusCode, again.text)
	}
	if n := len(r.enqueued()); n != 1 {
		t.Errorf("enqueued requests: got %d, want 1", n)
	}
}

func TestIdempotencyKey_OtherRequestsAreEnqueued(t *testing.T) {
	for what, send := range map[string]func(r *rig) answer{
		"another key":    func(r *rig) answer { return r.refreshWith("a", "k2") },
		"another entity": func(r *rig) answer { return r.refreshWith("b", "k1") },
		"no key":         func(r *rig) answer { return r.refresh("a") },
		"another client": func(r *rig) answer {
			r.client = access.Client{Name: "key:2", Scopes: []access.Scope{access.Refresh}}
			return r.refreshWith("a", "k1")
		},
	} {
		r := newRig(t)
		r.refreshWith("a", "k1")
		if a := send(r); a.StatusCode != 202 || len(r.enqueued()) != 2 {
			t.Errorf("%s: got %d %s and %d enqueued requests, want 202 and 2", what, a.StatusCode, a.text, len(r.enqueued()))
		}
	}
}

func TestIdempotencyKey_RefusedRefreshMayBeRepeated(t *testing.T) {
	r := newRig(t)
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: ReasonDown} }
	if a := r.refreshWith("a", "k1"); a.StatusCode != 503 {
		t.Errorf("first: got %d %s, want 503", a.StatusCode, a.text)
	}
	r.respond = nil
	if a := r.refreshWith("a", "k1"); a.StatusCode != 202 || len(r.enqueued()) != 2 {
		t.Errorf("again: got %d %s and %d enqueued requests, want 202 and 2", a.StatusCode, a.text, len(r.enqueued()))
	}
}

// The first request with the key may be saved after the second request has searched for it, and before
// the second one is refused because of the cool-down. So the key must be searched again.
func TestIdempotencyKey_IsSearchedAgainDuringACooldown(t *testing.T) {
	r := newRig(t)
	r.respond = func(ctx context.Context, w UpdateRequest) EnqueueResult {
		_ = r.Save(ctx, w.Client, w.Entity, "k1", 100)
		return EnqueueResult{Reason: ReasonCooldown}
	}
	if a := r.refreshWith("a", "k1"); a.StatusCode != 202 {
		t.Errorf("got %d %s, want 202", a.StatusCode, a.text)
	}
}

func TestIdempotencyKey_WaitEndsAtOnceIfTheRefreshHasEnded(t *testing.T) {
	r := newRig(t)
	r.refreshWith("a", "k1")
	r.putSnapshot("a", 0, func(s *store.Snapshot) { s.Version = 101 })
	began := time.Now()
	a := r.do(http.MethodPost, "/v1/nexon/character/a/refresh?wait=60s", idempotencyHeader, "k1")
	if took := time.Since(began); a.StatusCode != 200 || took > testTimeout {
		t.Errorf("got %d %s after %v, want 200 at once", a.StatusCode, a.text, took)
	}
	if n := len(r.enqueued()); n != 1 {
		t.Errorf("enqueued requests: got %d, want 1", n)
	}
}

func TestIdempotencyKey_FailingRedisOnlyEnqueuesAgain(t *testing.T) {
	r := newRig(t)
	r.refreshKeysErr = errors.New("redis is down")
	for n := range 2 {
		if a := r.refreshWith("a", "k1"); a.StatusCode != 202 || len(r.enqueued()) != n+1 {
			t.Errorf("refresh %d: got %d %s and %d enqueued requests, want 202 and %d", n+1, a.StatusCode, a.text, len(r.enqueued()), n+1)
		}
	}
}

func TestIdempotencyKey_HangingRedisDelaysARefreshBriefly(t *testing.T) {
	for _, call := range []func(context.Context, *refreshes){
		func(ctx context.Context, r *refreshes) { r.find(ctx, everything, entity("a"), "k1") },
		func(ctx context.Context, r *refreshes) { r.save(ctx, everything, entity("a"), "k1", 100) },
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			call(t.Context(), &refreshes{keys: hangingKeys{}, log: slog.New(slog.DiscardHandler)})
			if took := time.Since(began); took != idempotencyTimeout {
				t.Errorf("got %v, want %v", took, idempotencyTimeout)
			}
		})
	}
}

// hangingKeys implements IdempotencyKeys. Its methods block until ctx ends.
type hangingKeys struct{}

func (hangingKeys) Find(ctx context.Context, _ string, _ schemas.Entity, _ string) (int64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func (hangingKeys) Save(ctx context.Context, _ string, _ schemas.Entity, _ string, _ int64) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestIdempotencyKey_InvalidOnesAreRefused(t *testing.T) {
	for what, headers := range map[string][]string{
		"empty":         {idempotencyHeader, ""},
		"too long":      {idempotencyHeader, strings.Repeat("a", maxIdempotencyKeySize+1)},
		"with a space":  {idempotencyHeader, "a b"},
		"not ASCII":     {idempotencyHeader, "가"},
		"a control":     {idempotencyHeader, "a\x7fb"},
		"several times": {idempotencyHeader, "a", idempotencyHeader, "a"},
	} {
		r := newRig(t)
		a := r.do(http.MethodPost, "/v1/nexon/character/a/refresh", headers...)
		if a.StatusCode != 400 || a.body.Code != "bad-request" || !strings.Contains(a.text, "Idempotency-Key") || len(r.enqueued()) > 0 {
			t.Errorf("%s: got %d %s and %d enqueued requests, want 400 and none", what, a.StatusCode, a.text, len(r.enqueued()))
		}
	}
}

func TestIdempotencyKey_PagesOfOtherOriginsMaySendIt(t *testing.T) {
	if headers := corsConfig(nil).AllowHeaders; !slices.Contains(headers, idempotencyHeader) {
		t.Errorf("allowed headers: got %q, want %s in it", headers, idempotencyHeader)
	}
}
