package main

import (
	"testing"
	"time"

	"github.com/freshet/freshet/servicetest"
)

func TestAnnounceScheduler_ReturnsShare(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	now := time.Now()
	shareIs := func(self string, after time.Duration, want float64) {
		t.Helper()
		server.SetTime(now.Add(after)) // heartbeats use the clock of Redis
		got, err := announceScheduler(t.Context(), rdb, "nexon", self)
		if err != nil || got != want {
			t.Errorf("the share of %s after %v is %v, %v; want %v", self, after, got, err, want)
		}
	}
	shareIs("a", 0, 1)
	shareIs("b", time.Second, 0.5)
	shareIs("a", 2*time.Second, 0.5)
	shareIs("a", schedulerTTL+2*time.Second, 1) // the last heartbeat of b is older than schedulerTTL, so b is no longer live and a has the whole rate
	if _, err := announceScheduler(t.Context(), rdb, "other", "c"); err != nil {
		t.Fatal(err)
	}
	shareIs("a", schedulerTTL+3*time.Second, 1) // the share of a does not change, because c is a scheduler of another source
}
