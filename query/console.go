package query

import (
	"context"
	"net"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// consoleClient is the client of whom nothing is counted when a page asks for a refresh.
const consoleClient = "console"

// consoleStreamPath is the path at and below which the console streams, whatever is accepted.
const consoleStreamPath = "/console/live"

// console serves the pages for operators as they are asked for. It lets everybody in: who
// opens a page shows a cookie, which the pages know and the guard does not. RemoteAddr is the
// address of the client, behind proxies that are known too.
func (s *Server) console(pages http.Handler) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		ctx, leave := context.WithCancel(context.WithValue(r.Context(), correlationIDKey{}, correlationOf(c)))
		defer leave()
		if r.URL.Path == consoleStreamPath || strings.HasPrefix(r.URL.Path, consoleStreamPath+"/") {
			c.Set(waitsKey, true)
			go func() { // a page that is left open must not hold up a stop
				select {
				case <-s.stopping:
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

// correlationIDKey is where the context of a page's request has its correlation id.
type correlationIDKey struct{}

// Refresh enqueues refreshes that begin after the call, as POST …/refresh does, of entities of
// one facet that the client may refresh. client is a schemas.ClientID, whose outstanding
// requests they are; "" is nobody's. It waits for Kafka for 5 s at most: an answer that is not
// certain by then is Pending.
func (s *Server) Refresh(ctx context.Context, client string, all []schemas.Entity, f source.Facet) []EnqueueResult {
	wishes := make([]UpdateRequest, len(all))
	for i, w := range s.newRefreshRequests(ctx, consoleClient, all, f) { // also without a read of the store
		wishes[i] = w.request
		wishes[i].Client = client
		wishes[i].CorrelationID, _ = ctx.Value(correlationIDKey{}).(string)
	}
	return s.waitForAck(ctx, wishes)
}
