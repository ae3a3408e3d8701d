package consumer

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestAssignment_RevocationStopsAllPartitionsAtOnce(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	a := newAssignment(slog.New(slog.DiscardHandler))
	partitions := []int32{0, 1, 2, 3, 4, 5, 6, 7}
	a.assigned(map[string][]int32{"t": partitions})
	var ledgers []*ledger
	for _, p := range partitions {
		l := a.ledgerOf("t", p)
		l.add(0, 0, time.Time{})
		if !l.startCall() {
			t.Fatal("startCall: got false for an open ledger, want true")
		}
		ledgers = append(ledgers, l)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.revoked(context.Background(), client, map[string][]int32{"t": partitions})
	}()

	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	limit := time.After(5 * time.Second)
	for _, l := range ledgers {
		for l.is(ledgerOpen) {
			select {
			case <-look.C:
			case <-limit:
				t.Fatal("startCall: got true during a revocation, want false")
			}
		}
	}
	for _, l := range ledgers {
		l.endCall()
	}
	<-done
	for _, l := range ledgers {
		if !l.is(ledgerRevoked) || l.startCall() {
			t.Error("ledger after the revocation: got it active, want it revoked")
		}
	}
}

func TestAssignment_LossStopsCallsDuringCommit(t *testing.T) {
	a := newAssignment(slog.New(slog.DiscardHandler))
	of := map[string][]int32{"t": {0}}
	a.assigned(of)
	l := a.ledgerOf("t", 0)
	a.committing <- struct{}{} // hold the lock, as a commit does while it waits for the broker's response
	done := make(chan struct{})
	go func() { defer close(done); a.lost(of) }()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	limit := time.After(5 * time.Second)
	for l.is(ledgerOpen) {
		select {
		case <-look.C:
		case <-limit:
			t.Error("startCall: got true after a loss, want false")
			l.revoke()
		}
	}
	<-a.committing
	<-done
	if !l.is(ledgerRevoked) {
		t.Error("ledger after the loss: got it active, want it revoked")
	}
}

func TestAssignment_ReassignmentRevokesOldLedger(t *testing.T) {
	a := newAssignment(slog.New(slog.DiscardHandler))
	of := map[string][]int32{"t": {0}}
	a.assigned(of)
	former := a.ledgerOf("t", 0)
	former.add(0, 0, time.Time{})
	a.assigned(of) // the partition is assigned again, as after its topic was deleted and created again
	if former.startCall() {
		t.Error("startCall of the old ledger: got true, want false")
	}
	if _, due := former.commitPoint(); due {
		t.Error("commit of the old ledger: got true, want false")
	}
}
