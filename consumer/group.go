package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

// leaveTimeout is the time limit for the last commit and for leaving the consumer group together.
const leaveTimeout = 10 * time.Second

// group is the worker's membership in the consumer group of its lane.
type group struct {
	*base
	client       *kgo.Client
	abort        context.CancelFunc // aborts all requests that the client has sent to the brokers
	assignment   *assignment
	leaveTimeout time.Duration
}

// newGroup returns a group with a Kafka client of its own.
func newGroup(b *base, connection ...kgo.Opt) (*group, error) {
	g := &group{base: b, assignment: newAssignment(b.log), leaveTimeout: leaveTimeout}
	var ctx context.Context
	ctx, g.abort = context.WithCancel(context.Background())
	opts := []kgo.Opt{
		kgo.WithContext(ctx),
		kgo.ConsumerGroup(schemas.Group(b.source.Name(), b.lane)),
		kgo.ConsumeTopics(schemas.RequestTopic(b.source.Name(), b.lane)),
		// Without a committed offset, or if that offset no longer exists, the partition is read
		// from its first record, so that no record is skipped.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// The session timeout is short, so that another worker soon gets the partitions of a killed
		// worker.
		kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(2 * time.Second),
		kgo.RebalanceTimeout(time.Minute),
		kgo.FetchMaxBytes(4 << 20),
		kgo.FetchMaxPartitionBytes(1 << 20),
	}
	opts = append(append(opts, g.assignment.options(b.config.ServerSideAssignment)...), connection...)
	var err error
	if g.client, err = kgo.NewClient(opts...); err != nil {
		g.abort()
		return nil, fmt.Errorf("create the consumer's Kafka client: %w", err)
	}
	return g, nil
}

func (g *group) close() {
	g.client.Close()
	g.abort()
}

func (g *group) commitLoop(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTicker(commitInterval)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		err := g.assignment.commitAll(ctx, g.client)
		if err != nil && !failing {
			g.log.Warn("offset commit failed; the next commit includes these offsets", "err", err)
		}
		failing = err != nil
		g.checkRetention(time.Now())
	}
}

// checkRetention logs an error when the oldest uncommitted record is older than half of its
// topic's retention. At the end of the retention Kafka would delete it unread.
func (g *group) checkRetention(now time.Time) {
	age := time.Duration(0)
	if oldest := g.assignment.oldest(); !oldest.IsZero() {
		age = max(0, now.Sub(oldest))
	}
	g.metrics.oldest.Set(age.Seconds())
	if retention := schemas.Retention(g.lane); age > retention/2 {
		g.conditions.Error(g.log, conditionRetention, fmt.Errorf("the oldest uncommitted record is %v old, the retention is %v", age.Round(time.Second), retention))
	} else {
		g.conditions.Resolved(g.log, conditionRetention)
	}
}

// logPollErrors logs when polls begin to fail, and when they succeed again.
func (g *group) logPollErrors(ctx context.Context, fetches kgo.Fetches) {
	failed := false
	fetches.EachError(func(topic string, partition int32, err error) {
		failed = true
		switch {
		case ctx.Err() != nil || errors.Is(err, context.Canceled):
			return
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			err = fmt.Errorf("topic %s does not exist; create it with `freshet topics ensure`", topic)
		case topic != "":
			err = fmt.Errorf("partition %d of %s: %w", partition, topic, err)
		}
		g.conditions.Error(g.log, failedOperation(opPoll), err)
	})
	if !failed {
		g.conditions.Resolved(g.log, failedOperation(opPoll))
	}
}

// leave commits the last offsets, leaves the consumer group and closes the Kafka client, within
// leaveTimeout.
func (g *group) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, g.leaveTimeout)
	defer cancel()
	committing, done := context.WithTimeout(ctx, g.leaveTimeout/2) // half of leaveTimeout for the last commit, the other half for leaving the group
	err := g.assignment.commitLast(committing, g.client)
	done()
	if err != nil {
		err = fmt.Errorf("last commit: %w; the records since the previous commit are read again", err)
	}
	g.client.AllowRebalance()
	if left := g.client.LeaveGroupContext(ctx); left != nil {
		g.log.Warn("leaving the consumer group failed; the partitions move when the session expires", "err", left)
	}
	// Closing the Kafka client waits for a broker that hangs, and has no time limit of its own. So all
	// requests of the client are aborted when leaveTimeout has passed.
	defer g.abort()
	defer context.AfterFunc(ctx, g.abort)()
	g.client.CloseAllowingRebalance()
	return err
}
