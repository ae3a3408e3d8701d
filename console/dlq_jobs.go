package console

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/deadletters"
)

const (
	// maxReplayRate and minReplayRate bound the rate of a replay, in dead letters a second.
	maxReplayRate, minReplayRate = 10_000, 1.0 / 60
)

// planPage is the data of a dry run.
type planPage struct {
	dlqFilter
	Kind    deadletters.JobKind
	Lane    schemas.Lane
	Rate    string
	Max     string
	Note    string
	Problem string
	Plan    dlq.Plan
	Checks  []replayCheck
	// Duration is the minimum duration of the job at the chosen rate; empty: unknown.
	Duration string
}

// Replays reports whether the job is a replay, not a purge.
func (p planPage) Replays() bool { return p.Kind == deadletters.ReplayJob }

// Counted returns the maximum number of dead letters that the job affects. The form sends this
// number to the handler start, which compares it with a new count.
func (p planPage) Counted() int64 { return maxAffected(p.Plan) }

// maxAffected returns the number of dead letters that a job affects at most. It includes dead
// letters that this release of freshet may be unable to read.
func maxAffected(p dlq.Plan) int64 { return p.Count + p.IfReadable }

// StaysOpen explains why the job would leave some dead letters open. "why" is the code of the
// reason.
func (planPage) StaysOpen(why string) string { return staysOpen(why) }

// orderOf reads the kind, filter and options of a job from a form. The texts of its errors are
// shown to the client.
func (c *dlqPages) orderOf(r *http.Request, client access.Client) (p planPage, o dlq.JobSpec, err error) {
	if p.dlqFilter, err = c.filterOf(r); err != nil {
		return p, o, err
	}
	get := func(name string) string { return strings.TrimSpace(r.FormValue(name)) }
	p.Kind, p.Lane, p.Rate, p.Max, p.Note = deadletters.JobKind(get("kind")), schemas.Lane(get("lane")), get("rate"), get("max"), get("note")
	o = dlq.JobSpec{Kind: p.Kind, Filter: p.storeFilter(client), Lane: p.Lane, Note: p.Note}
	if p.Kind != deadletters.ReplayJob && p.Kind != deadletters.PurgeJob {
		return p, o, errors.New("choose replay or purge")
	}
	if p.Kind == deadletters.ReplayJob && !p.Lane.Valid() {
		return p, o, errors.New("the lane must be HIGH or LOW")
	}
	if p.Rate != "" {
		if o.Rate, err = strconv.ParseFloat(p.Rate, 64); err != nil || o.Rate != 0 && !(o.Rate >= minReplayRate && o.Rate <= maxReplayRate) { // this form of the condition also rejects NaN

			return p, o, fmt.Errorf("the rate must be from 0.02 to %d dead letters a second, or empty for no limit", maxReplayRate)
		}
	}
	if p.Max != "" {
		if o.Max, err = strconv.ParseInt(p.Max, 10, 64); err != nil || o.Max < 0 {
			return p, o, errors.New("the maximum must be a whole number, or empty for all")
		}
	}
	return p, o, admin.CheckNote(p.Note)
}

// plan shows the dry run of a job. If the filter's time range has no end or ends in the future,
// plan sets the end to the current time. So the job does not affect dead letters that are written
// after the dry run.
func (c *dlqPages) plan(w http.ResponseWriter, r *http.Request, client access.Client) {
	ctx, cancel := requestContext(r)
	defer cancel()
	now := c.Clock()
	p, o, err := c.orderOf(r, client)
	if err != nil {
		p.Problem = err.Error()
		c.render(w, r, http.StatusBadRequest, "plan", "Dry run", p)
		return
	}
	if p.Filter.Until.IsZero() || p.Filter.Until.After(now) {
		p.Filter.Until = now.Truncate(time.Microsecond)
	}
	p.Filter.Handled = deadletters.Open
	o.Filter = p.storeFilter(client)
	if p.Plan, err = c.DLQ.Plan(ctx, o); err != nil {
		c.unavailable(w, r, "The dead letters can't be counted.", err)
		return
	}
	if p.Replays() {
		p.Checks = c.replayChecks(ctx, client, o.Filter, o.Lane, maxAffected(p.Plan))
	}
	if o.Rate > 0 {
		p.Duration = formatDuration(time.Duration(float64(p.Plan.Count) / o.Rate * float64(time.Second)))
	}
	c.render(w, r, http.StatusOK, "plan", "Dry run", p)
}

// start starts the job that a dry run has shown. It rejects the job if more dead letters match the
// filter now than the dry run counted.
func (c *dlqPages) start(w http.ResponseWriter, r *http.Request, client access.Client) {
	p, o, err := c.orderOf(r, client)
	counted, unread := strconv.ParseInt(r.PostFormValue("counted"), 10, 64)
	if err == nil && (o.Filter.Until.IsZero() || unread != nil) {
		err = errors.New("make a dry run first")
	}
	if err != nil {
		p.Problem = err.Error()
		c.render(w, r, http.StatusBadRequest, "plan", "Dry run", p)
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	now, err := c.DLQ.Plan(ctx, o)
	if err != nil {
		c.unavailable(w, r, "The dead letters can't be counted.", err)
		return
	}
	if maxAffected(now) > counted {
		p.Problem = fmt.Sprintf("the dry run counted %s, and %s match now; repeat the dry run", plural(counted, "dead letter", "dead letters"), status.FormatInt(maxAffected(now)))
		c.render(w, r, http.StatusConflict, "plan", "Dry run", p)
		return
	}
	j, err := c.DLQ.StartJob(ctx, o, client.Name)
	if err != nil {
		c.unavailable(w, r, "The job could not be started.", err)
		return
	}
	redirectWithNotice(w, r, root+"/dlq/jobs/"+j.ID, "started")
}

func (c *dlqPages) stopJob(w http.ResponseWriter, r *http.Request, client access.Client) {
	c.switchJob(w, r, client, deadletters.JobStopped, "job-stopped")
}

func (c *dlqPages) resumeJob(w http.ResponseWriter, r *http.Request, client access.Client) {
	c.switchJob(w, r, client, deadletters.JobRunning, "job-resumed")
}

func (c *dlqPages) switchJob(w http.ResponseWriter, r *http.Request, client access.Client, to deadletters.JobState, code string) {
	ctx, cancel := requestContext(r)
	defer cancel()
	j, err := c.DLQ.SetJobState(ctx, r.PathValue("id"), to, client.Name)
	switch {
	case errors.Is(err, deadletters.ErrJobNotFound):
		c.reject(w, r, http.StatusNotFound, "Job not found, or it has ended.")
	case err != nil:
		c.unavailable(w, r, "The job could not be changed.", err)
	default:
		redirectWithNotice(w, r, root+"/dlq/jobs/"+j.ID, code)
	}
}
