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
	"github.com/freshet/freshet/store"
)

const (
	// heartbeatInterval is how often a stream sends an SSE comment, so that proxies do not close
	// it while it has no events.
	heartbeatInterval = 15 * time.Second
	// minReconnectDelay is the minimum delay before a client reconnects; the maximum is twice as
	// long. The random part spreads the reconnects after a restart.
	minReconnectDelay = time.Second
)

// Names of the server-sent events.
const (
	eventChanged  = "changed"  // the content has changed since the last event
	eventChecked  = "checked"  // the upstream was checked, and the content has not changed
	eventNotFound = "notFound" // the upstream answered that the entity does not exist
	eventState    = "state"    // the content has not changed, but the freshness or the reason of the refresh has
)

// streamState is the state of an entity in the last event of its stream.
type streamState struct {
	version   int64
	tag       string // entity tag of the last event, without its quotes
	notFound  bool
	freshness store.Freshness
	reason    RefreshReason
}

// stream is one connected client that follows one entity.
type stream struct {
	s      *Server
	c      echo.Context
	client access.Client
	entity schemas.Entity
	facet  source.Facet
	last   streamState
}

// events streams the changes of an entity as server-sent events. The stream ends when the client
// disconnects, its permission ends, or the process shuts down. Like a read, a stream enqueues an
// update request when the snapshot becomes stale. Events carry no content; a client
// that needs the content reads the entity with If-None-Match. Several changes while a client is
// disconnected are reported as one event.
func (s *Server) events(c echo.Context, client access.Client) error {
	e, f, err := s.catalog.entityOf(c, client)
	if err != nil {
		return err
	}
	leave, err := s.waits.acquireWaitSlot(client)
	if err != nil {
		return err
	}
	defer leave()
	w := s.waits.set.add(e)
	defer s.waits.set.remove(w)
	v, err := s.reader.readAndEnqueue(c, client, e, f, acceptDeadline(0))
	if err != nil {
		return err // the stream has not begun, so an error response is possible
	}
	if v.freshness == store.Updating && v.result.Reason == ReasonMissingParams {
		return v.result.refused
	}
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // this header makes nginx send each event at once, without buffering
	c.Response().WriteHeader(http.StatusOK)
	if c.Request().Method == http.MethodHead {
		return nil
	}
	st := &stream{s: s, c: c, client: client, entity: e, facet: f, last: parseEventID(c.Request().Header.Get("Last-Event-Id"))}
	if st.write(fmt.Sprintf("retry: %d\n\n", (minReconnectDelay + rand.N(minReconnectDelay)).Milliseconds())) { //nolint:gosec // spreads reconnects; not a secret
		st.run(v, w)
	}
	return nil
}

// run sends events until the stream ends. The first event reports the state of v, the view that was
// read last.
func (st *stream) run(v view, w *waiter) {
	beat := time.NewTicker(heartbeatInterval)
	defer beat.Stop()
	due := time.NewTimer(0)
	defer due.Stop()
	var expires <-chan time.Time
	if !st.client.Expires.IsZero() {
		end := time.NewTimer(time.Until(st.client.Expires))
		defer end.Stop()
		expires = end.C
	}
	for {
		if !v.at.IsZero() {
			if !st.send(v) {
				return
			}
			due.Reset(st.nextReadDelay(v))
			v = view{} // so that the stream does not keep a snapshot in memory that the cache has evicted
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
		case <-st.s.waits.set.stopping:
			return
		case <-st.c.Request().Context().Done():
			return
		}
		seen, err := st.s.reader.readAndEnqueue(st.c, st.client, st.entity, st.facet, acceptDeadline(0))
		if seen.notVisible {
			return // a later fetch has stored the entity under a visibility that the client may not see
		}
		if err != nil || seen.fallback {
			// The read failed. No second notification will come for the same change, so the entity
			// is read again after maxRetryDelay.
			due.Reset(maxRetryDelay)
			continue
		}
		v = seen
	}
}

// stillAuthorized reports whether the client may still read. For example, its API key may have
// been revoked since the stream began.
func (st *stream) stillAuthorized() bool {
	client, err := st.s.authenticator.Authenticate(st.c.Request(), st.c.RealIP())
	return err == nil && client.May(access.Read)
}

// nextReadDelay returns the delay until the next read if no settle message arrives. A read is due
// when the snapshot or not-found result becomes stale, or when a refused update request may be retried, and
// otherwise after heartbeatInterval.
func (st *stream) nextReadDelay(v view) time.Duration {
	wait := heartbeatInterval
	switch {
	case st.s.cache.disconnected():
	case v.freshness == store.Fresh:
		wait = time.Until(v.CheckedAt.Add(st.facet.FreshFor))
	case v.freshness == store.NotFound && v.reason == "":
		wait = time.Until(v.CheckedAt.Add(st.facet.NotFoundFor))
	case v.result.Until.After(time.Now()):
		wait = time.Until(v.result.Until)
	}
	return max(time.Second, wait)
}

// send sends an event if the state changed. It returns false if the client disconnected.
func (st *stream) send(v view) bool {
	body := st.s.responder.bodyOf(v, st.entity.Source)
	now := streamState{version: v.version(), freshness: body.Freshness}
	if body.Refresh != nil {
		now.reason = body.Refresh.Reason
	}
	etag := ""
	if v.entry != nil {
		now.notFound = v.NotFound
		if v.HasContent() && v.freshness != store.Updating { // a snapshot older than KeepFor is not served
			now.tag, etag = v.tag(), v.etags[identity][0]
		}
	}
	var name string
	was := st.last
	switch {
	case now.notFound && !was.notFound:
		name = eventNotFound
	case now.tag != was.tag && now.tag != "" || (was.notFound && !now.notFound):
		name = eventChanged
	case now.version != was.version && now.tag != "":
		name = eventChecked
	case now.version != was.version || now.freshness != was.freshness || now.reason != was.reason:
		name = eventState
	default:
		return true
	}
	st.last = now
	var items changedItems
	if name == eventChanged && st.facet.Collection != nil {
		items = itemReader{st.s}.changedSince(st.c.Request().Context(), st.entity, was.version)
	}
	data, err := json.Marshal(struct {
		readBody
		ETag string `json:"etag,omitempty"`
		changedItems
	}{body, etag, items})
	if err != nil {
		panic(err) // encoding a struct of plain fields can't fail
	}
	id := ""
	if now.version > 0 {
		id = "id: " + now.id() + "\n"
	}
	return st.write(id + "event: " + name + "\ndata: " + string(data) + "\n\n")
}

// write sends text and flushes it. It returns false if the client disconnected.
func (st *stream) write(text string) bool {
	extendWriteDeadline(st.c, 0)
	if _, err := st.c.Response().Write([]byte(text)); err != nil {
		return false
	}
	return http.NewResponseController(st.c.Response()).Flush() == nil
}

// id returns the event id of the state. A client that reconnects sends it as Last-Event-ID.
func (t streamState) id() string {
	notFound := ""
	if t.notFound {
		notFound = ".notFound"
	}
	return strconv.FormatInt(t.version, 10) + "." + t.tag + notFound
}

// parseEventID returns the state that an event id contains; it returns the zero value if the id is
// invalid.
func parseEventID(id string) streamState {
	version, rest, _ := strings.Cut(id, ".")
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil || n <= 0 {
		return streamState{}
	}
	t := streamState{version: n, freshness: store.Fresh}
	t.tag, t.notFound = strings.CutSuffix(rest, ".notFound")
	if t.notFound {
		t.freshness = store.NotFound
	}
	return t
}
