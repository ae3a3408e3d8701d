package virtual

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/simulator"
)

// maxCacheAge is the time after a read for which later reads may still return older content than that
// read.
const maxCacheAge = 35 * time.Second

// storeUnavailable is the reason of a degraded answer that was served from memory, because the
// database failed. calmAfterDatabase is the time after the last fault for which answers may still be
// served from memory: the circuit breaker of the database closes again in this time.
const (
	storeUnavailable  = "STORE_UNAVAILABLE"
	calmAfterDatabase = time.Minute
)

// agePrecision is the precision of the check time that a reader derives from a response with status
// 304.
const agePrecision = 2 * time.Second

// readers read entities through both query services. Their rate follows the time of day.
type readers struct {
	w       *world
	rng     *rand.Rand
	clients []*client.Client
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	storm   atomic.Bool
	counts  struct{ reads, failed, fresh, fallback, refreshes atomic.Int64 }

	mu   sync.Mutex
	seen map[string]seen // for each key, the newest check time that a read has returned
}

// seen has the newest check time that a read of a key has returned, and the time at which this read
// ended.
type seen struct{ checked, at time.Time }

func (w *world) startReaders() error {
	r := &readers{w: w, rng: rand.New(rand.NewPCG(w.seed, 2)), seen: map[string]seen{}}
	transport := &http.Transport{DialContext: w.net.dialer("reader")}
	for _, name := range processNames[:2] {
		address, _ := queryAddress(name)
		c, err := client.New("http://"+address, client.Options{Timeout: 10 * time.Second, MaxRetries: -1, Transport: transport})
		if err != nil {
			return err
		}
		r.clients = append(r.clients, c)
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	w.readers = r
	r.wg.Go(func() {
		defer transport.CloseIdleConnections()
		r.register(ctx)
		r.run(ctx)
	})
	return nil
}

func (r *readers) stop() {
	r.cancel()
	r.wg.Wait()
}

func key(i int) string { return fmt.Sprintf("k%d", i) }

// register registers all entities for prefetching, until a query service accepts them.
func (r *readers) register(ctx context.Context) {
	type order struct {
		Key string `json:"key"`
	}
	all := make([]order, r.w.entities)
	for i := range all {
		all[i].Key = key(i)
	}
	body := map[string]any{"source": sourceName, "facet": facetName, "entities": all}
	for i := 0; ; i++ {
		if answer, err := r.clients[i%2].Send(ctx, http.MethodPost, "/admin/v1/entities", body); err == nil && answer.Code == http.StatusOK {
			r.w.say("%d entities are registered", len(all))
			return
		}
		if !pause(ctx, time.Second) {
			return
		}
	}
}

// rate returns the number of reads per second at a time of day: few at night, many in the evening.
func (r *readers) rate(now time.Time) float64 {
	hour := now.In(seoul).Sub(time.Date(now.In(seoul).Year(), now.In(seoul).Month(), now.In(seoul).Day(), 0, 0, 0, 0, seoul)).Hours()
	rate := 0.15 - 0.12*math.Cos((hour-5)/24*2*math.Pi) // a cosine over 24 hours: lowest at 5:00, highest at 17:00
	if r.storm.Load() {
		rate += 1.5
	}
	return rate
}

func (r *readers) run(ctx context.Context) {
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	for n := 0; ; n++ {
		if !pause(ctx, time.Duration(r.rng.ExpFloat64()/r.rate(time.Now())*float64(time.Second))) {
			return
		}
		storm := r.storm.Load()
		i := int(float64(r.w.entities) * math.Pow(r.rng.Float64(), 3)) // keys with low numbers are read most often
		if storm {
			i = r.rng.IntN(r.w.entities * 3 / 2) // also keys that are not registered
		}
		c, refresh := r.clients[r.rng.IntN(2)], r.rng.IntN(40) == 0
		if n%200 == 0 {
			_ = r.w.upstream.simulator.Control(simulator.Control{ChangePercent: 20 * r.rng.Float64()})
		}
		inFlight.Go(func() { r.read(ctx, c, key(i), refresh) })
	}
}

func (r *readers) read(ctx context.Context, c *client.Client, key string, refresh bool) {
	e := client.Entity{Source: sourceName, Facet: facetName, Key: key}
	began := time.Now()
	if refresh {
		r.counts.refreshes.Add(1)
		answer, err := c.Refresh(ctx, e)
		if err == nil && answer.Refresh != nil && answer.Refresh.Queued {
			r.w.oracle.accepted(key, began)
		}
		return
	}
	answer, err := c.Get(ctx, e)
	r.counts.reads.Add(1)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			r.counts.failed.Add(1)
		}
		return
	}
	if answer.Freshness == client.Fresh {
		r.counts.fresh.Add(1)
	}
	r.judge(key, began, answer)
}

// judge adds a finding if the answer is older than the answer of a read that ended long before. An
// answer may be older only while the database is unavailable, and it must say so.
func (r *readers) judge(key string, began time.Time, answer client.Result[json.RawMessage]) {
	if answer.Degraded == storeUnavailable {
		r.counts.fallback.Add(1)
		if r.w.calm(calmAfterDatabase) {
			r.w.oracle.find("older over newer", "a read of %s at %v was served from memory without a fault", key, r.w.since(began))
		}
		return
	}
	if answer.LastCheckedAt.IsZero() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.seen[key]
	if answer.LastCheckedAt.Before(before.checked.Add(-agePrecision)) && began.Sub(before.at) > maxCacheAge {
		r.w.oracle.find("older over newer", "a read of %s at %v returned the check of %v; a read that ended at %v returned the check of %v",
			key, r.w.since(began), r.w.since(answer.LastCheckedAt), r.w.since(before.at), r.w.since(before.checked))
	}
	if answer.LastCheckedAt.After(before.checked) {
		r.seen[key] = seen{answer.LastCheckedAt, time.Now()}
	}
}

func (r *readers) String() string {
	return fmt.Sprintf("%d reads, %d fresh, %d from fallback, %d failed, %d refreshes",
		r.counts.reads.Load(), r.counts.fresh.Load(), r.counts.fallback.Load(), r.counts.failed.Load(), r.counts.refreshes.Load())
}
