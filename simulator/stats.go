package simulator

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"time"
)

// Stats describe the arrivals since the start or the last reset. Counts include refused
// arrivals unless noted. Calls of operator endpoints are not arrivals.
type Stats struct {
	Arrivals int `json:"arrivals"`
	Accepted int `json:"accepted"`
	Refused  int `json:"refused"` // arrivals answered with 429 because of the quota; a 429 by a fault counts as accepted
	// ByStatus counts arrivals by the status of the response. The key 0 counts arrivals without
	// a response, because the client disconnected or the connection was dropped.
	ByStatus map[int]int `json:"byStatus"`
	// ByFault counts arrivals by the fault that decides the response, even if no response is
	// sent.
	ByFault map[Kind]int   `json:"byFault"`
	ByPath  map[string]int `json:"byPath"`
	// MaxPerWindow has one entry for each limit, in the order of the limits.
	MaxPerWindow []LimitUse `json:"maxPerWindow"`
	// MaxInSlidingSecond is the maximum number of arrivals in any closed window of one second,
	// exact to the microsecond.
	MaxInSlidingSecond int       `json:"maxInSlidingSecond"`
	FirstArrival       time.Time `json:"firstArrival,omitzero"`
	LastArrival        time.Time `json:"lastArrival,omitzero"`
	InFlight           int       `json:"inFlight"`
	MaxInFlight        int       `json:"maxInFlight"`
	DistinctKeys       int       `json:"distinctKeys"`
	// MaxPerKeyAndPath is the maximum number of arrivals for one key on one path.
	MaxPerKeyAndPath int `json:"maxPerKeyAndPath"`
	// Sustained is the rate in arrivals per second without the first and the last 500 arrivals;
	// nil for fewer than 1,500 arrivals.
	Sustained *float64 `json:"sustained"`
	// UnknownPaths contains the escaped path and query of the first 100 calls with a path that
	// does not exist. UnknownParameters contains the first 100 calls with an unknown or repeated
	// parameter. An entry means that an entity's key has changed the structure of a URL.
	// UnknownPathCalls and UnknownParameterCalls count all such calls.
	UnknownPaths          []string `json:"unknownPaths"`
	UnknownPathCalls      int      `json:"unknownPathCalls"`
	UnknownParameters     []string `json:"unknownParameters"`
	UnknownParameterCalls int      `json:"unknownParameterCalls"`
	// Since is set by GET /_stats?since=N&window=1m.
	Since *Since `json:"since,omitempty"`
}

// Since describes all arrivals except the first N. To examine an outage, set N to the value of
// Stats.Arrivals at the beginning of the outage.
type Since struct {
	Arrivals int          `json:"arrivals"`
	ByStatus map[int]int  `json:"byStatus"` // arrivals by status of the response; key 0: no response, or none yet
	ByFault  map[Kind]int `json:"byFault"`
	Window   string       `json:"window"`
	// MaxInWindow is the maximum number of arrivals in any closed window of the length Window.
	MaxInWindow int `json:"maxInWindow"`
}

// LimitUse is a limit and the maximum number of arrivals in any closed window of its length.
type LimitUse struct {
	Limit  int    `json:"limit"`
	Window string `json:"window"`
	Max    int    `json:"max"`
}

// Stats returns the response of GET /_stats.
func (s *Simulator) Stats() Stats { return s.recorder.stats() }

func (r *recorder) stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.log
	st := Stats{
		Arrivals: l.n, Accepted: l.n - l.refused, Refused: l.refused,
		ByStatus: make(map[int]int), ByFault: maps.Clone(l.byFault), ByPath: make(map[string]int), MaxPerWindow: []LimitUse{},
		MaxInSlidingSecond: l.windows[0].max,
		InFlight:           r.inFlight, MaxInFlight: l.maxInFlight,
		DistinctKeys: len(l.keys.list), MaxPerKeyAndPath: int(l.maxPerTarget), Sustained: l.sustained(),
		UnknownPaths:     append([]string{}, l.unknownPaths...),
		UnknownPathCalls: l.unknownPathCalls, UnknownParameters: append([]string{}, l.unknownParameters...),
		UnknownParameterCalls: l.unknownParamCalls,
	}
	maps.Copy(st.ByStatus, l.byStatus)
	for i, n := range l.byPath {
		st.ByPath[l.paths.list[i]] = n
	}
	for i, limit := range l.limits {
		st.MaxPerWindow = append(st.MaxPerWindow, LimitUse{Limit: limit.Limit, Window: limit.Window.String(), Max: l.windows[i+1].max})
	}
	if l.n > 0 {
		st.FirstArrival, st.LastArrival = r.wallTime(l.at(0).at), r.wallTime(l.at(l.n-1).at)
	}
	return st
}

// Since describes all arrivals except the first n since the start or the last reset. Its field
// MaxInWindow is the maximum number of these arrivals in any closed window of the given length.
func (s *Simulator) Since(n int, window time.Duration) Since { return s.recorder.since(n, window) }

func (r *recorder) since(n int, length time.Duration) Since {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.log
	since := Since{ByStatus: make(map[int]int), ByFault: make(map[Kind]int), Window: length.String()}
	w := window{length: length.Microseconds(), first: max(0, n)}
	for i := w.first; i < l.n; i++ {
		a := l.at(i)
		since.Arrivals++
		since.ByFault[a.kind()]++
		since.ByStatus[int(a.status)]++
		l.slide(&w, i+1)
	}
	delete(since.ByFault, "")
	since.MaxInWindow = w.max
	return since
}

func (a arrival) kind() Kind {
	if a.fault == 0 {
		return ""
	}
	return allKinds[a.fault-1]
}

func (r *recorder) wallTime(at int64) time.Time {
	return r.start.Add(time.Duration(at) * time.Microsecond).Round(0)
}

func (l *arrivalLog) sustained() *float64 {
	const edge = 500
	if l.n < 3*edge {
		return nil
	}
	took := l.at(l.n-1-edge).at - l.at(edge-1).at
	if took == 0 {
		return nil
	}
	rate := float64(l.n-2*edge) / time.Duration(took*1000).Seconds()
	return &rate
}

// arrivalLine is one line of GET /_arrivals.
type arrivalLine struct {
	At     int64  `json:"at"` // time of the call in microseconds since the simulator's start
	Path   string `json:"path"`
	Key    string `json:"key"`
	Status int    `json:"status"` // status of the response; 0: no response, or none yet
	Fault  Kind   `json:"fault,omitempty"`
}

// writeArrivals writes the arrivals that are recorded when it is called. It copies one chunk at a
// time under the lock, so that a slow reader does not delay new arrivals.
func (r *recorder) writeArrivals(w io.Writer) error {
	r.mu.Lock()
	l, n := r.log, r.log.n
	paths, keys := l.paths.list, l.keys.list
	r.mu.Unlock()

	out := bufio.NewWriterSize(w, 1<<16)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	chunk := make([]arrival, chunkLength)
	for from := 0; from < n; from += chunkLength {
		r.mu.Lock()
		held := chunk[:copy(chunk, l.chunks[from/chunkLength][:min(chunkLength, n-from)])]
		r.mu.Unlock()
		for _, a := range held {
			line := arrivalLine{At: a.at, Path: paths[a.path-1], Status: int(a.status), Fault: a.kind()}
			if a.key > 0 {
				line.Key = keys[a.key-1]
			}
			if err := lines.Encode(line); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}
