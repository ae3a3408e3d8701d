package query

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

const (
	// heartbeatInterval keeps a quiet stream from being taken for dead on its way.
	heartbeatInterval = 15 * time.Second
	// minReconnectDelay is how long a client whose stream was cut waits at least, and twice
	// that at most: after a restart not all shall come at once.
	minReconnectDelay = time.Second
)

// The events of a stream.
const (
	eventChanged = "changed" // other content than was told last
	eventChecked = "checked" // the same content, looked at again
	eventAbsent  = "absent"  // the upstream says that there is no such entity
	eventState   = "state"   // nothing new is stored, but how fresh it is or what becomes of its refresh is
)

// streamState is what a stream has told last.
type streamState struct {
	version   int64
	etag      string
	absent    bool
	freshness Freshness
	reason    string
}

// stream is one client that follows an entity.
type stream struct {
	s      *Server
	c      echo.Context
	who    access.Client
	entity schemas.Entity
	facet  source.Facet
	last   streamState
}

// events streams what happens to an entity (server-sent events), until the client
// leaves, its permission ends or the process stops. A stream is a reader: it has a
// refresh asked for whenever what it told last has become stale. Events carry no
// content, so that a change costs each reader what it wants to pay: it reads with
// If-None-Match. What changed several times while a client was away is told once.
func (s *Server) events(c echo.Context, who access.Client) error {
	e, f, err := s.entityOf(c, who)
	if err != nil {
		return err
	}
	leave, err := s.acquireWaitSlot(who)
	if err != nil {
		return err
	}
	defer leave()
	w := s.waiterSet.add(e)
	defer s.waiterSet.remove(w)
	v, err := s.readAndEnqueue(c, who, e, f, acceptDeadline(0))
	if err != nil {
		return err // an answer as a read's, for there is no stream yet
	}
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	c.Response().WriteHeader(http.StatusOK)
	if c.Request().Method == http.MethodHead {
		return nil
	}
	st := &stream{s: s, c: c, who: who, entity: e, facet: f, last: parseEventID(c.Request().Header.Get("Last-Event-Id"))}
	if st.write(fmt.Sprintf("retry: %d\n\n", (minReconnectDelay + rand.N(minReconnectDelay)).Milliseconds())) { //nolint:gosec // spreads, and hides nothing
		st.run(v, w)
	}
	return nil
}

// run tells what is seen, beginning with v.
func (st *stream) run(v view, w *waiter) {
	beat := time.NewTicker(heartbeatInterval)
	defer beat.Stop()
	due := time.NewTimer(0)
	defer due.Stop()
	var expires <-chan time.Time
	if !st.who.Expires.IsZero() {
		end := time.NewTimer(time.Until(st.who.Expires))
		defer end.Stop()
		expires = end.C
	}
	for {
		if !v.at.IsZero() {
			if !st.send(v) {
				return
			}
			due.Reset(st.nextReadDelay(v))
			v = view{} // told: a stream keeps nothing that memory has given up
		}
		select {
		case <-w.notified:
		case <-due.C:
		case <-beat.C:
			if !st.stillAuthorized() || !st.write(": alive\n\n") {
				return
			}
			continue
		case <-expires:
			return
		case <-st.s.stopping:
			return
		case <-st.c.Request().Context().Done():
			return
		}
		seen, err := st.s.readAndEnqueue(st.c, st.who, st.entity, st.facet, acceptDeadline(0))
		if seen.notVisible {
			return // it has been fetched within another visibility
		}
		if err != nil || seen.fallback {
			// What was told last stands, and who rang does not ring again.
			due.Reset(maxRetryDelay)
			continue
		}
		v = seen
	}
}

// stillAuthorized reports whether the client may still read: a key can be revoked.
func (st *stream) stillAuthorized() bool {
	who, err := st.s.authenticator.Authenticate(st.c.Request(), st.c.RealIP())
	return err == nil && who.May(access.Read)
}

// nextReadDelay returns when something may have become different without a settle: what
// is FRESH grows stale, and a refresh that was refused or never came is asked for
// again.
func (st *stream) nextReadDelay(v view) time.Duration {
	wait := heartbeatInterval
	switch {
	case st.s.cache.disconnected():
	case v.freshness == Fresh:
		wait = time.Until(v.CheckedAt.Add(st.facet.FreshFor))
	case v.freshness == NotFound && v.reason == "":
		wait = time.Until(v.CheckedAt.Add(st.facet.NotFoundFor))
	case v.result.Until.After(time.Now()):
		wait = time.Until(v.result.Until)
	}
	return max(time.Second, wait)
}

// send sends an event if there is something new; it reports false if the client
// has left.
func (st *stream) send(v view) bool {
	now := streamState{version: v.version(), reason: v.result.Reason}
	_, now.freshness = v.status()
	if v.entry != nil {
		now.absent = v.Absent
		if v.HasContent() && now.freshness != Updating { // not if it is kept too long to be served
			now.etag = v.etag[0]
		}
	}
	var name string
	switch was := st.last; {
	case now.absent && !was.absent:
		name = eventAbsent
	case now.etag != was.etag && now.etag != "" || (was.absent && !now.absent):
		name = eventChanged
	case now.version != was.version && now.etag != "":
		name = eventChecked
	case now.version != was.version || now.freshness != was.freshness || now.reason != was.reason:
		name = eventState
	default:
		return true
	}
	st.last = now
	body := st.s.bodyOf(v, st.entity.Source)
	body.Freshness = now.freshness
	data, err := json.Marshal(struct {
		readBody
		ETag *string `json:"etag"`
	}{body, optionalString(now.etag)})
	if err != nil {
		panic(err) // a struct of plain members
	}
	id := ""
	if now.version > 0 {
		id = "id: " + now.id() + "\n"
	}
	return st.write(id + "event: " + name + "\ndata: " + string(data) + "\n\n")
}

func optionalString(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// write sends a piece at once; it reports false if the client has left.
func (st *stream) write(text string) bool {
	st.s.extendWriteDeadline(st.c, 0)
	if _, err := st.c.Response().Write([]byte(text)); err != nil {
		return false
	}
	return http.NewResponseController(st.c.Response()).Flush() == nil
}

// id names what was told, for a client that comes back.
func (t streamState) id() string {
	absent := ""
	if t.absent {
		absent = ".absent"
	}
	return strconv.FormatInt(t.version, 10) + "." + strings.Trim(t.etag, `W/"`) + absent
}

// parseEventID returns what was told before, by its id; nothing if it can't be read.
func parseEventID(id string) streamState {
	version, rest, _ := strings.Cut(id, ".")
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil || n <= 0 {
		return streamState{}
	}
	t := streamState{version: n, freshness: Fresh}
	rest, t.absent = strings.CutSuffix(rest, ".absent")
	if t.absent {
		t.freshness = NotFound
	}
	if rest != "" {
		t.etag = `W/"` + rest + `"`
	}
	return t
}
