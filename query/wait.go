package query

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

const (
	// maxWait is how long an answer is held back at most; a longer wish is cut.
	maxWait = 30 * time.Second
	// maxWaiters bounds those who wait or follow in one process.
	maxWaiters = 50_000
	// minRetryDelay doubles up to lookAgainMost while what was settled can't be read, or
	// not be heard.
	minRetryDelay = fallbackTimeout
	maxRetryDelay = time.Second
	// responseTimeout is how long a client may take to read what it is sent.
	responseTimeout = 30 * time.Second
)

// parseWait returns how long the client wants to wait for a refresh: ?wait=5s, or
// Prefer: wait=5 (RFC 7240), which it is told was heard; 0 if it does not.
func (s *Server) parseWait(c echo.Context) (time.Duration, error) {
	r := c.Request()
	if r.URL.RawQuery != "" {
		if query := r.URL.Query(); query.Has("wait") {
			text := query.Get("wait")
			wait, err := time.ParseDuration(text)
			if seconds, plain := strconv.Atoi(text); plain == nil {
				wait, err = time.Duration(min(seconds, int(maxWait/time.Second)))*time.Second, nil
			}
			if err != nil || wait < 0 {
				return 0, problem.New(http.StatusBadRequest, "bad-wait", "wait must be a duration, as in 5s or 500ms.")
			}
			return min(wait, maxWait), nil
		}
	}
	for _, header := range r.Header["Prefer"] {
		for preference := range strings.SplitSeq(header, ",") {
			name, value, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value, _, _ = strings.Cut(value, ";")
			seconds, err := strconv.Atoi(strings.Trim(strings.TrimSpace(value), `"`))
			if err != nil || seconds < 0 {
				return 0, nil // a preference that can't be read is ignored
			}
			wait := time.Duration(min(seconds, int(maxWait/time.Second))) * time.Second
			c.Response().Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(wait/time.Second)))
			return wait, nil
		}
	}
	return 0, nil
}

// waitUntil looks until a look finds no reason to wait on, the time is up, or the
// process stops; it returns what the last look found, and whether it waited in vain.
// It listens before the first look.
func (s *Server) waitUntil(c echo.Context, who access.Client, patience time.Duration, e schemas.Entity, look func(*waiter) (view, bool, error)) (v view, inVain bool, err error) {
	c.Set(waitsKey, true)
	leave, err := s.acquireWaitSlot(who)
	if err != nil {
		return view{}, false, err
	}
	defer leave()
	w := s.waiterSet.add(e)
	defer s.waiterSet.remove(w)
	s.extendWriteDeadline(c, patience)
	limit := time.NewTimer(patience)
	defer limit.Stop()
	again := time.NewTimer(patience)
	defer again.Stop()
	for retry := minRetryDelay; ; {
		v, on, err := look(w)
		if err != nil || !on {
			return v, false, err
		}
		select { // the look may have taken all the time there was
		case <-limit.C:
			return v, true, nil
		default:
		}
		// What could not be read will not ring again, and a deaf process hears nothing.
		if v.fallback || s.cache.disconnected() {
			again.Reset(retry)
			retry = min(2*retry, maxRetryDelay)
		}
		select {
		case <-w.notified:
			retry = minRetryDelay
		case <-again.C:
		case <-limit.C:
			return v, true, nil
		case <-s.stopping:
			return v, true, nil
		case <-c.Request().Context().Done():
			return v, true, nil
		}
	}
}

// acquireWaitSlot takes a place among those who wait, of the process and of the client.
func (s *Server) acquireWaitSlot(who access.Client) (leave func(), err error) {
	done, err := s.limiter.AcquireWaitSlot(who.Name)
	if err != nil {
		return nil, err
	}
	leave = func() {
		s.waiterCount.Add(-1)
		done()
	}
	if s.waiterCount.Add(1) <= maxWaiters {
		return leave, nil
	}
	leave()
	p := problem.New(http.StatusServiceUnavailable, "too-many-waiters", "As many clients wait for a refresh as this process holds; read without waiting.")
	p.After = time.Second
	return nil, p
}

// extendWriteDeadline lets an answer be written although it is held back for so long.
func (s *Server) extendWriteDeadline(c echo.Context, patience time.Duration) {
	// What has no deadline, as in a test, needs no other.
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(patience + responseTimeout))
}
