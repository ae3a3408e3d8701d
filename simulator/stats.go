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
	Refused  int `json:"refused"` // 429 by quota; a 429 by a fault counts as accepted
	// ByStatus counts arrivals by the status of the response. The key 0 counts arrivals without
	// a response, because the client disconnected or the connection was dropped.
	ByStatus map[int]int `json:"byStatus"`
	// ByFault counts arrivals by the fault that decides the response, even if no response is
	// sent.
	ByFault map[Kind]int   `json:"byFault"`
	ByPath  map[string]int `json:"byPath"`
	// MaxPerWindow has one entry for each limit, in order.
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
	// UnknownPaths and UnknownParameters contain the escaped path and query of the first 100
	// calls with a path that does not exist, or with a parameter that is unknown or repeated.
	// An entry means that a key changed the structure of a URL. The counts include all calls.
	UnknownPaths          []string `json:"unknownPaths"`
	UnknownPathCalls      int      `json:"unknownPathCalls"`
	UnknownParameters     []string `json:"unknownParameters"`
	UnknownParameterCalls int      `json:"unknownParameterCalls"`
	// Since is set by GET /_stats?since=N&window=1m.
	Since *Since `json:"since,omitempty"`
}

// Since describes the arrivals after the first N ones. To examine an outage, set N to
// Stats.Arrivals at its beginning.
type Since struct {
	Arrivals int          `json:"arrivals"`
	ByStatus map[int]int  `json:"byStatus"` // 0: no response, or none yet
	ByFault  map[Kind]int `json:"byFault"`
	Window   string       `json:"window"`
	// MaxInWindow is the maximum number of arrivals in any closed window of that length.
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

func (j *recorder) stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.log
	st := Stats{
		Arrivals: b.n, Accepted: b.n - b.refused, Refused: b.refused,
		ByStatus: make(map[int]int), ByFault: maps.Clone(b.byFault), ByPath: make(map[string]int), MaxPerWindow: []LimitUse{},
		MaxInSlidingSecond: b.windows[0].max,
		InFlight:           j.inFlight, MaxInFlight: b.maxInFlight,
		DistinctKeys: len(b.keys.list), MaxPerKeyAndPath: int(b.maxPerTarget), Sustained: b.sustained(),
		UnknownPaths:     append([]string{}, b.unknownPaths...),
		UnknownPathCalls: b.unknownPathCalls, UnknownParameters: append([]string{}, b.unknownParameters...),
		UnknownParameterCalls: b.unknownParamCalls,
	}
	maps.Copy(st.ByStatus, b.byStatus)
	for i, n := range b.byPath {
		st.ByPath[b.paths.list[i]] = n
	}
	for i, l := range b.limits {
		st.MaxPerWindow = append(st.MaxPerWindow, LimitUse{Limit: l.Limit, Window: l.Window.String(), Max: b.windows[i+1].max})
	}
	if b.n > 0 {
		st.FirstArrival, st.LastArrival = j.wallTime(b.at(0).at), j.wallTime(b.at(b.n-1).at)
	}
	return st
}

// Since describes the arrivals after the first n since the start or the last reset, including
// the maximum in any window of the given length.
func (s *Simulator) Since(n int, window time.Duration) Since { return s.recorder.since(n, window) }

func (j *recorder) since(n int, length time.Duration) Since {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.log
	s := Since{ByStatus: make(map[int]int), ByFault: make(map[Kind]int), Window: length.String()}
	w := window{length: length.Microseconds(), first: max(0, n)}
	for i := w.first; i < b.n; i++ {
		a := b.at(i)
		s.Arrivals++
		s.ByFault[a.kind()]++
		s.ByStatus[int(a.status)]++
		b.slide(&w, i+1)
	}
	delete(s.ByFault, "")
	s.MaxInWindow = w.max
	return s
}

func (a arrival) kind() Kind {
	if a.fault == 0 {
		return ""
	}
	return allKinds[a.fault-1]
}

func (j *recorder) wallTime(at int64) time.Time {
	return j.start.Add(time.Duration(at) * time.Microsecond).Round(0)
}

func (b *arrivalLog) sustained() *float64 {
	const edge = 500
	if b.n < 3*edge {
		return nil
	}
	took := b.at(b.n-1-edge).at - b.at(edge-1).at
	if took == 0 {
		return nil
	}
	rate := float64(b.n-2*edge) / time.Duration(took*1000).Seconds()
	return &rate
}

// arrivalLine is one line of GET /_arrivals.
type arrivalLine struct {
	At     int64  `json:"at"` // microseconds since the simulator's start
	Path   string `json:"path"`
	Key    string `json:"key"`
	Status int    `json:"status"` // 0: no response, or none yet
	Fault  Kind   `json:"fault,omitempty"`
}

// writeArrivals writes the arrivals known at its start. It copies one chunk at a time under the
// lock, so that a slow reader does not delay arrivals.
func (j *recorder) writeArrivals(w io.Writer) error {
	j.mu.Lock()
	b, n := j.log, j.log.n
	paths, keys := b.paths.list, b.keys.list
	j.mu.Unlock()

	out := bufio.NewWriterSize(w, 1<<16)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	chunk := make([]arrival, chunkLength)
	for from := 0; from < n; from += chunkLength {
		j.mu.Lock()
		held := chunk[:copy(chunk, b.chunks[from/chunkLength][:min(chunkLength, n-from)])]
		j.mu.Unlock()
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
