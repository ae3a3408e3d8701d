package query

import (
	"context"
	"net"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// consoleClient is the client name under which lookups of the console are counted.
const consoleClient = "console"

// consoleStreamPath is the path at which the console streams events. All paths below it stream too.
const consoleStreamPath = "/console/live"

// console serves the operator pages. It does not authenticate: the pages do that themselves,
// with a session cookie that the Authenticator does not know. It sets RemoteAddr to the address
// of the client, also behind trusted proxies.
func (s *Server) console(pages http.Handler) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		ctx, leave := context.WithCancel(context.WithValue(r.Context(), correlationIDKey{}, correlationOf(c)))
		defer leave()
		if r.URL.Path == consoleStreamPath || strings.HasPrefix(r.URL.Path, consoleStreamPath+"/") {
			c.Set(waitsKey, true)
			go func() { // an open event stream of a page would delay the shutdown, so it is ended
				select {
				case <-s.waits.set.stopping:
					leave()
				case <-ctx.Done():
				}
			}()
		}
		r = r.WithContext(ctx)
		if _, port, err := net.SplitHostPort(r.RemoteAddr); err == nil {
			r.RemoteAddr = net.JoinHostPort(c.RealIP(), port)
		}
		pages.ServeHTTP(c.Response(), r)
		return nil
	}
}

// correlationIDKey is the context key of the correlation id of a console request.
type correlationIDKey struct{}

// Refresh enqueues strict update requests for entities of one facet, as POST …/refresh does, and
// waits at most 5 s for Kafka. The caller must have checked that the client may refresh them. The
// refreshes count toward the limits of the client and cost its credits, unless it has the scope admin.
// A result that is unknown after 5 s is Pending.
func (s *Server) Refresh(ctx context.Context, client access.Client, all []schemas.Entity, f source.Facet) []EnqueueResult {
	requests := make([]UpdateRequest, len(all))
	for i, w := range s.requester.newRefreshRequests(ctx, consoleClient, all, f) { // w.request has Floor 0 (unknown version) if the store can't be read
		requests[i] = w.request
		if !client.May(access.Admin) {
			requests[i].Client = client.ID()
		}
		requests[i].CorrelationID, _ = ctx.Value(correlationIDKey{}).(string)
	}
	return s.requester.refreshes.pay(ctx, client, "", requests, s.requester.waitForAck)
}
