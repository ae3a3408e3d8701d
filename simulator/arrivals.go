package simulator

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// recorder records every arrival and refuses arrivals over a limit.
type recorder struct {
	start time.Time // arrival times are durations since start, by the monotonic clock

	mu       sync.Mutex
	log      *arrivalLog
	inFlight int
}

func newRecorder(limits []Limit) *recorder {
	return &recorder{start: time.Now(), log: newArrivalLog(limits)}
}

// recordedArrival refers to one arrival that has no response yet.
type recordedArrival struct {
	recorder *recorder
	log      *arrivalLog // the log that contains the arrival; a reset may have replaced recorder.log
	index    int
	refused  bool
}

// record adds an arrival. It reads the clock under the lock, so that times in the log never
// decrease.
func (r *recorder) record(c call) recordedArrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	refused := r.log.add(time.Since(r.start).Microseconds(), c)
	r.inFlight++
	r.log.maxInFlight = max(r.log.maxInFlight, r.inFlight)
	return recordedArrival{recorder: r, log: r.log, index: r.log.n - 1, refused: refused}
}

// setFault records the fault that decides the response of the arrival. It is called before the
// fault takes effect, because a hanging call (Hang) ends without a response.
func (a recordedArrival) setFault(kind Kind) {
	a.recorder.mu.Lock()
	defer a.recorder.mu.Unlock()
	a.log.at(a.index).fault = uint8(slices.Index(allKinds, kind) + 1)
	a.log.byFault[kind]++
}

// setStatus records the status of the response; 0 means no response.
func (a recordedArrival) setStatus(status int) {
	a.recorder.mu.Lock()
	defer a.recorder.mu.Unlock()
	a.recorder.inFlight--
	a.log.at(a.index).status = uint16(status)
	a.log.byStatus[status]++
}

// reset starts an empty log. The quota is fully available again. The revisions of the documents
// do not change.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = newArrivalLog(r.log.limits)
	r.log.maxInFlight = r.inFlight
}

// setLimits replaces the limits. The new limits apply to all arrivals since the last reset.
func (r *recorder) setLimits(limits []Limit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.setLimits(limits)
}

// arrival is the log entry of one arrival. It takes 16 bytes, so 20 million arrivals take 320 MB.
type arrival struct {
	at     int64 // time of the arrival, in microseconds since recorder.start
	key    uint32
	path   uint8
	fault  uint8 // kind of the fault that affects the arrival, as 1 + its index in allKinds; 0: no fault
	status uint16
}

const (
	chunkLength = 1 << 14
	// maxKept is the maximum number of unknown paths, and of calls with unknown parameters, that are
	// kept with their full text.
	maxKept   = 100
	otherPath = "(another unknown path)"
)

// arrivalLog contains the arrivals since the last reset. recorder.mu guards it.
type arrivalLog struct {
	chunks [][]arrival // each chunk has chunkLength arrivals, so that the log grows without copying
	n      int
	limits []Limit
	// windows[0] is one second long and has no limit. windows[i+1] counts for limits[i].
	windows []window

	paths             nameIDs
	keys              nameIDs
	byPath            []int
	byStatus          map[int]int
	byFault           map[Kind]int
	perTarget         map[uint64]uint32 // number of arrivals for each pair of path and key; index: path ID<<32 | key ID
	maxPerTarget      uint32
	refused           int
	maxInFlight       int
	unknownPaths      []string
	unknownParameters []string
	unknownPathCalls  int
	unknownParamCalls int
}

func newArrivalLog(limits []Limit) *arrivalLog {
	l := &arrivalLog{byStatus: make(map[int]int), byFault: make(map[Kind]int), perTarget: make(map[uint64]uint32)}
	l.setLimits(limits)
	return l
}

func (l *arrivalLog) at(i int) *arrival {
	return &l.chunks[i/chunkLength][i%chunkLength]
}

// add appends an arrival and reports whether it exceeds a limit.
//
// A refused arrival counts towards the limits too. It is not documented whether the real API
// charges calls that it answers with 429. Counting them is the stricter choice, and makes no
// difference to a client within the limits.
func (l *arrivalLog) add(at int64, c call) (refused bool) {
	a := arrival{at: at, path: l.pathID(c)}
	if c.key != "" {
		a.key = l.keys.id(c.key)
		target := uint64(a.path)<<32 | uint64(a.key)
		l.perTarget[target]++
		l.maxPerTarget = max(l.maxPerTarget, l.perTarget[target])
	}
	if c.unknownParam {
		l.unknownParamCalls++
		l.unknownParameters = appendKept(l.unknownParameters, c.target)
	}
	if l.n%chunkLength == 0 {
		l.chunks = append(l.chunks, make([]arrival, chunkLength))
	}
	l.n++
	*l.at(l.n - 1) = a
	for i := range l.windows {
		if w := &l.windows[i]; l.slide(w, l.n) > w.limit && w.limit > 0 {
			refused = true
		}
	}
	if refused {
		l.refused++
	}
	return refused
}

func (l *arrivalLog) pathID(c call) uint8 {
	name := c.path
	if c.endpoint == nil {
		l.unknownPathCalls++
		l.unknownPaths = appendKept(l.unknownPaths, c.target)
		if len(l.paths.list) >= maxKept+len(endpoints) && !l.paths.has(name) {
			name = otherPath
		}
	}
	id := l.paths.id(name)
	if int(id) > len(l.byPath) {
		l.byPath = append(l.byPath, 0)
	}
	l.byPath[id-1]++
	return uint8(id) // the ID fits into 8 bits: there are at most maxKept unknown paths and a few known endpoints
}

func appendKept(list []string, s string) []string {
	if len(list) < maxKept {
		list = append(list, strings.Clone(s))
	}
	return list
}

// window counts the arrivals in the closed window that ends with the newest arrival. The maximum
// over these windows is the maximum over all windows: a window that ends between two arrivals never
// contains more arrivals than the window that ends with the earlier of these two arrivals.
type window struct {
	limit  int // maximum number of arrivals in the window; 0 means no limit
	length int64
	first  int // index of the first arrival in the window
	max    int
}

// slide moves the window so that it ends at the time of arrival n-1 of the log (counted from 0).
// It returns the number of arrivals in the window.
func (l *arrivalLog) slide(w *window, n int) int {
	end := l.at(n - 1).at
	for l.at(w.first).at < end-w.length {
		w.first++
	}
	held := n - w.first
	w.max = max(w.max, held)
	return held
}

func (l *arrivalLog) setLimits(limits []Limit) {
	l.limits = limits
	l.windows = []window{{length: time.Second.Microseconds()}}
	for _, limit := range limits {
		l.windows = append(l.windows, window{limit: limit.Limit, length: limit.Window.Microseconds()})
	}
	for i := range l.windows {
		for n := 1; n <= l.n; n++ {
			l.slide(&l.windows[i], n)
		}
	}
}

// nameIDs assigns IDs to names, starting at 1. The ID 0 stands for a missing name.
type nameIDs struct {
	ids  map[string]uint32
	list []string
}

func (n *nameIDs) has(name string) bool {
	_, ok := n.ids[name]
	return ok
}

func (n *nameIDs) id(name string) uint32 {
	if id, ok := n.ids[name]; ok {
		return id
	}
	if n.ids == nil {
		n.ids = make(map[string]uint32)
	}
	name = strings.Clone(name) // a copy, so that the request is not kept in memory
	n.list = append(n.list, name)
	id := uint32(len(n.list))
	n.ids[name] = id
	return id
}
