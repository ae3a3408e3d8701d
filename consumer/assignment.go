package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// commitInterval is the time between two commits. Records that ended after the last commit are
	// processed again after a crash.
	commitInterval = 500 * time.Millisecond
	// commitTimeout is the time limit of one commit.
	commitTimeout = 5 * time.Second
	// revokeTimeout is how long the revocation of a partition waits for upstream calls in flight.
	// It is well below the rebalance timeout of one minute.
	revokeTimeout = 10 * time.Second
	// rejoinInterval is the delay between two attempts of commitLast. The broker may refuse commits
	// until this member has rejoined its group.
	rejoinInterval = 100 * time.Millisecond
)

// assignment holds the partitions that this group member owns, each with its ledger. Only its
// methods commit offsets.
type assignment struct {
	log           *slog.Logger
	revokeTimeout time.Duration

	mu      sync.Mutex
	ledgers map[string]map[int32]*ledger

	// committing contains an element during a commit and during a revocation, so that no offset is
	// committed after its partition was revoked. It is no sync.Mutex, because a goroutine that waits for
	// a mutex stops the virtual time of tests, and a commit takes time.
	committing chan struct{}
}

func newAssignment(log *slog.Logger) *assignment {
	return &assignment{log: log, revokeTimeout: revokeTimeout, ledgers: map[string]map[int32]*ledger{}, committing: make(chan struct{}, 1)}
}

// options returns the Kafka client's settings for the consumer group. Each poll blocks rebalances
// until the polled records are in the ledgers: a record that was read under one assignment must
// never enter the ledger of the next assignment.
func (a *assignment) options(brokerAssigns bool) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) { a.assigned(added) }),
		kgo.OnPartitionsRevoked(func(ctx context.Context, c *kgo.Client, removed map[string][]int32) { a.revoked(ctx, c, removed) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, removed map[string][]int32) { a.lost(removed) }),
	}
	if brokerAssigns {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	return opts
}

func (a *assignment) assigned(added map[string][]int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for topic, partitions := range added {
		if a.ledgers[topic] == nil {
			a.ledgers[topic] = map[int32]*ledger{}
		}
		for _, p := range partitions {
			if former := a.ledgers[topic][p]; former != nil { // there is an old ledger if the topic was deleted and created again
				former.revoke()
			}
			a.ledgers[topic][p] = newLedger()
		}
	}
}

// owned returns the owned partitions by topic, in ascending order.
func (a *assignment) owned() map[string][]int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string][]int32{}
	for topic, ledgers := range a.ledgers {
		if partitions := slices.Sorted(maps.Keys(ledgers)); len(partitions) > 0 {
			all[topic] = partitions
		}
	}
	return all
}

// ledgerOf returns the ledger of a partition, or nil if this member does not own it.
func (a *assignment) ledgerOf(topic string, partition int32) *ledger {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledgers[topic][partition]
}

// oldest returns the timestamp of the oldest record that is not done, over all ledgers. If all
// records are done, it returns the zero time.
func (a *assignment) oldest() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	var oldest time.Time
	for _, l := range flatten(a.ledgers) {
		if at := l.oldest(); !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return oldest
}

// remove removes the ledgers of the given partitions from the assignment, and returns these
// ledgers.
func (a *assignment) remove(partitions map[string][]int32) map[string]map[int32]*ledger {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := map[string]map[int32]*ledger{}
	for topic, list := range partitions {
		taken[topic] = map[int32]*ledger{}
		for _, p := range list {
			if l := a.ledgers[topic][p]; l != nil {
				taken[topic][p] = l
				delete(a.ledgers[topic], p)
			}
		}
	}
	return taken
}

// revoked handles the revocation of partitions. It stops new upstream calls and waits for the calls
// in flight. Then it commits each partition's offset after its unbroken prefix of done records, and
// marks the ledgers as revoked.
func (a *assignment) revoked(ctx context.Context, c *kgo.Client, removed map[string][]int32) {
	taken := a.remove(removed)
	limit, cancel := context.WithTimeout(ctx, a.revokeTimeout)
	defer cancel()
	var sent []<-chan struct{}
	for _, l := range flatten(taken) { // close all ledgers first, so that no ledger allows new calls during the wait for another ledger
		sent = append(sent, l.close())
	}
	for _, ended := range sent {
		select {
		case <-ended:
		case <-limit.Done():
		}
	}
	if n := callsInFlight(taken); n > 0 {
		a.log.Warn("partitions revoked with calls in flight; the next owner may send these calls again",
			"calls", n, "waited", a.revokeTimeout)
	}
	a.committing <- struct{}{}
	defer func() { <-a.committing }()
	if err := a.commit(ctx, c, taken); err != nil {
		a.log.Warn("commit of revoked partitions failed; the next owner repeats their records since the previous commit", "err", err)
	}
	a.revokeAll(taken)
}

// lost handles partitions that this member lost because its group session expired. Another member
// may already own them, so lost commits nothing.
func (a *assignment) lost(removed map[string][]int32) {
	taken := a.remove(removed)
	for _, l := range flatten(taken) { // close the ledgers at once, without waiting for a commit in flight
		l.close()
	}
	if n := len(flatten(taken)); n > 0 {
		a.log.Warn("partitions lost because the group session expired; the next owner repeats their uncommitted records", "partitions", n)
	}
	a.committing <- struct{}{}
	defer func() { <-a.committing }()
	a.revokeAll(taken)
}

func (a *assignment) revokeAll(taken map[string]map[int32]*ledger) {
	for _, l := range flatten(taken) {
		l.revoke()
	}
}

// callsInFlight returns the number of records whose call was sent and has not ended.
func callsInFlight(ledgers map[string]map[int32]*ledger) (n int) {
	for _, l := range flatten(ledgers) {
		n += l.callsInFlight()
	}
	return n
}

func flatten(ledgers map[string]map[int32]*ledger) []*ledger {
	var all []*ledger
	for _, partitions := range ledgers {
		for _, l := range partitions {
			all = append(all, l)
		}
	}
	return all
}

// commitAll commits the offset of each owned partition whose commit point has changed.
func (a *assignment) commitAll(ctx context.Context, c *kgo.Client) error {
	a.committing <- struct{}{}
	defer func() { <-a.committing }()
	a.mu.Lock()
	owned := map[string]map[int32]*ledger{}
	for topic, partitions := range a.ledgers {
		owned[topic] = maps.Clone(partitions)
	}
	a.mu.Unlock()
	return a.commit(ctx, c, owned)
}

// commitLast commits the offsets of all partitions when the worker stops. If other members leave at
// the same time, the broker refuses commits until this member has rejoined the group, so commitLast
// retries until ctx ends. Partitions that are revoked meanwhile are committed by their revocation.
func (a *assignment) commitLast(ctx context.Context, c *kgo.Client) error {
	for {
		err := a.commitAll(ctx, c)
		if !errors.Is(err, kerr.IllegalGeneration) && !errors.Is(err, kerr.StaleMemberEpoch) && !errors.Is(err, kerr.RebalanceInProgress) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(rejoinInterval):
		}
	}
}

// commit commits the offset of each ledger whose commit point has changed. The caller holds
// a.committing, so that no ledger is revoked before the broker has answered.
func (a *assignment) commit(ctx context.Context, c *kgo.Client, ledgers map[string]map[int32]*ledger) error {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	moved := map[*ledger]int64{}
	for topic, partitions := range ledgers {
		offsets[topic] = map[int32]kgo.EpochOffset{}
		for p, l := range partitions {
			if offset, due := l.commitPoint(); due {
				offsets[topic][p] = kgo.EpochOffset{Epoch: -1, Offset: offset}
				moved[l] = offset
			}
		}
	}
	if len(moved) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if err := commitOffsets(ctx, c, offsets); err != nil {
		return err
	}
	for l, offset := range moved {
		l.noteCommitted(offset)
	}
	return nil
}

func commitOffsets(ctx context.Context, c *kgo.Client, offsets map[string]map[int32]kgo.EpochOffset) error {
	var errs []error
	c.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			errs = append(errs, err)
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					errs = append(errs, fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err))
				}
			}
		}
	})
	return errors.Join(errs...)
}
