package console

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/deadletters"
)

// maxOutcomes is the number of replayed dead letters whose outcome a job's page shows.
const maxOutcomes = 200

// replayed is a replayed dead letter with its outcome.
type replayed struct {
	Entity  schemas.Entity
	Link    string // URL of the page of the dead letter
	Outcome status.ReplayOutcome
	Error   string // error of the last failure; empty: it has not failed again
}

// EntityLink returns the URL of the page of the entity.
func (l replayed) EntityLink() string { return entityPath(l.Entity) }

// Cell returns the outcome with its tone.
func (l replayed) Cell() statusItem {
	return statusItem{Text: string(l.Outcome), Tone: map[status.ReplayOutcome]string{status.ReplaySucceeded: toneOK, status.ReplayFailedAgain: toneBad}[l.Outcome]}
}

// replayOutcomes returns the outcomes of the first dead letters that a replay has enqueued, and a
// message with their numbers.
func replayOutcomes(ctx context.Context, d Deps, client access.Client, j deadletters.Job) (all []replayed, message string, err error) {
	if j.Kind != deadletters.ReplayJob || j.Done == 0 {
		return nil, "", nil
	}
	deadLetters, err := d.DLQIndex.DeadLettersOfJob(ctx, j.Source, j.ID, maxOutcomes)
	if err != nil {
		return nil, "", err
	}
	entities := make([]schemas.Entity, len(deadLetters))
	for i, l := range deadLetters {
		entities[i] = l.Entity
	}
	states, err := d.Store.States(ctx, entities)
	if err != nil {
		return nil, "", err
	}
	failures, err := d.Store.Statuses(ctx, entities)
	if err != nil {
		return nil, "", err
	}
	counts := map[status.ReplayOutcome]int{}
	for i, l := range deadLetters {
		of := replayed{Entity: l.Entity, Link: deadLetterPath(l.ID, j.Source), Outcome: status.OutcomeOfReplay(j.CreatedAt, states[i], failures[i])}
		counts[of.Outcome]++
		if of.Outcome != status.ReplaySucceeded && failures[i].UpdatedAt.After(j.CreatedAt) {
			of.Error = displayText(failures[i].Error, maxErrorShown)
		}
		if d.Entities.Sees(client, l.Entity, l.Visibility) && d.Entities.Sees(client, l.Entity, states[i].Visibility) {
			all = append(all, of)
		}
	}
	message = fmt.Sprintf("Of %s, %s succeeded, %s failed again, and %s pending.", plural(len(deadLetters), "replayed dead letter", "replayed dead letters"),
		status.FormatInt(counts[status.ReplaySucceeded]), status.FormatInt(counts[status.ReplayFailedAgain]), plural(counts[status.ReplayPending], "is", "are"))
	if j.Done > int64(len(deadLetters)) {
		message = fmt.Sprintf("The first %s of %s are examined. ", status.FormatInt(len(deadLetters)), status.FormatInt(j.Done)) + message
	}
	return all, message, nil
}
