package virtual

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/store/sqlite"
)

// restartDelay is the time after which a process that ended by itself is started again.
const restartDelay = 5 * time.Second

// process is one instance of a process. An instance that was killed keeps its goroutines until they
// end by themselves, but can't use the network and the database any more.
type process struct {
	name, instance string
	gate           *gate
	stop           context.CancelFunc
	ended          chan struct{}
	// expected is true if the test has stopped or killed the process. The end of the process is then
	// no finding. world.mu guards this field.
	expected bool
}

// launch starts a process.
func (w *world) launch(name string) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.instances++
	p := &process{name: name, instance: fmt.Sprintf("%s#%d", name, w.instances), gate: &gate{}, ended: make(chan struct{})}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	w.processes[name] = p
	w.setGate(p)
	w.running.Add(1)
	w.mu.Unlock()
	go func() {
		defer w.running.Done()
		err := w.runProcess(ctx, p)
		p.stop()
		close(p.ended)
		w.mu.Lock()
		expected := p.expected
		w.mu.Unlock()
		if expected {
			return
		}
		w.say("%s ended: %v", p.instance, err)
		w.oracle.processEnded(p.name, err)
		w.restart(name, restartDelay)
	}()
}

// restart starts a process after the given time, unless the world is closed before.
func (w *world) restart(name string, after time.Duration) {
	w.mu.Lock()
	old := w.processes[name]
	w.mu.Unlock()
	time.AfterFunc(after, func() {
		w.mu.Lock()
		again := w.processes[name] == old
		w.mu.Unlock()
		if again {
			w.launch(name)
		}
	})
}

func (w *world) databaseFile() string { return filepath.Join(w.dir, "snapshots.db") }

func (w *world) runProcess(ctx context.Context, p *process) error {
	db, err := sqlite.OpenDriver(ctx, w.databaseFile(), p.gate.wrap)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	host := app.Host{Name: p.instance, Config: w.config, Store: db, Dial: w.net.dialer(p.instance), Log: w.log.With("instance", p.instance)}
	switch address, isQuery := queryAddress(p.name); {
	case isQuery:
		l, err := w.net.Listen("tcp", address)
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }()
		return host.RunQuery(ctx, l)
	case p.name[0] == 'w':
		return host.RunWorker(ctx)
	default:
		return host.RunScheduler(ctx)
	}
}

// end stops or kills a process. It waits until a stopped process has ended.
func (w *world) end(name string, kill bool) {
	w.mu.Lock()
	p := w.processes[name]
	p.expected = true
	w.mu.Unlock()
	if kill {
		w.net.kill(p.instance)
		p.gate.set(func(g *gate) { g.dead = true })
		if address, isQuery := queryAddress(name); isQuery {
			w.net.unbind(address)
		}
	}
	p.stop()
	if !kill {
		<-p.ended
	}
}

// setGate applies the faults of the database to a process. The caller holds w.mu.
func (w *world) setGate(p *process) {
	p.gate.set(func(g *gate) {
		g.failing, g.unknown, g.delay = false, false, 0
		for f := range w.active {
			if f.victim != "" && f.victim != p.name {
				continue
			}
			switch f.kind {
			case databaseFailing:
				g.failing = true
			case databaseUnknown:
				g.unknown = true
			case databaseSlow:
				g.delay = max(g.delay, f.by)
			}
		}
	})
}
