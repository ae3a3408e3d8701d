package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
)

// These constants are the numbers of requests per second, and the numbers of keys, of the load. The
// load is about as large as the upstream's quota. So the backlog after a fault is processed at the
// full rate of the quota.
const (
	tortureLimit   = 150
	readRate       = 60
	refreshRate    = 10
	tortureLowRate = 50
	tortureKeys    = 2000
	refreshedKeys  = 300 // number of keys that clients refresh
	hotKeys        = 60
	// neverFreshKeys is the number of keys with each of the prefixes notfound, refused and broken.
	// The upstream has no content for these keys, so they never become fresh.
	neverFreshKeys     = 6
	changeEvery        = 4 * time.Second
	changePercent      = 40
	tortureConcurrency = 64
	answerTimeout      = 5 * time.Second
)

// promise is a request that a client sent to a query service, and that must have an effect.
type promise struct {
	key, query string
	asked      time.Time // time just before the request was sent; a fetch satisfies the request only if it begins later
}

// queuedRead is a read whose response said that an update was queued.
type queuedRead struct {
	promise
	checked int64 // lastCheckedAt of the response in microseconds; 0: no snapshot
}

// servedAnswer is a content that a reader received, with its lastCheckedAt in microseconds.
type servedAnswer struct {
	key     string
	checked int64
	sum     [sha256.Size]byte
}

// failedRead is a read with an error status or without a response.
type failedRead struct {
	promise
	ended  time.Time
	status int    // HTTP status; 0: no response
	reason string // refresh.reason in the response, or an error if there was no valid response
}

// tortureLoad sends requests like clients and a scheduler do, and records the responses.
type tortureLoad struct {
	s           *site
	queries     []*instance
	client      *http.Client
	kafka       *kgo.Client
	cancel      context.CancelFunc
	running     sync.WaitGroup
	mu          sync.Mutex
	refreshes   []promise                // refreshes answered with 202
	queuedReads map[string]queuedRead    // last read whose response reported a queued refresh, by key
	served      map[servedAnswer]promise // each content, with the first read that received it
	notFound    []promise                // reads of existing entities answered with 404
	failedReads []failedRead
	changes     []time.Time // times at which changes of the upstream's contents were complete
	err         error       // error of a change, after which the upstream's contents are unknown
	reads       atomic.Int64
	skipped     atomic.Int64 // number of reads and refreshes that were not sent, because all goroutines were busy
	low         atomic.Int64 // number of LOW records that Kafka acknowledged
}

// keyOf returns a random key: a hot key, any key, or sometimes a key that never becomes fresh.
func keyOf(rng *mathrand.Rand) string {
	switch n := rng.IntN(100); {
	case n < 40:
		return fmt.Sprint("k", rng.IntN(hotKeys))
	case n < 96:
		return fmt.Sprint("k", rng.IntN(tortureKeys))
	case n < 98:
		return fmt.Sprint("notfound", rng.IntN(neverFreshKeys))
	case n < 99:
		return fmt.Sprint("refused", rng.IntN(neverFreshKeys))
	default:
		return fmt.Sprint("broken", rng.IntN(neverFreshKeys))
	}
}

// startLoad starts the load. It publishes LOW requests directly to the broker and not through a
// proxy, so that only a fault of the broker affects them.
func (s *site) startLoad(ctx context.Context, seed uint64, cast []*instance) (*tortureLoad, error) {
	kafka, err := kgo.NewClient(kgo.SeedBrokers(s.Broker), kgo.RecordDeliveryTimeout(answerTimeout))
	if err != nil {
		return nil, err
	}
	l := &tortureLoad{
		s: s, kafka: kafka, queuedReads: map[string]queuedRead{}, served: map[servedAnswer]promise{},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: tortureConcurrency}},
	}
	for _, a := range cast {
		if a.role == "query" {
			l.queries = append(l.queries, a)
		}
	}
	ctx, l.cancel = context.WithCancel(ctx)
	jobs := make(chan func(), tortureConcurrency)
	for range tortureConcurrency {
		l.running.Go(func() {
			for {
				select {
				case do := <-jobs:
					do()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	every := func(period time.Duration, stream uint64, job func(rng *mathrand.Rand)) {
		rng := mathrand.New(mathrand.NewPCG(seed, stream))
		l.running.Go(func() {
			tick := time.NewTicker(period)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					job(rng)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	submit := func(do func()) { // submit skips the request if all goroutines wait for a response, for example of a frozen process
		select {
		case jobs <- do:
		default:
			l.skipped.Add(1)
		}
	}
	// keys is the number of keys that are requested only once so far. If the request for one of
	// these keys is lost, the loss is visible: no later request for the key hides it.
	var keys atomic.Int64
	once := func(by string) string { return fmt.Sprintf("once-%s-%d", by, keys.Add(1)) }
	every(time.Second/readRate, 1, func(rng *mathrand.Rand) {
		a, key := l.queries[rng.IntN(len(l.queries))], keyOf(rng)
		switch rng.IntN(10) {
		case 0:
			key = once("read")
		case 1: // a hostile reader, for whose keys the upstream returns 400
			key = "refused-" + once("read")
		}
		submit(func() { l.read(ctx, a, key) })
	})
	every(time.Second/refreshRate, 2, func(rng *mathrand.Rand) {
		a, key := l.queries[rng.IntN(len(l.queries))], fmt.Sprint("k", rng.IntN(refreshedKeys))
		if n := rng.IntN(10); n < 3 {
			key = once("refresh")
		}
		submit(func() { l.refresh(ctx, a, key) })
	})
	every(time.Second/tortureLowRate, 3, func(rng *mathrand.Rand) {
		r := schemas.UpdateRequest{
			EventID: rand.Text(), Entity: schemas.Entity{Source: s.Source, Facet: facet, Key: fmt.Sprint("k", rng.IntN(tortureKeys))},
			Lane: schemas.Low, Reason: schemas.Prefetch, RequestedAt: time.Now(), CorrelationID: strings.ToLower(rand.Text()),
		}
		if n := rng.IntN(10); n == 0 {
			r.Key = once("low")
		}
		if rng.IntN(10) > 0 { // nine of ten records get a version; the others have none, like records written by freshet v1.1
			r.Version = r.RequestedAt.UnixMilli() // Redis would assign this version now: its time in milliseconds
		}
		value, err := r.Encode()
		record := &kgo.Record{Topic: schemas.RequestTopic(s.Source, schemas.Low), Key: r.RecordKey(), Value: value}
		if poison := rng.IntN(10*tortureLowRate) == 0; poison || err != nil {
			record.Value = []byte("no request")
		}
		l.publish(ctx, record)
	})
	every(changeEvery, 4, func(*mathrand.Rand) { l.change(ctx) })
	return l, nil
}

// stop ends the load and returns when the last request has ended.
func (l *tortureLoad) stop() {
	l.cancel()
	l.running.Wait()
	_ = l.kafka.Flush(context.Background()) // Flush returns when Kafka has each record or its delivery has failed, after answerTimeout at the latest
	l.kafka.Close()
}

// response is the response of a query service.
type response struct {
	status   int
	Snapshot json.RawMessage
	Checked  time.Time `json:"lastCheckedAt"`
	Refresh  harness.RefreshState
}

// checked returns lastCheckedAt in microseconds since 1970, or 0 if it is missing.
func (r response) checked() int64 {
	if r.Checked.IsZero() {
		return 0
	}
	return r.Checked.UnixMicro()
}

// call sends a request to a query service. Its timeout is answerTimeout plus extra.
func (l *tortureLoad) call(ctx context.Context, a *instance, method, path string, extra time.Duration) response {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout+extra)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprint("http://", a.address, "/v1/", l.s.Source, "/", facet, "/", path), http.NoBody)
	if err != nil {
		return response{Refresh: harness.RefreshState{Reason: err.Error()}}
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return response{Refresh: harness.RefreshState{Reason: err.Error()}}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{Refresh: harness.RefreshState{Reason: err.Error()}}
	}
	var r response
	if err := json.Unmarshal(text, &r); err != nil {
		return response{status: http.StatusInternalServerError, Refresh: harness.RefreshState{Reason: err.Error()}} // a body that is not JSON counts as an error, with any status
	}
	r.status = resp.StatusCode
	return r
}

func (l *tortureLoad) read(ctx context.Context, a *instance, key string) {
	p := promise{key, a.name, time.Now()}
	r := l.call(ctx, a, http.MethodGet, key, 0)
	l.reads.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch of := (servedAnswer{key, r.checked(), sha256.Sum256(r.Snapshot)}); {
	case r.status == http.StatusOK:
		if _, known := l.served[of]; !known {
			l.served[of] = p
		}
	case r.status == http.StatusNotFound && !strings.HasPrefix(key, "notfound"):
		l.notFound = append(l.notFound, p)
	case r.status != http.StatusAccepted && r.status != http.StatusNotFound:
		l.failedReads = append(l.failedReads, failedRead{p, time.Now(), r.status, r.Refresh.Reason})
	}
	if r.Refresh.Queued {
		l.queuedReads[key] = queuedRead{p, r.checked()}
	}
}

func (l *tortureLoad) refresh(ctx context.Context, a *instance, key string) bool {
	p := promise{key, a.name, time.Now()}
	if r := l.call(ctx, a, http.MethodPost, key+"/refresh", 0); r.status != http.StatusAccepted || !r.Refresh.Queued {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshes = append(l.refreshes, p)
	return true
}

// publish publishes a LOW record and does not wait for Kafka's ack, so that an unavailable broker
// does not stop the rest of the load.
func (l *tortureLoad) publish(ctx context.Context, record *kgo.Record) {
	l.kafka.TryProduce(context.WithoutCancel(ctx), record, func(_ *kgo.Record, err error) {
		if err == nil {
			l.low.Add(1)
		}
	})
}

// change changes the contents of changePercent percent of all entities in the upstream, and records
// the time.
func (l *tortureLoad) change(ctx context.Context) {
	err := l.s.Control(context.WithoutCancel(ctx), simulator.Control{ChangePercent: changePercent})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.Join(l.err, err)
	l.changes = append(l.changes, time.Now())
}
