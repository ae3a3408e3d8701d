package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/status"
)

func limiterCommand(p *program) *cobra.Command {
	var source string
	var output format
	c := &cobra.Command{
		Use:   "limiter",
		Short: "Show the current state of the limiters: remaining quota, breakers and waiting calls",
		Long: `Show the current state of the sources' limiters, through a query service:

- the state of the source, such as flowing, backing-off, breaker-open or stopped
- the remaining calls of each policy, in total and for LOW; of a window with a large limit only
  the calls that could be sent at this moment are known
- the remaining calls and the circuit breaker of each value of a policy's scope, as the workers
  report them
- the waiting calls of each worker, the age of the oldest, and the reason`,
	}
	c.Flags().StringVar(&source, "source", "", "show this source only (default all)")
	output.addFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		all, err := api.Limiters(cmd.Context(), source)
		if err != nil {
			return err
		}
		if output != "table" {
			return printAll(p.Stdout, output, all, nil, nil)
		}
		for i, v := range all {
			if i > 0 {
				fmt.Fprintln(p.Stdout)
			}
			if err := printLimiter(p, v); err != nil {
				return err
			}
		}
		return nil
	})
}

// printLimiter prints the tables of one limiter.
func printLimiter(p *program, v limiter.View) error {
	fmt.Fprintf(p.Stdout, "%s: %s\n", v.Source, limiterState(v))
	if v.NewestRevision > v.Revision {
		fmt.Fprintf(p.Stdout, "Revision %d of the settings is stored, but not in force yet.\n", v.NewestRevision)
	}
	if len(v.Policies) > 0 {
		rows := [][]string{{"  POLICY", "LIMIT", "TARGET", "USED", "REMAINING", "FOR LOW", "RESETS"}}
		for _, policy := range v.Policies {
			rows = append(rows, policyRow(policy, v.At))
		}
		fmt.Fprintln(p.Stdout)
		if err := printTable(p.Stdout, rows); err != nil {
			return err
		}
	}
	if len(v.Scopes) > 0 {
		rows := [][]string{{"  POLICY", "SCOPE", "REMAINING", "IN FLIGHT", "NEXT IN"}}
		for _, scope := range v.Scopes {
			rows = append(rows, scopeRow(scope, v.At))
		}
		fmt.Fprintln(p.Stdout)
		if err := printTable(p.Stdout, rows); err != nil {
			return err
		}
	}
	fmt.Fprintln(p.Stdout)
	if len(v.Processes) == 0 {
		_, err := fmt.Fprintln(p.Stdout, "  No worker has reported within the last minute.")
		return err
	}
	rows := [][]string{{"  PROCESS", "LANE", "WAITING", "OLDEST", "GRANTED", "REJECTED", "REASON", "REPORTED"}}
	for _, process := range v.Processes {
		reported := formatDuration(v.At.Sub(process.At)) + " ago"
		rows = append(rows, append(laneRow("  "+process.Process, "HIGH", process.High), reported), append(laneRow("  ", "LOW", process.Low), ""))
	}
	return printTable(p.Stdout, rows)
}

// limiterState describes the state of a limiter in one line.
func limiterState(v limiter.View) string {
	message := status.LimiterMessage(&v, func(t time.Time) string { return t.UTC().Format("15:04:05 UTC") })
	return fmt.Sprintf("%s; %s; settings at revision %d", v.State, message, v.Revision)
}

func policyRow(policy limiter.PolicyView, now time.Time) []string {
	limit, target, used, resets := status.FormatInt(policy.Limit)+" in "+policy.Window, "-", "-", "-"
	if policy.Window == limiter.Day.String() {
		limit = status.FormatInt(policy.Limit) + " a day"
	}
	if policy.Target > 0 {
		target = status.FormatInt(policy.Target)
	}
	if policy.Used != nil {
		used = status.FormatInt(*policy.Used)
	}
	if policy.ResetsAt != nil {
		resets = "in " + formatDuration(policy.ResetsAt.Sub(now))
	}
	return []string{
		"  " + policy.Name, limit, target, used, status.FormatInt(policy.Remaining), status.FormatInt(policy.RemainingForLow), resets,
	}
}

// scopeRow returns the table row for one object of a policy's scope, such as one credential. If its
// breaker is open, the column NEXT IN shows the time until the breaker's next probe.
func scopeRow(scope limiter.ScopeView, now time.Time) []string {
	remaining, next := "unknown", "-"
	value := scope.Scope
	if value == "" {
		value = "-" // the policy applies to the whole source
	}
	switch {
	case scope.BreakerOpen:
		remaining = "breaker open"
	case scope.Remaining != nil:
		remaining = status.FormatInt(*scope.Remaining)
	}
	if scope.Until != nil {
		next = formatDuration(scope.Until.Sub(now))
	}
	return []string{"  " + scope.Policy, value, remaining, status.FormatInt(scope.InFlight), next}
}

func laneRow(process, lane string, v limiter.LaneView) []string {
	oldest, reason := "-", string(v.Reason)
	if v.Waiting > 0 {
		oldest = formatDuration(time.Duration(v.OldestMS * float64(time.Millisecond)))
		if reason == "" {
			reason = "pacing"
		}
	}
	if reason == "" {
		reason = "-"
	}
	return []string{process, lane, status.FormatInt(v.Waiting), oldest, status.FormatInt(v.Granted), status.FormatInt(v.Rejected), reason}
}

// formatDuration writes a duration, rounded to 10 ms below 10 s, to seconds below 1 h, and to
// minutes above.
func formatDuration(d time.Duration) string {
	switch d = max(0, d); {
	case d < 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}
