// Package simulator is an upstream to try and test freshet against: bodies of
// the shape and size of Nexon's MapleStory API, a quota that is really
// enforced, misbehaviour on request, and a judge of what arrived.
//
// The judge shares no code and no formula with the limiter. It writes down
// every arrival and counts windows over that record, so a mistake in the
// limiter's reasoning can't be repeated here and pass unseen.
//
// All text in the bodies is made up from syllables by a seed; only field names,
// types, counts, repetition and sizes follow the real answers.
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

// Config says how a Simulator behaves from its start; Control changes all of it
// but Pretty and Seed while it runs.
type Config struct {
	// Limits are sliding windows over all arrivals; each of them must hold. None
	// means no quota.
	Limits []Limit
	// Latency is waited before an answer; zero means none. A refusal by quota is
	// answered at once.
	Latency Range
	// Identity makes it ignore Accept-Encoding and never compress.
	Identity bool
	// Pretty indents documents by two spaces, as the real API serves them.
	Pretty bool
	// Seed chooses the made-up values. The same seed, key and revision give the
	// same bytes in every process.
	Seed uint64
}

// Limit allows so many arrivals in any closed window of the given length.
type Limit struct {
	Limit  int
	Window time.Duration // rounded down to microseconds
}

// Range bounds a latency. Most draws lie near three times Min, few near Max.
type Range struct {
	Min, Max time.Duration
}

// Validate reports what New would refuse: a limit or window that isn't
// positive, or a latency whose bounds are negative or exchanged.
func (c Config) Validate() error {
	return errors.Join(checkLimits(c.Limits), c.Latency.check())
}

// Simulator is an http.Handler. All its methods are safe for concurrent use. It
// starts no goroutine of its own.
type Simulator struct {
	recorder *recorder
	content  *content
	closed   chan struct{}
	close    sync.Once

	mu       sync.Mutex
	settings settings
}

// New returns a running simulator. It panics if cfg.Validate reports an error.
func New(cfg Config) *Simulator {
	if err := cfg.Validate(); err != nil {
		panic(fmt.Sprintf("simulator: %v", err))
	}
	return &Simulator{
		recorder: newRecorder(cfg.Limits),
		content:  newContent(cfg.Seed, cfg.Pretty),
		closed:   make(chan struct{}),
		settings: settings{latency: cfg.Latency, identity: cfg.Identity},
	}
}

// Close drops the connections of requests that are waiting (latency, hang,
// slow-body), and of those that would have to wait later. It may be called more
// than once; call it before closing an httptest.Server, which waits for them.
func (s *Simulator) Close() {
	s.close.Do(func() { close(s.closed) })
}

// ServeHTTP answers /_stats, /_arrivals, /_control and /_reset for the person
// trying it, and counts every other request as an arrival at the upstream.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/_") {
		s.serveOperator(w, r)
		return
	}
	c := parseCall(r)
	seen := s.recorder.record(c)
	x := &exchange{ResponseWriter: w}
	defer func() { seen.setStatus(x.status) }()
	if seen.refused {
		x.sendError(errQuota)
		return
	}
	s.respond(r.Context(), x, r, c, seen)
}

// respond is everything behind the quota.
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
	case c.endpoint == nil:
		x.sendError(errPath)
	case r.Method != http.MethodGet:
		x.Header().Set("Allow", http.MethodGet)
		x.sendError(errMethod)
	case c.invalid:
		x.sendError(errParameter)
	case strings.HasPrefix(c.key, "absent"):
		x.sendError(errIdentifier)
	default:
		x.send(s.document(c))
	}
}

// document is the body for a call as of now, so that a change made while the
// call was waiting shows.
func (s *Simulator) document(c call) []part {
	if c.endpoint == nil {
		return []part{{plain: errPath.body()}}
	}
	bucket := s.content.bucket(c.key)
	s.mu.Lock()
	revision := s.settings.revisions[bucket]
	s.mu.Unlock()
	return c.endpoint.document(s.content, entity{key: c.key, date: c.date, revision: revision})
}

// plan is what the settings ask for at the moment of an arrival.
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

// wait reports whether d has passed: false once the client has gone. When the
// simulator is closed it drops the connection, for returning would make
// net/http send an empty 200.
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
