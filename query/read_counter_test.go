package query

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// fakeRecorder is a ReadRecorder for the facet character.
type fakeRecorder struct {
	observe func(context.Context, []ReadCount) error // nil means that RecordReads succeeds

	mu          sync.Mutex
	reads       map[string]int // number of recorded reads by key
	calls       []int          // number of entities in each call of RecordReads
	until       time.Time
	countsCalls atomic.Int64
}

func (l *fakeRecorder) Counts(source, facet string) bool {
	l.countsCalls.Add(1)
	return source == "nexon" && facet == "character"
}

func (l *fakeRecorder) RecordReads(ctx context.Context, reads []ReadCount, until time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.observe != nil {
		if err := l.observe(ctx, reads); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reads == nil {
		l.reads = map[string]int{}
	}
	for _, r := range reads {
		l.reads[r.Entity.Key] += r.Count
	}
	l.calls, l.until = append(l.calls, len(reads)), until
	return nil
}

func (l *fakeRecorder) recorded() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.reads)
}

func withRecorder(l *fakeRecorder) func(*rig) { return func(r *rig) { r.reads = l } }

func TestReadCounter_CountsReadsWithASnapshot(t *testing.T) {
	fresh := func(r *rig) { r.putSnapshot("a", time.Minute) }
	notFound := func(r *rig) { r.putSnapshot("a", time.Minute, func(s *store.Snapshot) { s.NotFound = true }) }
	answering := func(a EnqueueResult) func(*rig) {
		return func(r *rig) { r.respond = func(context.Context, UpdateRequest) EnqueueResult { return a } }
	}
	get := func(status int, path string, headers ...string) func(*rig) {
		return func(r *rig) {
			r.Helper()
			if a := r.do(http.MethodGet, "/v1/nexon/"+path, headers...); a.StatusCode != status {
				r.Errorf("GET %s: got %d %s, want %d", path, a.StatusCode, a.text, status)
			}
		}
	}
	with := func(method string, status int, path string) func(*rig) {
		return func(r *rig) {
			r.Helper()
			if a := r.do(method, "/v1/nexon/"+path); a.StatusCode != status {
				r.Errorf("%s %s: got %d %s, want %d", method, path, a.StatusCode, a.text, status)
			}
		}
	}
	// fetched returns a change of the query service of the test: each update request then stores a
	// snapshot at once, as if the upstream was fetched.
	fetched := func(change ...func(*store.Snapshot)) func(*rig) {
		change = append(change, func(s *store.Snapshot) { s.Version = 101 })
		return func(r *rig) {
			r.respond = func(context.Context, UpdateRequest) EnqueueResult {
				r.putSnapshot("a", 0, change...)
				return EnqueueResult{Queued: true, Number: 100}
			}
		}
	}
	for name, c := range map[string]struct {
		steps []func(*rig)
		want  map[string]int
	}{
		"fresh":               {[]func(*rig){fresh, get(200, "character/a"), get(200, "character/a"), with("HEAD", 200, "character/a")}, map[string]int{"a": 3}},
		"not modified":        {[]func(*rig){fresh, get(304, "character/a", "If-None-Match", "*")}, map[string]int{"a": 1}},
		"stale":               {[]func(*rig){func(r *rig) { r.putSnapshot("a", 2*time.Hour) }, get(200, "character/a")}, map[string]int{"a": 1}},
		"queued":              {[]func(*rig){get(202, "character/a"), get(202, "character/a"), get(202, "character/b")}, nil},
		"pending":             {[]func(*rig){answering(EnqueueResult{Pending: true}), get(202, "character/a")}, nil},
		"queued, then stored": {[]func(*rig){get(202, "character/a"), fresh, get(200, "character/a")}, map[string]int{"a": 1}},
		"beyond KeepFor": {[]func(*rig){
			func(r *rig) { r.putSnapshot("a", 200*time.Hour) }, get(202, "character/a"),
		}, nil},
		"settled between reads": {[]func(*rig){fresh, get(200, "character/a"), fresh, get(200, "character/a"), fresh, get(200, "character/a")}, map[string]int{"a": 3}},
		"store failure with fallback": {[]func(*rig){
			fresh, get(200, "character/a"), func(r *rig) { r.storeErr = errors.New("down"); r.settle("a", 8) }, get(200, "character/a"),
		}, map[string]int{"a": 2}},
		"several": {[]func(*rig){
			fresh, func(r *rig) {
				r.putSnapshot("broken", time.Minute, func(s *store.Snapshot) { s.Payload = []byte("?") })
			},
			func(r *rig) { r.putSnapshot("gone", time.Minute, func(s *store.Snapshot) { s.NotFound = true }) },
			get(200, "character?key=a&key=new&key=gone&key=broken&key=a"), with("HEAD", 200, "character?key=a"),
		}, map[string]int{"a": 3}},
		"deleted": {[]func(*rig){fresh, get(200, "character/a"), func(r *rig) { r.settle("a", 0) }}, nil},
		"deleted and fetched again": {[]func(*rig){
			fresh, get(200, "character/a"), get(200, "character/a"), func(r *rig) { r.settle("a", 0) }, get(200, "character/a"),
		}, map[string]int{"a": 1}},
		"waited":                 {[]func(*rig){fetched(), get(200, "character/a?wait=20s")}, map[string]int{"a": 1}},
		"wait timed out":         {[]func(*rig){get(202, "character/a?wait=10ms")}, nil},
		"waited, not found":      {[]func(*rig){fetched(func(s *store.Snapshot) { s.NotFound = true }), get(404, "character/a?wait=20s")}, nil},
		"refreshed":              {[]func(*rig){fresh, with("POST", 202, "character/a/refresh")}, nil},
		"refreshed and waited":   {[]func(*rig){fresh, fetched(), with("POST", 200, "character/a/refresh?wait=20s")}, map[string]int{"a": 1}},
		"refresh wait timed out": {[]func(*rig){fresh, with("POST", 202, "character/a/refresh?wait=10ms")}, nil},
		"refreshed, not found": {[]func(*rig){
			fetched(func(s *store.Snapshot) { s.NotFound = true }), with("POST", 404, "character/a/refresh?wait=20s"),
		}, nil},
		"refresh not queued": {[]func(*rig){
			fresh, answering(EnqueueResult{Reason: ReasonCooldown}), with("POST", 429, "character/a/refresh"),
			answering(EnqueueResult{Reason: ReasonDown}), with("POST", 503, "character/a/refresh?wait=20s"),
		}, nil},
		"notfound":                        {[]func(*rig){notFound, get(404, "character/a"), get(404, "character/a")}, nil},
		"not found and held":              {[]func(*rig){answering(EnqueueResult{Reason: "HELD_NOT_FOUND"}), get(404, "character/a"), get(200, "character?key=a")}, nil},
		"not queued":                      {[]func(*rig){answering(EnqueueResult{Reason: ReasonDown}), get(503, "character/a"), get(200, "character?key=a")}, nil},
		"not queued, held after failures": {[]func(*rig){answering(EnqueueResult{Reason: "HELD_FAILED"}), get(503, "character/a")}, nil},
		"store failure":                   {[]func(*rig){func(r *rig) { r.storeErr = errors.New("down") }, get(503, "character/a"), get(503, "character?key=a")}, nil},
		"a bad key":                       {[]func(*rig){get(400, "character/x"), get(200, "character?key=x"), with("POST", 400, "character/x/refresh")}, nil},
		"a bad wait":                      {[]func(*rig){fresh, get(400, "character/a?wait=soon")}, nil},
		"no such facet":                   {[]func(*rig){get(404, "union/a"), get(404, "union?key=a")}, nil},
		"another method":                  {[]func(*rig){fresh, with("DELETE", 405, "character/a")}, nil},
		"too many requests":               {[]func(*rig){fresh, func(r *rig) { r.exceeded["requests"] = true }, get(429, "character/a"), get(429, "character?key=a")}, nil},
		"too many outstanding":            {[]func(*rig){answering(EnqueueResult{Reason: ReasonOutstanding, Refused: &access.Refusal{Max: 5}}), get(429, "character/a"), get(200, "character?key=a")}, nil},
		"too many waiting requests":       {[]func(*rig){fresh, func(r *rig) { r.exceeded["wait"] = true }, get(429, "character/a?wait=20s")}, nil},
		"unauthorised client":             {[]func(*rig){fresh, func(r *rig) { r.refused = problem.New(http.StatusUnauthorized, problem.TokenInvalid, "No.") }, get(401, "character/a")}, nil},
		"invalid payload":                 {[]func(*rig){func(r *rig) { r.putSnapshot("a", time.Minute, func(s *store.Snapshot) { s.Payload = []byte("?") }) }, get(500, "character/a")}, nil},
		"event stream":                    {[]func(*rig){fresh, with("HEAD", 200, "character/a/events"), func(r *rig) { f := r.follow("a", ""); <-f.events; f.leave() }}, nil},
		"facet without prefetch":          {[]func(*rig){get(202, "shared/a"), get(200, "shared?key=a"), with("POST", 202, "shared/a/refresh")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := &fakeRecorder{}
			r := newRig(t, withRecorder(l))
			for _, step := range c.steps {
				step(r)
			}
			now := time.Now()
			r.server.readCounter.flush(t.Context(), now)
			if got := l.recorded(); !maps.Equal(got, c.want) {
				t.Errorf("counts: got %v, want %v", got, c.want)
			}
			sum := 0
			for _, n := range c.want {
				sum += n
			}
			if got := testutil.ToFloat64(r.server.metrics.recorded.WithLabelValues("nexon")); got != float64(sum) || (sum > 0 && !l.until.Equal(now)) {
				t.Errorf("recorded reads: got %v until %v, want %d until %v", got, l.until, sum, now)
			}
			n := len(l.calls)
			if r.server.readCounter.flush(t.Context(), now); len(l.calls) != n {
				t.Errorf("reads recorded again: got %v, want no further call", l.recorded())
			}
		})
	}
}

func TestReadCounter_IsOptional(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	r.get("a")
	r.get("b")
	r.do(http.MethodGet, "/v1/nexon/character?key=a&key=b")
	r.refresh("a")
	r.server.readCounter.run(t.Context()) // run returns at once, because there is no read counter
	if known, _ := r.server.cache.entries.GetIfPresent(entity("a")); known == nil || known.count != nil {
		t.Errorf("cached entry: got %+v, want one without a count", known)
	}
}

func TestReadCounter_SkipsUnrecordedFacets(t *testing.T) {
	l := &fakeRecorder{}
	r := newRig(t, withRecorder(l))
	for _, facet := range []string{"shared", "character"} {
		r.putSnapshot("a", time.Minute, func(s *store.Snapshot) { s.Entity.Facet = facet })
		r.do(http.MethodGet, "/v1/nexon/"+facet+"/a")
		countsCalls := l.countsCalls.Load()
		r.do(http.MethodGet, "/v1/nexon/"+facet+"/a")
		if n := l.countsCalls.Load(); n != countsCalls {
			t.Errorf("%s: Counts calls of a cached read: got %d, want 0", facet, n-countsCalls)
		}
		known, _ := r.server.cache.entries.GetIfPresent(schemas.Entity{Source: "nexon", Facet: facet, Key: "a"})
		if (known.count != nil) != (facet == "character") {
			t.Errorf("%s: got the count %v, want one only for character", facet, known.count)
		}
	}
	s := r.snapshots[entity("a")]
	without, with := newEntry(s, r.facet(), 1, nil, nil), newEntry(s, r.facet(), 1, r.server.readCounter.newCount(s.Entity), nil)
	if with.weight() != without.weight()+readCountWeight {
		t.Errorf("weight with a count: got %d, want %d", with.weight(), without.weight()+readCountWeight)
	}
	if n := len(r.server.readCounter.list); n != 1 {
		t.Errorf("pending counts: got %d, want 1", n)
	}
}

// With concurrent reads, settle messages and flushes, each read must be recorded exactly once.
func TestReadCounter_RecordsEachReadOnce(t *testing.T) {
	const readers, keys, reads = 4, 5, 500
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := &fakeRecorder{}
	r := newRig(t, withRecorder(l))
	for i := range keys {
		r.putSnapshot(fmt.Sprint(i), time.Minute)
	}
	var want [keys]atomic.Int64
	var all, beside sync.WaitGroup
	for reader := range readers {
		all.Go(func() {
			dice := rand.New(rand.NewPCG(seed, uint64(reader)))
			for range reads {
				i := dice.IntN(keys)
				target := fmt.Sprintf("/v1/nexon/character/%d", i)
				if dice.IntN(8) == 0 {
					target = fmt.Sprintf("/v1/nexon/character?key=%d", i)
				}
				rec := httptest.NewRecorder()
				r.server.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
				if rec.Code != http.StatusOK {
					t.Errorf("%s: got %d %s, want 200", target, rec.Code, rec.Body)
				}
				want[i].Add(1)
			}
		})
	}
	stop := make(chan struct{})
	for _, do := range []func(){
		func() { r.server.readCounter.flush(t.Context(), time.Now()) },
		func() { r.settle(fmt.Sprint(rand.IntN(keys)), 8) },
	} {
		beside.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					do()
				}
			}
		})
	}
	all.Wait()
	close(stop)
	beside.Wait()
	r.server.readCounter.flush(t.Context(), time.Now())
	recorded := l.recorded()
	for i := range keys {
		if got := recorded[fmt.Sprint(i)]; int64(got) != want[i].Load() {
			t.Errorf("key %d: got %d reads recorded, want %d", i, got, want[i].Load())
		}
	}
	if len(l.calls) < 3 {
		t.Errorf("RecordReads calls: got %d, want at least 3", len(l.calls))
	}
}

func newTestReadCounter(l *fakeRecorder, log *slog.Logger) *readCounter {
	return newReadCounter(l, newMetrics(prometheus.NewRegistry()), log)
}

// The sum of all flushes must be the number of reads. Reads and flushes run without HTTP, so that
// they more often happen at the same moment.
func TestReadCounter_LosesNoReadBetweenFlushes(t *testing.T) {
	const readers, reads = 4, 100_000
	ts := newTestReadCounter(&fakeRecorder{}, slog.New(slog.DiscardHandler))
	var of [64]*readCount
	for i := range of {
		of[i] = ts.newCount(entity(fmt.Sprint(i)))
	}
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for i := range reads {
				ts.read(of[i%len(of)])
			}
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	sum := 0
	for exceeded := false; !exceeded; {
		select {
		case <-ended:
			exceeded = true
		default:
		}
		for _, r := range ts.take() {
			sum += r.Count
		}
	}
	if sum != readers*reads {
		t.Errorf("got %d reads, want %d", sum, readers*reads)
	}
}

func TestReadCounter_IsBoundedAndFlushesInBatches(t *testing.T) {
	l := &fakeRecorder{}
	ts := newTestReadCounter(l, slog.New(slog.DiscardHandler))
	var dropped *readCount
	for i := range maxReadCounts + 1 {
		dropped = ts.newCount(entity(strconv.Itoa(i)))
		ts.read(dropped)
	}
	ts.read(dropped) // this read and the previous one are not recorded, because the list is full
	if n := testutil.ToFloat64(ts.metrics.unrecordedFull); n != 2 {
		t.Errorf("unrecorded reads: got %v, want 2", n)
	}
	ts.flush(t.Context(), time.Now())
	if n := len(l.calls); n != maxReadCounts/maxFlushBatch || l.calls[0] != maxFlushBatch || len(l.recorded()) != maxReadCounts {
		t.Errorf("RecordReads calls: got %v with %d entities, want %d of %d with %d entities",
			l.calls, len(l.recorded()), maxReadCounts/maxFlushBatch, maxFlushBatch, maxReadCounts)
	}
	ts.read(dropped) // this read must be recorded, because the flush has emptied the list
	ts.flush(t.Context(), time.Now())
	if n := l.recorded()[dropped.entity.Key]; n != 1 {
		t.Errorf("got %d recorded, want 1", n)
	}
}

func TestReadCounter_LogsAFailureOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		down := errors.New("down")
		var fails error
		l := &fakeRecorder{observe: func(context.Context, []ReadCount) error { return fails }}
		ts := newTestReadCounter(l, slog.New(slog.NewTextHandler(&log, nil)))
		of := ts.newCount(entity("a"))
		for _, fails = range []error{nil, down, down, nil, nil, down} {
			ts.read(of)
			ts.read(of)
			ts.flush(t.Context(), time.Now())
			<-time.After(flushInterval)
			ts.flush(t.Context(), time.Now()) // nothing was read since the previous flush, so this call must log nothing
		}
		if recorded, lost := l.recorded()["a"], testutil.ToFloat64(ts.metrics.unrecordedFailed); recorded != 6 || lost != 6 {
			t.Errorf("recorded and unrecorded reads: got %d and %v, want 6 and 6", recorded, lost)
		}
		if warned, restored := strings.Count(log.String(), "level=WARN"), strings.Count(log.String(), "level=INFO"); warned != 2 || restored != 1 {
			t.Errorf("got the log %s, want 2 warnings and 1 recovery", &log)
		}
	})
}
