package app

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/webhooks"
)

// ownWorkers are the running workers of this process.
type ownWorkers struct {
	mu  sync.Mutex
	all []*consumer.Worker
}

func (o *ownWorkers) add(w *consumer.Worker) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, w)
}

// load returns the Kafka partitions that the workers own, by topic, and the number of records that they
// work on.
func (o *ownWorkers) load() consumer.Load {
	o.mu.Lock()
	defer o.mu.Unlock()
	sum := consumer.Load{Partitions: map[string][]int32{}}
	for _, w := range o.all {
		l := w.Load()
		sum.InFlight += l.InFlight
		for topic, partitions := range l.Partitions {
			sum.Partitions[topic] = append(sum.Partitions[topic], partitions...)
		}
	}
	return sum
}

// reportOf returns the report of this process, which started at the given time.
func reportOf(p parts, started time.Time) status.Process {
	load := p.workers.load()
	return status.Process{
		Name: workerName(), Role: p.role, Version: Version(), Commit: ReadBuild().Commit, Started: started.UTC(),
		Partitions: load.Partitions, InFlight: load.InFlight, LastError: p.lastError.get(),
	}
}

// newCallWriter returns the writer that shares the calls of a source with the query services.
func newCallWriter(p parts, source string) *status.CallWriter {
	return &status.CallWriter{Redis: p.rdb, Source: source, Process: workerName(), Log: p.log}
}

// cluster provides the state that all processes share to the console.
type cluster struct{ parts }

// Processes returns the running processes of all roles.
func (c cluster) Processes(ctx context.Context) (status.Processes, error) {
	return status.ReadProcesses(ctx, c.rdb)
}

// Calls returns the newest upstream calls of all processes.
func (c cluster) Calls(ctx context.Context) (status.Calls, error) {
	return status.ReadCalls(ctx, c.rdb, c.config.sourceNames())
}

// Credentials returns the states of the credentials that renew themselves.
func (c cluster) Credentials(ctx context.Context) ([]status.Credential, error) {
	for _, s := range c.config.Sources {
		if len(renewing(s)) > 0 && !c.simulated {
			return credentialStates(ctx, c.store, c.config)
		}
	}
	return nil, nil
}

// Hooks returns the counts of webhook deliveries of all query services. Each query service writes its
// counts to Redis.
func (c cluster) Hooks(ctx context.Context) (all []webhooks.Deliveries, err error) {
	for _, source := range c.config.sourceNames() {
		hooks := c.config.Sources[source].Webhooks
		if len(hooks) == 0 {
			continue
		}
		counts, err := status.ReadCounts(ctx, c.rdb, source)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(hooks)) {
			d := webhooks.Deliveries{Source: source, Name: name}
			for _, process := range counts {
				d.Add(process.Hooks[name])
			}
			all = append(all, d)
		}
	}
	return all, nil
}
