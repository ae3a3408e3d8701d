package simulator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Config configures a Simulator at its start. Control changes every setting except Pretty,
// AnyPath and Seed at runtime.
type Config struct {
	// Limits are sliding windows over all arrivals. All of them apply; empty means no quota.
	Limits []Limit
	// Latency delays each response; zero means no delay. Refusals by quota are not delayed.
	Latency Range
	// Identity makes the simulator ignore Accept-Encoding and send all responses uncompressed.
	Identity bool
	// Pretty indents documents by two spaces, as the real API does.
	Pretty bool
	// AnyPath makes the simulator send a small document for each path that the real API does not have.
	// It can then replace an API for which no simulator exists.
	AnyPath bool
	// Seed selects the generated values. The same seed, key and revision give the same bytes in
	// every process.
	Seed uint64
}

// Limit is the maximum number of arrivals in any closed window of the given length. A closed
// window includes both of its ends.
type Limit struct {
	Limit  int
	Window time.Duration // length of the window, rounded down to microseconds
}

// Range bounds a random latency. Most values are near three times Min, few near Max.
type Range struct {
	Min, Max time.Duration
}

// Validate returns an error for settings that New does not accept. Limits and windows must be
// positive, and 0 <= Latency.Min <= Latency.Max.
func (c Config) Validate() error {
	return errors.Join(checkLimits(c.Limits), c.Latency.check())
}

// Simulator is an http.Handler. Its methods are safe for concurrent use. It starts no
// goroutines.
type Simulator struct {
	recorder *recorder
	anyPath  bool
	content  *content
	closed   chan struct{}
	close    sync.Once

	mu       sync.Mutex
	settings settings
}

// New returns a running simulator. It panics if cfg.Validate returns an error.
func New(cfg Config) *Simulator {
	if err := cfg.Validate(); err != nil {
		panic(fmt.Sprintf("simulator: %v", err))
	}
	return &Simulator{
		recorder: newRecorder(cfg.Limits),
		anyPath:  cfg.AnyPath,
		content:  newContent(cfg.Seed, cfg.Pretty),
		closed:   make(chan struct{}),
		settings: settings{latency: cfg.Latency, identity: cfg.Identity},
	}
}

// Close drops the connections of all delayed requests (latency, hang, slow-body), now and in
// the future. It may be called more than once. Call it before httptest.Server.Close, which
// waits for open requests.
func (s *Simulator) Close() {
	s.close.Do(func() { close(s.closed) })
}

// ServeHTTP answers the operator endpoints /_stats, /_arrivals, /_control and /_reset. Every
// other request is recorded as an arrival at the upstream.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/_") {
		s.serveOperator(w, r)
		return
	}
	c := parseCall(r)
	if c.endpoint == nil && s.anyPath {
		c.key = c.path // an unknown path has no parameter with a key; faults and changes of content select entities by key
	}
	seen := s.recorder.record(c)
	x := &exchange{ResponseWriter: w}
	defer func() { seen.setStatus(x.status) }()
	if seen.refused {
		x.sendError(errQuota)
		return
	}
	s.respond(r.Context(), x, r, c, seen)
}

// respond answers an arrival that is within the quota.
func (s *Simulator) respond(ctx context.Context, x *exchange, r *http.Request, c call, seen recordedArrival) {
	p := s.plan(c)
	if p.fault != nil {
		seen.setFault(p.fault.Kind)
	}
	x.gzip = !p.identity && acceptsGzip(r.Header.Values("Accept-Encoding"))
	x.latency = p.latency
	if !s.wait(ctx, p.latency) {
		return
	}
	if p.fault != nil {
		s.sendFault(ctx, x, c, *p.fault)
		return
	}
	switch {
	case p.apiKey != "" && r.Header.Get("X-Nxopen-Api-Key") != p.apiKey:
		x.sendError(errKey)
	case c.endpoint == nil && s.anyPath:
		x.send(s.document(c))
	case c.endpoint == nil:
		x.sendError(errPath)
	case r.Method != http.MethodGet:
		x.Header().Set("Allow", http.MethodGet)
		x.sendError(errMethod)
	case c.invalid:
		x.sendError(errParameter)
	case strings.HasPrefix(c.key, "notfound"), s.isUnnamed(c):
		x.sendError(errIdentifier)
	default:
		x.send(s.document(c))
	}
}

// document returns the body for a call with the current revision. It is called after the
// latency, so that a change during the delay is visible.
func (s *Simulator) document(c call) []part {
	if c.endpoint == nil && !s.anyPath {
		return []part{{plain: errPath.body()}}
	}
	bucket := s.content.bucket(c.key)
	s.mu.Lock()
	revision := s.settings.revisions[bucket]
	ocid := ""
	if c.endpoint != nil && c.endpoint.key == nameParam {
		ocid = s.settings.renames[strings.ToLower(c.key)]
	}
	s.mu.Unlock()
	if c.endpoint == nil {
		return []part{{plain: fmt.Appendf(nil, `{"path":%q,"revision":%d}`, c.target, revision)}}
	}
	return c.endpoint.document(s.content, entity{key: c.key, date: c.date, revision: revision, ocid: ocid})
}

// isUnnamed reports whether a rename has taken the character name of the call away.
func (s *Simulator) isUnnamed(c call) bool {
	if c.endpoint == nil || c.endpoint.key != nameParam {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ocid, renamed := s.settings.renames[strings.ToLower(c.key)]
	return renamed && ocid == ""
}

// plan holds the settings in effect when a call arrived.
type plan struct {
	latency  time.Duration
	identity bool
	apiKey   string
	fault    *Fault
}

func (s *Simulator) plan(c call) plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	return plan{
		latency:  s.settings.latency.draw(),
		identity: s.settings.identity,
		apiKey:   s.settings.apiKey,
		fault:    s.settings.matchFault(c),
	}
}

// wait returns true after d, and false if the client disconnects first. If the simulator is
// closed it panics with http.ErrAbortHandler to drop the connection, because a return would
// send an empty 200.
func (s *Simulator) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	case <-s.closed:
		panic(http.ErrAbortHandler)
	}
}
