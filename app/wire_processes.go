package app

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/status"
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

// partitions returns the Kafka partitions that the workers own, by topic.
func (o *ownWorkers) partitions() map[string][]int32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string][]int32{}
	for _, w := range o.all {
		for topic, partitions := range w.Partitions() {
			all[topic] = append(all[topic], partitions...)
		}
	}
	return all
}

// reportOf returns the report of this process, which started at the given time.
func (p parts) reportOf(started time.Time) status.Process {
	return status.Process{
		Name: workerName(), Role: p.role, Version: Version(), Commit: ReadBuild().Commit, Started: started.UTC(),
		Partitions: p.workers.partitions(), InFlight: p.recordsInFlight(), LastError: p.lastError.get(),
	}
}

// recordsInFlight returns the number of records that the workers of this process work on.
func (p parts) recordsInFlight() int {
	families, err := p.registry.Gather()
	if err != nil {
		return 0 // the page then shows 0; /metrics shows the error
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != metricPrefix(p.config.Metrics.Namespace)+"records_in_flight" {
			continue
		}
		for _, m := range family.GetMetric() {
			sum += m.GetGauge().GetValue()
		}
	}
	return int(sum)
}

// callWriter returns the writer that shares the calls of a source with the query services.
func (p parts) callWriter(source string) *status.CallWriter {
	return &status.CallWriter{Redis: p.rdb, Source: source, Process: workerName(), Log: p.log}
}

// processes and calls read what all processes share, for the console.
func (p parts) processes(ctx context.Context) (status.Processes, error) {
	return status.ReadProcesses(ctx, p.rdb)
}

func (p parts) calls(ctx context.Context) (status.Calls, error) {
	return status.ReadCalls(ctx, p.rdb, p.sourceNames())
}
