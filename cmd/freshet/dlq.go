package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

func dlqCommand(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "dlq",
		Short: "List, replay and purge dead letters",
		Long: `List, replay and purge dead letters, through a query service. A dead letter is an update request
that failed permanently. Fix the cause before a replay: a dead letter is replayed at most three
times.

  freshet dlq list --group --since 24h     new dead letters since yesterday, by error
  freshet dlq show 3:120                   one of them, with its payload and headers
  freshet dlq replay --reason UPSTREAM_5XX --dry-run
  freshet dlq replay --reason UPSTREAM_5XX --rate 50/s`,
	}
	c.AddCommand(dlqList(p), dlqShow(p), dlqReplay(p), dlqPurge(p), dlqJobs(p), dlqStop(p))
	return c
}

// deadLetterFilter holds the flags that select dead letters.
type deadLetterFilter struct {
	addr, source                                                             string
	reason, fingerprint, facet, key, since, until, offset, attempts, handled string
}

func (d *deadLetterFilter) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&d.source, "source", "", "select this source (required if there are several)")
	f.StringVar(&d.reason, "reason", "", "select dead letters with this reason, as in UPSTREAM_5XX")
	f.StringVar(&d.fingerprint, "fingerprint", "", "select dead letters whose error has this fingerprint (see list --group)")
	f.StringVar(&d.facet, "facet", "", "select dead letters of this facet")
	f.StringVar(&d.key, "key", "", "select dead letters of this key, or of FACET/KEY as listed")
	f.StringVar(&d.since, "since", "", "select dead letters since this time, or since this long ago, as in 24h")
	f.StringVar(&d.until, "until", "", "select dead letters before this time, or before this long ago")
	f.StringVar(&d.offset, "offset", "", "select the dead letter at this partition:offset, as in 3:120")
	f.StringVar(&d.attempts, "attempts", "", "select dead letters after this number of upstream calls")
	addAddrFlag(c, &d.addr)
}

// values returns the filter's values by their names in the admin API. It subtracts durations, such as
// 90m, from the time "now".
func (d *deadLetterFilter) values(now time.Time) (map[string]string, error) {
	values := map[string]string{}
	var errs []error
	for name, text := range map[string]string{
		"reason": strings.ToUpper(d.reason), "fingerprint": d.fingerprint, "facet": d.facet, "key": d.key, "attempts": d.attempts, "offset": d.offset, "handled": d.handled,
	} {
		if text != "" {
			values[name] = text
		}
	}
	for name, text := range map[string]string{"since": d.since, "until": d.until} {
		if text == "" {
			continue
		}
		at, err := parseTime(text, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s is %q; %w", name, text, err))
			continue
		}
		values[name] = at.UTC().Format(time.RFC3339Nano)
	}
	if d.offset != "" {
		if _, _, err := dlq.ParseID(d.offset); err != nil {
			errs = append(errs, fmt.Errorf("--offset is %q; it must be partition:offset, as in 3:120", d.offset))
		}
	}
	if n, err := strconv.Atoi(d.attempts); d.attempts != "" && (err != nil || n < 0) {
		errs = append(errs, fmt.Errorf("--attempts is %q; it must be a whole number", d.attempts))
	}
	if r := values["reason"]; r != "" && !slices.Contains(schemas.DeadLetterReasons, schemas.DeadLetterReason(r)) {
		var all []string
		for _, reason := range schemas.DeadLetterReasons {
			all = append(all, string(reason))
		}
		errs = append(errs, fmt.Errorf("--reason is %q; it must be one of %s", d.reason, strings.Join(all, ", ")))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, app.UsageErrorf("%w", err)
	}
	return values, nil
}

// parseTime parses a time such as 2026-01-27T12:00:00Z, or a duration such as 90m or 7d, which it
// subtracts from now.
func parseTime(text string, now time.Time) (time.Time, error) {
	ago := text
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		if n, err := strconv.Atoi(days); err == nil {
			ago = strconv.Itoa(24*n) + "h"
		}
	}
	if d, err := time.ParseDuration(ago); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, "2006-01-02T15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, nil
		}
	}
	return time.Time{}, errors.New("it must be a duration before now, as in 90m, 24h or 7d, or a time, as in 2026-01-27T12:00:00Z")
}

// prepareDLQ returns the client of the admin API, the path of the source's dead letters in that API,
// and the values of the filter.
func (p *program) prepareDLQ(ctx context.Context, d *deadLetterFilter) (api *adminClient, path string, values map[string]string, err error) {
	if values, err = d.values(time.Now()); err != nil {
		return nil, "", nil, err
	}
	if api, err = p.newAdminClient(d.addr); err != nil {
		return nil, "", nil, err
	}
	if d.source, err = resolveSource(ctx, api, d.source, ""); err != nil {
		return nil, "", nil, err
	}
	return api, "/dlq/" + url.PathEscape(d.source), values, nil
}

func queryOf(values map[string]string) url.Values {
	q := url.Values{}
	for name, value := range values {
		q.Set(name, value)
	}
	return q
}

func dlqList(p *program) *cobra.Command {
	var d deadLetterFilter
	var output format
	var group bool
	var limit int
	c := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first, or count them by error",
		Example: `  freshet dlq list --group --since 24h
  freshet dlq list --reason PARSE_ERROR --limit 0 -o jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return app.UsageErrorf("--limit is %d; it must be a positive number, or 0 for no limit", limit)
			}
			api, path, values, err := p.prepareDLQ(cmd.Context(), &d)
			if err != nil {
				return err
			}
			if group {
				return p.groupDeadLetters(cmd.Context(), api, path, values, output)
			}
			return p.listDeadLetters(cmd.Context(), api, path, values, output, limit)
		},
	}
	d.addFlags(c)
	c.Flags().StringVar(&d.handled, "handled", "open", "select dead letters in this state: open, handled, replayed, purged or all")
	c.Flags().BoolVar(&group, "group", false, "count dead letters by reason and error")
	c.Flags().IntVar(&limit, "limit", 100, "handle at most this number of dead letters; 0: all")
	output.addFlag(c)
	return c
}

func (p *program) groupDeadLetters(ctx context.Context, api *adminClient, path string, values map[string]string, output format) error {
	var all dlq.Groups
	if err := api.Call(ctx, http.MethodGet, path+"/groups?"+queryOf(values).Encode(), nil, &all); err != nil {
		return err
	}
	if all.More {
		fmt.Fprintln(p.Stderr, "there are more groups than shown; narrow the selection, for example with --since")
	}
	if output == "table" && len(all.Groups) == 0 {
		_, err := fmt.Fprintln(p.Stdout, "no dead letters")
		return err
	}
	header := []string{"COUNT", "REASON", "STATUS", "FACET", "FIRST", "LAST", "FINGERPRINT", "ERROR"}
	return printAll(p.Stdout, output, all.Groups, header, func(g deadletters.Group) [][]string {
		return [][]string{{
			strconv.FormatInt(g.Count, 10), string(g.Reason), formatStatus(g.Status), shorten(g.Facet),
			formatTime(g.First), formatTime(g.Last), orDash(g.Fingerprint), shorten(g.Error),
		}}
	})
}

// listDeadLetters prints each page as it arrives, so a list of a million dead letters does not fill
// the memory. Only for the format json it collects all pages, because the output is then one array.
func (p *program) listDeadLetters(ctx context.Context, api *adminClient, path string, values map[string]string, output format, limit int) error {
	defer api.KeepAlive(maxBatchesInFlight)()
	q := queryOf(values)
	header := []string{"ID", "TIME", "REASON", "STATUS", "FACET/KEY", "ATTEMPTS", "REPLAYS", "HANDLED", "ERROR"}
	row := func(e dlq.Entry) [][]string {
		return [][]string{{
			e.ID, formatTime(e.At), string(e.Reason), formatStatus(e.Status), escapeUnprintable(e.Facet + "/" + e.Key), strconv.Itoa(e.Attempts), strconv.Itoa(e.Replays),
			orDash(e.Handled), shorten(e.Error),
		}}
	}
	var all []dlq.Entry
	for seen := 0; ; {
		page := maxPageSize
		if limit > 0 {
			page = min(page, limit-seen)
		}
		q.Set("limit", strconv.Itoa(page))
		var list dlq.DeadLetterList
		if err := api.Call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &list); err != nil {
			return err
		}
		seen += len(list.DeadLetters)
		last := list.Next == "" || seen == limit
		if output == "json" {
			all = append(all, list.DeadLetters...)
		} else if len(list.DeadLetters) > 0 || (output == "table" && seen > 0) {
			if err := printAll(p.Stdout, output, list.DeadLetters, header, row); err != nil {
				return err
			}
			header = nil // only the first page has a header
		}
		if !last {
			q.Set("after", list.Next)
			continue
		}
		switch {
		case output == "json":
			return printAll(p.Stdout, output, append([]dlq.Entry{}, all...), nil, row)
		case output == "table" && seen == 0:
			_, err := fmt.Fprintln(p.Stdout, "no dead letters")
			return err
		case output == "table" && list.Next != "":
			fmt.Fprintf(p.Stderr, "there are more than %d dead letters; --limit 0 lists all, --group counts them\n", limit)
		}
		return nil
	}
}

func formatStatus(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func formatTime(t time.Time) string { return t.Local().Format(time.DateTime) }

// maxBriefLength is the maximum length of a table cell, in characters.
const maxBriefLength = 72

// shorten returns a text as one line of at most maxBriefLength characters, with unprintable
// characters escaped.
func shorten(s string) string {
	s = escapeUnprintable(strings.Join(strings.Fields(s), " "))
	if utf8.RuneCountInString(s) > maxBriefLength {
		s = string([]rune(s)[:maxBriefLength-1]) + "…"
	}
	return orDash(s)
}
