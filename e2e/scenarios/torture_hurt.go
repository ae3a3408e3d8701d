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

// actor is a role that is played by one process after the other, each over ways of its
// own, so that one can be hurt alone.
type actor struct {
	target          // its address is where a query process answers
	env             []string
	kafka           *harness.SlowKafka
	redis, database *harness.Proxy
	mu              sync.Mutex // held by who hurts it, or starts it again
	entered         time.Time
	missed          []fall // starts that came to nothing
}

// cast starts who is tortured.
func (s *site) cast(ctx context.Context) (all []*actor, err error) {
	for _, name := range processes {
		a := &actor{target: target{name: name, role: "worker"}}
		if slices.Contains(queries, name) {
			port, err := s.FreePort(ctx) // the same after each restart
			if err != nil {
				return nil, err
			}
			a.target = target{name: name, role: "query", address: net.JoinHostPort("127.0.0.1", port)}
		}
		if a.kafka, err = harness.NewSlowKafka(ctx, s.Broker); err != nil {
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
		if err := s.enter(ctx, a); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// enter starts a process of a role, as often as it takes while something else is hurt.
func (s *site) enter(ctx context.Context, a *actor) error {
	args := []string{a.role, "--ops-listen", "127.0.0.1:0"}
	if a.role == "query" {
		args = append(args, "--listen", a.address)
	}
	for began := time.Now(); ; {
		from := time.Now()
		_, err := s.Start(ctx, a.name, harness.Ready(a.role), a.env, args...)
		if err == nil || time.Since(began) > 2*harness.Timeout {
			a.entered = time.Now()
			return err
		}
		a.missed = append(a.missed, fall{who: a.name, from: from, at: time.Now()})
		s.Latest(a.name).Kill()
		if err := harness.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// torturer does what a plan says.
type torturer struct {
	s    *site
	cast []*actor
	mu   sync.Mutex
	done []doneHurt
	slow []string // those that did not end when they were told to
	fell []fall   // those that ended by themselves
	// A replica of the Redis, the way on which it follows, and how many bytes of writes
	// each failover forgot.
	replica *harness.Process
	link    *harness.Proxy
	forgot  []int
}

// doneHurt is a fault that was done. Its traces may last for a while after its end.
type doneHurt struct {
	hurt
	began, ended time.Time
}

// strike does one or two faults, to their ends. A process is hurt in the midst of the
// other, when it has work that waits for what is away.
func (t *torturer) strike(ctx context.Context, s strike) error {
	errs := make([]error, len(s.hurts))
	var all sync.WaitGroup
	for i, h := range s.hurts {
		all.Go(func() {
			if h.part == "process" && len(s.hurts) > 1 {
				if errs[i] = harness.Pause(ctx, s.hurts[1-i].length*3/4); errs[i] != nil {
					return
				}
			}
			began := time.Now()
			if err := t.hurt(ctx, h); err != nil {
				errs[i] = fmt.Errorf("%v: %w", h, err)
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.done = append(t.done, doneHurt{h, began, time.Now()})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// met are those whom a fault meets.
func (t *torturer) met(h hurt) (all []*actor) {
	for _, a := range t.cast {
		if h.victim == everyone || h.victim == a.name {
			all = append(all, a)
		}
	}
	return all
}

// hurt does a fault, waits, and ends it.
func (t *torturer) hurt(ctx context.Context, h hurt) error {
	switch h.part {
	case "process":
		return t.hurtProcess(ctx, h)
	case "upstream":
		return t.hurtUpstream(ctx, h)
	}
	if redis, ok := strings.CutPrefix(h.name, "Redis "); ok && !strings.HasPrefix(redis, "cut") && !strings.HasPrefix(redis, "stalled") {
		return t.hurtRedis(ctx, h)
	}
	if strings.HasPrefix(h.name, "broker ") {
		return t.hurtBroker(ctx, h)
	}
	if h.name == "tables locked" {
		return t.lock(ctx, h.length)
	}
	for _, a := range t.met(h) {
		way := map[string]*harness.Proxy{"redis": a.redis, "database": a.database, "kafka": a.kafka.Proxy}[h.part]
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

func (t *torturer) hurtProcess(ctx context.Context, h hurt) error {
	a := t.met(h)[0]
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := t.fallen(ctx, a); err != nil {
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
			t.slow = append(t.slow, a.name)
			t.mu.Unlock()
		}
	default:
		return p.FreezeFor(ctx, h.length)
	}
	if err := harness.Pause(ctx, h.length); err != nil {
		return err
	}
	return t.s.enter(ctx, a)
}

// fallen starts a process again that has ended though nobody told it to.
func (t *torturer) fallen(ctx context.Context, a *actor) error {
	select {
	case <-t.s.Latest(a.name).Done:
	default:
		return nil
	}
	f := fall{who: a.name, from: a.entered, at: time.Now()}
	err := t.s.enter(ctx, a)
	f.back = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fell = append(t.fell, f)
	return err
}

// lookAfter is how often it is looked who has ended.
const lookAfter = 500 * time.Millisecond

// tend looks after the processes until ctx ends.
func (t *torturer) tend(ctx context.Context) error {
	for harness.Pause(ctx, lookAfter) == nil {
		for _, a := range t.cast {
			if !a.mu.TryLock() {
				continue // it is hurt
			}
			err := t.fallen(context.WithoutCancel(ctx), a)
			a.mu.Unlock()
			if err != nil {
				return fmt.Errorf("%s does not start again: %w", a.name, err)
			}
		}
	}
	return nil
}

// lock keeps everybody from the tables that are written to.
func (t *torturer) lock(ctx context.Context, length time.Duration) error {
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

// lasting are the upstream's faults of the whole run.
func lasting() []simulator.Fault {
	return []simulator.Fault{{Key: "^refused", Kind: simulator.BadParameter}, {Key: "^broken", Kind: simulator.InternalError}}
}

// usual is the latency of the upstream's answers when it is well: so long that a fault
// finds many calls under way.
var usual = simulator.Range{Min: 100 * time.Millisecond, Max: 1500 * time.Millisecond}

func (t *torturer) hurtUpstream(ctx context.Context, h hurt) error {
	half := 50.0
	f := map[string]simulator.Fault{
		"500":                       {Kind: simulator.InternalError},
		"a reset of half the calls": {Kind: simulator.Reset, Percent: &half},
		"hangs":                     {Kind: simulator.Hang},
		"429 with Retry-After":      {Kind: simulator.TooManyRequests, RetryAfter: "2"},
	}
	ill, well := simulator.Control{Faults: lasting()}, simulator.Control{Faults: lasting(), Latency: &usual}
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

// doubtful says whether a promise of a query process in this span of time may have been
// lost with its buffer: the process died, or could not reach Kafka. A record is given up
// after ten seconds, and with it all that its partition's buffer holds behind it: also
// what came when Kafka was back, and the client not yet. long: Kafka was away for about
// so long, with what it takes to come back, and all may have been given up.
func (t *torturer) doubtful(query string, from time.Time) (doubt, long bool) {
	const about, longer = 5 * time.Second, 15 * time.Second
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.done {
		ended := d.ended
		if d.part == "kafka" {
			ended = ended.Add(longer)
		}
		met := d.part == "kafka" && d.victim == everyone || d.victim == query && (d.part == "kafka" || d.name == "killed")
		if met && d.began.Before(from.Add(longer)) && ended.After(from) {
			doubt = true
			long = long || d.part == "kafka" && d.ended.Sub(d.began) > about
		}
	}
	return doubt, long
}
