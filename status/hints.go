package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// hintTTL is how long the hints of a source are kept after the last hint was saved. A worker saves
// its hints again every hour.
const hintTTL = 7 * 24 * time.Hour

func hintsKey(source string) string { return "hints:{" + source + "}" }

// Hints keeps the hints of one source in Redis. The hint of a facet is the name of the only JSON
// member that changes at every check, for example a timestamp.
type Hints struct {
	Redis  redis.UniversalClient
	Source string
}

// SaveHint stores the hint of a facet: the name of the only JSON member that changes at every check.
func (h Hints) SaveHint(ctx context.Context, facet, member string) error {
	pipe := h.Redis.TxPipeline()
	pipe.HSet(ctx, hintsKey(h.Source), facet, member)
	pipe.Expire(ctx, hintsKey(h.Source), hintTTL)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("store the hint (the only changing JSON member) of %s/%s: %w", h.Source, facet, err)
	}
	return nil
}

// DeleteHint deletes the hint of a facet.
func (h Hints) DeleteHint(ctx context.Context, facet string) error {
	if err := h.Redis.HDel(ctx, hintsKey(h.Source), facet).Err(); err != nil {
		return fmt.Errorf("delete the hint (the only changing JSON member) of %s/%s: %w", h.Source, facet, err)
	}
	return nil
}

// ReadHint returns the hint of a facet: the name of the only JSON member that changes at every check,
// or "" if there is no hint.
func (h Hints) ReadHint(ctx context.Context, facet string) (string, error) {
	member, err := h.Redis.HGet(ctx, hintsKey(h.Source), facet).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("read the hint (the only changing JSON member) of %s/%s: %w", h.Source, facet, err)
	}
	return member, nil
}
