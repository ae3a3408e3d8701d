package access

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/problem"
)

func TestAllowLookup_RefusesAfterTenTimesTheNewKeys(t *testing.T) {
	m := NewClientLimiter(Limits{NewKeys: "6/m"}, prometheus.NewRegistry())
	now := time.Now()
	m.now = func() time.Time { return now }
	for i := range 60 {
		if err := m.AllowLookup("a"); err != nil {
			t.Fatalf("after %d misses: got %v, want none", i, err)
		}
		m.RecordMisses("a", 1)
	}
	p, ok := errors.AsType[*problem.HTTPError](m.AllowLookup("a"))
	if !ok || p.Status != 429 || p.Code != "too-many-new-keys" || p.After != time.Second {
		t.Fatalf("after 60 misses: got %+v, want 429 for 1s", p)
	}
	if err := m.AllowLookup("b"); err != nil {
		t.Errorf("another client: got %v, want none", err)
	}
	now = now.Add(time.Second)
	if err := m.AllowLookup("a"); err != nil {
		t.Errorf("a second later: got %v, want none", err)
	}
	m.RecordMisses("a", 100) // the lookups of a batch are counted only after they were made, so they may exceed the limit
	now = now.Add(90 * time.Second)
	if err := m.AllowLookup("a"); err == nil {
		t.Error("90 s after a batch of 100: got none, want a refusal for 10 s more")
	}
	now = now.Add(11 * time.Second)
	if err := m.AllowLookup("a"); err != nil {
		t.Errorf("after 101 s: got %v, want none", err)
	}
}

func TestAllowLookup_IsLimitedWithAutoRate(t *testing.T) {
	m := NewClientLimiter(DefaultConfig().Limits, prometheus.NewRegistry())
	m.RecordMisses("a", autoLookupLimit.calls-1)
	if err := m.AllowLookup("a"); err != nil {
		t.Fatalf("one below the limit: got %v, want none", err)
	}
	m.RecordMisses("a", 1)
	if err := m.AllowLookup("a"); err == nil {
		t.Errorf("after %d misses: got none, want a refusal", autoLookupLimit.calls)
	}
}

func TestAllowLookup_HasNoLimitWithoutNewKeys(t *testing.T) {
	for _, m := range []*ClientLimiter{nil, NewClientLimiter(Limits{}, prometheus.NewRegistry())} {
		m.RecordMisses("a", 1_000_000)
		if err := m.AllowLookup("a"); err != nil {
			t.Errorf("got %v, want none", err)
		}
	}
}
