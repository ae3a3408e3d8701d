package credits

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// reapInterval is the interval between two runs of the reaper in each process.
	reapInterval = time.Minute
	// reapTimeout bounds one run. The next run continues with the holds that are left.
	reapTimeout = 10 * time.Minute
	// batchSize is the number of open holds that one statement reads.
	batchSize = 500
	// clientTimeout bounds the transaction that ends holds of one client. If the row of the account is
	// locked for longer, the client is skipped until the next run.
	clientTimeout = 2 * time.Second
	// checkTimeout bounds the check of holds after a settle message.
	checkTimeout = 10 * time.Second
)

// reaperFails is the condition while the reaper can't read or end holds.
var reaperFails = observe.Condition{
	Event: "reaper_failed", Failing: "credits reaper failed; clients get the credits of failed refreshes back later", Recovered: "credits reaper works again",
}

// Reaped is the result of a run of the reaper.
type Reaped struct {
	Holds   int      // holds whose credits were given back
	Clients []string // clients that got credits back, sorted
	Skipped []string // clients whose holds could not be ended, sorted; the next run tries again
}

// Reap ends all open holds that have expired: it spends the credits of refreshes that brought a
// version, and gives the others back. A client whose holds can't be ended is skipped and logged.
// Reap returns an error only if the holds can't be read. Any number of processes may call Reap at
// the same time.
func (s *Service) Reap(ctx context.Context) (Reaped, error) {
	began := s.now()
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	result, err := s.walk(ctx, began)
	s.metrics.seconds.Observe(s.now().Sub(began).Seconds())
	switch {
	case err != nil:
		s.metrics.runs.WithLabelValues("failed").Inc()
		return result, err
	case len(result.Skipped) > 0:
		s.metrics.runs.WithLabelValues("partial").Inc()
	default:
		s.metrics.runs.WithLabelValues("ok").Inc()
	}
	if held, err := s.ledger.HeldCredits(ctx); err == nil {
		s.metrics.held.Set(float64(held))
	}
	return result, nil
}

// walk ends the open holds that expire until the given time, if their outcome is known or they have
// expired. It adds all other holds to the tracker, so that a settle message can end them.
func (s *Service) walk(ctx context.Context, until time.Time) (Reaped, error) {
	back, skipped := map[string]bool{}, map[string]bool{}
	n := 0
	for after := (Hold{}); ; {
		holds, err := s.ledger.OpenHolds(ctx, until, after, batchSize)
		if err == nil && len(holds) > 0 {
			after = holds[len(holds)-1]
			var ended []Hold
			ended, err = s.endDecided(ctx, holds, skipped)
			for _, h := range ended {
				if h.State != Captured {
					n++
					back[h.Client] = true
				}
			}
		}
		if err != nil || len(holds) < batchSize {
			return Reaped{n, slices.Sorted(maps.Keys(back)), slices.Sorted(maps.Keys(skipped))}, err
		}
	}
}

// endDecided ends the holds whose outcome is known, and adds all other holds to the tracker. It
// leaves out the skipped clients, and adds clients whose holds can't be ended to them. endDecided
// returns an error only if the outcomes can't be read.
func (s *Service) endDecided(ctx context.Context, holds []Hold, skipped map[string]bool) (ended []Hold, err error) {
	outcomes, err := s.outcomes(ctx, holds)
	if err != nil {
		return nil, err
	}
	ends := map[string]map[string]State{}
	for i, h := range holds {
		if outcomes[i] == Held {
			s.tracker.add(h)
			continue
		}
		if ends[h.Client] == nil {
			ends[h.Client] = map[string]State{}
		}
		ends[h.Client][h.ID] = outcomes[i]
	}
	for _, client := range slices.Sorted(maps.Keys(ends)) {
		if skipped[client] {
			continue
		}
		of, err := s.end(ctx, client, ends[client])
		if err != nil {
			if ctx.Err() != nil {
				return ended, ctx.Err()
			}
			skipped[client] = true
			s.log.Error("ending expired holds of a client failed; the next run of the credits reaper tries again", "client", client, "holds", len(ends[client]), "err", err)
			continue
		}
		ended = append(ended, of...)
	}
	for i, h := range holds {
		if outcomes[i] != Held && !skipped[h.Client] {
			s.tracker.remove(h)
		}
	}
	return ended, nil
}

// end ends holds of one client and counts them.
func (s *Service) end(ctx context.Context, client string, ends map[string]State) ([]Hold, error) {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	ended, err := s.ledger.End(ctx, client, ends)
	for _, h := range ended {
		s.metrics.ends.WithLabelValues(h.State.label()).Inc()
	}
	return ended, err
}

// outcomes returns the state in which each hold must end; the state Held means that the refresh has
// not ended.
func (s *Service) outcomes(ctx context.Context, holds []Hold) ([]State, error) {
	entities := make([]schemas.Entity, len(holds))
	for i, h := range holds {
		entities[i] = h.Entity
	}
	states, err := s.snapshots.States(ctx, entities)
	if err != nil {
		return nil, err
	}
	statuses, err := s.snapshots.Statuses(ctx, entities)
	if err != nil {
		return nil, err
	}
	outcomes, now := make([]State, len(holds)), s.now()
	for i, h := range holds {
		outcomes[i] = outcomeOf(h, states[i], statuses[i], now)
	}
	return outcomes, nil
}

// outcomeOf returns the state in which a hold must end. The version of a fetch that began after an
// update request is at least the number of the request. So a stored version, or a final failure, of at
// least this number is the outcome of the refresh.
func outcomeOf(h Hold, state store.State, status store.Status, now time.Time) State {
	known := h.Number > 0
	switch {
	case known && state.Version >= h.Number:
		return Captured
	case known && status.Version >= h.Number && (status.State == store.Failed || status.State == store.Suspended):
		return Released
	case !h.ExpiresAt.After(now):
		return Expired
	}
	return Held
}

// Settled records a settle message: the outcomes of the holds of its entity may be known now. It does
// not block.
func (s *Service) Settled(m schemas.Settled) { s.tracker.settled(m) }

// Connected is called when the subscription of settle messages connects or disconnects. Messages sent
// while disconnected are lost, so all open holds are checked after a connection. It does not block.
func (s *Service) Connected(connected bool) {
	if !connected {
		return
	}
	select {
	case s.checkAll <- struct{}{}:
	default: // a check of all holds is due already
	}
}

// Run ends holds after settle messages, and reaps once a minute, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	reaping := make(chan struct{})
	go func() {
		defer close(reaping)
		poll.Every(ctx, reapInterval, func(ctx context.Context) {
			result, err := s.Reap(ctx)
			s.record(ctx, err)
			if result.Holds > 0 {
				s.log.Info("expired holds of credits ended", "holds", result.Holds, "clients", len(result.Clients))
			}
		})
	}()
	defer func() { <-reaping }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.checkAll:
			_, err := s.walk(ctx, s.now().Add(maxHold))
			s.record(ctx, err)
		case <-s.tracker.wakeUp:
			s.record(ctx, s.checkDue(ctx))
		}
	}
}

// checkDue ends the holds whose settle messages have arrived.
func (s *Service) checkDue(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for holds := range slices.Chunk(s.tracker.takeDue(), batchSize) {
		if _, err := s.endDecided(ctx, holds, map[string]bool{}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) record(ctx context.Context, err error) {
	if ctx.Err() == nil {
		s.conditions.Record(s.log, reaperFails, err)
	}
}
