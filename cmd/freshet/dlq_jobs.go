package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

// jobPollInterval is the interval at which followJob reads a job.
const jobPollInterval = 500 * time.Millisecond

func dlqReplay(p *program) *cobra.Command {
	var d deadLetterFilter
	var lane, rate, note, resume string
	var maxCount int64
	var dry bool
	c := &cobra.Command{
		Use:   "replay [PARTITION:OFFSET...]",
		Short: "Enqueue the requests of dead letters again, after their cause is fixed",
		Long: `Enqueue the requests of the given dead letters again, or of all open ones that match the filters.
The query services run this as a job and enqueue each dead letter once; if one of them crashes,
another continues the job. Each given dead letter is a job of its own. Interrupting this command does not stop the job. Replays use the LOW lane by default,
so that they do not use quota that is reserved for users.`,
		Example: `  freshet dlq replay --reason UPSTREAM_5XX --since 24h --dry-run
  freshet dlq replay --reason UPSTREAM_5XX --since 24h --rate 50/s
  freshet dlq replay 3:120 1:45 --lane high --yes
  freshet dlq replay --resume 0199c8a0-…`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if err := checkReplayIDs(cmd, ids); err != nil {
				return err
			}
			if cmd.Flags().Changed("resume") {
				return resumeJob(p, cmd, d.addr, resume)
			}
			perSecond, err := parseJobRate(rate)
			if err != nil {
				return err
			}
			order := map[string]any{"kind": deadletters.ReplayJob, "lane": strings.ToUpper(lane), "rate": perSecond, "max": maxCount, "note": note}
			if !slices.Contains([]any{string(schemas.High), string(schemas.Low)}, order["lane"]) {
				return app.UsageErrorf("--lane is %q; it must be high or low", lane)
			}
			if len(ids) == 0 {
				return startJob(p, cmd, &d, order, dry)
			}
			var errs []error
			for _, id := range ids {
				d.offset = id
				if err := startJob(p, cmd, &d, order, dry); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", id, err))
				}
				if cmd.Context().Err() != nil {
					break
				}
			}
			return errors.Join(errs...)
		},
	}
	d.addFlags(c)
	c.Flags().StringVar(&lane, "lane", "low", "replay in this lane: high or low")
	c.Flags().StringVar(&rate, "rate", "50/s", "enqueue at most at this rate, as in 50/s or 30/m; 0: unlimited")
	c.Flags().StringVar(&resume, "resume", "", "continue this stopped job")
	addJobFlags(c, &maxCount, &note, &dry)
	return c
}

// checkReplayIDs returns an app.UsageError if an argument of dlq replay is not the ID of a dead
// letter, or if arguments are combined with flags that select dead letters.
func checkReplayIDs(cmd *cobra.Command, ids []string) error {
	for _, id := range ids {
		if _, _, err := dlq.ParseID(id); err != nil {
			return app.UsageErrorf("%q is no dead letter; it must be PARTITION:OFFSET, as in 3:120", id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	for _, name := range []string{"reason", "fingerprint", "facet", "key", "since", "until", "offset", "attempts", "max", "resume"} {
		if cmd.Flags().Changed(name) {
			return app.UsageErrorf("--%s and PARTITION:OFFSET exclude each other; use one of them", name)
		}
	}
	return nil
}

func dlqPurge(p *program) *cobra.Command {
	var d deadLetterFilter
	var note string
	var maxCount int64
	var dry bool
	c := &cobra.Command{
		Use:   "purge",
		Short: "Mark dead letters as purged, and delete them from Kafka where possible",
		Long: `Mark all open dead letters that match the filters as purged. A purge can't be undone.

Kafka can delete only the first records of a partition. So the purge then deletes, in each
partition, all records before the first open dead letter. It does so even if no dead letter
matches the filters, which deletes replayed ones. A dead letter younger than 15 s counts as open,
and one that is not indexed yet counts as open for a day.`,
		Example: `  freshet dlq purge --reason UPSTREAM_4XX --until 6d       # Kafka's retention deletes these tomorrow
  freshet dlq purge --fingerprint F --since 6h --dry-run   # dead letters of the last six hours`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return startJob(p, cmd, &d, map[string]any{"kind": deadletters.PurgeJob, "max": maxCount, "note": note}, dry)
		},
	}
	d.addFlags(c)
	addJobFlags(c, &maxCount, &note, &dry)
	return c
}

func addJobFlags(c *cobra.Command, maxCount *int64, note *string, dry *bool) {
	c.Flags().Int64Var(maxCount, "max", 0, "handle at most this number of dead letters; 0: all")
	c.Flags().StringVar(note, "note", "", "write this reason to the audit")
	c.Flags().BoolVar(dry, "dry-run", false, "print the plan and do nothing")
	addYesFlag(c)
}

// parseJobRate parses a rate such as 50/s or 30/m, and returns the number per second.
func parseJobRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(number)
	per := map[string]float64{"s": 1, "m": 60, "": 1}[unit]
	if err != nil || n < 0 || per == 0 || (unit == "" && n != 0) {
		return 0, app.UsageErrorf("--rate is %q; it must be a number per second or minute, as in 50/s or 30/m, or 0 for no limit", text)
	}
	return float64(n) / per, nil
}

// startJob prints the plan of a job. Unless `dry` is true, it then starts the job and follows it.
func startJob(p *program, cmd *cobra.Command, d *deadLetterFilter, order map[string]any, dry bool) error {
	ctx := cmd.Context()
	api, path, values, err := p.prepareDLQ(ctx, d)
	if err != nil {
		return err
	}
	order["filter"] = values
	var plan dlq.Plan
	if err := api.Call(ctx, http.MethodPost, path+"/plan", order, &plan); err != nil {
		return err
	}
	if err := printPlan(p, plan); err != nil {
		return err
	}
	verb := map[any]string{deadletters.ReplayJob: "replay", deadletters.PurgeJob: "purge"}[order["kind"]]
	switch {
	case dry:
		return nil
	case plan.Total == 0 && verb == "replay":
		return app.NotFoundError{Err: errors.New("no open dead letter matches the filters")}
	case plan.Total > 0 && plan.Count+plan.IfReadable == 0:
		return app.NotFoundError{Err: fmt.Errorf("none of %d dead letters can be replayed; the table shows the reasons", plan.Total)}
	}
	question := fmt.Sprintf("%s %d dead letters of %s?", strings.ToUpper(verb[:1])+verb[1:], plan.Count+plan.IfReadable, d.source)
	// a purge also deletes the Kafka records of handled dead letters, so it is useful even if no dead
	// letter is open
	if plan.Total == 0 {
		question = fmt.Sprintf("No open dead letter matches the filters. Delete all handled dead letters of %s from Kafka where possible, regardless of the filters?", d.source)
	}
	if err := p.confirm(cmd, question); err != nil {
		return err
	}
	values["until"] = plan.Until.Format(time.RFC3339Nano) // exclude dead letters that the plan did not show
	var j deadletters.Job
	if err := api.Call(ctx, http.MethodPost, path+"/jobs", order, &j); err != nil {
		return err
	}
	return p.followJob(ctx, api, j)
}

// printPlan prints the number of dead letters by reason and facet, and the action of the job for each
// group.
func printPlan(p *program, plan dlq.Plan) error {
	rows := [][]string{{"COUNT", "REASON", "FACET", "ACTION"}}
	for _, r := range plan.Routes {
		to := r.Topic
		switch {
		case r.Refused != "":
			to = "none: " + refusals[r.Refused]
		case to == "":
			to = "mark as purged"
		case r.IfReadable:
			to = "publish to " + to + ", if this release can read them"
		default:
			to = "publish to " + to
		}
		rows = append(rows, []string{strconv.FormatInt(r.Count, 10), string(r.Reason), shorten(r.Facet), to})
	}
	if err := printTable(p.Stdout, rows); err != nil {
		return err
	}
	if plan.More {
		fmt.Fprintln(p.Stderr, "the table does not show all rows; the total below it counts all dead letters")
	}
	more := ""
	if plan.IfReadable > 0 {
		more = fmt.Sprintf(", and %d more if this release can read them", plan.IfReadable)
	}
	_, err := fmt.Fprintf(p.Stdout, "%d of %d dead letters%s\n", plan.Count, plan.Total, more)
	return err
}

// refusals explains each reason for which a job leaves a dead letter open.
var refusals = map[string]string{
	dlq.RefusedLimit:       fmt.Sprintf("already replayed %d times; fix the cause, then run `freshet snapshot refresh`, or purge", schemas.MaxReplays),
	dlq.RefusedUndecodable: "the payload was truncated, or this release can't decode it; upgrade, or purge",
	dlq.RefusedGone:        "Kafka has deleted the record; purge",
	dlq.RefusedInvalid:     "the facet is not configured, or it does not accept the key; fix the configuration, or purge",
}

// followJob prints the progress of a job until the job ends. If ctx ends first, followJob returns,
// and the job continues in the query service.
func (p *program) followJob(ctx context.Context, api *adminClient, j deadletters.Job) error {
	defer api.KeepAlive(maxBatchesInFlight)()
	f, isFile := p.Stderr.(*os.File)
	shown := &jobProgress{progress: progress{out: p.Stderr, terminal: isFile && isTerminal(f), started: time.Now()}}
	tick := time.NewTicker(jobPollInterval)
	defer tick.Stop()
	for j.State == deadletters.JobRunning {
		shown.print(j, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			shown.clear()
			return partialError{fmt.Errorf("job %s continues without this command (%d of %d done); list jobs with `freshet dlq jobs`, stop it with `freshet dlq stop %s`", j.ID, j.Done, j.Total, j.ID)}
		}
		is, err := api.Job(ctx, j.ID)
		if err == nil {
			j = is
		} else if ctx.Err() == nil {
			shown.clear()
			return fmt.Errorf("read the state of job %s: %w; the job continues", j.ID, err)
		}
	}
	shown.clear()
	return reportJobEnd(p, j)
}

// reportJobEnd prints the result of a job. It returns a partialError if dead letters stay open.
func reportJobEnd(p *program, j deadletters.Job) error {
	did := map[deadletters.JobKind]string{deadletters.ReplayJob: "replayed", deadletters.PurgeJob: "purged"}[j.Kind]
	if _, err := fmt.Fprintf(p.Stdout, "%d of %d dead letters %s (job %s)\n", j.Done, j.Total, did, j.ID); err != nil {
		return err
	}
	var why []string
	for _, refused := range slices.Sorted(maps.Keys(j.Refused)) {
		why = append(why, fmt.Sprintf("%d stay open: %s", j.Refused[refused], refusals[refused]))
	}
	if j.State == deadletters.JobStopped {
		why = append(why, "the job was stopped; continue it with `freshet dlq replay --resume "+j.ID+"`")
	}
	if len(why) > 0 {
		return partialError{errors.New(strings.Join(why, "; "))}
	}
	return nil
}

// jobProgress prints the progress of a job: a bar if the output is a terminal, and lines otherwise.
type jobProgress struct {
	progress
	printedAt time.Time
}

func (s *jobProgress) print(j deadletters.Job, now time.Time) {
	if now.Sub(s.printedAt) < s.interval() {
		return
	}
	s.printedAt = now
	refused := j.RefusedCount()
	text := fmt.Sprintf("%d of %d dead letters", j.Done+refused, j.Total)
	if refused > 0 {
		text += fmt.Sprintf(", %d stay open", refused)
	}
	if j.Error != "" {
		text += ", waiting: " + shorten(j.Error)
	}
	s.line(float64(j.Done+refused)/float64(max(1, j.Total)), text)
}

func dlqJobs(p *program) *cobra.Command {
	var output format
	c := &cobra.Command{
		Use:   "jobs",
		Short: "List replay and purge jobs",
	}
	output.addFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		var all struct{ Jobs []deadletters.Job }
		if err := api.Call(cmd.Context(), http.MethodGet, "/dlq-jobs", nil, &all); err != nil {
			return err
		}
		header := []string{"JOB", "KIND", "SOURCE", "STATE", "DONE", "TOTAL", "STAY OPEN", "CREATED", "LAST PROGRESS", "BY", "WAITING FOR"}
		return printAll(p.Stdout, output, all.Jobs, header, func(j deadletters.Job) [][]string {
			return [][]string{{
				j.ID, string(j.Kind), j.Source, string(j.State), strconv.FormatInt(j.Done, 10), strconv.FormatInt(j.Total, 10),
				strconv.FormatInt(j.RefusedCount(), 10), formatTime(j.CreatedAt), formatTime(j.UpdatedAt), shorten(j.CreatedBy), shorten(j.Error),
			}}
		})
	})
}

func dlqStop(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "stop JOB",
		Short: "Stop a replay or purge job",
		Long:  "Stop a replay or purge job. It does not undo the dead letters that are replayed or purged already.",
		Args:  cobra.ExactArgs(1),
	}
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, args []string) error {
		j, err := api.ChangeJob(cmd.Context(), args[0], "stop")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.Stdout, "job %s stops within 30 s; %d of %d dead letters are done so far\n", j.ID, j.Done, j.Total)
		return err
	})
}

// resumeJob continues a stopped job. It rejects flags that it would ignore, such as --max or
// --dry-run.
func resumeJob(p *program, cmd *cobra.Command, addr, id string) error {
	given := cmd.Flags()
	rest := given.NFlag() - 1
	for _, name := range []string{"addr", "config"} {
		if given.Changed(name) {
			rest--
		}
	}
	switch {
	case id == "":
		return app.UsageErrorf("--resume needs the ID of a job; `freshet dlq jobs` lists them")
	case rest > 0:
		return app.UsageErrorf("--resume continues a job with its original filters and excludes all flags but --addr; remove them, or start a new job")
	}
	api, err := p.newAdminClient(addr)
	if err != nil {
		return err
	}
	j, err := api.ChangeJob(cmd.Context(), id, "resume")
	if err != nil {
		return err
	}
	return p.followJob(cmd.Context(), api, j)
}
