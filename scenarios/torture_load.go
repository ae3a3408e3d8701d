package main

import (
	"context"
	"crypto/rand"
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
	tortureLimit   = 150
	readRate       = 60
	refreshRate    = 10
	torturedLow    = 50
	tortureKeys    = 2000
	refreshedKeys  = 300 // that readers insist on
	hotKeys        = 60
	oddKeys        = 6 // of each kind that does not become fresh
	changeEvery    = 4 * time.Second
	changePercent  = 40
	tortureHands   = 64
	answerPatience = 5 * time.Second
)

// promise is a refresh that a reader was told is certain.
type promise struct {
	key, query string
	asked      time.Time // before it was sent: the fetch must begin after it
}

// load does what clients do, and remembers what they were promised.
type load struct {
	s        *site
	cast     []*actor
	client   *http.Client
	kafka    *kgo.Client
	cancel   context.CancelFunc
	hands    sync.WaitGroup
	mu       sync.Mutex
	insisted []promise          // answered 202
	told     map[string]promise // the last read of each key that said updateQueued
	changes  []time.Time        // when each change of the contents had been made
	err      error              // of a change: nobody knows then what there is
	reads    atomic.Int64
	unheard  atomic.Int64 // no answer, or a 5xx
	low      atomic.Int64 // acknowledged
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
		return fmt.Sprint("absent", rng.IntN(oddKeys))
	case n < 99:
		return fmt.Sprint("refused", rng.IntN(oddKeys))
	default:
		return fmt.Sprint("broken", rng.IntN(oddKeys))
	}
}

// load begins, on the same way to Kafka as everybody outside: it fails only with the broker.
func (s *site) load(ctx context.Context, seed uint64, cast []*actor) (*load, error) {
	kafka, err := kgo.NewClient(kgo.SeedBrokers(s.broker), kgo.RecordDeliveryTimeout(answerPatience))
	if err != nil {
		return nil, err
	}
	l := &load{
		s: s, kafka: kafka, told: map[string]promise{},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: tortureHands}, Timeout: answerPatience},
	}
	for _, a := range cast {
		if a.role == "query" {
			l.cast = append(l.cast, a)
		}
	}
	ctx, l.cancel = context.WithCancel(ctx)
	jobs := make(chan func(), tortureHands)
	for range tortureHands {
		l.hands.Go(func() {
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
		l.hands.Go(func() {
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
			l.unheard.Add(1)
		}
	}
	every(time.Second/readRate, 1, func(rng *mathrand.Rand) {
		a, key := l.cast[rng.IntN(len(l.cast))], keyOf(rng)
		hand(func() { l.read(ctx, a, key) })
	})
	every(time.Second/refreshRate, 2, func(rng *mathrand.Rand) {
		a, key := l.cast[rng.IntN(len(l.cast))], fmt.Sprint("k", rng.IntN(refreshedKeys))
		hand(func() { l.refresh(ctx, a, key) })
	})
	every(time.Second/torturedLow, 3, func(rng *mathrand.Rand) {
		r := schemas.UpdateRequest{
			EventID: rand.Text(), Entity: schemas.Entity{Source: s.source, Facet: facet, Key: fmt.Sprint("k", rng.IntN(tortureKeys))},
			Lane: schemas.Low, Reason: schemas.Prefetch, RequestedAt: time.Now(), CorrelationID: strings.ToLower(rand.Text()),
		}
		if rng.IntN(10) > 0 { // the others are as records of v1.1 are
			r.Version = r.RequestedAt.UnixMilli() // as it would be issued at this moment
		}
		value, err := r.Encode()
		record := &kgo.Record{Topic: schemas.RequestTopic(s.source, schemas.Low), Key: r.RecordKey(), Value: value}
		if poison := rng.IntN(10*torturedLow) == 0; poison || err != nil {
			record.Value = []byte("no request")
		}
		l.publish(ctx, record)
	})
	every(changeEvery, 4, func(*mathrand.Rand) { l.change(ctx) })
	return l, nil
}

// stop returns when the last has been answered.
func (l *load) stop() {
	l.cancel()
	l.hands.Wait()
	_ = l.kafka.Flush(context.Background()) // each record ends in answerPatience
	l.kafka.Close()
}

// call asks a query process.
func (l *load) call(ctx context.Context, a *actor, method, path string) (status int, queued bool) {
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), method, fmt.Sprint("http://", a.address, "/v1/", l.s.source, "/", facet, "/", path), http.NoBody)
	if err != nil {
		return 0, false
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return 0, false
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, false
	}
	var body struct {
		UpdateQueued bool `json:"updateQueued"`
	}
	_ = json.Unmarshal(text, &body)
	return resp.StatusCode, body.UpdateQueued
}

func (l *load) read(ctx context.Context, a *actor, key string) {
	p := promise{key, a.name, time.Now()}
	status, queued := l.call(ctx, a, http.MethodGet, key)
	l.reads.Add(1)
	if status == 0 || status >= http.StatusInternalServerError {
		l.unheard.Add(1)
	}
	if queued {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.told[key] = p
	}
}

func (l *load) refresh(ctx context.Context, a *actor, key string) bool {
	p := promise{key, a.name, time.Now()}
	if status, queued := l.call(ctx, a, http.MethodPost, key+"/refresh"); status != http.StatusAccepted || !queued {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.insisted = append(l.insisted, p)
	return true
}

// publish asks in the LOW lane as a scheduler does, or sends what is no request. It does
// not wait: no reader shall have to leave because the broker is away.
func (l *load) publish(ctx context.Context, record *kgo.Record) {
	l.kafka.TryProduce(context.WithoutCancel(ctx), record, func(_ *kgo.Record, err error) {
		if err == nil {
			l.low.Add(1)
		}
	})
}

// change has a part of all entities be something else from now on.
func (l *load) change(ctx context.Context) {
	err := l.s.control(context.WithoutCancel(ctx), simulator.Control{ChangePercent: changePercent})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.Join(l.err, err)
	l.changes = append(l.changes, time.Now())
}
