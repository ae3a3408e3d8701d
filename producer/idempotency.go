package producer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
)

// idempotencyTTL is how long the number of a refresh is kept for its idempotency key. It is longer than
// the retries of a client last.
const idempotencyTTL = 10 * time.Minute

// IdempotencyKeys keeps the numbers of refreshes that clients have requested with an idempotency key:
// one Redis key for each client, entity and idempotency key. Its methods may be called concurrently.
type IdempotencyKeys struct{ rdb redis.UniversalClient }

// NewIdempotencyKeys returns IdempotencyKeys that are kept in rdb.
func NewIdempotencyKeys(rdb redis.UniversalClient) IdempotencyKeys { return IdempotencyKeys{rdb} }

// Find returns the number of the request that the client has enqueued for the entity with the key; 0
// means none.
func (k IdempotencyKeys) Find(ctx context.Context, client string, e schemas.Entity, key string) (number int64, err error) {
	number, err = k.rdb.Get(ctx, idempotencyKey(client, e, key)).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find the refresh of an idempotency key: %w", err)
	}
	return number, nil
}

// Save keeps the number of an enqueued request. It must be called after Kafka has acknowledged the
// record: otherwise a repeated request could be answered with a refresh that was lost.
func (k IdempotencyKeys) Save(ctx context.Context, client string, e schemas.Entity, key string, number int64) error {
	if err := k.rdb.Set(ctx, idempotencyKey(client, e, key), number, idempotencyTTL).Err(); err != nil {
		return fmt.Errorf("save the refresh of an idempotency key: %w", err)
	}
	return nil
}

// idempotencyKey returns the Redis key. It contains a hash, because clients choose the text.
func idempotencyKey(client string, e schemas.Entity, key string) string {
	sum := sha256.Sum256([]byte(client + "\x00" + e.String() + "\x00" + key))
	return "idempotency:" + hex.EncodeToString(sum[:16])
}
