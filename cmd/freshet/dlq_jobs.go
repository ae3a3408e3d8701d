package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// jobPollInterval is how often a job is looked at while somebody follows it.
const jobPollInterval = 500 * time.Millisecond

func (p *program) dlqReplay() *cobra.Command {
	var d deadLetterFilter
	var lane, rate, note, resume string
	var most int64
	var dry, yes bool
	c := &cobra.Command{
		Use:   "replay",
		Short: "Ask again for the requests of dead letters, once their cause is mended",
		Long: `Ask again for the requests of all open dead letters that the filters choose. The query services
do it, each letter once, also if one of them dies: what was interrupted goes on by itself.
Interrupting this command leaves the job going. Replays go to the LOW lane unless told
otherwise, so that they don't take what is kept for users.`,
		Example: `  freshet dlq replay --reason UPSTREAM_5XX --since 24h --dry-run
  freshet dlq replay --reason UPSTREAM_5XX --since 24h --rate 50/s
  freshet dlq replay --offset 3:120 --lane high --yes
  freshet dlq replay --resume 0199c8a0-…`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("resume") {
				return p.resumeJob(cmd, d.addr, resume)
			}
			perSecond, err := parseJobRate(rate)
			if err != nil {
				return err
			}
			order := map[string]any{"kind": store.ReplayJob, "lane": strings.ToUpper(lane), "rate": perSecond, "max": most, "note": note}
			if !slices.Contains([]any{string(schemas.High), string(schemas.Low)}, order["lane"]) {
				return usageError{fmt.Errorf("--lane is %q; it must be high or low", lane)}
			}
			return p.order(cmd, &d, order, dry, yes)
		},
	}
	d.addFlags(c)
	c.Flags().StringVar(&lane, "lane", "low", "high or low")
	c.Flags().StringVar(&rate, "rate", "50/s", "at most so many in a second or minute, as in 50/s or 30/m; 0: as many as go")
	c.Flags().StringVar(&resume, "resume", "", "go on with this job, which was stopped")
	addJobFlags(c, &most, &note, &dry, &yes)
	return c
}

func (p *program) dlqPurge() *cobra.Command {
	var d deadLetterFilter
	var note string
	var most int64
	var dry, yes bool
	c := &cobra.Command{
		Use:   "purge",
		Short: "Mark dead letters as done with, and delete them where Kafka can",
		Long: `Mark all open dead letters that the filters choose as done with. Kafka can delete only what its
partitions begin with: of each, all that lies before the first letter which is still open.
A letter that is younger than 15 s, and one that has no entry in the index yet, count as open, the
latter for a day. That is done also when the filters choose none, as after replays. Nothing brings
back what was purged.`,
		Example: `  freshet dlq purge --reason UPSTREAM_4XX --until 6d       # what Kafka deletes tomorrow anyway
  freshet dlq purge --fingerprint F --since 6h --dry-run   # of tonight's`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.order(cmd, &d, map[string]any{"kind": store.PurgeJob, "max": most, "note": note}, dry, yes)
		},
	}
	d.addFlags(c)
	addJobFlags(c, &most, &note, &dry, &yes)
	return c
}

func addJobFlags(c *cobra.Command, most *int64, note *string, dry, yes *bool) {
	c.Flags().Int64Var(most, "max", 0, "at most so many letters; 0: all")
	c.Flags().StringVar(note, "note", "", "why, for the audit")
	c.Flags().BoolVar(dry, "dry-run", false, "count what would be done, and do nothing")
	c.Flags().BoolVar(yes, "yes", false, "do not ask")
}

// parseJobRate reads a number of letters in a second or minute, and returns it for a second.
func parseJobRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(number)
	per := map[string]float64{"s": 1, "m": 60, "": 1}[unit]
	if err != nil || n < 0 || per == 0 || (unit == "" && n != 0) {
		return 0, usageError{fmt.Errorf("--rate is %q; it must be a number in a second or minute, as in 50/s or 30/m, or 0 for as many as go", text)}
	}
	return float64(n) / per, nil
}

// order shows what would be done, and unless that is all has it done.
func (p *program) order(cmd *cobra.Command, d *deadLetterFilter, order map[string]any, dry, yes bool) error {
	ctx := cmd.Context()
	api, path, values, err := p.begin(ctx, d)
	if err != nil {
		return err
	}
	order["filter"] = values
	var plan dlq.Plan
	if err := api.call(ctx, http.MethodPost, path+"/plan", order, &plan); err != nil {
		return err
	}
	if err := p.tellPlan(plan); err != nil {
		return err
	}
	verb := map[any]string{store.ReplayJob: "replay", store.PurgeJob: "purge"}[order["kind"]]
	switch {
	case dry:
		return nil
	case plan.Total == 0 && verb == "replay":
		return notFoundError{errors.New("there is no dead letter to replay")}
	case plan.Total > 0 && plan.Count+plan.IfReadable == 0:
		return notFoundError{fmt.Errorf("none of %d dead letters would be replayed; the table says why", plan.Total)}
	case !yes:
		in := cmd.InOrStdin()
		question := fmt.Sprintf("%s %d dead letters of %s?", strings.ToUpper(verb[:1])+verb[1:], plan.Count+plan.IfReadable, d.source)
		if plan.Total == 0 { // replays leave handled letters behind
			question = fmt.Sprintf("The filters choose no open letter. Delete the handled ones of %s, whatever the filters, where Kafka can?", d.source)
		}
		if err := confirm(ctx, in, isTerminal(in), p.stderr, question); err != nil {
			return err
		}
	}
	values["until"] = plan.Until.Format(time.RFC3339Nano) // what died since was not shown
	var j store.DLQJob
	if err := api.call(ctx, http.MethodPost, path+"/jobs", order, &j); err != nil {
		return err
	}
	return p.follow(ctx, api, j)
}

// tellPlan prints what would become of which letters.
func (p *program) tellPlan(plan dlq.Plan) error {
	rows := [][]string{{"LETTERS", "REASON", "FACET", "BECOMES"}}
	for _, r := range plan.Routes {
		to := r.Topic
		switch {
		case r.Refused != "":
			to = "nothing: " + refusals[r.Refused]
		case to == "":
			to = "marked as done with"
		case r.IfReadable:
			to += ", if this release can read them"
		}
		rows = append(rows, []string{strconv.FormatInt(r.Count, 10), string(r.Reason), shorten(r.Facet), to})
	}
	if err := printTable(p.stdout, rows); err != nil {
		return err
	}
	if plan.More {
		fmt.Fprintln(p.stderr, "there are more kinds of letters than the table shows; the numbers below it are of all")
	}
	more := ""
	if plan.IfReadable > 0 {
		more = fmt.Sprintf(", and %d more if this release can read them", plan.IfReadable)
	}
	_, err := fmt.Fprintf(p.stdout, "%d of %d letters%s\n", plan.Count, plan.Total, more)
	return err
}

// refusals are why a letter stays open, in words.
var refusals = map[string]string{
	dlq.RefusedLimit:       fmt.Sprintf("replayed %d times already; mend the cause, then `freshet snapshot refresh`, or purge", schemas.MaxReplays),
	dlq.RefusedUndecodable: "no request that this release can read, or cut as too large; upgrade, or purge",
	dlq.RefusedGone:        "Kafka has it no longer; purge",
	dlq.RefusedInvalid:     "the configuration has no such facet, or it takes no such key; mend it, or purge",
}

// follow tells how far a job is until it has ended. What interrupts the command does not
// interrupt the job.
func (p *program) follow(ctx context.Context, api *adminClient, j store.DLQJob) error {
	defer api.keepAlive()()
	f, isFile := p.stderr.(*os.File)
	shown := &jobProgress{progress: progress{out: p.stderr, terminal: isFile && isTerminal(f), started: time.Now()}}
	tick := time.NewTicker(jobPollInterval)
	defer tick.Stop()
	for j.State == store.JobRunning {
		shown.tell(j, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			shown.clear()
			return partialError{fmt.Errorf("job %s goes on without this command: %d of %d are done; see `freshet dlq jobs`, end it with `freshet dlq stop %s`", j.ID, j.Done, j.Total, j.ID)}
		}
		is, err := api.job(ctx, j.ID)
		if err == nil {
			j = is
		} else if ctx.Err() == nil {
			shown.clear()
			return fmt.Errorf("job %s goes on, but can't be looked at: %w", j.ID, err)
		}
	}
	shown.clear()
	return p.ended(j)
}

// ended says how a job ended.
func (p *program) ended(j store.DLQJob) error {
	did := map[store.JobKind]string{store.ReplayJob: "asked for again", store.PurgeJob: "done with"}[j.Kind]
	if _, err := fmt.Fprintf(p.stdout, "%d of %d letters are %s (job %s)\n", j.Done, j.Total, did, j.ID); err != nil {
		return err
	}
	var why []string
	for _, refused := range slices.Sorted(maps.Keys(j.Refused)) {
		why = append(why, fmt.Sprintf("%d stay open: %s", j.Refused[refused], refusals[refused]))
	}
	if j.State == store.JobStopped {
		why = append(why, "somebody stopped the job; go on with `freshet dlq replay --resume "+j.ID+"`")
	}
	if len(why) > 0 {
		return partialError{errors.New(strings.Join(why, "; "))}
	}
	return nil
}

// jobProgress tells how far a job is: a bar at a terminal, and lines elsewhere.
type jobProgress struct {
	progress
	told time.Time
}

func (s *jobProgress) tell(j store.DLQJob, now time.Time) {
	if now.Sub(s.told) < s.interval() {
		return
	}
	s.told = now
	refused := j.RefusedCount()
	text := fmt.Sprintf("%d of %d letters", j.Done+refused, j.Total)
	if refused > 0 {
		text += fmt.Sprintf(", %d stay open", refused)
	}
	if j.Error != "" {
		text += ", waits: " + shorten(j.Error)
	}
	s.line(float64(j.Done+refused)/float64(max(1, j.Total)), text)
}

func (p *program) dlqJobs() *cobra.Command {
	var addr string
	var output format
	c := &cobra.Command{
		Use:   "jobs",
		Short: "List what is being done about dead letters, and what was",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			api, err := p.newAdminClient(addr)
			if err != nil {
				return err
			}
			var all struct{ Jobs []store.DLQJob }
			if err := api.call(cmd.Context(), http.MethodGet, "/dlq-jobs", nil, &all); err != nil {
				return err
			}
			header := []string{"JOB", "KIND", "SOURCE", "STATE", "DONE", "OF", "STAY OPEN", "ORDERED", "LAST PROGRESS", "BY", "WAITS"}
			return printAll(p.stdout, output, all.Jobs, header, func(j store.DLQJob) [][]string {
				return [][]string{{
					j.ID, string(j.Kind), j.Source, string(j.State), strconv.FormatInt(j.Done, 10), strconv.FormatInt(j.Total, 10),
					strconv.FormatInt(j.RefusedCount(), 10), formatTime(j.CreatedAt), formatTime(j.UpdatedAt), shorten(j.CreatedBy), shorten(j.Error),
				}}
			})
		},
	}
	output.addFlag(c)
	addAddrFlag(c, &addr)
	return c
}

func (p *program) dlqStop() *cobra.Command {
	var addr string
	c := &cobra.Command{
		Use:   "stop JOB",
		Short: "Stop a job on dead letters; what it has done is done",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := p.newAdminClient(addr)
			if err != nil {
				return err
			}
			j, err := api.switchJob(cmd.Context(), args[0], "stop")
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "job %s is stopped within half a minute; %d of %d letters are done so far\n", j.ID, j.Done, j.Total)
			return err
		},
	}
	addAddrFlag(c, &addr)
	return c
}

// resumeJob goes on with a job. A flag that would be ignored is refused: whoever gives --max or
// --dry-run means it.
func (p *program) resumeJob(cmd *cobra.Command, addr, id string) error {
	given := cmd.Flags()
	rest := given.NFlag() - 1
	for _, name := range []string{"addr", "config"} {
		if given.Changed(name) {
			rest--
		}
	}
	switch {
	case id == "":
		return usageError{errors.New("--resume names no job; `freshet dlq jobs` lists them")}
	case rest > 0:
		return usageError{errors.New("--resume goes on with the job as it was ordered, so no other flag but --addr goes with it; leave them out, or stop the job and order another")}
	}
	api, err := p.newAdminClient(addr)
	if err != nil {
		return err
	}
	j, err := api.switchJob(cmd.Context(), id, "resume")
	if err != nil {
		return err
	}
	return p.follow(cmd.Context(), api, j)
}

// job looks at a job.
func (a *adminClient) job(ctx context.Context, id string) (j store.DLQJob, err error) {
	err = a.call(ctx, http.MethodGet, "/dlq-jobs/"+url.PathEscape(id), nil, &j)
	return j, err
}

func (a *adminClient) switchJob(ctx context.Context, id, verb string) (j store.DLQJob, err error) {
	err = a.call(ctx, http.MethodPost, "/dlq-jobs/"+url.PathEscape(id)+"/"+verb, map[string]string{}, &j)
	return j, err
}
