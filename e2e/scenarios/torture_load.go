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

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
)

// How often in a second, and of how many. It is about as much as the upstream allows,
// so that what a fault holds up is asked for at the full rate afterwards.
const (
	tortureLimit       = 150
	readRate           = 60
	refreshRate        = 10
	tortureLowRate     = 50
	tortureKeys        = 2000
	refreshedKeys      = 300 // that readers insist on
	hotKeys            = 60
	neverFreshKeys     = 6 // of each kind that does not become fresh
	changeEvery        = 4 * time.Second
	changePercent      = 40
	tortureConcurrency = 64
	answerTimeout      = 5 * time.Second
)

// promise is a refresh that a reader was told is certain.
type promise struct {
	key, query string
	asked      time.Time // before it was sent: the fetch must begin after it
}

// queuedRead is what a reader was told beside what is stored: a refresh, unless it is lost.
type queuedRead struct {
	promise
	checked int64 // when what the reader got had been checked; 0: he got nothing
}

// servedAnswer is what readers got: contents, and when they are said to have been checked.
type servedAnswer struct {
	key     string
	checked int64
	sum     [sha256.Size]byte
}

// failedRead is a read without a good answer.
type failedRead struct {
	promise
	ended  time.Time
	status int    // 0: there was none
	reason string // why nobody fetches it, or what the client says
}

// tortureLoad does what clients do, and remembers what they were promised.
type tortureLoad struct {
	s           *site
	queries     []*instance
	client      *http.Client
	kafka       *kgo.Client
	cancel      context.CancelFunc
	running     sync.WaitGroup
	mu          sync.Mutex
	refreshes   []promise                // answered 202
	queuedReads map[string]queuedRead    // the last read of each key that said updateQueued
	served      map[servedAnswer]promise // by whom first
	notFound    []promise                // of what there is, answered 404
	failedReads []failedRead
	changes     []time.Time // when each change of the contents had been made
	err         error       // of a change: nobody knows then what there is
	reads       atomic.Int64
	skipped     atomic.Int64 // while all hands waited
	low         atomic.Int64 // acknowledged
}

// keyOf is one of those that everybody asks for, or sometimes one that never becomes
// fresh.
func keyOf(rng *mathrand.Rand) string {
	switch n := rng.IntN(100); {
	case n < 40:
		return fmt.Sprint("k", rng.IntN(hotKeys))
	case n < 96:
		return fmt.Sprint("k", rng.IntN(tortureKeys))
	case n < 98:
		return fmt.Sprint("absent", rng.IntN(neverFreshKeys))
	case n < 99:
		return fmt.Sprint("refused", rng.IntN(neverFreshKeys))
	default:
		return fmt.Sprint("broken", rng.IntN(neverFreshKeys))
	}
}

// startLoad begins, on the same way to Kafka as everybody outside: it fails only with the broker.
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
	hand := func(do func()) { // who comes while all hands wait for a process that stands still leaves again
		select {
		case jobs <- do:
		default:
			l.skipped.Add(1)
		}
	}
	// What is asked for once has no end but its own: no later one of its key hides that it
	// was lost.
	var keys atomic.Int64
	once := func(by string) string { return fmt.Sprintf("once-%s-%d", by, keys.Add(1)) }
	every(time.Second/readRate, 1, func(rng *mathrand.Rand) {
		a, key := l.queries[rng.IntN(len(l.queries))], keyOf(rng)
		switch rng.IntN(10) {
		case 0:
			key = once("read")
		case 1: // a hostile reader: the upstream answers each of its made-up keys with 400
			key = "refused-" + once("read")
		}
		hand(func() { l.read(ctx, a, key) })
	})
	every(time.Second/refreshRate, 2, func(rng *mathrand.Rand) {
		a, key := l.queries[rng.IntN(len(l.queries))], fmt.Sprint("k", rng.IntN(refreshedKeys))
		if n := rng.IntN(10); n < 3 {
			key = once("refresh")
		}
		hand(func() { l.refresh(ctx, a, key) })
	})
	every(time.Second/tortureLowRate, 3, func(rng *mathrand.Rand) {
		r := schemas.UpdateRequest{
			EventID: rand.Text(), Entity: schemas.Entity{Source: s.Source, Facet: facet, Key: fmt.Sprint("k", rng.IntN(tortureKeys))},
			Lane: schemas.Low, Reason: schemas.Prefetch, RequestedAt: time.Now(), CorrelationID: strings.ToLower(rand.Text()),
		}
		if n := rng.IntN(10); n == 0 {
			r.Key = once("low")
		}
		if rng.IntN(10) > 0 { // the others are as records of v1.1 are
			r.Version = r.RequestedAt.UnixMilli() // as it would be issued at this moment
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

// stop returns when the last has been answered.
func (l *tortureLoad) stop() {
	l.cancel()
	l.running.Wait()
	_ = l.kafka.Flush(context.Background()) // each record ends in answerPatience
	l.kafka.Close()
}

// response is what a query process answers.
type response struct {
	status   int
	Snapshot json.RawMessage
	Checked  time.Time `json:"lastCheckedAt"`
	Queued   bool      `json:"updateQueued"`
	Reason   string    `json:"notQueuedReason"`
}

// checked is when that was, in microseconds since 1970, as it is stored; 0 if never.
func (r response) checked() int64 {
	if r.Checked.IsZero() {
		return 0
	}
	return r.Checked.UnixMicro()
}

// call asks a query process, which has so much longer than answerPatience.
func (l *tortureLoad) call(ctx context.Context, a *instance, method, path string, longer time.Duration) response {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout+longer)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprint("http://", a.address, "/v1/", l.s.Source, "/", facet, "/", path), http.NoBody)
	if err != nil {
		return response{Reason: err.Error()}
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return response{Reason: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{Reason: err.Error()}
	}
	var r response
	if err := json.Unmarshal(text, &r); err != nil {
		return response{status: http.StatusInternalServerError, Reason: err.Error()} // of whatever status: it is no answer
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
	case r.status == http.StatusNotFound && !strings.HasPrefix(key, "absent"):
		l.notFound = append(l.notFound, p)
	case r.status != http.StatusAccepted && r.status != http.StatusNotFound:
		l.failedReads = append(l.failedReads, failedRead{p, time.Now(), r.status, r.Reason})
	}
	if r.Queued {
		l.queuedReads[key] = queuedRead{p, r.checked()}
	}
}

func (l *tortureLoad) refresh(ctx context.Context, a *instance, key string) bool {
	p := promise{key, a.name, time.Now()}
	if r := l.call(ctx, a, http.MethodPost, key+"/refresh", 0); r.status != http.StatusAccepted || !r.Queued {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshes = append(l.refreshes, p)
	return true
}

// publish asks in the LOW lane as a scheduler does, or sends what is no request. It does
// not wait: no reader shall have to leave because the broker is away.
func (l *tortureLoad) publish(ctx context.Context, record *kgo.Record) {
	l.kafka.TryProduce(context.WithoutCancel(ctx), record, func(_ *kgo.Record, err error) {
		if err == nil {
			l.low.Add(1)
		}
	})
}

// change has a part of all entities be something else from now on.
func (l *tortureLoad) change(ctx context.Context) {
	err := l.s.Control(context.WithoutCancel(ctx), simulator.Control{ChangePercent: changePercent})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.Join(l.err, err)
	l.changes = append(l.changes, time.Now())
}
