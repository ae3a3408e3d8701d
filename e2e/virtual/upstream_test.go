package virtual

import (
	"net/http"
	"sync"
	"time"

	"github.com/freshet/freshet/simulator"
)

// The contract of the upstream. The configuration states the same limits.
const (
	secondLimit, secondText     = 4, "4"
	minuteLimit, minuteText     = 120, "120"
	dayLimit, dayText           = 4000, "4000"
	inFlightLimit, inFlightText = 3, "3"
	quotaZone                   = "Asia/Seoul"
)

// call is a call that arrived at the upstream.
type call struct {
	at, end time.Time // end is zero while the call is in flight
	key     string
	status  int // status of the response; 0: no response
}

// upstream records the calls that arrive at the simulator.
type upstream struct {
	simulator *simulator.Simulator

	mu    sync.Mutex
	calls []*call
}

// ServeHTTP records the call and answers it.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{at: time.Now(), key: r.URL.Query().Get("ocid")}
	u.mu.Lock()
	u.calls = append(u.calls, c)
	u.mu.Unlock()
	s := &statusWriter{ResponseWriter: w}
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		c.status, c.end = s.status, time.Now()
	}()
	u.simulator.ServeHTTP(s, r)
}

// since returns the calls from index i on. The entry of a call in flight changes when the call ends.
func (u *upstream) since(i int) []call {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]call, 0, len(u.calls)-i)
	for _, c := range u.calls[i:] {
		all = append(all, *c)
	}
	return all
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader stores the status of the response.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// setUpstream applies the active faults of the upstream. The caller holds w.mu.
func (w *world) setUpstream() error {
	latency := normalLatency
	faults := []simulator.Fault{}
	for f := range w.active {
		fault := simulator.Fault{Percent: &f.percent}
		switch f.kind {
		case upstreamSlow:
			latency = simulator.Range{Min: 2 * time.Second, Max: 9500 * time.Millisecond}
			continue
		case upstreamErrors:
			fault.Kind = simulator.InternalError
		case upstreamKeys:
			fault.Kind, fault.Key, fault.Percent = simulator.InternalError, "[05]$", nil
		case upstreamHangs:
			fault.Kind = simulator.Hang
		case upstreamResets:
			fault.Kind = simulator.Reset
		case upstreamRefuses:
			fault.Kind, fault.RetryAfter = simulator.TooManyRequests, "7"
		case upstreamHTML:
			fault.Kind = simulator.HTML200
		default:
			continue
		}
		faults = append(faults, fault)
	}
	return w.upstream.simulator.Control(simulator.Control{Latency: &latency, Faults: faults})
}
