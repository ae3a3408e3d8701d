package app

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status/clients"
)

// newCredits returns the service of credits. It is nil if the configuration has no plans: refreshes
// cost nothing then.
func newCredits(p parts) *credits.Service {
	if !p.config.Credits.Enabled() {
		return nil
	}
	return credits.New(p.config.Credits, credits.Deps{Store: p.store, Snapshots: p.store, Actor: actor, Now: time.Now, Log: p.log, Metrics: p.reg})
}

// newClients returns the reader of the console's page of clients. It is nil if the configuration has no
// plans.
func newClients(p parts) console.Clients {
	if !p.config.Credits.Enabled() {
		return nil
	}
	return clients.Reader{Ledger: credits.NewLedger(p.config.Credits, p.store, time.Now), Now: time.Now}
}

// withCredits adds the service of credits to the dependencies of the query service. It may be nil.
func withCredits(d query.Deps, paid *credits.Service) query.Deps {
	if paid != nil {
		d.Credits = paid
	}
	return d
}

// settles adapts the producer's subscription of settled requests to query.SettleSubscriber. If the
// process has a service of credits or webhooks, they receive the same messages.
type settles struct {
	parts
	credits *credits.Service
	hooks   *hooks
}

// Subscribe calls onSettled for each settled request until ctx ends. It calls onConnection whenever
// the subscription connects or disconnects.
func (s settles) Subscribe(ctx context.Context, onSettled func(schemas.Settled), onConnection func(connected bool)) error {
	if s.credits != nil {
		settled, connection := onSettled, onConnection
		onSettled = func(m schemas.Settled) {
			settled(m)
			s.credits.Settled(m)
		}
		onConnection = func(connected bool) {
			connection(connected)
			s.credits.Connected(connected)
		}
	}
	if s.hooks != nil {
		settled := onSettled
		onSettled = func(m schemas.Settled) {
			settled(m)
			s.hooks.receiver.Settled(m)
		}
	}
	return producer.SubscribeSettled(ctx, s.rdb, slices.Collect(maps.Keys(s.config.Sources)), onSettled, onConnection)
}
