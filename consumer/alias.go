package consumer

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// taskParams are the values for the placeholders of a task's calls, and the aliases from which some of
// them come.
type taskParams struct {
	// params are the params of the request, together with the params that the entity is registered with
	// and the values of its aliases.
	params map[string]string
	// aliases are the facets that params of the task come from, with their stored states. `pending` is
	// true until their values are in params and plan.
	aliases []aliasState
	pending bool
	// waited is the stored status of the entity if the entity has waited for its aliases; otherwise it
	// is the zero value.
	waited store.Status
	// open walk of the task's collection; nil if the facet is no collection
	walk *taskWalk
}

// aliasState is the stored state of the entity that a param comes from.
type aliasState struct {
	source.Alias
	lifetimes store.Lifetimes
	state     store.State
	value     string // empty if the content has no value, or if there is no content
	err       error  // reason for which the stored content has no value; nil means that it has one
}

// aliases fills params from the snapshots of other facets. doc.go has the steps.
type aliases struct {
	w        *Worker
	enqueuer Aliases
}

// aliasVerdict is the next step of a task that needs aliases.
type aliasVerdict int

const (
	aliasReady     aliasVerdict = iota // the values of all aliases are known
	entityNotFound                     // the entity of an alias is not found, so this entity is not found either
	aliasDead                          // the alias was fetched again and has the same value, so the entity does not exist
	aliasNeeded                        // the entity of an alias must be fetched or checked first
)

// need sets the aliases that the task needs. Params of the request take precedence over aliases.
func (a *aliases) need(t *task) {
	t.aliases, t.pending = nil, false
	for _, alias := range t.facet.Aliases() {
		if t.params[alias.Param] == "" {
			f, _ := a.w.source.Facet(alias.From)
			t.aliases = append(t.aliases, aliasState{Alias: alias, lifetimes: store.Lifetimes{
				FreshFor: f.FreshFor, NotFoundFor: f.NotFoundFor, KeepFor: f.KeepFor, AliasNotFoundFor: f.AliasNotFoundFor(),
			}})
			t.pending = true
		}
	}
}

// load reads the aliases of the tasks in one query, and plans the calls of the tasks whose aliases
// are ready. It fails only if ctx ends.
func (a *aliases) load(ctx context.Context, tasks []*task) error {
	var entities []schemas.Entity
	for _, t := range tasks {
		if t.invalid == nil {
			entities = append(entities, t.aliasEntities()...)
		}
	}
	if len(entities) == 0 {
		return nil
	}
	var found []store.Snapshot
	err := a.w.db.retry(ctx, opAliases, func(ctx context.Context) (err error) {
		found, err = a.w.db.GetAll(ctx, entities)
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range tasks {
		if t.invalid != nil {
			continue
		}
		t.pending = len(t.aliases) > 0
		for i := range t.aliases {
			t.aliases[i].set(found[0])
			found = found[1:]
		}
		if t.aliases != nil && a.verdict(t, time.Now()) == aliasReady {
			a.apply(t)
		}
	}
	return nil
}

// set stores the alias's snapshot in s: its state, and the value for the param.
func (s *aliasState) set(snapshot store.Snapshot) {
	s.state, s.value, s.err = snapshot.State, "", nil
	if s.state.NotFound || !s.state.HasContent() {
		return
	}
	content, err := snapshot.Decode(nil)
	if err != nil {
		s.err = fmt.Errorf("the stored snapshot of the facet %s can't be read: %w; delete this snapshot", s.From, err)
		return
	}
	s.value, s.err = s.Value(content)
}

// aliasEntities returns the entities that the task's params come from.
func (t *task) aliasEntities() []schemas.Entity {
	entities := make([]schemas.Entity, len(t.aliases))
	for i := range t.aliases {
		entities[i] = schemas.Entity{Source: t.request.Source, Facet: t.aliases[i].From, Key: t.request.Key}
	}
	return entities
}

// aliasStates returns the states of the aliases that the task's params come from.
func (t *task) aliasStates() []store.State {
	states := make([]store.State, len(t.aliases))
	for i := range t.aliases {
		states[i] = t.aliases[i].state
	}
	return states
}

// aliasesChecked reports whether all aliases were checked after the task's entity began to wait.
func (t *task) aliasesChecked() bool {
	for _, s := range t.aliases {
		if t.waited.State == "" || s.state.Version <= t.waited.Version {
			return false
		}
	}
	return true
}

// aliasHash returns one hash for all aliases of the task together.
func (t *task) aliasHash() string {
	var all []byte
	for _, s := range t.aliases {
		all = append(all, s.state.Hash[:8]...)
	}
	return hex.EncodeToString(all)
}

// verdict returns the next step of a task, from the states of its aliases.
func (a *aliases) verdict(t *task, now time.Time) aliasVerdict {
	worst := aliasReady
	for i := range t.aliases {
		worst = max(worst, t.aliases[i].verdict(t, now))
	}
	if worst == aliasReady && t.waited.DeadAlias != "" {
		switch {
		case !t.aliasesChecked():
			return aliasNeeded
		case t.aliasHash() == t.waited.DeadAlias:
			return aliasDead
		}
	}
	return worst
}

func (s *aliasState) verdict(t *task, now time.Time) aliasVerdict {
	checked := t.waited.State != "" && s.state.Version > t.waited.Version
	freshness, due := store.FreshnessOf(&s.state, s.lifetimes, now)
	explicit := t.request.Reason == schemas.UserRequest && s.state.Version < t.request.Version
	switch {
	case freshness == store.NotFound && (checked || (due == "" && !explicit)):
		return entityNotFound
	case freshness == store.Fresh, freshness == store.Stale && checked:
		return aliasReady
	}
	return aliasNeeded
}

// apply sets the params from the aliases and plans the calls. It sets t.invalid if an alias has no
// value, or a value that makes no valid call.
func (a *aliases) apply(t *task) {
	params := make(map[string]string, len(t.params)+len(t.aliases))
	maps.Copy(params, t.params)
	for _, s := range t.aliases {
		if s.err != nil {
			t.reason, t.invalid = schemas.InvalidRequest, s.err
			return
		}
		params[s.Param] = s.value
	}
	t.params, t.pending = params, false
	var err error
	if t.plan, err = planCalls(a.w.source, t); err != nil {
		t.reason, t.invalid = schemas.InvalidRequest, fmt.Errorf("%w; the value comes from facet %s", err, t.aliases[0].From)
	}
}

// prepare makes the task ready for its fetch. It reports false if no fetch follows: the entity waits
// for its alias, is not found, or its record stays uncommitted.
func (a *aliases) prepare(ctx, hard context.Context, at *attempt) (ready bool) {
	t := at.t
	for {
		v := a.verdict(t, time.Now())
		a.w.metrics.aliases.WithLabelValues(a.result(t, v)).Inc()
		switch v {
		case aliasNeeded:
			if !a.wait(ctx, hard, at, t.waited.DeadAlias, t.numberWithoutFetch()) {
				return false
			}
			fallthrough // the aliases cannot be checked now, so their stored values are used
		case aliasReady:
			if t.pending {
				a.apply(t)
			}
			if t.invalid == nil {
				return true
			}
			if at.start() {
				a.w.settler.deadLetter(hard, t, failure{reason: t.reason, err: t.invalid, number: t.numberWithoutFetch()})
			}
			return false
		case entityNotFound, aliasDead:
			if !at.start() || a.storeNotFound(hard, at, v) != store.BaseMissing || a.load(ctx, []*task{t}) != nil {
				return false
			}
		}
	}
}

// storeNotFound stores a not-found result for the entity, without a call of the upstream.
func (a *aliases) storeNotFound(hard context.Context, at *attempt, v aliasVerdict) store.Result {
	at.number, at.began = at.t.numberWithoutFetch(), at.t.aliases[0].state.CheckedAt
	for _, s := range at.t.aliases {
		if s.state.NotFound {
			at.began = s.state.CheckedAt
		}
	}
	return a.w.storeResult(hard, at, fetched{outcome: source.Outcome{Class: source.NotFound}, aliasNotFound: v == entityNotFound})
}

// result returns the value of the metric label for a verdict.
func (a *aliases) result(t *task, v aliasVerdict) string {
	switch {
	case v == aliasReady:
		return aliasHit
	case v == entityNotFound:
		return aliasNotFound
	case v == aliasDead:
		return aliasUnchanged
	case t.aliasesUsable():
		return aliasExpired
	}
	return aliasMissing
}

// Values of the label of the metric alias_lookups_total.
const (
	aliasHit       = "hit"
	aliasNotFound  = "not_found"
	aliasUnchanged = "unchanged"
	aliasExpired   = "expired"
	aliasMissing   = "missing"
	aliasDeadCheck = "dead"
)
