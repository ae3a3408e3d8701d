package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/runs/api"
)

// Runs starts and reads runs. Its methods return *problem.HTTPError, or errors of the database.
type Runs interface {
	// Start starts a run. If no new run is needed, because an earlier run fetches the same data, it
	// returns that run and `started` is false.
	Start(ctx context.Context, client access.Client, source, name, idempotencyKey string, body []byte) (run api.Run, started bool, err error)
	// Get returns a run.
	Get(ctx context.Context, id string) (api.Run, error)
}

// runReader starts and shows runs.
type runReader struct {
	s    *Server
	runs Runs
}

// route registers the handlers of the paths of runs.
func (r runReader) route(methods []string) {
	e, s := r.s.echo, r.s
	e.POST("/v1/runs/:source/:name", s.authorized(access.Refresh, r.start))
	e.Match(methods, "/v1/runs/:id", s.authorized(access.Read, r.show))
	e.Match(methods, "/v1/runs/:id/events", s.authorized(access.Read, r.events))
}

// unavailable logs an error of the database, and returns the problem to respond with.
func (r runReader) unavailable(c echo.Context, err error) error {
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		return p
	}
	r.s.log.Warn("runs can't be read or written", "correlation_id", correlationOf(c), "err", err)
	p := problem.New(http.StatusServiceUnavailable, problem.StoreUnavailable, "Runs can't be read or written now. Retry later; a start with an Idempotency-Key starts one run only.")
	p.After = time.Second
	return p
}

// start starts a run. The status is 202 for a new run. It is 200 if no new run is needed, because an
// earlier run fetches the same data.
func (r runReader) start(c echo.Context, client access.Client) error {
	source, err := pathParam(c, "source")
	if err != nil {
		return err
	}
	name, err := pathParam(c, "name")
	if err != nil {
		return err
	}
	key, err := parseIdempotencyKey(c.Request())
	if err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, api.MaxBodyBytes))
	if err != nil {
		return problem.Body(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), runTimeout) // the run is started even if the client disconnects
	defer cancel()
	run, started, err := r.runs.Start(ctx, client, source, name, key, body)
	if err != nil {
		return r.unavailable(c, err)
	}
	status := http.StatusOK
	if started {
		status = http.StatusAccepted
	}
	c.Response().Header().Set("Location", "/v1/runs/"+run.ID)
	return respondRun(c, status, run)
}

func respondRun(c echo.Context, status int, run api.Run) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(status, run)
}

const (
	// runTimeout bounds the start of a run, which inserts up to 100,000 steps.
	runTimeout = 30 * time.Second
	// runRecheck is the interval at which a waiting client's run is read again, because a message about
	// its change can be lost.
	runRecheck = 5 * time.Second
	// runMinInterval is the minimum time between two reads of a run for the same waiting client.
	runMinInterval = 200 * time.Millisecond
)

func (r runReader) get(c echo.Context) (run api.Run, err error) {
	id, err := pathParam(c, "id")
	if err != nil {
		return run, err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), storeTimeout)
	defer cancel()
	if run, err = r.runs.Get(ctx, id); err != nil {
		return run, r.unavailable(c, err)
	}
	return run, nil
}

// show responds with a run. If the request sets a wait, it responds when the run has ended or the wait
// is over.
func (r runReader) show(c echo.Context, client access.Client) error {
	wait, err := parseWait(c)
	if err != nil {
		return err
	}
	run, err := r.get(c)
	if err != nil {
		return err
	}
	if wait <= 0 || run.Ended() {
		return respondRun(c, http.StatusOK, run)
	}
	c.Set(waitsKey, true)
	extendWriteDeadline(c, wait)
	limit := time.NewTimer(wait)
	defer limit.Stop()
	err = r.follow(c, client, run, limit.C, func(now api.Run) bool {
		run = now
		return !run.Ended()
	})
	if err != nil {
		return err
	}
	return respondRun(c, http.StatusOK, run)
}

// follow calls `changed` with the run, first at once and then after each change. It blocks until
// `changed` returns false, a value arrives on the channel `end`, the client disconnects, or the
// process stops.
func (r runReader) follow(c echo.Context, client access.Client, run api.Run, end <-chan time.Time, changed func(api.Run) bool) error {
	leave, err := r.s.waits.acquireWaitSlot(client)
	if err != nil {
		return err
	}
	defer leave()
	w := r.s.waits.set.add(runs.SettledEntity(run.Source, run.ID))
	defer r.s.waits.set.remove(w)
	recheck := time.NewTicker(runRecheck)
	defer recheck.Stop()
	for {
		if now, err := r.get(c); err == nil { // if the read fails, the previous state of the run is used
			run = now
		}
		if !changed(run) {
			return nil
		}
		// Notifications are ignored until the pause has passed. So a run whose steps end in quick
		// succession is not read after each step.
		notified := (<-chan struct{})(nil)
		for waiting, pause := true, time.After(runMinInterval); waiting; {
			select {
			case <-pause:
				notified, pause = w.notified, nil
			case <-notified:
				waiting = false
			case <-recheck.C:
				waiting = false
			case <-end:
				return nil
			case <-r.s.waits.set.stopping:
				return nil
			case <-c.Request().Context().Done():
				return nil
			}
		}
	}
}

// events streams the state of a run as server-sent events: an event progress after each change, and an
// event ended at the end of the run. The event ended is the last one.
func (r runReader) events(c echo.Context, client access.Client) error {
	run, err := r.get(c)
	if err != nil {
		return err
	}
	h := c.Response().Header()
	begin := func() {
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // this header makes nginx send each event at once, without buffering
		c.Response().WriteHeader(http.StatusOK)
	}
	if c.Request().Method == http.MethodHead {
		begin()
		return nil
	}
	st := &stream{s: r.s, c: c, client: client}
	begun, beat := false, time.Now()
	var last []byte
	return r.follow(c, client, run, nil, func(now api.Run) bool {
		if !begun {
			begun = true
			begin()
			if !st.write(fmt.Sprintf("retry: %d\n\n", (minReconnectDelay + rand.N(minReconnectDelay)).Milliseconds())) { //nolint:gosec // spreads reconnects; not a secret
				return false
			}
		}
		data, err := json.Marshal(now)
		if err != nil {
			panic(err) // encoding a struct of plain fields can't fail
		}
		switch {
		case now.Ended():
			_ = st.write("event: ended\ndata: " + string(data) + "\n\n")
			return false
		case string(data) != string(last):
			last, beat = data, time.Now()
			return st.write("event: progress\ndata: " + string(data) + "\n\n")
		case time.Since(beat) >= heartbeatInterval:
			beat = time.Now()
			return st.stillAuthorized() && st.write(": alive\n\n")
		}
		return true
	})
}
