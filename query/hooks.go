package query

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
)

// Hooks receives the deliveries of webhooks.
type Hooks interface {
	// Receive verifies a delivery, requests refreshes, and responds. An error is a *problem.HTTPError, and
	// means that it has not responded.
	Receive(w http.ResponseWriter, r *http.Request, source, name, correlationID string) error
}

// receiveHook returns the handler of deliveries. A delivery has no credentials of a client: its signature
// authenticates it. The limit of requests counts its address.
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
