package app

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/status/find"
	"github.com/freshet/freshet/store"
)

// Values of query.console.
const (
	consoleOn       = "on"
	consoleReadOnly = "read-only" // the console has no actions
	consoleOff      = "off"
)

// console returns the console's handler, or nil if the console is off. It also returns a function
// that must run while the handler is in use.
func (p queryRole) console(sources map[string]*source.Source, guard *access.Guard, clientLimiter *access.ClientLimiter, h *health, deadLetters *dlq.Queue, refresh refreshing, limiters limiterStates) (pages http.Handler, run func(context.Context) error) {
	if p.config.Query.Console == consoleOff {
		return nil, func(context.Context) error { return nil }
	}
	reads := status.NewReads(p.reg, p.config.sourceNames())
	history := newHistory(p.parts, limiters)
	seen := &overview{p.parts, h, reads, history}
	return console.New(p.consoleDeps(sources, guard, clientLimiter, seen, deadLetters, refresh)), func(ctx context.Context) error {
		g := newGroup(ctx)
		g.run(reads.Run)
		g.run(history.Run)
		<-ctx.Done()
		return g.stop()
	}
}

// consoleDeps returns the dependencies of the console. refresh enqueues refreshes through the query
// service.
func (p queryRole) consoleDeps(sources map[string]*source.Source, guard *access.Guard, clientLimiter *access.ClientLimiter, seen *overview, deadLetters *dlq.Queue, refresh refreshing) console.Deps {
	facets := map[string][]string{}
	for name, s := range p.config.Sources {
		facets[name] = slices.Sorted(maps.Keys(s.Facets))
	}
	return console.Deps{
		Sources: p.config.sourceNames(), Facets: facets,
		Overview: seen, Entities: entityReader{p.parts, sources, refresh}, Items: newItems(p.parts, sources), Cluster: cluster(p), DLQIndex: p.store, Limits: limits{p.settings(), p.parts}, Schedule: p.scheduleReader(), Clients: newClients(p.parts), DLQ: deadLetters, Store: p.store, Guard: guard, Meters: clientLimiter,
		About: console.About{Process: cmp.Or(p.name, workerName()), Version: Version()}, Runs: newRuns(p.parts, sources), ReadOnly: p.config.Query.Console == consoleReadOnly, Clock: time.Now, Log: p.log, FaultScenarios: p.faultScenarios,
	}
}

// refreshing is a function that enqueues refreshes of entities of one facet. The refreshes count
// toward the limits of the client and cost the credits of the client, unless the client has the scope
// admin.
type refreshing func(ctx context.Context, client access.Client, all []schemas.Entity, f source.Facet) []query.EnqueueResult

// overview provides lanes, dependencies and read statistics to the console.
type overview struct {
	parts
	health  *health
	reads   *status.Reads
	history *status.HistoryRecorder
}

// Reads returns the read statistics of the last five minutes for each source, sorted by name.
func (o *overview) Reads() []status.ReadStats { return o.reads.Recent() }

// History returns the samples of a source after a time in Unix seconds.
func (o *overview) History(source string, after int64) status.History {
	return o.history.Since(source, after)
}

// itemReader implements console.Items. It finds entities by the start of their keys, and reads items of
// collections.
type itemReader struct {
	find.ItemReader
	sources     map[string]*source.Source
	collections *collection.Collections
}

// newItems returns the reader of the console's list of items.
func newItems(p parts, sources map[string]*source.Source) itemReader {
	return itemReader{find.ItemReader{Walker: p.store, Lookup: p.store, Now: time.Now, Lifetimes: func(source, facet string) store.Lifetimes {
		f, _ := sources[source].Facet(facet)
		return query.LifetimesOf(f)
	}}, sources, collection.New(p.store)}
}

// Collection implements console.Items.
func (r itemReader) Collection(ctx context.Context, e schemas.Entity, l collection.Listing) (s collection.State, items []collection.Item, err error) {
	e.Key = foldKeys(r.sources[e.Source])(e.Facet, e.Key)
	if s, err = r.collections.State(ctx, e); err == nil && s.Version != 0 {
		items, err = r.collections.List(ctx, e, l)
	}
	return s, items, err
}

// Item implements console.Items.
func (r itemReader) Item(ctx context.Context, e schemas.Entity, id string) (*collection.Item, error) {
	e.Key = foldKeys(r.sources[e.Source])(e.Facet, e.Key)
	items, err := r.collections.Items(ctx, e, collection.Range{ID: id})
	if err != nil || len(items) == 0 {
		return nil, err
	}
	return &items[0], nil
}

// Find implements console.Items.
func (r itemReader) Find(ctx context.Context, q find.ItemQuery, visible func(e schemas.Entity, visibility string) bool) (find.ItemPage, error) {
	q.Prefix = foldKeys(r.sources[q.Source])(q.Facet, q.Prefix)
	return r.ItemReader.Find(ctx, q, visible)
}

// Lanes returns the lanes of a source, HIGH first.
func (o *overview) Lanes(source string) []console.LaneLag {
	var lanes []console.LaneLag
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		l := console.LaneLag{Lane: lane}
		l.Records, l.RecordsKnown = o.lag.Records(source, lane)
		l.Wait, l.WaitKnown = o.lag.EstimateWait(source, lane)
		l.StalledFor = o.lag.StalledFor(source, lane)
		lanes = append(lanes, l)
	}
	return lanes
}

// Dependencies returns the states of the dependencies, sorted by name, at most healthCacheTTL old.
func (o *overview) Dependencies(ctx context.Context) []console.Dependency {
	found := o.health.checkAll(ctx)
	var all []console.Dependency
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if name == readsCheckName {
			continue // the check "reads" concerns the query service itself and is not a dependency
		}
		d := console.Dependency{Name: name}
		if err := found[name].err; err != nil {
			d.Error = err.Error()
		}
		all = append(all, d)
	}
	return all
}

// limits provides the settings and the limiter's state to the console.
type limits struct {
	*settings.Settings
	parts parts
}

// View returns the current state of a source's limiter.
func (l limits) View(ctx context.Context, source string) (limiter.View, error) {
	if _, known := l.parts.config.Sources[source]; !known {
		return limiter.View{}, problem.New(http.StatusNotFound, problem.NoSuchSource, "There is no such source. The configuration lists the sources.")
	}
	view, _, set, err := l.parts.limiterNow(ctx, source)
	return status.WithStop(view, set), err
}
