package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// instance is a role that is played by one process after the other, each over ways of its
// own, so that one can be hurt alone.
type instance struct {
	target          // its address is where a query process answers
	env             []string
	kafka           *harness.KafkaProxy
	redis, database *harness.Proxy
	mu              sync.Mutex // held by who hurts it, or starts it again
	startedAt       time.Time
	failedStarts    []unplannedExit // starts that came to nothing
}

// startInstances starts who is tortured.
func (s *site) startInstances(ctx context.Context) (all []*instance, err error) {
	for _, name := range processes {
		a := &instance{target: target{name: name, role: "worker"}}
		if slices.Contains(queries, name) {
			port, err := s.FreePort(ctx) // the same after each restart
			if err != nil {
				return nil, err
			}
			a.target = target{name: name, role: "query", address: net.JoinHostPort("127.0.0.1", port)}
		}
		if a.kafka, err = harness.NewKafkaProxy(ctx, s.Broker); err != nil {
			return nil, err
		}
		s.OnClose(a.kafka.Close)
		if err := s.UseProxies(ctx); err != nil {
			return nil, err
		}
		a.redis, a.database = s.RedisProxy, s.DatabaseProxy
		if a.env, err = s.Configure(name, a.kafka.Address(), ""); err != nil {
			return nil, err
		}
		if err := s.startInstance(ctx, a); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// startInstance starts a process of a role, as often as it takes while something else is hurt.
func (s *site) startInstance(ctx context.Context, a *instance) error {
	args := []string{a.role, "--ops-listen", "127.0.0.1:0"}
	if a.role == "query" {
		args = append(args, "--listen", a.address)
	}
	for began := time.Now(); ; {
		from := time.Now()
		_, err := s.Start(ctx, a.name, harness.Ready(a.role), a.env, args...)
		if err == nil || time.Since(began) > 2*harness.Timeout {
			a.startedAt = time.Now()
			return err
		}
		a.failedStarts = append(a.failedStarts, unplannedExit{name: a.name, since: from, at: time.Now()})
		s.Latest(a.name).Kill()
		if err := harness.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// injector does what a plan says.
type injector struct {
	s         *site
	instances []*instance
	mu        sync.Mutex
	injected  []injectedFault
	slowStops []string        // those that did not end when they were told to
	exits     []unplannedExit // those that ended by themselves
	// A replica of the Redis, the way on which it follows, and how many bytes of writes
	// each failover forgot.
	replica     *harness.Process
	replicaLink *harness.Proxy
	lostBytes   []int
}

// injectedFault is a fault that was done. Its traces may last for a while after its end.
type injectedFault struct {
	fault
	began, ended time.Time
}

// runStep does one or two faults, to their ends. A process is hurt in the midst of the
// other, when it has work that waits for what is away.
func (t *injector) runStep(ctx context.Context, s step) error {
	errs := make([]error, len(s.faults))
	var all sync.WaitGroup
	for i, h := range s.faults {
		all.Go(func() {
			if h.component == "process" && len(s.faults) > 1 {
				if errs[i] = harness.Pause(ctx, s.faults[1-i].length*3/4); errs[i] != nil {
					return
				}
			}
			began := time.Now()
			if err := t.inject(ctx, h); err != nil {
				errs[i] = fmt.Errorf("%v: %w", h, err)
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.injected = append(t.injected, injectedFault{h, began, time.Now()})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// affected are those whom a fault meets.
func (t *injector) affected(h fault) (all []*instance) {
	for _, a := range t.instances {
		if h.victim == allProcesses || h.victim == a.name {
			all = append(all, a)
		}
	}
	return all
}

// inject does a fault, waits, and ends it.
func (t *injector) inject(ctx context.Context, h fault) error {
	switch h.component {
	case "process":
		return t.injectProcessFault(ctx, h)
	case "upstream":
		return t.injectUpstreamFault(ctx, h)
	}
	if redis, ok := strings.CutPrefix(h.name, "Redis "); ok && !strings.HasPrefix(redis, "cut") && !strings.HasPrefix(redis, "stalled") {
		return t.injectRedisFault(ctx, h)
	}
	if strings.HasPrefix(h.name, "broker ") {
		return t.injectBrokerFault(ctx, h)
	}
	if h.name == "tables locked" {
		return t.lockTables(ctx, h.length)
	}
	for _, a := range t.affected(h) {
		way := map[string]*harness.Proxy{"redis": a.redis, "database": a.database, "kafka": a.kafka.Proxy}[h.component]
		switch {
		case strings.HasSuffix(h.name, " cut") && !strings.Contains(h.name, "stalled"):
			way.Refuse(true)
			way.Cut()
			defer way.Refuse(false)
		case strings.Contains(h.name, "slow"):
			way.SetDelay(700 * time.Millisecond)
			defer way.SetDelay(0)
		default:
			way.Stall(true)
			defer way.Stall(false)
			if strings.HasSuffix(h.name, "then cut") {
				defer way.Cut()
			}
		}
	}
	return harness.Pause(ctx, h.length)
}

func (t *injector) injectProcessFault(ctx context.Context, h fault) error {
	a := t.affected(h)[0]
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := t.restartExited(ctx, a); err != nil {
		return err
	}
	p := t.s.Latest(a.name)
	switch h.name {
	case "killed":
		p.Kill()
	case "told to end":
		began := time.Now()
		p.Stop()
		if took := time.Since(began); took >= harness.Timeout {
			t.mu.Lock()
			t.slowStops = append(t.slowStops, a.name)
			t.mu.Unlock()
		}
	default:
		return p.FreezeFor(ctx, h.length)
	}
	if err := harness.Pause(ctx, h.length); err != nil {
		return err
	}
	return t.s.startInstance(ctx, a)
}

// restartExited starts a process again that has ended though nobody told it to.
func (t *injector) restartExited(ctx context.Context, a *instance) error {
	select {
	case <-t.s.Latest(a.name).Done:
	default:
		return nil
	}
	f := unplannedExit{name: a.name, since: a.startedAt, at: time.Now()}
	err := t.s.startInstance(ctx, a)
	f.restartedAt = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exits = append(t.exits, f)
	return err
}

// superviseInterval is how often it is looked who has ended.
const superviseInterval = 500 * time.Millisecond

// supervise looks after the processes until ctx ends.
func (t *injector) supervise(ctx context.Context) error {
	for harness.Pause(ctx, superviseInterval) == nil {
		for _, a := range t.instances {
			if !a.mu.TryLock() {
				continue // it is hurt
			}
			err := t.restartExited(context.WithoutCancel(ctx), a)
			a.mu.Unlock()
			if err != nil {
				return fmt.Errorf("%s does not start again: %w", a.name, err)
			}
		}
	}
	return nil
}

// lockTables keeps everybody from the tables that are written to.
func (t *injector) lockTables(ctx context.Context, length time.Duration) error {
	conn, err := pgx.Connect(ctx, t.s.Database)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	limit, cancel := context.WithTimeout(ctx, harness.Timeout)
	defer cancel()
	if _, err := tx.Exec(limit, "LOCK TABLE snapshot_state, update_status IN ACCESS EXCLUSIVE MODE"); err != nil {
		return err
	}
	return harness.Pause(ctx, length)
}

// permanentFaults are the upstream's faults of the whole run.
func permanentFaults() []simulator.Fault {
	return []simulator.Fault{{Key: "^refused", Kind: simulator.BadParameter}, {Key: "^broken", Kind: simulator.InternalError}}
}

// normalLatency is the latency of the upstream's answers when it is well: so long that a fault
// finds many calls under way.
var normalLatency = simulator.Range{Min: 100 * time.Millisecond, Max: 1500 * time.Millisecond}

func (t *injector) injectUpstreamFault(ctx context.Context, h fault) error {
	half := 50.0
	f := map[string]simulator.Fault{
		"500":                       {Kind: simulator.InternalError},
		"a reset of half the calls": {Kind: simulator.Reset, Percent: &half},
		"hangs":                     {Kind: simulator.Hang},
		"429 with Retry-After":      {Kind: simulator.TooManyRequests, RetryAfter: "2"},
	}
	ill, well := simulator.Control{Faults: permanentFaults()}, simulator.Control{Faults: permanentFaults(), Latency: &normalLatency}
	if fault, ok := f[h.name]; ok {
		ill.Faults = append([]simulator.Fault{fault}, ill.Faults...)
	} else {
		ill.Latency = &simulator.Range{Min: time.Second, Max: 4 * time.Second} // some longer than is waited for
	}
	if err := t.s.Control(ctx, ill); err != nil {
		return err
	}
	err := harness.Pause(ctx, h.length)
	return errors.Join(err, t.s.Control(context.WithoutCancel(ctx), well))
}

// mayBeLost says whether a promise of a query process in this span of time may have been
// lost with its buffer: the process died, or could not reach Kafka. A record is given up
// after ten seconds, and with it all that its partition's buffer holds behind it: also
// what came when Kafka was back, and the client not yet. long: Kafka was away for about
// so long, with what it takes to come back, and all may have been given up.
func (t *injector) mayBeLost(query string, from time.Time) (doubt, long bool) {
	const about, longer = 5 * time.Second, 15 * time.Second
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.injected {
		ended := d.ended
		if d.component == "kafka" {
			ended = ended.Add(longer)
		}
		met := d.component == "kafka" && d.victim == allProcesses || d.victim == query && (d.component == "kafka" || d.name == "killed")
		if met && d.began.Before(from.Add(longer)) && ended.After(from) {
			doubt = true
			long = long || d.component == "kafka" && d.ended.Sub(d.began) > about
		}
	}
	return doubt, long
}
