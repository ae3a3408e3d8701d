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
	// heartbeat keeps a quiet stream from being taken for dead on its way.
	heartbeat = 15 * time.Second
	// reconnect is how long a client whose stream was cut waits at least, and twice
	// that at most: after a restart not all shall come at once.
	reconnect = time.Second
)

// The events of a stream.
const (
	eventChanged = "changed" // other content than was told last
	eventChecked = "checked" // the same content, looked at again
	eventAbsent  = "absent"  // the upstream says that there is no such entity
	eventState   = "state"   // nothing new is stored, but how fresh it is or what becomes of its refresh is
)

// told is what a stream has told last.
type told struct {
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
	last   told
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
	leave, err := s.enter(who)
	if err != nil {
		return err
	}
	defer leave()
	w := s.bell.listen(e)
	defer s.bell.leave(w)
	v, err := s.look(c, who, e, f, acceptDeadline(0))
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
	st := &stream{s: s, c: c, who: who, entity: e, facet: f, last: resumed(c.Request().Header.Get("Last-Event-Id"))}
	if st.write(fmt.Sprintf("retry: %d\n\n", (reconnect + rand.N(reconnect)).Milliseconds())) { //nolint:gosec // spreads, and hides nothing
		st.follow(v, w)
	}
	return nil
}

// follow tells what is seen, beginning with v.
func (st *stream) follow(v view, w *waiter) {
	beat := time.NewTicker(heartbeat)
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
			if !st.tell(v) {
				return
			}
			due.Reset(st.nextLook(v))
			v = view{} // told: a stream keeps nothing that memory has given up
		}
		select {
		case <-w.rung:
		case <-due.C:
		case <-beat.C:
			if !st.permitted() || !st.write(": alive\n\n") {
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
		seen, err := st.s.look(st.c, st.who, st.entity, st.facet, acceptDeadline(0))
		if seen.unseen {
			return // it has been fetched within another visibility
		}
		if err != nil || seen.older {
			// What was told last stands, and who rang does not ring again.
			due.Reset(lookAgainMost)
			continue
		}
		v = seen
	}
}

// permitted reports whether the client may still read: a key can be revoked.
func (st *stream) permitted() bool {
	who, err := st.s.guard.Authenticate(st.c.Request(), st.c.RealIP())
	return err == nil && who.May(access.Read)
}

// nextLook returns when something may have become different without a settle: what
// is FRESH grows stale, and a refresh that was refused or never came is asked for
// again.
func (st *stream) nextLook(v view) time.Duration {
	wait := heartbeat
	switch {
	case st.s.memory.deaf():
	case v.freshness == Fresh:
		wait = time.Until(v.CheckedAt.Add(st.facet.FreshFor))
	case v.freshness == NotFound && v.reason == "":
		wait = time.Until(v.CheckedAt.Add(st.facet.AbsentFor))
	case v.answer.Until.After(time.Now()):
		wait = time.Until(v.answer.Until)
	}
	return max(time.Second, wait)
}

// tell sends an event if there is something new; it reports false if the client
// has left.
func (st *stream) tell(v view) bool {
	now := told{version: v.version(), reason: v.answer.Reason}
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
	body := st.s.body(v, st.entity.Source)
	body.Freshness = now.freshness
	data, err := json.Marshal(struct {
		readBody
		ETag *string `json:"etag"`
	}{body, textSet(now.etag)})
	if err != nil {
		panic(err) // a struct of plain members
	}
	id := ""
	if now.version > 0 {
		id = "id: " + now.id() + "\n"
	}
	return st.write(id + "event: " + name + "\ndata: " + string(data) + "\n\n")
}

func textSet(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// write sends a piece at once; it reports false if the client has left.
func (st *stream) write(text string) bool {
	st.s.extend(st.c, 0)
	if _, err := st.c.Response().Write([]byte(text)); err != nil {
		return false
	}
	return http.NewResponseController(st.c.Response()).Flush() == nil
}

// id names what was told, for a client that comes back.
func (t told) id() string {
	absent := ""
	if t.absent {
		absent = ".absent"
	}
	return strconv.FormatInt(t.version, 10) + "." + strings.Trim(t.etag, `W/"`) + absent
}

// resumed returns what was told before, by its id; nothing if it can't be read.
func resumed(id string) told {
	version, rest, _ := strings.Cut(id, ".")
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil || n <= 0 {
		return told{}
	}
	t := told{version: n, freshness: Fresh}
	rest, t.absent = strings.CutSuffix(rest, ".absent")
	if t.absent {
		t.freshness = NotFound
	}
	if rest != "" {
		t.etag = `W/"` + rest + `"`
	}
	return t
}
