package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// streamIdleTimeout is the maximum time without data on a stream. The service sends a comment
	// every 15 s, so the connection is lost after three missing comments.
	streamIdleTimeout = 45 * time.Second
	// reconnectDelay is the delay before a reconnect. If the service sends another delay on the
	// stream, that delay applies instead.
	reconnectDelay = time.Second
	// maxReconnectDelay is the maximum delay before a reconnect after failures in a row, except that
	// a longer Retry-After is obeyed.
	maxReconnectDelay = 30 * time.Second
)

// EventType is the type of an event.
type EventType string

// The values of EventType.
const (
	Changed       EventType = "changed"  // the content has changed since the previous event
	Checked       EventType = "checked"  // the entity was fetched, and its content is the same
	NotFoundEvent EventType = "notFound" // the upstream has no such entity
	State         EventType = "state"    // the content has not changed, but the freshness or the state of the refresh has
)

// Event is a change of an entity. It has no content: Get returns the content, with a conditional
// read.
type Event struct {
	ID            string        `json:"-"` // value for LastEventID; empty if nothing is stored
	Type          EventType     `json:"-"`
	Freshness     Freshness     `json:"freshness"`
	LastUpdatedAt time.Time     `json:"lastUpdatedAt"` // time of the last change of the content; zero if nothing is stored
	LastCheckedAt time.Time     `json:"lastCheckedAt"` // time of the last successful check; zero if nothing is stored
	Refresh       *RefreshState `json:"refresh"`       // state of the refresh; nil if no refresh is due
	ETag          string        `json:"etag"`          // identifies the content; empty if there is none
	// Items are up to 100 items of the collection that have changed since the previous event. If
	// MoreItems is true, more items have changed: Client.Items returns them.
	Items []struct {
		ID      string `json:"id"`
		Deleted bool   `json:"deleted"`
	} `json:"items"`
	MoreItems bool `json:"moreItems"`
}

// LastEventID lets Watch begin after the event with this ID, for example after a restart of the
// program. Several changes since then are one event.
func LastEventID(id string) CallOption { return func(r *request) { r.lastEventID = id } }

// Watch follows an entity. The first event has the stored state. If the connection fails, or the
// service can't be reached or is overloaded, Watch reconnects and continues after the last event.
// The sequence ends with an error: a *Problem that a reconnect can't solve, ErrSignedOut, or the
// cause of ctx. Following an entity counts as reading it, so the service keeps it fresh.
func (c *Client) Watch(ctx context.Context, e Entity, options ...CallOption) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		path, err := e.path()
		if err != nil {
			yield(Event{}, err)
			return
		}
		w := &watch{c: c, delay: reconnectDelay, request: request{method: http.MethodGet, path: path + "/events", stream: true}}
		for _, change := range options {
			change(&w.request)
		}
		w.request.wait = 0
		for {
			more, err := w.stream(ctx, yield)
			if !more {
				return
			}
			if delay, again := w.reconnectAfter(err); again && ctx.Err() == nil {
				c.options.Log.Debug("event stream reconnects", "delay", delay, "failures", w.failures, "err", err)
				if sleep(ctx, delay) == nil {
					continue
				}
			}
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			yield(Event{}, err)
			return
		}
	}
}

// watch is one call of Watch. It uses several streams, one after the other.
type watch struct {
	c        *Client
	request  request       // the request that opens each stream; its lastEventID is the ID of the last received event
	delay    time.Duration // delay before the next reconnect, as the service has requested it
	failures int           // number of consecutive streams that ended without any data
	event    rawEvent      // the event that is being read
}

// temporary reports whether a reconnect may succeed after the error.
func temporary(err error) bool {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Status == http.StatusTooManyRequests || p.Status >= http.StatusInternalServerError
	}
	_, lost := errors.AsType[*ConnectionError](err)
	return (lost || errors.Is(err, errRenewal)) && !errors.Is(err, ErrSignedOut)
}

// reconnectAfter returns the delay before the next stream is opened. The result `again` is false if
// the error is permanent. A nil error means that the service has ended the stream.
func (w *watch) reconnectAfter(err error) (delay time.Duration, again bool) {
	if err != nil && !temporary(err) {
		return 0, false
	}
	delay = min(max(w.delay, baseRetryDelay)<<min(w.failures, 5), maxReconnectDelay)
	if p, ok := errors.AsType[*Problem](err); ok {
		delay = max(delay, p.After)
	}
	return delay + rand.N(delay/4), true //nolint:gosec // spreads reconnects; not a secret
}

// stream opens one stream and yields its events until the stream ends. The result `more` is false if
// the caller has ended the loop.
func (w *watch) stream(ctx context.Context, yield func(Event, error) bool) (more bool, err error) {
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := time.AfterFunc(streamIdleTimeout, cancel)
	defer idle.Stop()
	w.failures++
	body, err := w.open(streamCtx, idle)
	if err != nil {
		if streamCtx.Err() != nil && ctx.Err() == nil {
			err = &ConnectionError{w.c.name, fmt.Errorf("the timeout of %v has expired", w.c.options.Timeout)}
		}
		return true, err
	}
	defer func() { _ = body.Close() }()
	idle.Reset(streamIdleTimeout)
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, int(min(w.c.options.MaxResponseBytes, 1<<30)))
	w.event = rawEvent{}
	for lines.Scan() {
		w.failures = 0
		idle.Stop() // the idle timeout must not run while the caller handles an event
		if line := lines.Text(); line != "" {
			w.add(line)
		} else {
			if w.event.data != nil {
				decoded, err := w.decode()
				if err != nil {
					return true, err
				}
				if !yield(decoded, nil) {
					return false, nil
				}
			}
			w.event = rawEvent{}
		}
		idle.Reset(streamIdleTimeout)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return true, fmt.Errorf("an event of %s is larger than %s; raise MaxResponseBytes", w.c.name, sizeText(w.c.options.MaxResponseBytes))
	}
	return true, nil // an interrupted stream is handled like a stream that the service has ended
}

// open sends the request, and returns the body of the stream. The timer `idle` ends the context of
// the stream if the response does not begin in time.
func (w *watch) open(ctx context.Context, idle *time.Timer) (body io.ReadCloser, err error) {
	idle.Stop()
	var answer Response
	err = w.c.attempts(ctx, &w.request, func(token string) (Response, error) {
		idle.Reset(w.c.options.Timeout)
		defer idle.Stop()
		resp, err := w.c.send(ctx, &w.request, token) //nolint:bodyclose // stream or read closes the body
		if err != nil {
			return Response{}, err
		}
		if resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), eventStreamType[0]) {
			body = resp.Body
			return Response{Code: resp.StatusCode}, nil
		}
		answer, err = w.c.read(resp)
		return answer, err
	})
	if err == nil && body == nil {
		err = answer.Problem()
	}
	return body, err
}

// rawEvent holds the fields of a server-sent event (HTML Living Standard, section 9.2).
type rawEvent struct {
	id, name string
	data     []string
}

// add adds a line of the stream to the event. A line that begins with a colon is a comment.
func (w *watch) add(line string) {
	field, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	switch field {
	case "id":
		w.event.id = value
	case "event":
		w.event.name = value
	case "data":
		w.event.data = append(w.event.data, value)
	case "retry":
		if ms, err := strconv.ParseUint(value, 10, 31); err == nil {
			w.delay = time.Duration(ms) * time.Millisecond
		}
	}
}

// decode returns the event for the fields of the stream.
func (w *watch) decode() (Event, error) {
	e := Event{ID: w.event.id, Type: EventType(w.event.name)}
	if err := json.Unmarshal([]byte(strings.Join(w.event.data, "\n")), &e); err != nil || e.Freshness == "" {
		return e, fmt.Errorf("unexpected event from %s; it does not come from a freshet query service of this release: check the address", w.c.name)
	}
	if e.ID != "" {
		w.request.lastEventID = e.ID
	}
	return e, nil
}
