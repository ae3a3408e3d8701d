package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// readBody is a read's answer but for the snapshot, which is spliced in as it is
// stored.
type readBody struct {
	Freshness       Freshness  `json:"freshness"`
	LastUpdatedAt   *time.Time `json:"lastUpdatedAt"`
	LastCheckedAt   *time.Time `json:"lastCheckedAt"`
	UpdateQueued    bool       `json:"updateQueued"`
	EstimatedWaitMs *int64     `json:"estimatedWaitMs"`
	// Why a refresh that is due is not queued, and when asking again may help.
	NotQueuedReason *string    `json:"notQueuedReason"`
	NotQueuedUntil  *time.Time `json:"notQueuedUntil"`
}

// entityOf returns the entity that the path names, and its facet.
func (s *Server) entityOf(c echo.Context) (schemas.Entity, source.Facet, error) {
	var parts [3]string
	for i, name := range []string{"source", "facet", "key"} {
		var err error
		if parts[i], err = url.PathUnescape(c.Param(name)); err != nil {
			return schemas.Entity{}, source.Facet{}, problem.New(http.StatusBadRequest, "bad-key", fmt.Sprintf("The %s is not percent-encoded properly.", name))
		}
	}
	e := schemas.Entity{Source: parts[0], Facet: parts[1], Key: parts[2]}
	src, known := s.sources[e.Source]
	if !known {
		return e, source.Facet{}, problem.New(http.StatusNotFound, "no-such-source", "There is no such source. The configuration names the sources.")
	}
	f, known := src.Facet(e.Facet)
	if !known {
		return e, source.Facet{}, problem.New(http.StatusNotFound, "no-such-facet", fmt.Sprintf("Source %s has no such facet.", e.Source))
	}
	if err := schemas.CheckKey(e.Key); err != nil {
		return e, f, problem.New(http.StatusBadRequest, "bad-key", sentence(err))
	}
	if err := src.CheckKey(e.Facet, e.Key); err != nil {
		return e, f, problem.New(http.StatusBadRequest, "bad-key", sentence(err))
	}
	return e, f, nil
}

// sentence writes an error as people read it.
func sentence(err error) string {
	text := err.Error()
	return string(text[0]-'a'+'A') + text[1:] + "."
}

// get looks the entity up; found is false if nothing is stored of it.
func (s *Server) get(ctx context.Context, e schemas.Entity) (snapshot store.Snapshot, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	snapshot, err = s.store.Get(ctx, e)
	if errors.Is(err, store.ErrNotFound) {
		return snapshot, false, nil
	}
	return snapshot, err == nil, err
}

func (s *Server) read(c echo.Context) error {
	e, f, err := s.entityOf(c)
	if err != nil {
		return err
	}
	snapshot, found, err := s.get(c.Request().Context(), e)
	if err != nil {
		s.log.Warn("the store can't be read", "entity", e.String(), "correlation_id", c.Get(correlationKey), "err", err)
		p := problem.New(http.StatusServiceUnavailable, "store-unavailable", "The snapshots can't be read at the moment.")
		p.After = time.Second
		return p
	}
	now := time.Now()
	freshness, reason := judge(snapshot, found, f, now)
	body := readBody{Freshness: freshness}
	if found {
		body.LastUpdatedAt, body.LastCheckedAt = whenSet(snapshot.UpdatedAt), whenSet(snapshot.CheckedAt)
	}
	var a Answer
	if reason != "" {
		a = s.ask(c, Wish{Entity: e, Reason: reason, Floor: snapshot.Version})
		s.tell(&body, e.Source, a)
	}
	s.metrics.read(e, freshness, snapshot, now)
	switch freshness {
	case Updating:
		return s.updating(c, body, a, now)
	case NotFound:
		p := problem.New(http.StatusNotFound, "not-found", "The upstream says that there is no such entity.")
		return &readError{p, &body}
	case Fresh, Stale:
	}
	return s.serve(c, snapshot, f, body, now)
}

func whenSet(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// ask queues a refresh, for as long as a read can wait for that. What takes
// longer goes on behind the reader's back, and is only not promised.
func (s *Server) ask(c echo.Context, w Wish) Answer {
	w.CorrelationID, _ = c.Get(correlationKey).(string)
	w.TraceParent = c.Request().Header.Get(schemas.TraceParent)
	select {
	case s.room <- struct{}{}:
	default:
		return Answer{Reason: ReasonBusy}
	}
	answered := make(chan Answer, 1)
	ctx := context.WithoutCancel(c.Request().Context())
	go func() {
		defer func() { <-s.room }()
		answered <- s.wishes.Request(ctx, w)
	}()
	patience := time.NewTimer(readPatience)
	defer patience.Stop()
	select {
	case a := <-answered:
		return a
	case <-patience.C:
		return Answer{Reason: reasonSlow}
	}
}

// tell writes into the answer what became of the wish.
func (s *Server) tell(body *readBody, source string, a Answer) {
	body.UpdateQueued = a.Queued
	if a.Queued {
		if wait, known := s.waits.Wait(source, schemas.High); known {
			ms := wait.Milliseconds()
			body.EstimatedWaitMs = &ms
		}
		return
	}
	if a.Pending {
		a.Reason = reasonPending
	}
	body.NotQueuedReason, body.NotQueuedUntil = &a.Reason, whenSet(a.Until)
}

// updating answers a read of which nothing can be served: 202 if a copy is on its
// way, 404 if the upstream denies the entity, 503 if nobody can fetch it now.
func (s *Server) updating(c echo.Context, body readBody, a Answer, now time.Time) error {
	after := time.Second
	switch {
	case a.Queued || a.Pending || a.Reason == reasonSlow:
		if body.EstimatedWaitMs != nil {
			after = max(after, time.Duration(*body.EstimatedWaitMs)*time.Millisecond)
		}
		c.Response().Header().Set("Retry-After", strconv.Itoa(problem.Seconds(after)))
		c.Response().Header().Set("Cache-Control", "no-store")
		c.Response().Header().Set("Cache-Status", "freshet; fwd=miss")
		return writeRead(c, http.StatusAccepted, []byte("null"), body)
	case a.Reason == "HELD_"+schemas.HoldAbsent:
		body.Freshness = NotFound
		p := problem.New(http.StatusNotFound, "not-found", "The upstream says that there is no such entity.")
		return &readError{p, &body}
	}
	p := problem.New(http.StatusServiceUnavailable, "not-queued", "Nothing is stored yet, and it can't be fetched now: "+a.Reason+".")
	p.After = max(after, a.Until.Sub(now))
	return &readError{p, &body}
}

// serve answers with the snapshot, or with 304 if the reader has it.
func (s *Server) serve(c echo.Context, snapshot store.Snapshot, f source.Facet, body readBody, now time.Time) error {
	h := c.Response().Header()
	age := now.Sub(snapshot.CheckedAt)
	left := f.FreshFor - age
	etag := fmt.Sprintf(`W/"%x-%x"`, snapshot.Hash[:12], uint32(snapshot.ExtractVersion)) //nolint:gosec // a part is enough
	h.Set("ETag", etag)
	h.Set("Last-Modified", snapshot.UpdatedAt.UTC().Format(http.TimeFormat))
	h.Set("Age", strconv.Itoa(int(max(0, age).Seconds())))
	h.Set("Cache-Control", fmt.Sprintf("private, max-age=%d, stale-while-revalidate=%d", max(0, int(left.Seconds())), int(f.FreshFor.Seconds())))
	h.Set("Cache-Status", fmt.Sprintf("freshet; hit; ttl=%d", int(left.Seconds())))
	if matches(c.Request().Header.Values("If-None-Match"), etag) {
		return c.NoContent(http.StatusNotModified)
	}
	text, err := snapshot.Decode(make([]byte, 0, snapshot.Size))
	if err != nil {
		return err
	}
	return writeRead(c, http.StatusOK, text, body)
}

// writeRead writes {"snapshot": …, …} with the snapshot's bytes as they are.
func writeRead(c echo.Context, status int, snapshot []byte, body readBody) error {
	rest, err := json.Marshal(body)
	if err != nil {
		return err
	}
	out := make([]byte, 0, len(snapshot)+len(rest)+16)
	out = append(out, `{"snapshot":`...)
	out = append(out, snapshot...)
	out = append(out, ',')
	out = append(out, rest[1:]...)
	return c.Blob(status, "application/json", out)
}

func (s *Server) refresh(c echo.Context) error {
	e, f, err := s.entityOf(c)
	if err != nil {
		return err
	}
	// Without a store the floor is unknown, and numbers rise all the same.
	snapshot, _, err := s.get(c.Request().Context(), e)
	if err != nil {
		s.log.Warn("refresh without a look at the store", "entity", e.String(), "err", err)
	}
	w := Wish{Entity: e, Reason: schemas.UserRequest, Floor: snapshot.Version, Cooldown: f.Cooldown}
	a := s.askForSure(c, w)
	if a.Queued {
		body := struct {
			UpdateQueued    bool   `json:"updateQueued"`
			EstimatedWaitMs *int64 `json:"estimatedWaitMs"`
		}{UpdateQueued: true}
		if wait, known := s.waits.Wait(e.Source, schemas.High); known {
			ms := wait.Milliseconds()
			body.EstimatedWaitMs = &ms
		}
		return c.JSON(http.StatusAccepted, body)
	}
	if a.Reason == ReasonCooldown {
		p := problem.New(http.StatusTooManyRequests, "cooldown", "This entity was refreshed a moment ago.")
		p.After = max(time.Second, time.Until(a.Until))
		return p
	}
	p := problem.New(http.StatusServiceUnavailable, "not-queued", "The refresh could not be queued: "+a.Reason+".")
	p.After = max(time.Second, time.Until(a.Until))
	return p
}

const (
	surePatience = time.Second
	sureEvery    = 50 * time.Millisecond
)

// askForSure asks until somebody's record is certain: a person who asks for a
// refresh must not lose it to a publish that fails.
func (s *Server) askForSure(c echo.Context, w Wish) Answer {
	limit := time.NewTimer(surePatience)
	defer limit.Stop()
	again := time.NewTicker(sureEvery)
	defer again.Stop()
	for {
		a := s.ask(c, w)
		if !a.Pending && a.Reason != reasonSlow {
			return a
		}
		if a.Pending {
			a.Reason = reasonPending
		}
		select {
		case <-again.C:
		case <-limit.C:
			return a
		case <-c.Request().Context().Done():
			return a
		}
	}
}
