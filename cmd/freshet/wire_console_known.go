package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
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
	"github.com/freshet/freshet/store"
)

// entityReadTimeout bounds what the looks at one entity may take.
const entityReadTimeout = 2 * time.Second

// maxDeadLettersShown are so many of an entity's dead letters, the newest.
const maxDeadLettersShown = 10

// entityReader tells the console what is known of an entity.
type entityReader struct {
	parts   parts
	sources map[string]*source.Source
	ask     refreshing
}

// CheckKey returns why there can be no such entity.
func (k entityReader) CheckKey(e schemas.Entity) error {
	src, there := k.sources[e.Source]
	if !there {
		return fmt.Errorf("there is no source %.80q; the configuration has %s", e.Source, strings.Join(slices.Sorted(maps.Keys(k.sources)), ", "))
	}
	if err := schemas.CheckKey(e.Key); err != nil {
		return err
	}
	return src.CheckKey(e.Facet, e.Key)
}

// Entity looks everywhere at once. Without Redis only Way is missing; without the database
// there is an error. For a client that may not see the entity it looks as well, so that the
// time does not tell of it, and returns nothing.
func (k entityReader) Entity(ctx context.Context, e schemas.Entity, c access.Client) (console.Entity, error) {
	if err := k.CheckKey(e); err != nil {
		return console.Entity{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, entityReadTimeout)
	defer cancel()
	facet, _ := k.sources[e.Source].Facet(e.Facet)
	found := console.Entity{Entity: e, FreshFor: facet.FreshFor, AbsentFor: facet.NotFoundFor, KeepFor: facet.KeepFor}
	empty := found
	looks := []func() error{
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
			found.DeadLetters, err = k.parts.store.DeadLetters(ctx, store.DeadLetterFilter{Source: e.Source, Facet: e.Facet, Key: e.Key}, store.DeadLetter{}, maxDeadLettersShown)
			return err
		},
		func() error {
			found.Request = k.way(ctx, e)
			return nil
		},
	}
	errs := make([]error, len(looks))
	var wg sync.WaitGroup
	for i, look := range looks {
		wg.Go(func() {
			defer recoverPanic(k.parts.log, &errs[i])
			errs[i] = look()
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return console.Entity{}, err
	}
	if !k.Sees(c, e, found.State.Visibility) {
		empty.Status, empty.Request.Unknown = store.Status{Entity: e}, found.Request.Unknown
		return empty, nil
	}
	found.DeadLetters = slices.DeleteFunc(found.DeadLetters, func(l store.DeadLetter) bool { return !k.Sees(c, e, l.Visibility) })
	if w := &found.Request; w.Number <= found.State.Version { // what it covers is stored: it keeps nobody back
		w.Lane, w.Number, w.Confirmed, w.Until = "", 0, false, time.Time{}
	}
	return found, nil
}

// errPanic is what is told of a look that has a bug.
var errPanic = errors.New("it ended in a panic, of which the log tells")

// recoverPanic ends a panic of what runs behind no request, where a bug would end the process, which
// serves readers; the deferred call makes it an error.
func recoverPanic(log *slog.Logger, err *error) {
	if p := recover(); p != nil {
		log.Error("a look of the console has a bug", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		*err = errPanic
	}
}

// content looks at what is stored.
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

// Sees reports whether a client sees an entity. As for readers, both count: the visibility
// within which its content was fetched, and the one within which it would be fetched now. Of a
// source that is not configured any more nobody knows the latter.
func (k entityReader) Sees(c access.Client, e schemas.Entity, visibility string) bool {
	src, there := k.sources[e.Source]
	return c.Sees(visibility) && (!there || c.Sees(src.Visibility(e.Key)))
}

// registered finds an entity among those that are prefetched: of all whose keys begin as its
// own does it is the first.
func (k entityReader) registered(ctx context.Context, e schemas.Entity) (*store.RegisteredEntity, error) {
	all, err := k.parts.store.Entities(ctx, store.EntityFilter{Source: e.Source, Facet: e.Facet, KeyPrefix: e.Key}, schemas.Entity{}, 1)
	if err != nil || len(all) == 0 || all[0].Entity != e {
		return nil, err
	}
	return &all[0], nil
}

// way looks at what Redis knows.
func (k entityReader) way(ctx context.Context, e schemas.Entity) console.RequestState {
	w, err := producer.NewCoalescer(k.parts.rdb).ReadState(ctx, e)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			k.parts.log.Warn("an entity is shown without what is under way for it", "err", err)
		}
		return console.RequestState{Unknown: true}
	}
	return console.RequestState{
		Lane: w.Lane, Number: w.Number, Confirmed: w.Confirmed, Until: w.Until, Issued: w.Issued, Done: w.Done,
		Hold: w.Hold, HoldUntil: w.HoldUntil, CooldownUntil: w.CooledUntil,
	}
}

// Refresh enqueues refreshes of entities of one facet, and says of each what became of that.
// A client without the scope admin has them on its account, as with POST …/refresh.
func (k entityReader) Refresh(ctx context.Context, all []schemas.Entity, c access.Client) ([]console.RefreshResult, error) {
	for _, e := range all {
		if err := k.CheckKey(e); err != nil {
			return nil, err
		}
	}
	stored, err := k.parts.store.States(ctx, all)
	if err != nil {
		return nil, err
	}
	results, client := make([]console.RefreshResult, len(all)), ""
	if !c.May(access.Admin) {
		client = c.ID()
	}
	var of []schemas.Entity
	var at []int // of each entity of the request, its place in all
	for i, e := range all {
		if !k.Sees(c, e, stored[i].Visibility) {
			results[i].Message = "No refresh is queued: it may be seen by others alone, and so it is for them to ask for."
			continue
		}
		of, at = append(of, e), append(at, i)
	}
	if len(of) == 0 {
		return results, nil
	}
	facet, _ := k.sources[of[0].Source].Facet(of[0].Facet)
	for j, a := range k.ask(ctx, client, of, facet) {
		i := at[j]
		results[i] = console.RefreshResult{Queued: a.Queued, Message: describeRefresh(a)}
	}
	return results, nil
}

// describeRefresh says what became of a wish.
func describeRefresh(a query.EnqueueResult) string {
	switch {
	case a.Queued:
		return "A refresh is queued."
	case a.Pending:
		return "A refresh is being queued, but Kafka has not acknowledged it yet. Ask again in a few seconds to be certain."
	case a.Refused != nil:
		return "No refresh is queued. " + a.Refused.Detail()
	case a.Reason == query.ReasonCooldown:
		return fmt.Sprintf("It was refreshed on request a moment ago; the next one is taken at %s.", a.Until.UTC().Format("15:04:05 UTC"))
	case a.Reason == query.ReasonBusy:
		return "No refresh is queued: Kafka takes requests more slowly than they come. Ask again in a few seconds."
	case a.Reason == query.ReasonDown:
		return "No refresh is queued: Redis or Kafka does not answer. Ask again when they do."
	}
	return "No refresh is queued: " + a.Reason + "."
}
