package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
)

// slowUpstream is an upstream that answers slowly and counts the calls of each key.
type slowUpstream struct {
	mu       sync.Mutex
	calls    map[string]int
	n        atomic.Int64
	min, max time.Duration
}

func (s *slowUpstream) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	key := req.URL.Query().Get("ocid")
	s.n.Add(1)
	s.mu.Lock()
	s.calls[key]++
	nth := s.calls[key]
	s.mu.Unlock()
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, key, nth)
	select {
	case <-time.After(s.min + (s.max-s.min)*time.Duration(h.Sum32()%1000)/1000):
		_, _ = fmt.Fprintf(w, `{"character_name":%q}`, key)
	case <-req.Context().Done():
	}
}

// cuttableDialer dials a group member's connections to the brokers. The test can cut these
// connections.
type cuttableDialer struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (c *cuttableDialer) dial(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return nil, errors.Join(errInjected, conn.Close())
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

func (c *cuttableDialer) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// lossCounter is a log handler. It counts two things that the workers log: calls in flight at a
// revocation, and lost group sessions.
type lossCounter struct {
	slog.Handler
	calls, losses *atomic.Int64
}

func (u lossCounter) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "calls":
			u.calls.Add(a.Value.Int64())
		case "partitions":
			u.losses.Add(1)
		}
		return true
	})
	return u.Handler.Handle(ctx, r)
}

func (u lossCounter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return lossCounter{u.Handler.WithAttrs(attrs), u.calls, u.losses}
}

// churn lets members of one group join and leave while the upstream is slow.
type churn struct {
	*rig
	slowUpstream
	rng            *rand.Rand
	lane           schemas.Lane
	broker         bool          // true if the broker assigns the partitions; false if a member of the group assigns them
	revokeTimeout  time.Duration // how long the revocation of a partition waits for calls in flight
	inFlight       int
	cuts           bool          // true if the test also cuts connections between members and Kafka
	sessionTimeout time.Duration // session timeout of the consumer group
	members        []member
	numbers        map[string]int64 // version of the last request of each key
	revokedCalls   atomic.Int64     // number of calls that were in flight when their partition was revoked
	losses         atomic.Int64     // number of group sessions that members lost
	cutOff         int
}

type member struct {
	stop  func()
	cable *cuttableDialer
}

func newChurn(t *testing.T, lane schemas.Lane, broker, cuts bool) *churn {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := &churn{
		lane: lane, broker: broker, cuts: cuts, rng: rand.New(rand.NewPCG(seed, 0)), inFlight: 16, revokeTimeout: waitTimeout, sessionTimeout: 15 * time.Second,
		slowUpstream: slowUpstream{calls: map[string]int{}, min: 20 * time.Millisecond, max: 600 * time.Millisecond}, numbers: map[string]int64{},
	}
	if cuts {
		s.sessionTimeout = 1500 * time.Millisecond
	}
	s.rig = newRig(t, kfake.GroupMinSessionTimeout(s.sessionTimeout), kfake.BrokerConfigs(map[string]string{
		"group.consumer.heartbeat.interval.ms": "200",
		"group.consumer.session.timeout.ms":    strconv.FormatInt(s.sessionTimeout.Milliseconds(), 10),
	}))
	s.upstreamOf(s.ServeHTTP)
	return s
}

func (s *churn) join() {
	s.Helper()
	deps := s.deps()
	m := member{cable: &cuttableDialer{}}
	deps.Kafka = func(string) []kgo.Opt {
		return append(s.brokers(), kgo.SessionTimeout(s.sessionTimeout), kgo.HeartbeatInterval(200*time.Millisecond),
			kgo.RebalanceTimeout(5*time.Second), kgo.Dialer(m.cable.dial)) // a join that the broker leaves unanswered must time out before the test does
	}
	deps.Log = slog.New(lossCounter{deps.Log.Handler(), &s.revokedCalls, &s.losses})
	c := consumer.DefaultConfig(s.lane)
	c.MaxInFlight, c.DrainTimeout, c.ServerSideAssignment = s.inFlight, waitTimeout, s.broker
	w, err := consumer.New(c, s.source, s.lane, deps)
	if err != nil {
		s.Fatal(err)
	}
	w.SetRevokeTimeout(s.revokeTimeout)
	m.stop = s.run(func(ctx context.Context) error {
		err := w.Run(ctx)
		if errors.Is(err, kerr.UnknownMemberID) { // the short session expired before the last commit; another member reads the records again
			err = nil
		}
		return err
	})
	s.members = append(s.members, m)
}

// leave stops a random member, which leaves the group cleanly. The returned channel is closed when
// the member has stopped.
func (s *churn) leave() (left <-chan struct{}) {
	i := s.rng.IntN(len(s.members))
	m := s.members[i]
	m.cable.set(false)
	s.members = append(s.members[:i], s.members[i+1:]...)
	done := make(chan struct{})
	go func() { defer close(done); m.stop() }()
	return done
}

// enqueueSome requests new entities, and some earlier entities again.
func (s *churn) enqueueSome() {
	s.Helper()
	requests := map[string]producer.Request{}
	for range 20 {
		key := fmt.Sprint("k", len(s.numbers)+len(requests))
		requests[key] = producer.Request{Entity: entity(key), Lane: s.lane, Reason: schemas.CacheMiss}
	}
	for key := range s.numbers {
		if len(requests) < 25 {
			requests[key] = producer.Request{Entity: entity(key), Lane: s.lane, Reason: schemas.Trigger}
		}
	}
	for key, request := range requests {
		switch result := s.producer.Enqueue(s.Context(), request); {
		case result.Queued():
			s.numbers[key] = max(s.numbers[key], result.Number)
		case result.Outcome != producer.Pending: // Pending is no error: an earlier request of the same key is being published
			s.Fatalf("request for %s: got %+v, want it queued or pending", key, result)
		}
	}
}

// joinAndLeave lets members join and leave, and then checks that no request was lost.
func (s *churn) joinAndLeave(steps int) {
	s.Helper()
	s.join()
	for range steps {
		s.enqueueSome()
		if s.lane == schemas.Low {
			s.behind.records.Store(int64(s.rng.IntN(3) / 2 * 6000)) // in one of three steps the test reports a large HIGH backlog, so that LOW yields
		}
		before := s.n.Load()
		switch n := len(s.members); {
		case n < 2 || n < 4 && s.rng.IntN(2) == 0:
			s.join()
		case s.cuts && s.rng.IntN(3) == 0:
			s.cutOff++
			m := s.members[s.rng.IntN(n)]
			m.cable.set(true)
			time.AfterFunc(time.Duration(s.rng.IntN(4000))*time.Millisecond, func() { m.cable.set(false) })
		case s.rng.IntN(3) == 0:
			<-s.leave()
		default:
			s.leave()
		}
		if some := before + int64(s.rng.IntN(20)); s.behind.records.Load() == 0 {
			s.until("some calls", func() bool { return s.n.Load() >= some || s.lag(s.lane) == 0 })
		}
	}
	s.behind.records.Store(0)
	s.until("the commit of everything", func() bool { return s.lag(s.lane) == 0 })
	for key, number := range s.numbers {
		if snap, ok := s.snapshot(key); !ok || snap.Version < number {
			s.Errorf("%s: got snapshot number %d, want at least %d", key, snap.Version, number)
		}
	}
	calls, requests := s.n.Load(), s.produced(s.lane)
	// A member notices late that it lost its session. Until then it processes the records that it
	// has read, and the next owner processes them again. The test allows these repeated calls.
	most := s.revokedCalls.Load() + s.losses.Load()*int64(s.inFlight+256)
	s.Logf("%d calls for %d requests for %d entities; %d in flight at a revocation, %d times cut off, %d sessions lost",
		calls, requests, len(s.numbers), s.revokedCalls.Load(), s.cutOff, s.losses.Load())
	if calls > requests+most {
		s.Errorf("calls: got %d, want at most %d", calls, requests+most)
	}
	if n := len(s.deadLetters()); n > 0 {
		s.Errorf("dead letters: got %d, want 0", n)
	}
}

func TestChurn_MembersJoinAndLeave(t *testing.T) {
	t.Parallel()
	for _, broker := range []bool{false, true} {
		t.Run(map[bool]string{false: "classic", true: "consumer"}[broker], func(t *testing.T) {
			t.Parallel() // this test mostly waits for rebalances, so it can run beside others
			t.Run("in order, with LOW yielding now and then", func(t *testing.T) {
				newChurn(t, schemas.Low, broker, false).joinAndLeave(3)
			})
			t.Run("answers take longer than a revocation waits", func(t *testing.T) {
				s := newChurn(t, schemas.High, broker, false)
				s.revokeTimeout = 100 * time.Millisecond
				s.joinAndLeave(3)
			})
			t.Run("and some are cut off from Kafka", func(t *testing.T) {
				newChurn(t, schemas.High, broker, true).joinAndLeave(3)
			})
		})
	}
}
