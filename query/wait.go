package query

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

const (
	// maxWait is the maximum wait of a client. A longer requested wait is shortened to maxWait.
	maxWait = 30 * time.Second
	// maxWaiters is the maximum number of waiting and streaming clients per process.
	maxWaiters = 50_000
	// While the store can't be read or the settle subscription is disconnected, waiting requests
	// read the entity again after minRetryDelay. The delay doubles up to maxRetryDelay.
	minRetryDelay = fallbackTimeout
	maxRetryDelay = time.Second
	// responseTimeout is how long a client may take to read the response after its wait, or to
	// read one event of a stream.
	responseTimeout = 30 * time.Second
)

// waits lets clients wait for new snapshots.
type waits struct {
	set     *waiterSet
	cache   *snapshotCache
	limiter ClientLimiter
}

// waitUntil calls `read` at once and after each notification, until `read` returns false as its
// second result. It also ends when the timeout expires, the client disconnects or the process shuts
// down; then timedOut is true. The waiter is registered before the first read, so no notification
// is missed.
func (ws *waits) waitUntil(c echo.Context, client access.Client, timeout time.Duration, e schemas.Entity, read func(*waiter) (view, bool, error)) (v view, timedOut bool, err error) {
	c.Set(waitsKey, true)
	leave, err := ws.acquireWaitSlot(client)
	if err != nil {
		return view{}, false, err
	}
	defer leave()
	w := ws.set.add(e)
	defer ws.set.remove(w)
	extendWriteDeadline(c, timeout)
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	retryTimer := time.NewTimer(timeout)
	defer retryTimer.Stop()
	for retryDelay := minRetryDelay; ; {
		v, keepWaiting, err := read(w)
		if err != nil || !keepWaiting {
			return v, false, err
		}
		select { // ends the wait if the timeout has expired during the call of `read`
		case <-limit.C:
			return v, true, nil
		default:
		}
		// After a failed read of the store, or while the subscription is disconnected, the next
		// notification may never come. So the entity is read again after a delay.
		if v.fallback || ws.cache.disconnected() {
			retryTimer.Reset(retryDelay)
			retryDelay = min(2*retryDelay, maxRetryDelay)
		}
		select {
		case <-w.notified:
			retryDelay = minRetryDelay
		case <-retryTimer.C:
		case <-limit.C:
			return v, true, nil
		case <-ws.set.stopping:
			return v, true, nil
		case <-c.Request().Context().Done():
			return v, true, nil
		}
	}
}

// acquireWaitSlot reserves a wait slot of the process and of the client.
func (ws *waits) acquireWaitSlot(client access.Client) (leave func(), err error) {
	release, err := ws.limiter.AcquireWaitSlot(client.Name)
	if err != nil {
		return nil, err
	}
	leave = func() {
		ws.set.count.Add(-1)
		release()
	}
	if ws.set.count.Add(1) <= maxWaiters {
		return leave, nil
	}
	leave()
	p := problem.New(http.StatusServiceUnavailable, problem.TooManyWaiters, "The process has the maximum number of waiting clients. Read without wait, or retry later.")
	p.After = time.Second
	return nil, p
}

// extendWriteDeadline moves the write deadline to the end of the wait plus responseTimeout.
func extendWriteDeadline(c echo.Context, timeout time.Duration) {
	// The error is expected in tests: their connections have no deadline.
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(timeout + responseTimeout))
}
