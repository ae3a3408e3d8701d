package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/derived"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/prefetched"
)

// entityReadTimeout bounds all reads for one entity's page.
const entityReadTimeout = 2 * time.Second

// maxDeadLettersShown is the number of an entity's newest dead letters that are shown.
const maxDeadLettersShown = 10

// entityReader provides the state of one entity to the console.
type entityReader struct {
	parts   parts
	sources map[string]*source.Source
	refresh refreshing
}

// CheckKey returns an error for an entity that can't exist: an unknown source or facet, or an
// invalid key.
func (k entityReader) CheckKey(e schemas.Entity) error {
	src, there := k.sources[e.Source]
	if !there {
		return fmt.Errorf("unknown source %.80q; the configuration has %s", e.Source, strings.Join(slices.Sorted(maps.Keys(k.sources)), ", "))
	}
	if err := schemas.CheckKey(e.Key); err != nil {
		return err
	}
	return src.CheckKey(e.Facet, k.fold(e).Key)
}

// fold returns the entity with the canonical spelling of its key.
func (k entityReader) fold(e schemas.Entity) schemas.Entity {
	if src, there := k.sources[e.Source]; there {
		e.Key = foldKeys(src)(e.Facet, e.Key)
	}
	return e
}

// Entity reads the state of an entity concurrently from the database and Redis. If Redis is
// unreachable, only Request is missing; if the database is unreachable, Entity returns an error. For
// a client that may not see the entity, Entity returns the state of an unknown entity. It reads
// everything even then, so that the response time does not reveal that the entity exists.
func (k entityReader) Entity(ctx context.Context, e schemas.Entity, c access.Client) (console.Entity, error) {
	e = k.fold(e)
	if err := k.CheckKey(e); err != nil {
		return console.Entity{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, entityReadTimeout)
	defer cancel()
	facet, _ := k.sources[e.Source].Facet(e.Facet)
	found := console.Entity{Entity: e, Lifetimes: query.LifetimesOf(facet), Collection: facet.Collection != nil}
	if d := facet.Derived; d != nil {
		found.Derived = &console.Derived{From: d.Describe(), After: d.Every}
		if d.IsAll(e.Key) {
			found.Derived.After = d.All.Every
		}
	}
	empty := found
	reads := []func() error{
		func() error { return k.content(ctx, &found) },
		func() error {
			all, err := k.parts.store.Statuses(ctx, []schemas.Entity{e})
			if err == nil {
				found.Status = all[0]
			}
			return err
		},
		func() (err error) {
			found.Registered, err = k.registered(ctx, e)
			return err
		},
		func() (err error) {
			found.DeadLetters, err = k.parts.store.DeadLetters(ctx, deadletters.Filter{Source: e.Source, Facet: e.Facet, Key: e.Key}, deadletters.DeadLetter{}, maxDeadLettersShown)
			return err
		},
		func() (err error) {
			found.Aliases, err = k.aliases(ctx, e)
			return err
		},
		func() error {
			found.Request = k.requestState(ctx, e)
			return nil
		},
		func() error {
			found.ChangingMember, _ = status.Hints{Redis: k.parts.rdb, Source: e.Source}.ReadHint(ctx, e.Facet) // if Redis is unreachable, the page does not name the changing member
			return nil
		},
	}
	errs := make([]error, len(reads))
	var wg sync.WaitGroup
	for i, read := range reads {
		wg.Go(func() {
			errs[i] = status.ErrPanic
			status.CatchPanic(k.parts.log, func() { errs[i] = read() })
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return console.Entity{}, err
	}
	if !k.Sees(c, e, found.State.Visibility) {
		for _, a := range found.Aliases { // show the alias as if nothing was stored
			empty.Aliases = append(empty.Aliases, console.Alias{Param: a.Param, From: a.From, Lifetimes: a.Lifetimes})
		}
		empty.Status, empty.Request.Unknown = store.Status{Entity: e}, found.Request.Unknown
		return empty, nil
	}
	if found.Derived != nil {
		found.Derived.Read = derived.ReadOf(found.Payload)
	}
	found.DeadLetters = slices.DeleteFunc(found.DeadLetters, func(l deadletters.DeadLetter) bool { return !k.Sees(c, e, l.Visibility) })
	if w := &found.Request; w.Number <= found.State.Version { // the stored snapshot is at least as new as the request, so the request is not shown as in flight
		w.Lane, w.Number, w.Confirmed, w.Until = "", 0, false, time.Time{}
	}
	return found, nil
}

// aliases reads the aliases of an entity.
func (k entityReader) aliases(ctx context.Context, e schemas.Entity) (all []console.Alias, err error) {
	src := k.sources[e.Source]
	facet, _ := src.Facet(e.Facet)
	for _, a := range facet.Aliases() {
		from, _ := src.Facet(a.From)
		alias := console.Alias{Param: a.Param, From: a.From, Lifetimes: query.LifetimesOf(from)}
		read := console.Entity{Entity: schemas.Entity{Source: e.Source, Facet: a.From, Key: e.Key}}
		if err := k.content(ctx, &read); err != nil {
			return nil, err
		}
		alias.Stored, alias.State = read.Stored, read.State
		if read.Payload != nil {
			alias.Value, _ = a.Value(read.Payload)
		}
		all = append(all, alias)
	}
	return all, nil
}

// content reads the snapshot of the entity in found, and adds its state and content to found.
func (k entityReader) content(ctx context.Context, found *console.Entity) error {
	s, err := k.parts.store.Get(ctx, found.Entity)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	found.Stored, found.State = true, s.State
	if !s.HasContent() {
		return nil
	}
	found.Payload, err = s.Decode(nil)
	return err
}

// Sees reports whether a client may see an entity. As for reads, the client must be allowed to see
// the visibility with which the content was fetched, and the visibility with which it would be
// fetched now. If the source is no longer configured, only the first visibility counts.
func (k entityReader) Sees(c access.Client, e schemas.Entity, visibility string) bool {
	src, there := k.sources[e.Source]
	return c.Sees(visibility) && (!there || c.Sees(src.Visibility(e.Key)))
}

// registered returns the registration of an entity, or nil. It searches by key prefix and reads one
// row: among all keys that begin with the entity's key, that key itself sorts first.
func (k entityReader) registered(ctx context.Context, e schemas.Entity) (*prefetched.RegisteredEntity, error) {
	all, err := k.parts.store.Entities(ctx, prefetched.Filter{Source: e.Source, Facet: e.Facet, KeyPrefix: e.Key}, schemas.Entity{}, 1)
	if err != nil || len(all) == 0 || all[0].Entity != e {
		return nil, err
	}
	return &all[0], nil
}

// requestState reads the lock, the hold, the cool-down and the versions of an entity from Redis.
func (k entityReader) requestState(ctx context.Context, e schemas.Entity) console.RequestState {
	w, err := producer.NewCoalescer(k.parts.rdb).ReadState(ctx, e)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			k.parts.log.Warn("coalescing state of an entity can't be read; the entity is shown without this state", "err", err)
		}
		return console.RequestState{Unknown: true}
	}
	return console.RequestState{
		Lane: w.Lane, Number: w.Number, Confirmed: w.Confirmed, Until: w.Until, Issued: w.Issued, Done: w.Done,
		Hold: w.Hold, HoldUntil: w.HoldUntil, CooldownUntil: w.CooledUntil,
	}
}

// Refresh enqueues refreshes of entities of one facet and returns the result of each refresh. As
// with POST …/refresh, the refreshes count against the client's limits, unless the client has the scope
// admin.
func (k entityReader) Refresh(ctx context.Context, all []schemas.Entity, c access.Client) ([]console.RefreshResult, error) {
	for i, e := range all {
		e = k.fold(e)
		all[i] = e
		if err := k.CheckKey(e); err != nil {
			return nil, err
		}
	}
	stored, err := k.parts.store.States(ctx, all)
	if err != nil {
		return nil, err
	}
	results := make([]console.RefreshResult, len(all))
	var visible []schemas.Entity
	var indexes []int // index in "all" of each visible entity
	for i, e := range all {
		if !k.Sees(c, e, stored[i].Visibility) {
			results[i].Message = "No refresh is queued: your key or token may not see this entity."
			continue
		}
		visible, indexes = append(visible, e), append(indexes, i)
	}
	if len(visible) == 0 {
		return results, nil
	}
	facet, _ := k.sources[visible[0].Source].Facet(visible[0].Facet)
	for j, a := range k.refresh(ctx, c, visible, facet) {
		i := indexes[j]
		results[i] = console.RefreshResult{Queued: a.Queued, Message: describeRefresh(a)}
	}
	return results, nil
}

// describeRefresh describes the result of a refresh request.
func describeRefresh(a query.EnqueueResult) string {
	switch {
	case a.Queued:
		return "A refresh is queued."
	case a.Pending:
		return "A refresh is being queued, but Kafka has not acknowledged it yet. Try again in a few seconds to be certain."
	case a.Refused != nil:
		return "No refresh is queued. " + a.Refused.Detail()
	case a.Reason == query.ReasonNoCredits:
		return fmt.Sprintf("No refresh is queued: you have no credits left. The next ones are granted at %s.", a.Until.UTC().Format("2006-01-02 15:04 UTC"))
	case a.Reason == query.ReasonCooldown:
		return fmt.Sprintf("No refresh is queued: the entity was refreshed on request recently. The next request is possible at %s.", a.Until.UTC().Format("15:04:05 UTC"))
	case a.Reason == query.ReasonBusy:
		return "No refresh is queued: Kafka is slower than the requests arrive. Try again in a few seconds."
	case a.Reason == query.ReasonDown:
		return "No refresh is queued: Redis or Kafka does not answer. Try again when they do."
	}
	return "No refresh is queued: " + string(a.Reason) + "."
}
