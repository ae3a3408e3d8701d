package credits

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// ledgerTimeout bounds each transaction for a request.
const ledgerTimeout = 2 * time.Second

// creditsUnavailable is the condition while credits can't be held.
var creditsUnavailable = observe.Condition{
	Event: "credits_unavailable", Failing: "holds of credits can't be written; the database does not answer", Recovered: "writing holds of credits works again",
}

// Snapshots reads the outcomes of refreshes.
type Snapshots interface {
	// States returns the states of the entities, in their order. Version is 0 for an entity without one.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
	// Statuses returns the statuses of the entities, in their order. State is empty for a healthy entity.
	Statuses(ctx context.Context, entities []schemas.Entity) ([]store.Status, error)
}

// Deps are the dependencies of the service.
type Deps struct {
	Store     Store
	Snapshots Snapshots
	Actor     func(*http.Request) string // returns the name of a request's client, for the audit
	Now       func() time.Time
	Log       *slog.Logger
	Metrics   prometheus.Registerer
}

// Service holds credits for refreshes, and ends the holds. Its methods may be called concurrently.
type Service struct {
	config     Config
	ledger     *Ledger
	snapshots  Snapshots
	actor      func(*http.Request) string
	now        func() time.Time
	log        *slog.Logger
	metrics    *metrics
	tracker    *tracker
	checkAll   chan struct{} // has a value while a check of all open holds is due
	conditions observe.Conditions
}

// New returns the service. The settings must have passed Config.Check.
func New(config Config, d Deps) *Service {
	return &Service{
		config: config, ledger: NewLedger(config, d.Store, d.Now), snapshots: d.Snapshots, actor: d.Actor, now: d.Now, log: d.Log,
		metrics: newMetrics(d.Metrics), tracker: newTracker(), checkAll: make(chan struct{}, 1),
	}
}

func (s State) label() string { return strings.ToLower(string(s)) }

// Reservation is the permission for one refresh.
type Reservation struct {
	// Err is the *problem.HTTPError to respond with if the refresh is refused; else nil.
	Err error
	// Number is the number of the update request, if an earlier refresh with the same idempotency key
	// was queued; else 0.
	Number int64

	hold       Hold // without ID: the refresh costs nothing
	isRepeated bool // the hold belongs to an earlier refresh, which may still be in progress
}

// Reserve sets credits aside for a refresh of each entity. A client with the scope admin pays nothing.
// After the enqueue, the caller must call Confirm with all reservations.
func (s *Service) Reserve(ctx context.Context, client access.Client, entities []schemas.Entity, idempotencyKey string) []Reservation {
	all := make([]Reservation, len(entities))
	if client.May(access.Admin) {
		return all
	}
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	results, err := s.ledger.Hold(ctx, client.BoundName(), client.Plan(), entities, idempotencyKey)
	if err != nil {
		s.conditions.Warn(s.log, creditsUnavailable, err)
		if s.config.WhenAway == Allow {
			return all
		}
		for i := range all {
			p := problem.New(http.StatusServiceUnavailable, problem.StoreUnavailable, "Credits can't be set aside now, because the database does not answer. Retry later.")
			p.After = time.Second
			all[i].Err = p
		}
		return all
	}
	s.conditions.Resolved(s.log, creditsUnavailable)
	for i, r := range results {
		if r.Exhausted {
			s.metrics.refused.Inc()
			all[i].Err = access.CreditsExhausted(r.Plan.Amount, r.Plan.Every, r.After)
			continue
		}
		all[i] = Reservation{hold: r.Hold, Number: r.Hold.Number, isRepeated: r.IsRepeated}
		if r.Hold.State == Held {
			s.tracker.add(r.Hold)
		}
	}
	return all
}

// Outcome is the result of the enqueue of one refresh.
type Outcome int

// The outcomes of an enqueue. After Unknown, the hold stays open until it expires.
const (
	Unknown   Outcome = iota
	Queued            // Kafka has acknowledged the update request
	NotQueued         // the update request was refused
)

// Enqueued is a reservation with the result of its enqueue. Number is the number of the update request.
type Enqueued struct {
	Reservation
	Outcome Outcome
	Number  int64
}

// Confirm records the results of the enqueues of one client. It writes the numbers of queued
// requests, and gives the credits of refused requests back, unless the credits belong to an earlier
// refresh. It completes even if the client disconnects. After an error, the holds expire, and the
// client gets the credits back.
func (s *Service) Confirm(ctx context.Context, all []Enqueued) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledgerTimeout)
	defer cancel()
	numbers, refused, client := map[string]int64{}, map[string]State{}, ""
	for _, e := range all {
		h := e.hold
		if h.ID == "" || h.Number > 0 {
			continue
		}
		switch client = h.Client; e.Outcome {
		case Queued:
			numbers[h.ID] = e.Number
		case NotQueued:
			if !e.isRepeated {
				refused[h.ID] = Released
				s.tracker.remove(h)
			}
		case Unknown:
		}
	}
	var err error
	if len(numbers) > 0 {
		err = s.ledger.SetNumbers(ctx, numbers)
	}
	if err == nil && len(refused) > 0 {
		_, err = s.end(ctx, client, refused)
	}
	if err != nil {
		s.conditions.Warn(s.log, creditsUnavailable, err)
		return
	}
	for _, e := range all {
		if number, queued := numbers[e.hold.ID]; queued {
			e.hold.Number = number
			s.tracker.add(e.hold)
		}
	}
}

// Balance returns the account of a client as its next refresh will find it. A client with the scope
// admin pays nothing and has no account; then known is false.
func (s *Service) Balance(ctx context.Context, client access.Client) (a Account, known bool, err error) {
	if client.May(access.Admin) {
		return Account{}, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	a, err = s.ledger.Available(ctx, client.BoundName(), client.Plan())
	return a, err == nil, err
}
