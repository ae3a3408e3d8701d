package query

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
)

// Hooks receives the deliveries of webhooks.
type Hooks interface {
	// Receive verifies a delivery, requests refreshes, and writes the response. If it returns an error,
	// it has not written a response: the error is a *problem.HTTPError, with which the caller must
	// respond.
	Receive(w http.ResponseWriter, r *http.Request, source, name, correlationID string) error
}

// receiveHook returns the handler of deliveries. A delivery contains no credential of a client, because
// its signature authenticates it. It counts toward the limit of requests of the sender's IP address.
func receiveHook(hooks Hooks, limiter ClientLimiter) echo.HandlerFunc {
	return func(c echo.Context) error {
		source, err := pathParam(c, "source")
		if err != nil {
			return err
		}
		name, err := pathParam(c, "name")
		if err != nil {
			return err
		}
		if err := limiter.AllowRequests(access.AddressName(c.RealIP()), 1); err != nil {
			return err
		}
		return hooks.Receive(c.Response(), c.Request(), source, name, correlationOf(c))
	}
}
