package runs

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/outbox"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
)

// announceTimeout is the time limit of one announcement.
const announceTimeout = time.Second

// SettledEntity returns the entity of the settle messages about a run. Such a message says that the run
// has changed. Clients that wait for the run receive it like a settle message about an entity.
func SettledEntity(source, id string) schemas.Entity {
	return schemas.Entity{Source: source, Facet: "run", Key: id}
}

// Announce publishes that a run has changed, and wakes the outbox relays, because the run's end has
// stored an event. If a message is lost, waiting clients read the run again later, and a relay
// publishes the event later.
func Announce(ctx context.Context, rdb redis.UniversalClient, run Run, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), announceTimeout)
	defer cancel()
	message := schemas.Settled{Entity: SettledEntity(run.Source, run.ID), Number: int64(run.Attempt)}.Encode()
	if err := rdb.Publish(ctx, schemas.SettledChannel(run.Source), message).Err(); err != nil {
		log.Debug("change of a run not announced; waiting clients read it again later", "run", run.ID, "err", err)
	}
	if run.Ended() {
		poll.WakeAt(ctx, rdb, outbox.Channel(run.Source), run.EndedAt, log)
	}
}
