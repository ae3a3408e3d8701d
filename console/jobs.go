package console

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/store"
)

// jobShown is a job as pages show it.
type jobShown struct {
	store.DLQJob
	facts
	Chosen chosenLetters
}

func (j jobShown) livePath() string {
	if j.State == store.JobDone {
		return ""
	}
	return root + "/live/jobs/" + j.ID
}

// Fact returns what a live element says.
func (j jobShown) Fact(id string) factAt { return factAt{id, j.Facts[id]} }

// Stoppable and Resumable report what may be done with it.
func (j jobShown) Stoppable() bool { return j.State == store.JobRunning }

// Resumable reports whether it was stopped.
func (j jobShown) Resumable() bool { return j.State == store.JobStopped }

func showJob(j store.DLQJob, now time.Time) jobShown {
	s := jobShown{DLQJob: j, facts: jobFacts(j, now), Chosen: chosenLetters{Filter: j.Filter}}
	if j.Filter.Attempts != nil {
		s.Chosen.Attempts = strconv.Itoa(*j.Filter.Attempts)
	}
	if j.Filter.Partition != nil && j.Filter.Offset != nil {
		s.Chosen.Offset = fmt.Sprintf("%d:%d", *j.Filter.Partition, *j.Filter.Offset)
	}
	return s
}

// jobQuiet is longer than a job needs for one step, and than it takes until another process
// goes on with it when its own has died.
const jobQuiet = 5 * time.Minute

// jobFacts says how far a job is.
func jobFacts(j store.DLQJob, now time.Time) facts {
	stay := j.RefusedCount()
	part := 100
	if j.Total > 0 {
		part = int(min(100, 100*(j.Done+stay)/j.Total))
	}
	verb := map[store.JobKind]string{store.ReplayJob: "replayed", store.PurgeJob: "purged"}[j.Kind]
	text := fmt.Sprintf("%s of %s %s", exact(j.Done), exact(j.Total), verb)
	if stay > 0 {
		text += fmt.Sprintf(", %s stay open", exact(stay))
	}
	f := facts{At: now.UTC().Format("15:04:05") + " UTC", Facts: map[string]fact{
		"job.state": {Text: string(j.State), Tone: map[store.JobState]string{store.JobDone: toneOK, store.JobStopped: toneWarn}[j.State]},
		"job.done":  {Text: text, Part: &part},
		"job.error": {Text: ""},
		"job.last":  {Text: ""},
	}, Rows: map[string][][]fact{"refused": {}}}
	if j.Error != "" && j.State != store.JobDone {
		f.Facts["job.error"] = fact{Text: "It waits: " + shown(j.Error, errorShown), Tone: toneWarn}
	}
	if j.State == store.JobRunning {
		last := fact{Text: "Its last progress was " + ago(j.UpdatedAt, now) + "."}
		if now.Sub(j.UpdatedAt) > jobQuiet {
			last = fact{Text: last.Text + " No process works on it: see that a query service runs that knows its source.", Tone: toneWarn}
		}
		f.Facts["job.last"] = last
	}
	for _, why := range slices.Sorted(maps.Keys(j.Refused)) {
		f.Rows["refused"] = append(f.Rows["refused"], []fact{{Text: staysOpen(why)}, {Text: exact(j.Refused[why])}})
	}
	f.Tables = map[string]headedTable{"refused": {
		ID: "refused", Caption: "Letters that stay open", Heads: []string{"Why", "Letters"}, Numbers: []bool{false, true}, Rows: f.Rows["refused"], Empty: "None so far.",
	}}
	return f
}

// Refusals are the letters that stay open, by why.
func (j jobShown) Refusals() headedTable { return j.Tables["refused"] }

// staysOpen says why letters stay open.
func staysOpen(why string) string {
	switch why {
	case dlq.RefusedLimit:
		return "They were replayed as often as may be."
	case dlq.RefusedUndecodable:
		return "This release can't read their request."
	case dlq.RefusedGone:
		return "Their topic does not have them any more."
	case dlq.RefusedInvalid:
		return "The configuration has no such facet, or it takes no such key."
	}
	return shown(why, 60)
}

// jobOf returns a job by its id.
func (c *Console) jobOf(r *http.Request, id string) (store.DLQJob, bool, error) {
	ctx, cancel := bounded(r)
	defer cancel()
	j, err := c.Letters.Job(ctx, id)
	if errors.Is(err, store.ErrJobNotFound) {
		return j, false, nil
	}
	return j, err == nil, err
}

func (c *Console) job(w http.ResponseWriter, r *http.Request, who access.Client) {
	j, found, err := c.jobOf(r, r.PathValue("id"))
	switch {
	case err != nil:
		c.trouble(w, r, "The jobs can't be read.", err)
	case !found || !c.seesJob(who, j):
		c.refuse(w, r, http.StatusNotFound, "There is no such job.")
	default:
		title := map[store.JobKind]string{store.ReplayJob: "Replay", store.PurgeJob: "Purge"}[j.Kind] + " of " + j.Source
		c.render(w, r, http.StatusOK, "job", strings.TrimSpace(title), showJob(j, c.Clock()))
	}
}
