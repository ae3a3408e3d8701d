package simulator

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// recorder writes down every arrival and refuses those over a limit.
type recorder struct {
	start time.Time // also carries the monotonic clock all times are taken from

	mu       sync.Mutex
	log      *arrivalLog
	inFlight int
}

func newRecorder(limits []Limit) *recorder {
	return &recorder{start: time.Now(), log: newArrivalLog(limits)}
}

// recordedArrival is one arrival until it has been answered.
type recordedArrival struct {
	recorder *recorder
	log      *arrivalLog // the one it was written in, which a reset may have replaced
	index    int
	refused  bool
}

// record writes an arrival down. The clock is read inside the lock, so that
// times never run backwards along the record.
func (j *recorder) record(c call) recordedArrival {
	j.mu.Lock()
	defer j.mu.Unlock()
	refused := j.log.add(time.Since(j.start).Microseconds(), c)
	j.inFlight++
	j.log.maxInFlight = max(j.log.maxInFlight, j.inFlight)
	return recordedArrival{recorder: j, log: j.log, index: j.log.n - 1, refused: refused}
}

// setFault notes the fault that decides the answer: before that is given, for one
// that hangs is given none.
func (t recordedArrival) setFault(kind Kind) {
	t.recorder.mu.Lock()
	defer t.recorder.mu.Unlock()
	t.log.at(t.index).fault = uint8(slices.Index(allKinds, kind) + 1)
	t.log.byFault[kind]++
}

// setStatus adds the status of the answer; 0 stands for none.
func (t recordedArrival) setStatus(status int) {
	t.recorder.mu.Lock()
	defer t.recorder.mu.Unlock()
	t.recorder.inFlight--
	t.log.at(t.index).status = uint16(status)
	t.log.byStatus[status]++
}

// reset starts an empty book: the quota is whole again, revisions stay.
func (j *recorder) reset() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.log = newArrivalLog(j.log.limits)
	j.log.maxInFlight = j.inFlight
}

// setLimits puts other limits in place of the present ones. They look back over
// everything since the last reset.
func (j *recorder) setLimits(limits []Limit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.log.setLimits(limits)
}

// arrival is 16 bytes: 20 million of them are 320 MB.
type arrival struct {
	at     int64 // microseconds since the judge's start
	key    uint32
	path   uint8
	fault  uint8 // index in allKinds, from 1; 0 for none
	status uint16
}

const (
	chunkLength = 1 << 14
	// maxKept is how many unknown paths and how many calls with unknown
	// parameters are kept in full.
	maxKept   = 100
	otherPath = "(another unknown path)"
)

// arrivalLog is the record of arrivals since the last reset. Nothing in it takes a
// lock: the judge does.
type arrivalLog struct {
	chunks [][]arrival // all of chunkLength, so growing copies nothing
	n      int
	limits []Limit
	// windows[0] is the sliding second, which is always watched; then one for
	// each limit.
	windows []window

	paths             nameIDs
	keys              nameIDs
	byPath            []int
	byStatus          map[int]int
	byFault           map[Kind]int
	perTarget         map[uint64]uint32 // by path and key
	maxPerTarget      uint32
	refused           int
	maxInFlight       int
	unknownPaths      []string
	unknownParameters []string
	unknownPathCalls  int
	unknownParamCalls int
}

func newArrivalLog(limits []Limit) *arrivalLog {
	b := &arrivalLog{byStatus: make(map[int]int), byFault: make(map[Kind]int), perTarget: make(map[uint64]uint32)}
	b.setLimits(limits)
	return b
}

func (b *arrivalLog) at(i int) *arrival {
	return &b.chunks[i/chunkLength][i%chunkLength]
}

// add reports whether the arrival is over a limit.
//
// Refused arrivals count like accepted ones. Nobody outside knows whether the
// real API charges a 429; counting both is the stricter judge, and a client that
// keeps within the limit never notices the difference.
func (b *arrivalLog) add(at int64, c call) (refused bool) {
	a := arrival{at: at, path: b.pathID(c)}
	if c.key != "" {
		a.key = b.keys.id(c.key)
		target := uint64(a.path)<<32 | uint64(a.key)
		b.perTarget[target]++
		b.maxPerTarget = max(b.maxPerTarget, b.perTarget[target])
	}
	if c.unknownParam {
		b.unknownParamCalls++
		b.unknownParameters = appendKept(b.unknownParameters, c.target)
	}
	if b.n%chunkLength == 0 {
		b.chunks = append(b.chunks, make([]arrival, chunkLength))
	}
	b.n++
	*b.at(b.n - 1) = a
	for i := range b.windows {
		if w := &b.windows[i]; b.slide(w, b.n) > w.limit && w.limit > 0 {
			refused = true
		}
	}
	if refused {
		b.refused++
	}
	return refused
}

func (b *arrivalLog) pathID(c call) uint8 {
	name := c.path
	if c.endpoint == nil {
		b.unknownPathCalls++
		b.unknownPaths = appendKept(b.unknownPaths, c.target)
		if len(b.paths.list) >= maxKept+len(endpoints) && !b.paths.has(name) {
			name = otherPath
		}
	}
	id := b.paths.id(name)
	if int(id) > len(b.byPath) {
		b.byPath = append(b.byPath, 0)
	}
	b.byPath[id-1]++
	return uint8(id) // there are no more than the endpoints and those remembered
}

func appendKept(list []string, s string) []string {
	if len(list) < maxKept {
		list = append(list, strings.Clone(s))
	}
	return list
}

// window counts the arrivals in the closed window of its length that ends with
// the newest one. The greatest count over all such windows is the greatest over
// all windows whatever: one that ends between arrivals can be moved back to the
// last arrival inside without losing any.
type window struct {
	limit  int // 0 for one that is only watched
	length int64
	first  int // index of the first arrival inside
	max    int
}

// slide moves the window on to end with arrival n-1 and returns how many it
// then holds.
func (b *arrivalLog) slide(w *window, n int) int {
	end := b.at(n - 1).at
	for b.at(w.first).at < end-w.length {
		w.first++
	}
	held := n - w.first
	w.max = max(w.max, held)
	return held
}

func (b *arrivalLog) setLimits(limits []Limit) {
	b.limits = limits
	b.windows = []window{{length: time.Second.Microseconds()}}
	for _, l := range limits {
		b.windows = append(b.windows, window{limit: l.Limit, length: l.Window.Microseconds()})
	}
	for i := range b.windows {
		for n := 1; n <= b.n; n++ {
			b.slide(&b.windows[i], n)
		}
	}
}

// nameIDs numbers texts from 1; 0 stands for none.
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
	name = strings.Clone(name) // not to keep the whole request alive
	n.list = append(n.list, name)
	id := uint32(len(n.list))
	n.ids[name] = id
	return id
}
