package console

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/deadletters"
)

// jobPage is the data of the page of a DLQ job.
type jobPage struct {
	deadletters.Job
	liveStatus
	Chosen dlqFilter
	// Outcomes are the outcomes of replayed dead letters. OutcomeMessage has the number of each
	// outcome.
	Outcomes       []replayed
	OutcomeMessage string
}

// jsonBody returns the job, its texts and the outcomes.
func (j jobPage) jsonBody() any {
	outcomes := []map[string]string{}
	for _, o := range j.Outcomes {
		outcomes = append(outcomes, map[string]string{"entity": o.Entity.String(), "outcome": string(o.Outcome), "error": o.Error})
	}
	return map[string]any{"job": plain(reflect.ValueOf(j.Job)), "items": j.Items, "rows": j.Rows, "outcomes": outcomes, "outcomeMessage": j.OutcomeMessage}
}

func (j jobPage) livePath() string {
	if j.State == deadletters.JobDone {
		return ""
	}
	return root + "/live/jobs/" + j.ID
}

// Item returns the text with this id, which is updated every second.
func (j jobPage) Item(id string) itemAt { return itemAt{id, j.Items[id]} }

// Stoppable reports whether the page offers to stop the job.
func (j jobPage) Stoppable() bool { return j.State == deadletters.JobRunning }

// Resumable reports whether the page offers to resume the job.
func (j jobPage) Resumable() bool { return j.State == deadletters.JobStopped }

func newJobPage(j deadletters.Job, now time.Time) jobPage {
	s := jobPage{Job: j, liveStatus: jobStatus(j, now), Chosen: dlqFilter{Filter: j.Filter}}
	if j.Filter.Attempts != nil {
		s.Chosen.Attempts = strconv.Itoa(*j.Filter.Attempts)
	}
	if j.Filter.Partition != nil && j.Filter.Offset != nil {
		s.Chosen.Offset = fmt.Sprintf("%d:%d", *j.Filter.Partition, *j.Filter.Offset)
	}
	return s
}

// maxJobSilence is the time without progress after which the page warns that no process works on a
// job. One step of a job, and a takeover of the job by another process, both take less time.
const maxJobSilence = 5 * time.Minute

// jobStatus returns the texts of the job page that change while the job runs.
func jobStatus(j deadletters.Job, now time.Time) liveStatus {
	stay := j.RefusedCount()
	part := 100
	if j.Total > 0 {
		part = int(min(100, 100*(j.Done+stay)/j.Total))
	}
	verb := map[deadletters.JobKind]string{deadletters.ReplayJob: "replayed", deadletters.PurgeJob: "purged"}[j.Kind]
	text := fmt.Sprintf("%s of %s %s", status.FormatInt(j.Done), status.FormatInt(j.Total), verb)
	if stay > 0 {
		text += fmt.Sprintf(", %s stay open", status.FormatInt(stay))
	}
	f := liveStatus{At: now.UTC().Format("15:04:05") + " UTC", Items: map[string]statusItem{
		"job.state": {Text: string(j.State), Tone: map[deadletters.JobState]string{deadletters.JobDone: toneOK, deadletters.JobStopped: toneWarn}[j.State]},
		"job.done":  {Text: text, Percent: &part},
		"job.error": {Text: ""},
		"job.last":  {Text: ""},
	}, Rows: map[string][][]statusItem{"refused": {}}}
	if j.Error != "" && j.State != deadletters.JobDone {
		f.Items["job.error"] = statusItem{Text: "Waiting: " + displayText(j.Error, maxErrorShown), Tone: toneWarn}
	}
	if j.State == deadletters.JobRunning {
		last := statusItem{Text: "Its last progress was " + formatAgo(j.UpdatedAt, now) + "."}
		if now.Sub(j.UpdatedAt) > maxJobSilence {
			last = statusItem{Text: last.Text + " No process is working on it: check that a query service with this source is running.", Tone: toneWarn}
		}
		f.Items["job.last"] = last
	}
	for _, why := range slices.Sorted(maps.Keys(j.Refused)) {
		f.Rows["refused"] = append(f.Rows["refused"], []statusItem{{Text: staysOpen(why)}, {Text: status.FormatInt(j.Refused[why])}})
	}
	f.Tables = map[string]statusTable{"refused": {
		ID: "refused", Caption: "Dead letters of this job that stay open", Columns: []column{textColumn("Reason"), numberColumn("Dead letters")}, Rows: f.Rows["refused"], Empty: "None.",
	}}
	return f
}

// Refusals returns the table of dead letters that the job could not handle, by reason.
func (j jobPage) Refusals() statusTable { return j.Tables["refused"] }

// staysOpen explains why a job leaves dead letters open. "why" is the code of the reason.
func staysOpen(why string) string {
	switch why {
	case dlq.RefusedLimit:
		return "These dead letters have reached the maximum number of replays."
	case dlq.RefusedUndecodable:
		return "This release can't read the requests of these dead letters."
	case dlq.RefusedGone:
		return "Kafka has deleted the records of these dead letters."
	case dlq.RefusedInvalid:
		return "The configuration has no such facet, or the facet rejects the key."
	}
	return displayText(why, 60)
}

// readJob reads a job by its id. The second result is false if there is no such job.
func (c *dlqPages) readJob(r *http.Request, id string) (deadletters.Job, bool, error) {
	ctx, cancel := requestContext(r)
	defer cancel()
	j, err := c.DLQ.Job(ctx, id)
	if errors.Is(err, deadletters.ErrJobNotFound) {
		return j, false, nil
	}
	return j, err == nil, err
}

func (c *dlqPages) job(w http.ResponseWriter, r *http.Request, client access.Client) {
	j, found, err := c.readJob(r, r.PathValue("id"))
	switch {
	case err != nil:
		c.unavailable(w, r, "The jobs can't be read.", err)
	case !found || !c.canSeeJob(client, j):
		c.reject(w, r, http.StatusNotFound, "Job not found.")
	default:
		title := map[deadletters.JobKind]string{deadletters.ReplayJob: "Replay", deadletters.PurgeJob: "Purge"}[j.Kind] + " of " + j.Source
		ctx, cancel := requestContext(r)
		defer cancel()
		p := newJobPage(j, c.Clock())
		if p.Outcomes, p.OutcomeMessage, err = replayOutcomes(ctx, c.Deps, client, j); err != nil {
			c.Log.Warn("job page shown without the outcomes of its dead letters; reading them failed", "err", err)
			p.OutcomeMessage = "The outcomes of the dead letters can't be read; see the log of this process."
		}
		c.render(w, r, http.StatusOK, "job", strings.TrimSpace(title), p)
	}
}
