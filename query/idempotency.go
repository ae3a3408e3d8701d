package query

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

const (
	idempotencyHeader     = "Idempotency-Key"
	maxIdempotencyKeySize = 255 // maximum length of an idempotency key, in bytes
	// idempotencyTimeout bounds a call to Redis, so that a refresh is answered soon while Redis is down.
	idempotencyTimeout = time.Second
)

// idempotencyFails is the condition while idempotency keys can't be read or saved. A repeated refresh
// can then make a second call, or get the problem cooldown.
var idempotencyFails = observe.Condition{
	Event: "idempotency_keys_unavailable", Failing: "idempotency keys can't be read or saved; a repeated refresh may call the upstream again",
	Recovered: "reading and saving idempotency keys works again",
}

// parseIdempotencyKey returns the header Idempotency-Key; empty means that the request has none.
func parseIdempotencyKey(r *http.Request) (string, error) {
	values := r.Header[idempotencyHeader]
	if len(values) == 0 {
		return "", nil
	}
	isPrintable := !strings.ContainsFunc(values[0], func(c rune) bool { return c < '!' || c > '~' })
	if len(values) > 1 || values[0] == "" || len(values[0]) > maxIdempotencyKeySize || !isPrintable {
		return "", problem.New(http.StatusBadRequest, problem.BadRequest,
			"Send the header Idempotency-Key once, with 1 to 255 printable ASCII characters without spaces, such as a new UUID for each refresh.")
	}
	return values[0], nil
}

// refreshes limits the number of refreshes that wait for Kafka. It also recognises repeated refreshes
// by their idempotency keys.
type refreshes struct {
	slots      chan struct{} // one slot for each call that may wait for Kafka at the same time
	keys       IdempotencyKeys
	credits    Credits // nil means that refreshes cost nothing
	log        *slog.Logger
	conditions observe.Conditions // the log condition that lasts while the keys can't be read or saved
}

// find returns the result of an earlier refresh with the idempotency key.
func (r *refreshes) find(ctx context.Context, client access.Client, e schemas.Entity, key string) (result EnqueueResult, found bool) {
	limited, cancel := context.WithTimeout(ctx, idempotencyTimeout)
	defer cancel()
	number, err := r.keys.Find(limited, client.ID(), e, key)
	if ctx.Err() == nil {
		r.conditions.Record(r.log, idempotencyFails, err)
	}
	return EnqueueResult{Queued: true, Number: number, isRepeated: true}, err == nil && number > 0
}

// save stores the number of a refresh for its idempotency key. It does so even if the client has
// disconnected, because such a client repeats the request.
func (r *refreshes) save(ctx context.Context, client access.Client, e schemas.Entity, key string, number int64) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), idempotencyTimeout)
	defer cancel()
	r.conditions.Record(r.log, idempotencyFails, r.keys.Save(limited, client.ID(), e, key, number))
}

// once calls `enqueue`, unless the client has refreshed the entity with the same idempotency key in
// the last minutes. Then it returns the number of that refresh. The argument of `enqueue` is the
// idempotency key; empty means that the request has none.
func (r *refreshes) once(c echo.Context, client access.Client, e schemas.Entity, enqueue func(key string) (EnqueueResult, error)) (EnqueueResult, error) {
	key, err := parseIdempotencyKey(c.Request())
	switch {
	case err != nil:
		return EnqueueResult{}, err
	case key == "":
		return enqueue(key)
	}
	ctx := c.Request().Context()
	if earlier, found := r.find(ctx, client, e, key); found {
		return earlier, nil
	}
	result, err := enqueue(key)
	switch {
	case err == nil:
		r.save(ctx, client, e, key, result.Number)
	case result.Reason == ReasonCooldown: // a concurrent request with the same key may have saved its refresh after the first call of `find`
		if earlier, found := r.find(ctx, client, e, key); found {
			return earlier, nil
		}
	}
	return result, err
}
