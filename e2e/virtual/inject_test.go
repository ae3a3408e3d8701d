package virtual

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// inject runs the plan until ctx ends.
func (w *world) inject(ctx context.Context, plan []fault) {
	for i := range plan {
		f := &plan[i]
		if !pause(ctx, time.Until(w.start.Add(f.at))) {
			return
		}
		w.say("begins: %s", f)
		w.begin(f)
		if f.lasts == 0 || f.kind == killed || f.kind == stopped {
			continue
		}
		time.AfterFunc(f.lasts, func() { w.finish(f) })
	}
}

// begin starts a fault. If the fault kills or stops a process, the process starts again when the fault
// ends.
func (w *world) begin(f *fault) {
	w.mu.Lock()
	w.lastFault = time.Now().Add(f.lasts)
	w.mu.Unlock()
	switch f.kind {
	case killed, stopped:
		w.end(f.victim, f.kind == killed)
		w.restart(f.victim, max(f.lasts, time.Second))
	case redisEmptied:
		w.redis.FlushAll()
	case redisClock:
		w.mu.Lock()
		w.skew = f.by
		w.mu.Unlock()
	default:
		w.set(f, true)
	}
}

// finish ends a fault that has a duration.
func (w *world) finish(f *fault) {
	w.say("ends: %s", f.kind)
	w.set(f, false)
}

// set adds a fault to the active faults if `on` is true, and removes it otherwise. Then it applies
// the active faults.
func (w *world) set(f *fault, on bool) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	if on {
		w.active[f] = true
	} else {
		delete(w.active, f)
		w.lastFault = time.Now()
	}
	err := w.setUpstream()
	for _, p := range w.processes {
		w.setGate(p)
	}
	links := w.links()
	w.setKafka()
	if w.readers != nil {
		w.readers.storm.Store(w.isActive(readBurst))
	}
	w.mu.Unlock()
	if err != nil {
		panic(err) // the plan is invalid
	}
	w.net.apply(links)
}

// isActive reports whether a fault of a kind is active. The caller holds w.mu.
func (w *world) isActive(kind string) bool {
	for f := range w.active {
		if f.kind == kind {
			return true
		}
	}
	return false
}

// links returns the faults of the network. The caller holds w.mu.
func (w *world) links() linkFaults {
	all := linkFaults{refused: map[link]bool{}, stalled: map[link]bool{}}
	for f := range w.active {
		switch f.kind {
		case redisCut:
			all.refused[link{f.victim, redisAddress}] = true
		case kafkaCut:
			all.refused[link{f.victim, kafkaAddress}] = true
		case upstreamCut:
			all.refused[link{f.victim, upstreamAddress}] = true
		case redisStalled:
			all.stalled[link{f.victim, redisAddress}] = true
		case kafkaStalled:
			all.stalled[link{f.victim, kafkaAddress}] = true
		}
	}
	return all
}

// setKafka installs the active faults of the broker. The broker rejects every fourth request, so that
// clients sometimes succeed. The caller holds w.mu.
func (w *world) setKafka() {
	for _, h := range w.kafkaFaults {
		h.Remove()
	}
	w.kafkaFaults = nil
	every := func(n int) func(kmsg.Request) bool {
		count := 0
		return func(kmsg.Request) bool {
			count++
			return count%n == 0
		}
	}
	add := func(err *kerr.Error, keys ...kmsg.Key) {
		w.kafkaFaults = append(w.kafkaFaults, w.kafka.Fault(kfake.Fault{Keys: keys, Err: err, Count: -1, When: every(4)}))
	}
	if w.isActive(kafkaErrors) {
		add(kerr.NotCoordinator, kmsg.OffsetCommit, kmsg.Heartbeat, kmsg.JoinGroup, kmsg.SyncGroup)
		add(kerr.CoordinatorLoadInProgress, kmsg.OffsetFetch)
	}
	if w.isActive(kafkaTimeouts) {
		add(kerr.RequestTimedOut, kmsg.Produce)
	}
}
