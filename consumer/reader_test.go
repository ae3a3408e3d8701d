package consumer_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// kindUpstream chooses the kind of its response by the key: a key that begins with the name of a
// kind gets a response of that kind. If the field "all" names a kind, every key gets a response of
// the kind in "all".
type kindUpstream struct {
	calls atomic.Int64
	all   atomic.Value // a string: the kind of response for all keys
	share atomic.Int64 // percentage of the calls that get the kind in all
}

func (a *kindUpstream) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a.calls.Add(1)
	key := req.URL.Query().Get("ocid")
	if all, _ := a.all.Load().(string); all != "" && rand.Int64N(100) < a.share.Load() {
		key = all
	}
	switch kind, _, _ := strings.Cut(key, "-"); kind {
	case "400", "401", "429", "500":
		status := 0
		_, _ = fmt.Sscan(kind, &status)
		w.WriteHeader(status)
	case "html":
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, "<html>busy</html>")
	case "page": // a rule of the source classifies this page as class quota
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, "<html>too many requests</html>")
	case "broken":
		_, _ = fmt.Fprint(w, `{"character_name":`)
	case "large":
		_, _ = w.Write(largeBody())
	case "reset":
		panic(http.ErrAbortHandler)
	default:
		_, _ = fmt.Fprintf(w, `{"character_name":%q}`, key)
	}
}

// largeBody returns a valid body that is larger than the MaxBody of the source in the test.
var largeBody = sync.OnceValue(func() []byte { return []byte(`{"x":"` + strings.Repeat("x", 2<<20) + `"}`) })

func (r *rig) newKindUpstream() *kindUpstream {
	r.Helper()
	a := &kindUpstream{}
	a.share.Store(100)
	r.upstreamOf(a.ServeHTTP, func(c *source.Config) {
		c.Rules = append([]source.Rule{{ContentType: "text/html", Text: "too many", Class: source.Quota, Wait: time.Minute}}, c.Rules...)
	})
	return a
}

// countingPermits counts how often the worker pauses the source or opens its breaker.
type countingPermits struct {
	permits
	stops *atomic.Int64
}

func (b countingPermits) BackOff(d time.Duration, sent time.Time) {
	b.stops.Add(1)
	b.permits.BackOff(d, sent)
}

func (b countingPermits) OpenBreaker(first, most time.Duration, sent time.Time) {
	b.stops.Add(1)
	b.permits.OpenBreaker(first, most, sent)
}

func kinds(n int, kinds ...string) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", kinds[i%len(kinds)], i)
	}
	return keys
}

func TestHostileReader_OpensNoBreaker(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string][]string{
		"300 made-up keys":      kinds(300, "400"),
		"one refused":           kinds(1, "401"),
		"40 refused":            kinds(40, "401"),
		"one over its quota":    kinds(1, "429"),
		"40 over their quota":   kinds(40, "429"),
		"one page":              kinds(1, "html"),
		"40 pages":              kinds(40, "html"),
		"40 pages by a rule":    kinds(40, "page"),
		"40 that fail":          kinds(40, "500"),
		"200 keys of all kinds": kinds(200, "400", "401", "429", "html", "page", "broken", "large", "reset", "500"),
		"one of each, for ever": kinds(9, "400", "401", "429", "html", "page", "broken", "large", "reset", "500"),
		"three refused":         kinds(3, "401"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.newKindUpstream()
			p := countingPermits{permits{r.limiter}, new(atomic.Int64)}
			r.run(r.worker(consumer.DefaultConfig(schemas.High), r.db, p).Run)
			known := keysOf("known", 5)
			r.enqueueAll(known, schemas.High, schemas.CacheMiss)
			r.untilStored(known...)
			for from := 0; from < len(bad); from += 100 {
				r.enqueueAll(bad[from:min(from+100, len(bad))], schemas.High, schemas.CacheMiss)
				honest := keysOf(fmt.Sprint("honest", from, "-"), 5) // keys of an honest client, requested while the hostile requests are processed
				r.enqueueAll(honest, schemas.High, schemas.CacheMiss)
				r.untilStored(honest...)
			}
			honest := keysOf("honest-after", 5)
			r.enqueueAll(honest, schemas.High, schemas.CacheMiss)
			r.untilStored(honest...)
			r.untilCommitted(schemas.High)
			for _, key := range bad {
				if s := r.status(key); s.State == "" {
					t.Fatalf("%s: got neither a snapshot nor a failure, want one of them", key)
				}
			}
			if n := p.stops.Load(); n != 0 || r.limiter.BreakerOpenSince(time.Now().Add(-time.Hour)) {
				t.Errorf("stops: got %d, want 0", n)
			}
		})
	}
}

func TestHostileReader_EntityFailsAfterThreeOwnFailures(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"400", "401", "429", "html", "page"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			a := r.newKindUpstream()
			r.work(schemas.High)
			r.enqueueAll(keysOf("known", 5), schemas.High, schemas.CacheMiss)
			r.untilStored(keysOf("known", 5)...)
			key := kind + "-a"
			r.enqueue(key, schemas.High, schemas.CacheMiss)
			r.untilCommitted(schemas.High)
			a.all.Store("500") // now all entities fail, so the next failure of the key is attributed to the source and not counted
			r.enqueue("x", schemas.High, schemas.CacheMiss)
			r.until("an open breaker", func() bool { return r.limiter.BreakerOpenSince(time.Now()) })
			r.enqueue(key, schemas.High, schemas.Retry)
			a.all.Store("")
			r.untilCommitted(schemas.High)
			r.enqueue(key, schemas.High, schemas.Retry)
			r.untilCommitted(schemas.High)
			s := r.status(key)
			if l := r.deadLetters(); s.State != store.Failed || len(l) == 0 {
				t.Fatalf("got %+v and %d dead letters, want FAILED", s, len(l))
			}
		})
	}
}

func TestOutage_IsDetectedWithin35Calls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind  string
		known int
		want  int64
	}{{"500", 30, 35}, {"html", 30, 35}, {"401", 30, 35}, {"400", 30, 35}, {"reset", 30, 35}, {"broken", 2, 35}, {"500", 0, 35}, {"html", 0, 35}, {"401", 0, 35}} {
		t.Run(fmt.Sprint(c.kind, " with ", c.known, " known-good"), func(t *testing.T) {
			r := newRig(t)
			a := r.newKindUpstream()
			reg := prometheus.NewRegistry()
			deps := r.deps()
			deps.Metrics = reg
			w, err := consumer.New(consumer.DefaultConfig(schemas.High), r.source, schemas.High, deps)
			if err != nil {
				t.Fatal(err)
			}
			r.run(w.Run)
			known := keysOf("known", c.known)
			if c.known > 0 {
				r.enqueueAll(known, schemas.High, schemas.CacheMiss)
				r.untilStored(known...)
			}
			a.all.Store(c.kind)
			before := a.calls.Load()
			var keys []string
			for n := 0; !r.limiter.BreakerOpenSince(time.Now()) && n < 40; n++ { // enqueue a new entity in each round, until the breaker opens
				keys = append(keys, fmt.Sprint("k", n))
				r.enqueue(keys[n], schemas.High, schemas.CacheMiss)
				r.until("its end", func() bool { return r.lag(schemas.High) == 0 || r.limiter.BreakerOpenSince(time.Now()) })
			}
			if n := a.calls.Load() - before; !r.limiter.BreakerOpenSince(time.Now()) || n > c.want {
				t.Fatalf("calls until the breaker opened: got %d, want at most %d", n, c.want)
			}
			t.Logf("found after %d calls", a.calls.Load()-before)
			more := keysOf("more", 40)
			r.enqueueAll(more, schemas.High, schemas.CacheMiss)
			// One record can wait for the permit of the next probe. It occupies a slot.
			r.until("free slots", func() bool { return inFlight(t, reg) <= 1 })
			a.all.Store("")
			r.untilCommitted(schemas.High)
			r.untilRefreshed(append(append(keys, more...), known...))
		})
	}
}

func inFlight(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if strings.HasSuffix(f.GetName(), "records_in_flight") {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("metric records_in_flight does not exist")
	return 0
}

func TestOutage_OfMostCallsIsDetected(t *testing.T) {
	r := newRig(t)
	a := r.newKindUpstream()
	r.work(schemas.High)
	known := keysOf("known", 30)
	r.enqueueAll(known, schemas.High, schemas.CacheMiss)
	r.untilStored(known...)
	a.share.Store(60)
	a.all.Store("500")
	for n := 0; !r.limiter.BreakerOpenSince(time.Now()); n++ {
		if n == 50 {
			t.Fatalf("outage: got none detected in %d calls, want it detected", a.calls.Load())
		}
		r.enqueueAll(keysOf(fmt.Sprint("k", n, "-"), 10), schemas.High, schemas.CacheMiss)
		r.until("their end", func() bool { return r.lag(schemas.High) == 0 || r.limiter.BreakerOpenSince(time.Now()) })
	}
	t.Logf("found after %d calls", a.calls.Load())
	if n := len(r.deadLetters()); n != 0 {
		t.Errorf("dead letters: got %d, want 0", n)
	}
}

func TestOutage_OfOneEndpointStopsOnlyIt(t *testing.T) {
	r := newRig(t)
	var broken atomic.Bool
	f := r.config.Facets["character"]
	other := f
	other.Documents = map[string]source.Document{"guild": {Path: "/guild?ocid={ocid}"}}
	r.config.Facets = map[string]source.Facet{"character": f, "guild": other}
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		if broken.Load() && strings.HasPrefix(req.URL.Path, "/guild") {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, `{"a":1}`)
	})
	r.work(schemas.High)
	guilds := func(keys []string) {
		for _, key := range keys {
			e := schemas.Entity{Source: "nexon", Facet: "guild", Key: key}
			r.producer.Enqueue(t.Context(), producer.Request{Entity: e, Lane: schemas.High, Reason: schemas.CacheMiss})
		}
		r.untilCommitted(schemas.High)
	}
	guilds(keysOf("known", 5))
	r.enqueueAll(keysOf("known", 5), schemas.High, schemas.CacheMiss)
	r.untilStored(keysOf("known", 5)...)
	broken.Store(true)
	for n := range 5 {
		guilds(keysOf(fmt.Sprint("g", n, "-"), 5))
		honest := keysOf(fmt.Sprint("k", n, "-"), 5)
		r.enqueueAll(honest, schemas.High, schemas.CacheMiss)
		r.untilStored(honest...)
	}
	if r.limiter.BreakerOpenSince(time.Now().Add(-time.Hour)) {
		t.Error("breaker of the source: got it open, want closed")
	}
	if n := len(r.deadLetters()); n != 0 {
		t.Errorf("dead letters: got %d, want 0", n)
	}
}

func TestOutage_ReplacedWorkerLosesNothing(t *testing.T) {
	r := newRig(t)
	a := r.newKindUpstream()
	stop := r.work(schemas.High)
	known, keys := keysOf("known", 5), keysOf("k", 100)
	r.enqueueAll(known, schemas.High, schemas.CacheMiss)
	r.untilStored(known...)
	a.all.Store("500")
	r.enqueueAll(keys, schemas.High, schemas.CacheMiss)
	r.until("an open breaker", func() bool { return r.limiter.BreakerOpenSince(time.Now()) })
	stop()
	r.health = consumer.NewHealth()
	r.work(schemas.High)
	a.all.Store("")
	r.untilCommitted(schemas.High)
	r.untilRefreshed(append(keys, known...))
}
