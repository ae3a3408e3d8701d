package console

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// maxFailedRead is the number of the newest dead letters whose entities are read to find out whether
// the cause of the failures has been fixed.
const maxFailedRead = 20

// checkResult is the result of one check before a replay.
type checkResult string

const (
	checkYes     checkResult = "yes"
	checkNo      checkResult = "no"
	checkUnknown checkResult = "unknown"
)

// tone returns the tone (the colour) in which the result is shown.
func (r checkResult) tone() string {
	return map[checkResult]string{checkYes: toneOK, checkNo: toneBad, checkUnknown: toneWarn}[r]
}

// replayCheck is one row of the table of checks that an operator reads before a replay. Message is one
// sentence.
type replayCheck struct {
	Name    string
	Result  checkResult
	Message string
}

// Cell returns the result as a cell of a table.
func (c replayCheck) Cell() statusItem {
	return statusItem{Text: string(c.Result), Tone: c.Result.tone()}
}

// replayChecks reads the state of the source, and checks a replay of the open dead letters that
// match the filter. The parameter `count` is their number. The checks use only entities that the
// client may see.
func (c *dlqPages) replayChecks(ctx context.Context, client access.Client, filter deadletters.Filter, lane schemas.Lane, count int64) []replayCheck {
	filter.Handled = deadletters.Open
	source, now := filter.Source, c.Clock()
	var limits *limiter.View
	cause, jobs := checkCause(nil, nil, status.ErrPanic, now), checkJobs(source, nil, status.ErrPanic)
	var reads sync.WaitGroup
	read := func(f func()) { reads.Go(func() { status.CatchPanic(c.Log, f) }) }
	read(func() {
		if v, err := c.Limits.View(ctx, source); err == nil {
			limits = &v
		}
	})
	read(func() {
		newest, states, err := c.failedEntities(ctx, client, filter)
		cause = checkCause(newest, states, err, now)
	})
	read(func() {
		all, err := c.DLQ.Jobs(ctx)
		jobs = checkJobs(source, all, err)
	})
	reads.Wait()
	return []replayCheck{checkHealth(source, limits, now), checkBudget(source, limits, lane, count, now), cause, jobs}
}

// failedEntities reads the newest matching dead letters, and the states of their entities in the
// same order. It omits dead letters whose record could not be decoded: they name no entity.
func (c *dlqPages) failedEntities(ctx context.Context, client access.Client, filter deadletters.Filter) ([]deadletters.DeadLetter, []store.State, error) {
	newest, err := c.DLQ.List(ctx, filter, deadletters.DeadLetter{}, maxFailedRead)
	if err != nil {
		return nil, nil, err
	}
	newest = slices.DeleteFunc(slices.Clone(newest), func(l deadletters.DeadLetter) bool {
		return l.Entity.Key == "" || !c.Entities.Sees(client, l.Entity, l.Visibility)
	})
	entities := make([]schemas.Entity, len(newest))
	for i, l := range newest {
		entities[i] = l.Entity
	}
	states, err := c.Store.States(ctx, entities)
	return newest, states, err
}

// checkHealth checks that calls of the source are allowed, and that no circuit breaker is open. v
// is nil if the limiter could not be read.
func checkHealth(source string, v *limiter.View, now time.Time) replayCheck {
	const name = "Source healthy"
	if v == nil {
		return replayCheck{name, checkUnknown, "The limiter of " + source + " could not be read."}
	}
	if !v.State.AllowsCalls() {
		return replayCheck{name, checkNo, source + " is not called now: " + stateMessage(v, now) + "."}
	}
	if b, found := openScopes(v.Scopes, now); found {
		return replayCheck{name, checkNo, b.Message + "."}
	}
	return replayCheck{name, checkYes, fmt.Sprintf("The limiter of %s is %s, at %.0f %% of its rate.", source, v.State, v.RampRatio*100)}
}

// checkBudget checks whether the lane has enough calls left for a replay of `count` dead letters,
// with one call for each. It checks the policy with the fewest calls left, among the policies whose
// window is at least minExhaustedWindow.
func checkBudget(source string, v *limiter.View, lane schemas.Lane, count int64, now time.Time) replayCheck {
	const name = "Budget left"
	if v == nil {
		return replayCheck{name, checkUnknown, "The limiter of " + source + " could not be read."}
	}
	if b, found := exhaustedScopes(v.Scopes, now); found {
		return replayCheck{name, checkNo, b.Message + "."}
	}
	needs := fmt.Sprintf("the replay needs %s at least", plural(count, "call", "calls"))
	least, message := int64(math.MaxInt64), ""
	for _, p := range v.Policies {
		window, long := longWindow(p)
		if !long {
			continue
		}
		if p.Used == nil {
			return replayCheck{name, checkUnknown, fmt.Sprintf("The used calls of %s are not known yet; %s.", window, needs)}
		}
		left, until := p.Remaining, ""
		if lane == schemas.Low {
			left = p.RemainingForLow
		}
		if p.ResetsAt != nil {
			until = " until " + formatTime(*p.ResetsAt, now)
		}
		if left < least {
			least, message = left, fmt.Sprintf("%s has %s of %s calls of %s left%s; %s.", lane, formatCount(left), formatCount(p.Limit), window, until, needs)
		}
	}
	switch {
	case message == "":
		return replayCheck{name, checkYes, fmt.Sprintf("%s has no limit for an hour or longer; %s.", source, needs)}
	case least < max(1, count):
		return replayCheck{name, checkNo, message}
	}
	return replayCheck{name, checkYes, message}
}

// checkCause checks whether the upstream has answered a fetch of at least one failed entity after
// its failure. `states` are the states of these entities, in the same order. A success of another
// entity proves nothing: requests usually become dead letters while requests for other entities
// succeed.
func checkCause(newest []deadletters.DeadLetter, states []store.State, err error, now time.Time) replayCheck {
	const name = "Cause fixed after the failures"
	if err != nil {
		return replayCheck{name, checkUnknown, "The failed entities could not be read."}
	}
	if len(newest) == 0 {
		return replayCheck{name, checkUnknown, "No open dead letter of a known entity matches the filter."}
	}
	fetched, last := int64(0), time.Time{}
	for i, l := range newest {
		if at := states[i].CheckedAt; at.After(l.At) {
			fetched++
			if at.After(last) {
				last = at
			}
		}
	}
	entities := status.FormatInt(len(newest)) + " newest dead letters"
	failures, of := "the failures of the "+entities, status.FormatInt(fetched)+" of the "+entities
	if len(newest) == 1 {
		failures, of = "the failure of the newest dead letter", "the newest dead letter"
	}
	if fetched == 0 {
		return replayCheck{name, checkUnknown, fmt.Sprintf("Not tested: no fetch has succeeded after %s; the newest failure was %s. Refresh the entity of a dead letter to test whether the cause is fixed.", failures, formatAgo(newest[0].At, now))}
	}
	return replayCheck{name, checkYes, fmt.Sprintf("A later fetch has succeeded for %s; the newest fetch was %s.", of, formatAgo(last, now))}
}

// checkJobs checks that no replay of the source is running. A stopped replay counts as running
// while a chunk of its dead letters is in flight (package dlq).
func checkJobs(source string, jobs []deadletters.Job, err error) replayCheck {
	const name = "Earlier replays ended"
	if err != nil {
		return replayCheck{name, checkUnknown, "The jobs could not be read."}
	}
	for _, j := range jobs {
		switch {
		case j.Source != source || j.Kind != deadletters.ReplayJob:
		case j.State == deadletters.JobRunning:
			return replayCheck{name, checkNo, fmt.Sprintf("A replay of %s is running, with %s of %s done.", source, status.FormatInt(j.Done), status.FormatInt(j.Total))}
		case !j.ChunkStartedAt.IsZero():
			return replayCheck{name, checkNo, fmt.Sprintf("A replay of %s was stopped at %s of %s, and its last chunk is still being checked.", source, status.FormatInt(j.Done), status.FormatInt(j.Total))}
		}
	}
	return replayCheck{name, checkYes, "No replay of " + source + " is running."}
}
