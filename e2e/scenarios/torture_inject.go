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

// instance is one worker or query service of a torture run. Its process is replaced after each
// kill. It has its own proxies, so that a fault can affect this instance only.
type instance struct {
	target          // for a query service, target.address is the address of its API
	env             []string
	kafka           *harness.KafkaProxy
	redis, database *harness.Proxy
	mu              sync.Mutex // held while a fault affects the process or while it is restarted
	startedAt       time.Time
	failedStarts    []unplannedExit // failed starts of the instance's process
}

// startInstances starts all workers and query services.
func (s *site) startInstances(ctx context.Context) (all []*instance, err error) {
	for _, name := range processes {
		a := &instance{target: target{name: name, role: "worker"}}
		if slices.Contains(queries, name) {
			port, err := s.FreePort(ctx) // the process gets the same port after each restart
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

// startInstance starts the process of an instance. It retries for up to a minute, because a
// start may fail while another fault is active.
func (s *site) startInstance(ctx context.Context, a *instance) error {
	args := []string{a.role, "--ops-listen", "127.0.0.1:0"}
	if a.role == "query" {
		args = append(args, "--listen", a.address)
	}
	for began := time.Now(); ; {
		since := time.Now()
		_, err := s.Start(ctx, a.name, harness.Ready(a.role), a.env, args...)
		if err == nil || time.Since(began) > 2*harness.Timeout {
			a.startedAt = time.Now()
			return err
		}
		a.failedStarts = append(a.failedStarts, unplannedExit{name: a.name, since: since, at: time.Now()})
		s.Latest(a.name).Kill()
		if err := harness.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// injector injects the faults of a plan into an installation, and records the faults.
type injector struct {
	s         *site
	instances []*instance
	mu        sync.Mutex
	injected  []injectedFault
	slowStops []string        // names of instances that did not end within harness.Timeout after SIGTERM
	exits     []unplannedExit // processes that ended although no fault killed them
	// replica is the replica of Redis, and replicaLink the proxy through which it replicates.
	// lostBytes contains the number of bytes of writes that each failover lost.
	replica     *harness.Process
	replicaLink *harness.Proxy
	lostBytes   []int
}

// injectedFault is a fault that has ended. Its effects may last longer than the fault itself.
type injectedFault struct {
	fault
	began, ended time.Time
}

// runStep injects the one or two faults of a step and returns when they have ended. If a step has
// two faults, a fault that kills or freezes a process begins after three quarters of the other
// fault's length. By then the process has work that waits for the failed component.
func (t *injector) runStep(ctx context.Context, s step) error {
	errs := make([]error, len(s.faults))
	var all sync.WaitGroup
	for i, f := range s.faults {
		all.Go(func() {
			if f.component == "process" && len(s.faults) > 1 {
				if errs[i] = harness.Pause(ctx, s.faults[1-i].length*3/4); errs[i] != nil {
					return
				}
			}
			began := time.Now()
			if err := t.inject(ctx, f); err != nil {
				errs[i] = fmt.Errorf("%v: %w", f, err)
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.injected = append(t.injected, injectedFault{f, began, time.Now()})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// affected returns the instances that a fault affects.
func (t *injector) affected(f fault) (all []*instance) {
	for _, a := range t.instances {
		if f.victim == allProcesses || f.victim == a.name {
			all = append(all, a)
		}
	}
	return all
}

// inject begins a fault, waits until the length of the fault has passed, and ends the fault.
func (t *injector) inject(ctx context.Context, f fault) error {
	switch f.component {
	case "process":
		return t.injectProcessFault(ctx, f)
	case "upstream":
		return t.injectUpstreamFault(ctx, f)
	}
	if redis, ok := strings.CutPrefix(f.name, "Redis "); ok && !strings.HasPrefix(redis, "cut") && !strings.HasPrefix(redis, "stalled") {
		return t.injectRedisFault(ctx, f)
	}
	if strings.HasPrefix(f.name, "broker ") {
		return t.injectBrokerFault(ctx, f)
	}
	if f.name == "tables locked" {
		return t.lockTables(ctx, f.length)
	}
	for _, a := range t.affected(f) {
		proxy := map[string]*harness.Proxy{"redis": a.redis, "database": a.database, "kafka": a.kafka.Proxy}[f.component]
		switch {
		case strings.HasSuffix(f.name, " cut") && !strings.Contains(f.name, "stalled"):
			proxy.Refuse(true)
			proxy.Cut()
			defer proxy.Refuse(false)
		case strings.Contains(f.name, "slow"):
			proxy.SetDelay(700 * time.Millisecond)
			defer proxy.SetDelay(0)
		default:
			proxy.Stall(true)
			defer proxy.Stall(false)
			if strings.HasSuffix(f.name, "then cut") {
				defer proxy.Cut()
			}
		}
	}
	return harness.Pause(ctx, f.length)
}

func (t *injector) injectProcessFault(ctx context.Context, f fault) error {
	a := t.affected(f)[0]
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := t.restartExited(ctx, a); err != nil {
		return err
	}
	p := t.s.Latest(a.name)
	switch f.name {
	case "killed":
		p.Kill()
	case "terminated":
		began := time.Now()
		p.Stop()
		if took := time.Since(began); took >= harness.Timeout {
			t.mu.Lock()
			t.slowStops = append(t.slowStops, a.name)
			t.mu.Unlock()
		}
	default:
		return p.FreezeFor(ctx, f.length)
	}
	if err := harness.Pause(ctx, f.length); err != nil {
		return err
	}
	return t.s.startInstance(ctx, a)
}

// restartExited restarts the process of an instance if it has ended although no fault killed it.
func (t *injector) restartExited(ctx context.Context, a *instance) error {
	select {
	case <-t.s.Latest(a.name).Done:
	default:
		return nil
	}
	exit := unplannedExit{name: a.name, since: a.startedAt, at: time.Now()}
	err := t.s.startInstance(ctx, a)
	exit.restartedAt = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exits = append(t.exits, exit)
	return err
}

// superviseInterval is the interval at which supervise checks whether processes have ended.
const superviseInterval = 500 * time.Millisecond

// supervise restarts ended processes until ctx ends.
func (t *injector) supervise(ctx context.Context) error {
	for harness.Pause(ctx, superviseInterval) == nil {
		for _, a := range t.instances {
			if !a.mu.TryLock() {
				continue // another goroutine injects a fault into this process, and restarts the process if the fault ends it
			}
			err := t.restartExited(context.WithoutCancel(ctx), a)
			a.mu.Unlock()
			if err != nil {
				return fmt.Errorf("restart %s: %w", a.name, err)
			}
		}
	}
	return nil
}

// lockTables locks the tables that workers write, for the given time.
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

// permanentFaults returns the faults with which the upstream responds for some keys during the
// whole run.
func permanentFaults() []simulator.Fault {
	return []simulator.Fault{{Key: "^refused", Kind: simulator.BadParameter}, {Key: "^broken", Kind: simulator.InternalError}}
}

// normalLatency is the latency of the healthy upstream. It is long enough that many calls are
// in flight when a fault begins.
var normalLatency = simulator.Range{Min: 100 * time.Millisecond, Max: 1500 * time.Millisecond}

func (t *injector) injectUpstreamFault(ctx context.Context, f fault) error {
	half := 50.0
	kinds := map[string]simulator.Fault{
		"500":                       {Kind: simulator.InternalError},
		"a reset of half the calls": {Kind: simulator.Reset, Percent: &half},
		"hangs":                     {Kind: simulator.Hang},
		"429 with Retry-After":      {Kind: simulator.TooManyRequests, RetryAfter: "2"},
	}
	faulty, healthy := simulator.Control{Faults: permanentFaults()}, simulator.Control{Faults: permanentFaults(), Latency: &normalLatency}
	if fault, ok := kinds[f.name]; ok {
		faulty.Faults = append([]simulator.Fault{fault}, faulty.Faults...)
	} else {
		faulty.Latency = &simulator.Range{Min: time.Second, Max: 4 * time.Second} // some calls take longer than the source's timeout
	}
	if err := t.s.Control(ctx, faulty); err != nil {
		return err
	}
	err := harness.Pause(ctx, f.length)
	return errors.Join(err, t.s.Control(context.WithoutCancel(ctx), healthy))
}

// mayBeLost reports whether a query service may have lost an update request that it queued at the
// time "from": it was killed with the request in its buffer, or it could not reach Kafka.
//
// After ten seconds without Kafka the producer drops a record, and with it all later records of the
// same partition in its buffer. These may include records that were queued after Kafka had
// recovered. long reports whether Kafka was unavailable for more than five seconds: all requests of
// that time may then have been lost.
func (t *injector) mayBeLost(query string, from time.Time) (lost, long bool) {
	const longOutage, aftermath = 5 * time.Second, 15 * time.Second
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.injected {
		ended := d.ended
		if d.component == "kafka" {
			ended = ended.Add(aftermath)
		}
		affected := d.component == "kafka" && d.victim == allProcesses || d.victim == query && (d.component == "kafka" || d.name == "killed")
		if affected && d.began.Before(from.Add(aftermath)) && ended.After(from) {
			lost = true
			long = long || d.component == "kafka" && d.ended.Sub(d.began) > longOutage
		}
	}
	return lost, long
}
