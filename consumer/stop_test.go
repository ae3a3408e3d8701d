package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
)

// A revocation delays a poll, and so the end of pollLoop. The stop must nevertheless end within its
// time limit.
func TestStop_DoesNotWaitForRevocation(t *testing.T) {
	r := newRig(t)
	c := consumer.DefaultConfig(schemas.High)
	c.DrainTimeout = time.Second
	w := r.worker(c, r.db, permits{r.limiter})
	w.SetRevokeTimeout(2 * waitTimeout)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	keys := keysOf("k", 40)
	r.untilJoined(1, 4)
	r.requests.noSettle.Store(true) // no request can be settled, so the ledger counts all 40 records as in flight
	r.enqueueAll(keys, schemas.High, schemas.CacheMiss)
	r.until("the calls", func() bool { return r.upstream.Stats().Arrivals == 40 })
	r.run(r.worker(consumer.DefaultConfig(schemas.High), r.db, permits{r.limiter}).Run)
	r.untilJoined(2, 2) // two of the first member's four partitions are revoked
	stop()
	select {
	case err := <-ended:
		t.Logf("stop: got %v", err)
	case <-time.After(waitTimeout):
		t.Errorf("stop: got none within %v, want one", waitTimeout)
	}
	r.requests.noSettle.Store(false)
	r.untilStored(keys...)
	r.untilCommitted(schemas.High)
}

// All members of the group stop at once. Each member that leaves causes a rebalance, and the broker
// refuses the commits of the other members until they have rejoined the group.
func TestStop_RetriesLastCommitDuringRebalance(t *testing.T) {
	for _, refusal := range []*kerr.Error{kerr.IllegalGeneration, kerr.RebalanceInProgress} {
		t.Run(refusal.Message, func(t *testing.T) {
			r := newRig(t)
			var leaving atomic.Bool
			left := 3 // how many commits the broker refuses after the stop began; the broker handles one request at a time, so no lock is needed
			r.kafka.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
				r.kafka.KeepControl()
				if leaving.Load() {
					left--
				}
				if left < 0 {
					return nil, nil, false
				}
				return refused(req.(*kmsg.OffsetCommitRequest), refusal), nil, true
			})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- r.worker(consumer.DefaultConfig(schemas.High), r.db, permits{r.limiter}).Run(ctx) }()
			r.untilJoined(1, 4)
			r.enqueueAll([]string{"a", "b", "c"}, schemas.High, schemas.CacheMiss)
			r.untilStored("a", "b", "c")
			leaving.Store(true)
			stop()
			if err := <-ended; err != nil {
				t.Errorf("stop: got %v, want no error", err)
			}
			r.untilCommitted(schemas.High)
		})
	}
}

// If the broker refuses all commits, the member cannot commit its offsets. It leaves the group
// nevertheless, because otherwise its partitions would wait for its session to expire.
func TestStop_LeavesGroupIfCommitFails(t *testing.T) {
	r := newRig(t)
	var stopping atomic.Bool
	r.kafka.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		return refused(req.(*kmsg.OffsetCommitRequest), kerr.RebalanceInProgress), nil, stopping.Load()
	})
	w := r.worker(consumer.DefaultConfig(schemas.High), r.db, permits{r.limiter})
	w.SetLeaveTimeout(2 * time.Second)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	r.untilJoined(1, 4)
	stopping.Store(true)
	r.enqueueAll([]string{"a", "b", "c"}, schemas.High, schemas.CacheMiss)
	r.untilStored("a", "b", "c")
	stop()
	// The leave timeout may end between two refused commits or during a commit, so there are two
	// possible errors.
	if err := <-ended; !errors.Is(err, kerr.RebalanceInProgress) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopped: got %v, want a refused commit or the end of the time to leave", err)
	}
	if !r.joined(0, 0) {
		t.Error("group: got the member still in it")
	}
}

// refused returns a response that refuses all commits of the request with this error.
func refused(req *kmsg.OffsetCommitRequest, why *kerr.Error) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	for _, topic := range req.Topics {
		answer := kmsg.NewOffsetCommitResponseTopic()
		answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
		for _, p := range topic.Partitions {
			part := kmsg.NewOffsetCommitResponseTopicPartition()
			part.Partition, part.ErrorCode = p.Partition, why.Code
			answer.Partitions = append(answer.Partitions, part)
		}
		resp.Topics = append(resp.Topics, answer)
	}
	return resp
}

// waitingPermits never grants a permit and counts the callers that wait.
type waitingPermits struct {
	permits
	n atomic.Int64
}

func (w *waitingPermits) Acquire(ctx context.Context, _ schemas.Lane, _ source.Call) (consumer.Permit, error) {
	w.n.Add(1)
	defer w.n.Add(-1)
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A member loses its session while the upstream is down, for example because its network fails. The
// member gives up the records that it has read. These records must stop waiting for permits and
// free their slots, so that the worker can process the records of its next assignment.
func TestRevocation_GivesUpWaitingRecords(t *testing.T) {
	r := newRig(t, kfake.GroupMinSessionTimeout(1500*time.Millisecond))
	const room = 20
	c := consumer.DefaultConfig(schemas.High)
	c.MaxInFlight = room
	line, p := &cuttableDialer{}, &waitingPermits{permits: permits{r.limiter}}
	w := r.worker(c, r.db, p, append(r.brokers(), kgo.SessionTimeout(1500*time.Millisecond),
		kgo.HeartbeatInterval(200*time.Millisecond), kgo.Dialer(line.dial))...)
	r.run(w.Run)
	r.untilJoined(1, 4)
	keys := keysOf("k", room)
	r.enqueueAll(keys, schemas.High, schemas.CacheMiss)
	r.until("all slots to be taken", func() bool { return p.n.Load() == room })
	line.set(true)
	r.until("all slots to be given back", func() bool { return p.n.Load() == 0 })
	line.set(false)
	r.until("them to be read again", func() bool { return p.n.Load() == room })
}

// A record becomes a dead letter while its partition is revoked. The revocation must wait until
// the dead letter is written. Otherwise the next owner would write a second dead letter.
func TestRevocation_WaitsForDeadLetter(t *testing.T) {
	r := newRig(t)
	release, held := make(chan struct{}), make(chan struct{}, 16)
	dlq := [16]byte(r.topicID(schemas.DeadLetterTopic("nexon")))
	r.kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		for _, topic := range req.(*kmsg.ProduceRequest).Topics { //nolint:forcetypeassert // the function is called only for requests of this type
			if topic.TopicID == dlq || topic.Topic == schemas.DeadLetterTopic("nexon") {
				held <- struct{}{}
				r.kafka.SleepControl(func() { <-release })
			}
		}
		return nil, nil, false
	})
	worker := func() { r.run(r.worker(consumer.DefaultConfig(schemas.High), r.db, permits{r.limiter}).Run) }
	worker()
	r.untilJoined(1, 4)
	for p := range int32(4) {
		r.produce(schemas.High, kgo.Record{Value: []byte("no request"), Key: []byte(fmt.Sprint("key", p))})
	}
	<-held
	worker()
	r.untilJoined(2, 2) // two of the first member's four partitions are revoked
	r.staysFalse(time.Second, "the two partitions given up", func() bool { return r.joined(2, 4) })
	close(release)
	r.untilJoined(2, 4)
	r.untilCommitted(schemas.High)
	if n := len(r.deadLetters()); n != 4 {
		t.Errorf("dead letters: got %d, want 4", n)
	}
}

// staysFalse fails the test if happened reports true within d.
func (r *rig) staysFalse(d time.Duration, what string, happened func() bool) {
	r.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(d); ; {
		select {
		case <-end:
			return
		case <-tick.C:
			if happened() {
				r.Errorf("%s: got it too early, want it later", what)
				return
			}
		}
	}
}

// joined reports whether the HIGH group has the given number of members, and whether these members
// own the given number of partitions in all.
func (r *rig) joined(members, partitions int) bool {
	r.Helper()
	group := schemas.Group("nexon", schemas.High)
	groups, err := r.admin.DescribeGroups(r.Context(), group)
	if err != nil {
		r.Fatal(err)
	}
	g, has := groups[group], 0
	for _, topic := range g.AssignedPartitions() {
		has += len(topic)
	}
	return len(g.Members) == members && has == partitions
}

// The Kafka client waits for a broker that hangs, even after the context of the client's call has
// ended. So the worker must abort the client's requests when it stops.
func TestStop_AbandonsHangingBroker(t *testing.T) {
	r := newRig(t)
	w := r.worker(consumer.DefaultConfig(schemas.High), r.db, permits{r.limiter})
	w.SetLeaveTimeout(time.Second)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	r.untilJoined(1, 4)
	r.enqueueAll([]string{"a", "b", "c"}, schemas.High, schemas.CacheMiss)
	release := make(chan struct{})
	r.kafka.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		r.kafka.SleepControl(func() { <-release })
		return nil, nil, false
	})
	defer close(release)
	stop()
	select {
	case err := <-ended:
		t.Logf("stop: got %v", err)
	case <-time.After(10 * time.Second):
		t.Error("not stopped within 10 s")
	}
}

// untilJoined waits until the HIGH group has the given number of members, and these members own the
// given number of partitions in all.
func (r *rig) untilJoined(members, partitions int) {
	r.Helper()
	r.until("the assignment", func() bool { return r.joined(members, partitions) })
}

func TestStop_FinishesSentCalls(t *testing.T) {
	r := newRig(t)
	r.control(simulator.Control{Latency: &simulator.Range{Min: 5 * time.Millisecond, Max: 60 * time.Millisecond}})
	keys := keysOf("k", 200)
	r.enqueueAll(keys, schemas.Low, schemas.Prefetch)
	for range 3 {
		before := r.db.wrote.Load()
		stop := r.work(schemas.Low, func(c *consumer.Config) { c.MaxInFlight = 8 })
		r.until("some writes", func() bool { return r.db.wrote.Load() >= before+50 })
		stop()
	}
	r.work(schemas.Low)
	r.untilStored(keys...)
	r.untilCommitted(schemas.Low)
	if stats := r.upstream.Stats(); stats.Arrivals != 200 {
		t.Errorf("calls: got %d for 200 entities, want 200", stats.Arrivals)
	}
}

func TestStop_ReportsDrainTimeout(t *testing.T) {
	r := newRig(t)
	r.db.down.Store(false)
	config := consumer.DefaultConfig(schemas.High)
	config.DrainTimeout = 10 * time.Millisecond
	w, err := consumer.New(config, r.source, schemas.High, r.deps())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	r.requests.noSettle.Store(true)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a")
	stop()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "read again") {
		t.Errorf("stop: got %v, want a drain timeout", err)
	}
	if r.lag(schemas.High) != 1 {
		t.Error("an unsettled request was committed")
	}
}

func TestStop_DoesNotWaitForHangingBroker(t *testing.T) {
	r := newRig(t)
	reached := r.blockProduce(schemas.DeadLetterTopic("nexon"))
	r.produce(schemas.High, kgo.Record{Value: []byte("{")})
	c := consumer.DefaultConfig(schemas.High)
	c.DrainTimeout = 50 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	w := r.worker(c, r.db, permits{r.limiter})
	go func() { done <- w.Run(ctx) }()
	<-reached
	stop()
	select {
	case err := <-done:
		t.Logf("stopped with %v", err)
	case <-time.After(waitTimeout):
		t.Fatalf("stop: got none within %v, want one", waitTimeout)
	}
	if r.lag(schemas.High) != 1 {
		t.Error("the record was committed without its dead letter")
	}
}
