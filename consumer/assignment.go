package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// commitInterval bounds how much is repeated after a crash.
	commitInterval = 500 * time.Millisecond
	// commitTimeout bounds one commit.
	commitTimeout = 5 * time.Second
	// revokeTimeout is how long a rebalance waits for calls that were sent: well
	// under the rebalance timeout of a minute.
	revokeTimeout = 10 * time.Second
	// rejoinInterval is the time between two tries of the last commit.
	rejoinInterval = 100 * time.Millisecond
)

// assignment is the partitions that this member owns, each with its ledger, and
// the only place from which offsets are committed.
type assignment struct {
	log           *slog.Logger
	revokeTimeout time.Duration

	mu      sync.Mutex
	ledgers map[string]map[int32]*ledger

	// committing is held while a commit is under way, and by a revocation: no
	// commit can overtake one.
	committing sync.Mutex
}

func newAssignment(log *slog.Logger) *assignment {
	return &assignment{log: log, revokeTimeout: revokeTimeout, ledgers: map[string]map[int32]*ledger{}}
}

// options are the client's settings that belong to the assignment. Rebalances
// are blocked from a poll until what it returned is in the ledgers: a record
// read under one assignment must never enter the ledger of the next.
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
			if former := a.ledgers[topic][p]; former != nil { // its topic was deleted and made again
				former.revoke()
			}
			a.ledgers[topic][p] = newLedger()
		}
	}
}

// ledgerOf returns the ledger of a partition, or nil if it is not ours.
func (a *assignment) ledgerOf(topic string, partition int32) *ledger {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledgers[topic][partition]
}

// oldest returns when the oldest record that is not done was written, of all
// partitions that are ours; zero if there is none.
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

// remove removes the ledgers of partitions from the assignment and returns them.
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

// revoked gives partitions up in order: send nothing further, wait briefly for
// what was sent, commit the unbroken prefix, and only then let go.
func (a *assignment) revoked(ctx context.Context, c *kgo.Client, removed map[string][]int32) {
	taken := a.remove(removed)
	limit, cancel := context.WithTimeout(ctx, a.revokeTimeout)
	defer cancel()
	var sent []<-chan struct{}
	for _, l := range flatten(taken) { // all before any is waited for
		sent = append(sent, l.close())
	}
	for _, ended := range sent {
		select {
		case <-ended:
		case <-limit.Done():
		}
	}
	if n := callsInFlight(taken); n > 0 {
		a.log.Warn("calls were still under way when their partitions were given up; whoever reads their records next may send them again",
			"calls", n, "waited", a.revokeTimeout)
	}
	a.committing.Lock()
	defer a.committing.Unlock()
	if err := a.commit(ctx, c, taken); err != nil {
		a.log.Warn("the last commit of revoked partitions failed; their records since the one before are repeated elsewhere", "err", err)
	}
	a.revokeAll(taken)
}

// lost gives up partitions that another member may own already.
func (a *assignment) lost(removed map[string][]int32) {
	taken := a.remove(removed)
	for _, l := range flatten(taken) { // at once, however long a commit is under way
		l.close()
	}
	if n := len(flatten(taken)); n > 0 {
		a.log.Warn("partitions were lost with the session; whoever reads what was read of them and not committed may send it again", "partitions", n)
	}
	a.committing.Lock()
	defer a.committing.Unlock()
	a.revokeAll(taken)
}

func (a *assignment) revokeAll(taken map[string]map[int32]*ledger) {
	for _, l := range flatten(taken) {
		l.revoke()
	}
}

// callsInFlight returns how many records' calls were sent and have not ended.
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

// commitAll commits what has moved in the partitions that we own.
func (a *assignment) commitAll(ctx context.Context, c *kgo.Client) error {
	a.committing.Lock()
	defer a.committing.Unlock()
	a.mu.Lock()
	owned := map[string]map[int32]*ledger{}
	for topic, partitions := range a.ledgers {
		owned[topic] = maps.Clone(partitions)
	}
	a.mu.Unlock()
	return a.commit(ctx, c, owned)
}

// commitLast commits at a stop. Others that leave at the same time change the group, and
// until this member has joined it anew the broker refuses its commits: it tries again,
// until ctx ends. What was taken from it meanwhile its revocation has committed.
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

// commit commits the ledgers' commit points. a.committing is held, so that none
// of the ledgers is revoked between the look at it and the answer.
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
