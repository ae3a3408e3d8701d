package access

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/problem"
)

// newTestLimiter returns a limiter with its own clock, and a function that advances the clock.
func newTestLimiter(l Limits) (m *ClientLimiter, pass func(time.Duration)) {
	at := now
	m = NewClientLimiter(l, prometheus.NewPedanticRegistry())
	m.now = func() time.Time { return at }
	return m, func(d time.Duration) { at = at.Add(d) }
}

// checkProblem fails the test unless err is a problem with this code and this Retry-After. If
// code is empty, err must be nil.
func checkProblem(t *testing.T, what string, err error, code problem.Code, after time.Duration) {
	t.Helper()
	p, refused := errors.AsType[*problem.HTTPError](err)
	switch {
	case code == "" && err != nil, code != "" && !refused:
		t.Errorf("%s: got %v, want the problem %q", what, err, code)
	case refused && (p.Status != 429 || p.Code != code || p.After.Round(time.Millisecond) != after):
		t.Errorf("%s: got %d %s with Retry-After %v, want %s with %v", what, p.Status, p.Code, p.After, code, after)
	}
}

func TestAllowRequests_AllowsABurstThenTheRate(t *testing.T) {
	m, pass := newTestLimiter(Limits{Requests: "120/m"})
	for range 120 {
		checkProblem(t, "the burst", m.AllowRequests("a", 1), "", 0)
	}
	checkProblem(t, "one more", m.AllowRequests("a", 1), "too-many-requests", time.Second)
	checkProblem(t, "ten more", m.AllowRequests("a", 10), "too-many-requests", 5*time.Second)
	checkProblem(t, "another client", m.AllowRequests("b", 120), "", 0)
	pass(time.Second)
	checkProblem(t, "a second later", m.AllowRequests("a", 2), "", 0)
	checkProblem(t, "and one more", m.AllowRequests("a", 1), "too-many-requests", time.Second)
	pass(time.Hour)
	checkProblem(t, "an hour later", m.AllowRequests("a", 120), "", 0)
	checkProblem(t, "it held no more than a minute's", m.AllowRequests("a", 1), "too-many-requests", time.Second)
}

func TestAllowRequests_LargeCallLeavesADebt(t *testing.T) {
	m, pass := newTestLimiter(Limits{Requests: "60/m"})
	checkProblem(t, "five minutes' worth", m.AllowRequests("a", 300), "", 0)
	checkProblem(t, "one more", m.AllowRequests("a", 1), "too-many-requests", 241*time.Second)
	pass(241 * time.Second)
	checkProblem(t, "when the debt is paid", m.AllowRequests("a", 1), "", 0)
}

func TestAllowRequests_SetsRateLimitHeaders(t *testing.T) {
	m, _ := newTestLimiter(Limits{Requests: "100/s"})
	checkProblem(t, "all", m.AllowRequests("a", 100), "", 0)
	p, _ := errors.AsType[*problem.HTTPError](m.AllowRequests("a", 100))
	if p.Header.Get("RateLimit-Policy") != `"requests";q=100;w=1` || p.Header.Get("RateLimit") != `"requests";r=0;t=1` {
		t.Errorf("got the headers %v", p.Header)
	}
}

func TestClientLimiter_IsBounded(t *testing.T) {
	m, _ := newTestLimiter(Limits{Requests: "1/h"})
	name := func(i int) string { return fmt.Sprint("ip:", i) }
	for i := range maxClients + 10 {
		checkProblem(t, "a new client", m.AllowRequests(name(i), 1), "", 0)
	}
	if len(m.clients) != maxClients || m.recent.Len() != maxClients {
		t.Errorf("got %d clients in memory", len(m.clients))
	}
	checkProblem(t, "the newest is known", m.AllowRequests(name(maxClients+9), 1), "too-many-requests", time.Hour)
	checkProblem(t, "the oldest is forgotten", m.AllowRequests(name(0), 1), "", 0)
}

func TestClientLimiter_NilHasNoLimits(t *testing.T) {
	none, _ := newTestLimiter(Limits{})
	for _, m := range []*ClientLimiter{nil, none} {
		for range 3000 {
			_, waits := m.AcquireWaitSlot("a")
			checkProblem(t, "unbounded", errors.Join(waits, m.AllowRequests("a", 1000)), "", 0)
		}
	}
}

func TestAcquireWaitSlot_LimitsEachClient(t *testing.T) {
	m, _ := newTestLimiter(Limits{Waiting: 2})
	wait := func(client string) (func(), error) {
		leave, err := m.AcquireWaitSlot(client)
		if leave == nil {
			t.Fatal("got no release function")
		}
		return leave, err
	}
	one, err1 := wait("a")
	two, err2 := wait("a")
	checkProblem(t, "two", errors.Join(err1, err2), "", 0)
	none, err := wait("a")
	checkProblem(t, "a third", err, "too-many-waiting", time.Second)
	p, _ := errors.AsType[*problem.HTTPError](err)
	if p.Header.Get("RateLimit-Policy") != `"waiting";q=2;qu="concurrent-requests"` || testutil.ToFloat64(m.refused.WithLabelValues("waiting")) != 1 {
		t.Errorf("got the headers %v", p.Header)
	}
	other, err := wait("b")
	checkProblem(t, "another client", err, "", 0)
	none()
	one()
	one() // releasing the same slot a second time must not free another slot
	three, err := wait("a")
	checkProblem(t, "after one has left", err, "", 0)
	_, err = wait("a")
	checkProblem(t, "and one more", err, "too-many-waiting", time.Second)
	for _, leave := range []func(){two, three, other} {
		leave()
	}
	if len(m.waits) != 0 {
		t.Errorf("got the slots %v, want none", m.waits)
	}
}

func TestLimitKey_IsSharedByAnIPv6Network(t *testing.T) {
	m, _ := newTestLimiter(Limits{Requests: "1/h", Waiting: 1})
	for _, c := range []struct {
		client string
		shares bool
	}{
		{"unauthenticated@2001:db8::1", false},
		{"unauthenticated@2001:db8::2", true},
		{"unauthenticated@2001:db8:0:0:ffff::", true},
		{"unauthenticated@2001:db8::1%eth0", true},
		{"unauthenticated@2001:db8:0:1::1", false},
		{"unauthenticated@192.0.2.7", false},
		{"unauthenticated@192.0.2.8", false},
		{"unauthenticated@::ffff:192.0.2.7", false},
		{"unauthenticated@::ffff:192.0.2.8", false},
		{"unauthenticated@", false},
		{"unauthenticated@x", false},
		{"jwt:2001:db8::1", false},
		{"jwt:2001:db8::2", false},
	} {
		_, waits := m.AcquireWaitSlot(c.client)
		for _, err := range []error{m.AllowRequests(c.client, 1), waits} {
			if (err != nil) != c.shares {
				t.Errorf("%s: got %v", c.client, err)
			}
		}
	}
}
