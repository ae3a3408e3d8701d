package runs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// Order contains the arguments of Start.
type Order struct {
	Source *source.Source
	Name   string
	Config Config
	Keys   Keys
	// TriggeredBy is the name of the client that starts the run, or ScheduledBy.
	TriggeredBy string
	// IdempotencyKey is the client's Idempotency-Key; empty means none.
	IdempotencyKey string

	schedule *scheduled
}

// ScheduledBy is the TriggeredBy of a run that Config.Every has started.
const ScheduledBy = "schedule"

// scheduled has two due times of a scheduled run: of the run to start now, and of the next one.
type scheduled struct{ due, next time.Time }

// IdempotencyTTL is how long a repeated request with the same Idempotency-Key returns the run that the
// first request has started.
const IdempotencyTTL = 24 * time.Hour

// errTaken aborts the transaction of a scheduled run if another process has started this run.
var errTaken = errors.New("another process has started the scheduled run")

// Start inserts a run with its first steps in one transaction. If the overlap rule or the
// Idempotency-Key demands it, Start returns an earlier run instead, and `started` is false. The error
// wraps ErrInvalid or ErrKeyReused if a repetition of the call would fail too.
func (r *Runs) Start(ctx context.Context, o Order, now time.Time) (run Run, started bool, err error) {
	d := o.Config.Definition()
	if o.Keys, err = o.Keys.check(d, o.Source); err != nil {
		return Run{}, false, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Run{}, false, fmt.Errorf("generate the id of a run: %w", err)
	}
	now = now.Truncate(time.Microsecond) // the databases store times in microseconds
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		s := starter{tx: tx, order: o, now: now}
		run = Run{
			ID: id.String(), Source: o.Source.Name(), Name: o.Name, Scope: o.Keys.scope(), TriggeredBy: o.TriggeredBy, Definition: d,
			State: Running, Attempt: 1, Since: now, AttemptAt: now, Deadline: now.Add(d.Deadline), CreatedAt: now, UpdatedAt: now,
		}
		run, started, err = s.start(ctx, run)
		return err
	})
	if err != nil {
		return Run{}, false, fmt.Errorf("start run %s of %s: %w", o.Name, o.Source.Name(), err)
	}
	return run, started, nil
}

// scope returns the text for Run.Scope that identifies the keys.
func (k Keys) scope() string {
	switch {
	case k.All:
		return "*"
	case k.Prefix != "":
		return k.Prefix + "*"
	case len(k.List) == 1:
		return k.List[0]
	}
	hash := sha256.New()
	for _, key := range k.List {
		_, _ = fmt.Fprintf(hash, "%d:%s", len(key), key)
	}
	return fmt.Sprintf("%d keys, sha256:%s", len(k.List), hex.EncodeToString(hash.Sum(nil)))
}

// starter is an open transaction that inserts a new run.
type starter struct {
	tx    store.Tx
	order Order
	now   time.Time
}

func (s *starter) start(ctx context.Context, run Run) (_ Run, started bool, err error) {
	if at := s.order.schedule; at != nil {
		moved, err := one(ctx, s.tx, moveSchedule, run.Source, run.Name, store.ToMicros(at.due), store.ToMicros(at.next))
		if err != nil {
			return Run{}, false, err
		}
		if !moved {
			return Run{}, false, errTaken
		}
	}
	steps, keys, err := s.plan(ctx, run)
	if err != nil {
		return Run{}, false, err
	}
	run.Keys = keys
	run.Counts.Total, run.Counts.Open = len(steps), len(steps)
	// If another transaction starts or ends a run of the same scope at the same time, the insertion
	// fails; then the rules are applied again.
	for range 3 {
		if earlier, found, err := s.idempotent(ctx); err != nil || found {
			return earlier, false, err
		}
		earlier, joins, err := s.overlap(ctx, &run)
		if err != nil || joins {
			return earlier, false, err
		}
		if !run.Waiting {
			run.started = min(len(steps), run.Definition.Parallel)
			run.lastStarted = run.started
		}
		args, err := run.insertArgs(s.idempotencyHash(), s.body())
		if err != nil {
			return Run{}, false, err
		}
		inserted, err := one(ctx, s.tx, insertRun, args...)
		if err != nil {
			return Run{}, false, err
		}
		if inserted {
			return run, true, insert(ctx, s.tx, run, 0, steps, s.now)
		}
	}
	return Run{}, false, fmt.Errorf("%w: other runs of the same keys start and end all the time", store.ErrContention)
}

// plan returns the first steps of the run, and the number of its keys.
func (s *starter) plan(ctx context.Context, run Run) (steps []Step, keys int, err error) {
	all := map[string]bool{}
	for _, facet := range run.Definition.roots() {
		f, _ := s.order.Source.Facet(facet)
		list := s.order.Keys.List
		if len(list) == 0 {
			if list, err = s.registered(ctx, run.Source, facet); err != nil {
				return nil, 0, err
			}
		}
		added := map[string]bool{}
		for _, key := range list {
			all[key] = true
			if key = f.FoldKey(key); !added[key] {
				added[key] = true
				steps = append(steps, Step{Facet: facet, Key: key, State: StepOpen})
			}
		}
	}
	if len(steps) == 0 {
		return nil, 0, fmt.Errorf("%w: no enabled entity of the facets %v is registered with this prefix; register entities with `freshet entities add`, or write keys", ErrInvalid, run.Definition.roots())
	}
	return steps, len(all), nil
}

func (s *starter) registered(ctx context.Context, source, facet string) (keys []string, err error) {
	const last = "\U0010FFFF" // last sorts after each text that can follow the prefix in a key
	err = s.tx.Query(ctx, func(scan func(...any) error) error {
		var key string
		err := scan(&key)
		keys = append(keys, key)
		return err
	}, selectRegistered, source, facet, s.order.Keys.Prefix, s.order.Keys.Prefix+last, MaxRegistered+1)
	if err == nil && len(keys) > MaxRegistered {
		err = fmt.Errorf("%w: more than %d entities of the facet %s are registered with this prefix; write a longer prefix", ErrInvalid, MaxRegistered, facet)
	}
	return keys, err
}

// body returns a text that is equal for equal requests. It is stored, so that a reused Idempotency-Key
// is noticed.
func (s *starter) body() []byte {
	text, _ := json.Marshal([]any{s.order.Source.Name(), s.order.Name, s.order.Keys}) // texts and bools can always be encoded
	hash := sha256.Sum256(text)
	return hash[:]
}

func (s *starter) idempotencyHash() string {
	if s.order.IdempotencyKey == "" {
		return ""
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(s.order.TriggeredBy), s.order.TriggeredBy, s.order.IdempotencyKey))
	return hex.EncodeToString(hash[:])
}

// idempotent returns the run that an earlier request with the same Idempotency-Key has started.
// `found` is false if there is none.
func (s *starter) idempotent(ctx context.Context) (run Run, found bool, err error) {
	key := s.idempotencyHash()
	if key == "" {
		return Run{}, false, nil
	}
	var id string
	var body []byte
	var created int64
	err = s.tx.Query(ctx, func(scan func(...any) error) error { return scan(&id, &body, &created) }, selectIdempotent, key)
	switch {
	case err != nil || id == "":
		return Run{}, false, err
	case s.now.Sub(store.FromMicros(created)) >= IdempotencyTTL:
		_, err = one(ctx, s.tx, forgetIdempotent, id)
		return Run{}, false, err
	case !slices.Equal(body, s.body()):
		return Run{}, false, ErrKeyReused
	}
	return read(ctx, s.tx, id)
}

// overlap applies the overlap rule to the active runs of the scope. If joins is true, no run is
// started, because the run earlier does its work. Otherwise the new run is started.
func (s *starter) overlap(ctx context.Context, run *Run) (earlier Run, joins bool, err error) {
	var active []Run // at most two runs: the running one, and the one that waits for its end
	err = s.tx.Query(ctx, func(scan func(...any) error) error {
		var a Run
		err := a.scan(scan)
		active = append(active, a)
		return err
	}, selectScope, run.Source, run.Name, run.Scope)
	run.Waiting = false
	if err != nil || len(active) == 0 {
		return Run{}, false, err
	}
	switch s.order.Config.Overlap {
	case OverlapBuffer:
		if last := active[len(active)-1]; last.Waiting {
			return last, true, nil
		}
		run.Waiting = true
		return Run{}, false, nil
	case OverlapCancel:
		for _, a := range slices.Backward(active) { // The run that waits is cancelled first. Otherwise it would start when the running one ends.
			c := change{tx: s.tx, now: s.now}
			if err := c.cancel(ctx, a.ID); err != nil && !errors.Is(err, ErrEnded) {
				return Run{}, false, err
			}
		}
		return Run{}, false, nil
	}
	return active[0], true, nil
}

// insert inserts steps of a run. Their numbers are first+1, first+2 and so on. Steps with numbers up to
// run.lastStarted are due now.
func insert(ctx context.Context, tx store.Tx, run Run, first int, steps []Step, now time.Time) error {
	var statements []store.Statement
	for some := range slices.Chunk(steps, rowsPerStatement) {
		args := make([]any, 0, len(some)*stepFields)
		for _, s := range some {
			first++
			due := int64(0)
			if first <= run.lastStarted && s.State == StepOpen {
				due = store.ToMicros(now)
			}
			args = append(args, run.ID, first, run.Source, s.Facet, s.Key, string(s.State), due, s.Error, store.ToMicros(s.EndedAt))
		}
		statements = append(statements, store.Statement{Text: insertSteps + rows(len(some), stepFields), Args: args})
	}
	_, err := tx.Exec(ctx, statements...)
	return err
}
