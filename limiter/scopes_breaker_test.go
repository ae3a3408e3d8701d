package limiter

import (
	"maps"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// callWithTwoCredentials starts eight callers of LOW in each process, which call until their process ends.
// An answer other than 200 opens the breaker of its credential.
func (f *callers) callWithTwoCredentials() {
	call := Call{Endpoint: "f/d", Key: "k", Credentials: names(2)}
	for _, m := range f.members {
		for range 8 {
			m.wg.Go(func() {
				for m.ctx.Err() == nil {
					p, err := m.limiter.Acquire(m.ctx, schemas.Low, call)
					if err != nil || !p.Spend() {
						continue
					}
					f.mu.Lock()
					a := f.answers(atUpstream{call, p.Credential(), time.Now()})
					f.mu.Unlock()
					sleep(a.takes)
					p.ReportEnd(a.status, nil, refusedIf(a.status))
					if a.status == 200 {
						p.ReportSuccess()
					} else {
						p.OpenScopeBreaker("credential", 5*time.Second, 5*time.Minute)
					}
				}
			})
		}
	}
}

// A refused credential's breaker stops only that credential. The credential is probed seldom. It is
// used again after a probe succeeds, or after its secret has changed.
func TestScopeBreaker_StopsOneCredential(t *testing.T) {
	bad := map[string]bool{"c1": true}
	used := map[string]int{}
	answers := func(c atUpstream) answered {
		used[c.credential]++
		if bad[c.credential] {
			return answered{status: 401, takes: 20 * ms}
		}
		return answered{status: 200, takes: 20 * ms}
	}
	config := scopedConfig(Policy{Name: "second", Limit: 20, Window: Window(time.Second), Scope: "{credential}"})
	inCallers(t, 1, 2, config, answers, func(f *callers) {
		f.callWithTwoCredentials()
		f.passed(10 * time.Second)
		f.mu.Lock()
		clear(used)
		f.mu.Unlock()
		f.passed(time.Minute)
		f.mu.Lock()
		first := maps.Clone(used)
		bad["c1"] = false
		f.mu.Unlock()
		if first["c1"] > 5 || first["c0"] < 1100 {
			t.Errorf("while one is refused: got calls %v", first)
		}
		f.members[1].limiter.CloseCredentialBreaker("c1")
		f.passed(2 * time.Second)
		f.mu.Lock()
		clear(used)
		f.mu.Unlock()
		f.passed(10 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if used["c1"] < 180 || used["c0"] < 180 {
			t.Errorf("after it succeeds again: got calls %v", used)
		}
	})
}

// One of two credentials has an open breaker, and its probe is due. The limiter must send this probe,
// although the other credential has more units left.
func TestScopeBreaker_ProbesWithoutScopedPolicies(t *testing.T) {
	bad, used := true, map[string]int{}
	answers := func(c atUpstream) answered {
		used[c.credential]++
		if bad && c.credential == "c0" {
			return answered{status: 401, takes: 20 * ms}
		}
		return answered{status: 200, takes: 20 * ms}
	}
	config := scopedConfig(Policy{Name: "second", Limit: 100, Window: Window(time.Second)})
	inCallers(t, 1, 1, config, answers, func(f *callers) {
		f.callWithTwoCredentials()
		f.passed(8 * time.Second)
		f.mu.Lock()
		bad = false
		refused := used["c0"]
		clear(used)
		f.mu.Unlock()
		f.passed(15 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if refused > 20 || used["c0"] < 100 {
			t.Errorf("refused %d times, want at most 20; calls of 15s after it is accepted again: got %v, want c0 among them", refused, used)
		}
	})
}

// A scope breaker with short pauses stays open until its probe, although no call uses it meanwhile.
func TestScopeBreaker_IsKeptUntilItsProbe(t *testing.T) {
	answers := func(atUpstream) answered { return answered{status: 200, takes: 20 * ms} }
	config := scopedConfig(Policy{Name: "second", Limit: 20, Window: Window(time.Second), Scope: "{credential}"})
	inCallers(t, 1, 1, config, answers, func(f *callers) {
		m, call := f.members[0], Call{Endpoint: "f/d", Key: "k", Credentials: names(1)}
		f.one(m, schemas.Low, call)
		p, err := m.limiter.Acquire(m.ctx, schemas.Low, call)
		if err != nil || !p.Spend() {
			f.Fatalf("no permit: %v", err)
		}
		p.OpenScopeBreaker("credential", 5*time.Second, 5*time.Second)
		p.ReportEnd(401, nil, refusedIf(401))
		opened := time.Now()
		f.passed(3 * time.Second)
		f.wait(m, 2, schemas.Low, call)
		f.passed(1500 * ms)
		if calls, _ := f.since(opened); len(calls) > 0 {
			t.Errorf("calls in 4.5 s, before the probe after 5 s: got %d, want 0", len(calls))
		}
		f.passed(2 * time.Second)
		if calls, _ := f.since(opened); len(calls) == 0 {
			t.Error("calls in 6.5 s: got 0, want the probe and later calls")
		}
	})
}

// A scope breaker that was never opened needs no memory in Redis.
func TestScopeBreaker_StoresNothingWhileClosed(t *testing.T) {
	r := newScriptRig(t, scopedConfig(Policy{Name: "second", Limit: 20, Window: Window(time.Second), Scope: "{credential}"}))
	r.send(time.UnixMilli(1_700_000_000_000), 1)
	for _, c := range r.line.key.candidates[0].costs {
		isBreaker := r.limiter.alloc.active.quota.scoped[c.policyIndex].kind() == breakerKind
		if got, want := r.redis.Exists(c.key), !isBreaker; got != want {
			t.Errorf("key %s exists: got %v, want %v", c.key, got, want)
		}
	}
}

// An open scope breaker is kept until a minute after ten of its longest pauses, counted from its probe.
func TestScopeBreaker_ExpiresLongAfterItsProbe(t *testing.T) {
	r := newScriptRig(t, scopedConfig(Policy{Name: "second", Limit: 20, Window: Window(time.Second)}))
	at := time.UnixMilli(1_700_000_000_000)
	breaker := r.firstBucket()
	r.send(at, 0, openBreakerEvent(breaker, 5*time.Second, time.Minute, at.UnixMicro()))
	if got, want := r.redis.TTL(breaker.key), 5*time.Second+10*time.Minute+time.Minute; got != want {
		t.Errorf("expiry of the breaker: got %v, want %v", got, want)
	}
}

// While a scope breaker is open, rejected callers call again soon, because it can close.
func TestScopeBreaker_RejectedCallersCallAgainSoon(t *testing.T) {
	r := newScriptRig(t, scopedConfig(Policy{Name: "second", Limit: 20, Window: Window(time.Second)}))
	at := time.UnixMilli(1_700_000_000_000)
	r.send(at, 1)
	at = at.Add(time.Minute)
	r.send(at, 0, openBreakerEvent(r.firstBucket(), time.Minute, time.Hour, at.UnixMicro()))
	for _, c := range []struct{ after, want time.Duration }{{time.Second, 500 * ms}, {4 * time.Second, time.Second}} {
		if _, g := r.send(at.Add(c.after), 1); len(g.queues[0].slots) != 0 || micros(g.queues[0].back) != c.want {
			t.Errorf("%v after the opening: got %d slots, next call after %v; want 0, %v", c.after, len(g.queues[0].slots), micros(g.queues[0].back), c.want)
		}
	}
}
