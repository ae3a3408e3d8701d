package console

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/runs/api"
	"github.com/freshet/freshet/schemas"
)

// Runs reads and changes runs.
type Runs interface {
	// List returns runs, the newest first.
	List(ctx context.Context, f runs.Filter) (api.Page, error)
	// Show returns a run with its progress and failures. The error wraps runs.ErrNotFound if there is none.
	Show(ctx context.Context, id string) (api.Details, error)
	// Cancel and Retry change a run for an operator. If the state of the run does not allow the change,
	// the error wraps an error of package runs.
	Cancel(ctx context.Context, id, actor string) (api.Run, error)
	Retry(ctx context.Context, id, actor string) (api.Run, error)
}

// runsPage has the data that the list of runs shows.
type runsPage struct {
	api.Page
	Sources []string
	Filter  runs.Filter
	// hidden has the ids of the runs whose keys the client may not see.
	hidden map[string]bool
}

// runsOnPage is the maximum number of runs on one page of the list.
const runsOnPage = 50

// States returns the states that the filter of the list offers.
func (runsPage) States() []runs.State {
	return []runs.State{runs.Running, runs.Completed, runs.Failed, runs.Cancelled}
}

// Link returns the URL of the page of a run.
func (runsPage) Link(r api.Run) string { return runLink(r.ID) }

func runLink(id string) string { return root + "/runs/" + url.PathEscape(id) }

// Scope returns the text that describes the keys of a run. It does not contain keys that the client may
// not see.
func (p runsPage) Scope(r api.Run) string {
	if p.hidden[r.ID] {
		return "hidden"
	}
	return r.Scope
}

// Percent returns the share of the steps of a run that have ended.
func (runsPage) Percent(r api.Run) string {
	return percentOf(int64(r.Steps.Total-r.Steps.Open), int64(max(1, r.Steps.Total)))
}

// Tone returns the tone (colour) in which a run's state is shown.
func (runsPage) Tone(r api.Run) string { return runTone(r.State) }

func runTone(s runs.State) string {
	return map[runs.State]string{runs.Completed: toneOK, runs.Failed: toneBad, runs.Cancelled: toneWarn}[s]
}

// NextPage returns the URL of the next page; empty: this page is the last.
func (p runsPage) NextPage() string {
	if p.Next == nil {
		return ""
	}
	return root + "/runs?" + url.Values{"source": {p.Filter.Source}, "state": {string(p.Filter.State)}, "before": {*p.Next}}.Encode()
}

// jsonBody returns the list as JSON, without keys that the client may not see.
func (p runsPage) jsonBody() any {
	page := p.Page
	page.Runs = slices.Clone(page.Runs)
	for i, r := range page.Runs {
		page.Runs[i].Scope = p.Scope(r)
	}
	return page
}

// showRuns shows one page of the list of runs.
func showRuns(c *Console, w http.ResponseWriter, r *http.Request, client access.Client) {
	p := runsPage{Sources: c.Sources, hidden: map[string]bool{}, Filter: runs.Filter{Source: r.FormValue("source"), State: runs.State(r.FormValue("state")), Before: r.FormValue("before"), Limit: runsOnPage}}
	ctx, cancel := requestContext(r)
	defer cancel()
	var err error
	if p.Page, err = c.Runs.List(ctx, p.Filter); err != nil {
		c.unavailable(w, r, "The runs can't be read.", err)
		return
	}
	for _, run := range p.Runs {
		p.hidden[run.ID] = !canSeeRun(c, client, run)
	}
	c.render(w, r, http.StatusOK, "runs", "Runs", p)
}

// canSeeRun reports whether the client may see the keys of a run. An administrator may see all keys.
// Another client may see the key only if the run has a single key and the client may see all entities
// with this key.
func canSeeRun(c *Console, client access.Client, r api.Run) bool {
	if client.May(access.Admin) {
		return true
	}
	for _, facet := range c.Facets[r.Source] {
		if r.Keys != 1 || !c.Entities.Sees(client, schemas.Entity{Source: r.Source, Facet: facet, Key: r.Scope}, "") {
			return false
		}
	}
	return true
}

// runPage has the data that the page of one run shows.
type runPage struct {
	api.Details
	now time.Time
}

// runLegend has the parts of a bar that shows the steps of a facet, in their order: the colour and the
// text of each part.
var runLegend = [][2]string{{"c-fresh", "done"}, {"c-notFound", "not found"}, {"c-5xx", "failed"}, {"c-timeout", "cancelled"}, {"c-stale", "open"}}

// Bars returns a diagram with one bar for each facet. A bar shows the steps of the facet by state.
func (p runPage) Bars() histogram {
	facets := slices.Sorted(maps.Keys(p.Progress))
	var counts [][]int64
	for _, facet := range facets {
		n := p.Progress[facet]
		counts = append(counts, []int64{int64(n.Done), int64(n.NotFound), int64(n.Failed), int64(n.Cancelled), int64(n.Open)})
	}
	return newHistogram("Progress by step", "Steps of each facet by state", "Facet", facets, runLegend, counts)
}

// Tone returns the tone (colour) in which the run's state is shown.
func (p runPage) Tone() string { return runTone(p.State) }

// Reason says why the run has not ended yet; empty: it has ended.
func (p runPage) Reason() string {
	switch {
	case p.Ended():
		return ""
	case p.Waiting:
		return "It waits for the end of the earlier run of the same keys."
	case p.Deadline.Before(p.now):
		return "Its deadline has passed, and no worker has ended it: check that a worker of this source runs."
	}
	return "Its requests are in the LOW lane: the pages Queues and Limiter show what they wait for."
}

// Active reports whether the run can be cancelled.
func (p runPage) Active() bool { return !p.Ended() }

// CanRetry reports whether the run has failed steps that can be retried.
func (p runPage) CanRetry() bool {
	return p.Ended() && p.State != runs.Cancelled && p.Steps.Failed > 0
}

// Entity returns the URL of the page of a failed entity.
func (p runPage) Entity(f api.Failures) string {
	return entityPath(schemas.Entity{Source: p.Source, Facet: f.Facet, Key: f.Key})
}

// jsonBody returns the JSON form of the page, which contains only the run.
func (p runPage) jsonBody() any { return p.Details }

// showRun shows the page of one run.
func showRun(c *Console, w http.ResponseWriter, r *http.Request, client access.Client) {
	ctx, cancel := requestContext(r)
	defer cancel()
	found, err := c.Runs.Show(ctx, r.PathValue("id"))
	switch {
	case errors.Is(err, runs.ErrNotFound) || err == nil && !canSeeRun(c, client, found.Run):
		c.reject(w, r, http.StatusNotFound, "There is no run with this id.")
	case err != nil:
		c.unavailable(w, r, "The run can't be read.", err)
	default:
		c.render(w, r, http.StatusOK, "run", "Run "+found.Name+" of "+found.Source, runPage{found, c.Clock()})
	}
}

// changeRun returns the handler of the button that cancels or retries a run. change is the method to
// call. notice is the text that is shown after success.
func changeRun(c *Console, change func(r Runs, ctx context.Context, id, actor string) (api.Run, error), notice string) pageHandler {
	return func(w http.ResponseWriter, r *http.Request, client access.Client) {
		ctx, cancel := requestContext(r)
		defer cancel()
		run, err := change(c.Runs, ctx, r.PathValue("id"), client.Name)
		switch {
		case errors.Is(err, runs.ErrNotFound):
			c.reject(w, r, http.StatusNotFound, "There is no run with this id.")
		case errors.Is(err, runs.ErrEnded), errors.Is(err, runs.ErrNoFailedStep), errors.Is(err, runs.ErrActive):
			c.reject(w, r, http.StatusConflict, "The state of the run does not allow this, or another run of the same keys is active. Open the page of the run again.")
		case err != nil:
			c.unavailable(w, r, "The run could not be changed.", err)
		default:
			redirectWithNotice(w, r, runLink(run.ID), notice)
		}
	}
}
