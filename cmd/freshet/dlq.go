package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/letters"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

func (p *program) dlq() *cobra.Command {
	c := &cobra.Command{
		Use:   "dlq",
		Short: "Look at dead letters, and replay or purge them",
		Long: `Look at dead letters, requests that can't succeed without a human, through a query service, and
have them replayed or purged. First mend the cause: what comes back after three replays is
not replayed again.

  freshet dlq list --group --since 24h     what died since yesterday, and why
  freshet dlq show 3:120                   one of them, with its payload and headers
  freshet dlq replay --reason UPSTREAM_5XX --dry-run
  freshet dlq replay --reason UPSTREAM_5XX --rate 50/s`,
	}
	c.AddCommand(p.dlqList(), p.dlqShow(), p.dlqReplay(), p.dlqPurge(), p.dlqJobs(), p.dlqStop())
	return c
}

// dead is which letters a command is about.
type dead struct {
	addr, source                                                        string
	reason, fingerprint, facet, key, since, until, offset, attempts, of string
}

func (d *dead) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&d.source, "source", "", "of this source (default: the only one)")
	f.StringVar(&d.reason, "reason", "", "that died for this reason, as in UPSTREAM_5XX")
	f.StringVar(&d.fingerprint, "fingerprint", "", "with this fingerprint of their error (see list --group)")
	f.StringVar(&d.facet, "facet", "", "of this facet")
	f.StringVar(&d.key, "key", "", "of this key")
	f.StringVar(&d.since, "since", "", "that died from then on: a time, or how long ago, as in 24h")
	f.StringVar(&d.until, "until", "", "that died before then: a time, or how long ago")
	f.StringVar(&d.offset, "offset", "", "the one that lies there: partition:offset, as in 3:120")
	f.StringVar(&d.attempts, "attempts", "", "after so many calls of the upstream")
	addrFlag(c, &d.addr)
}

// values are the filter as the admin API takes it.
func (d *dead) values(now time.Time) (map[string]string, error) {
	values := map[string]string{}
	var errs []error
	for name, text := range map[string]string{
		"reason": strings.ToUpper(d.reason), "fingerprint": d.fingerprint, "facet": d.facet, "key": d.key, "attempts": d.attempts, "offset": d.offset, "handled": d.of,
	} {
		if text != "" {
			values[name] = text
		}
	}
	for name, text := range map[string]string{"since": d.since, "until": d.until} {
		if text == "" {
			continue
		}
		at, err := moment(text, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s is %q; %w", name, text, err))
			continue
		}
		values[name] = at.UTC().Format(time.RFC3339Nano)
	}
	if d.offset != "" {
		if _, _, err := letters.ParseID(d.offset); err != nil {
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
		errs = append(errs, fmt.Errorf("--reason is %q; there are %s", d.reason, strings.Join(all, ", ")))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usageError{err}
	}
	return values, nil
}

// moment reads a time, or how long ago it was; days are taken too.
func moment(text string, now time.Time) (time.Time, error) {
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
	return time.Time{}, errors.New("it must be how long ago, as in 90m, 24h or 7d, or a time, as in 2026-01-27T12:00:00Z")
}

// begin returns the API, the path of the source's letters below it, and the filter.
func (p *program) begin(ctx context.Context, d *dead) (api *admin, path string, values map[string]string, err error) {
	if values, err = d.values(time.Now()); err != nil {
		return nil, "", nil, err
	}
	if api, err = p.admin(d.addr); err != nil {
		return nil, "", nil, err
	}
	if d.source, err = api.only(ctx, d.source, ""); err != nil {
		return nil, "", nil, err
	}
	return api, "/letters/" + url.PathEscape(d.source), values, nil
}

func queryOf(values map[string]string) url.Values {
	q := url.Values{}
	for name, value := range values {
		q.Set(name, value)
	}
	return q
}

func (p *program) dlqList() *cobra.Command {
	var d dead
	var output format
	var group bool
	var limit int
	c := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the newest first, or count them by what went wrong",
		Example: `  freshet dlq list --group --since 24h
  freshet dlq list --reason PARSE_ERROR --limit 0 -o jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			if limit < 0 {
				return usageError{fmt.Errorf("--limit is %d; it must be 0, for all, or more", limit)}
			}
			api, path, values, err := p.begin(cmd.Context(), &d)
			if err != nil {
				return err
			}
			if group {
				return p.groupLetters(cmd.Context(), api, path, values, output)
			}
			return p.listLetters(cmd.Context(), api, path, values, output, limit)
		},
	}
	d.flags(c)
	c.Flags().StringVar(&d.of, "handled", "open", "open, handled, replayed, purged or all")
	c.Flags().BoolVar(&group, "group", false, "count them by reason and error")
	c.Flags().IntVar(&limit, "limit", 100, "at most so many; 0: all")
	output.flag(c)
	return c
}

func (p *program) groupLetters(ctx context.Context, api *admin, path string, values map[string]string, output format) error {
	var all letters.Groups
	if err := api.call(ctx, http.MethodGet, path+"/groups?"+queryOf(values).Encode(), nil, &all); err != nil {
		return err
	}
	if all.More {
		fmt.Fprintln(p.stderr, "there are more groups than are shown; choose fewer letters, as with --since")
	}
	if output == "table" && len(all.Groups) == 0 {
		_, err := fmt.Fprintln(p.stdout, "no dead letters")
		return err
	}
	header := []string{"COUNT", "REASON", "STATUS", "FACET", "FIRST", "LAST", "FINGERPRINT", "ERROR"}
	return printAll(p.stdout, output, all.Groups, header, func(g store.LetterGroup) [][]string {
		return [][]string{{
			strconv.FormatInt(g.Count, 10), string(g.Reason), number(g.Status), dash(g.Facet),
			stamp(g.First), stamp(g.Last), dash(g.Fingerprint), brief(g.Error),
		}}
	})
}

// listLetters prints pages as they come, so that a million need no memory; an array of JSON
// is one.
func (p *program) listLetters(ctx context.Context, api *admin, path string, values map[string]string, output format, limit int) error {
	defer api.keep()()
	q := queryOf(values)
	header := []string{"ID", "DIED", "REASON", "STATUS", "FACET/KEY", "ATTEMPTS", "REPLAYS", "HANDLED", "ERROR"}
	row := func(e letters.Entry) [][]string {
		return [][]string{{
			e.ID, stamp(e.At), string(e.Reason), number(e.Status), brief(e.Facet + "/" + e.Key), strconv.Itoa(e.Attempts), strconv.Itoa(e.Replays),
			dash(e.Handled), brief(e.Error),
		}}
	}
	var all []letters.Entry
	for seen := 0; ; {
		page := pageMost
		if limit > 0 {
			page = min(page, limit-seen)
		}
		q.Set("limit", strconv.Itoa(page))
		var list letters.List
		if err := api.call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &list); err != nil {
			return err
		}
		seen += len(list.Letters)
		last := list.Next == "" || seen == limit
		if output == "json" {
			all = append(all, list.Letters...)
		} else if len(list.Letters) > 0 || (output == "table" && seen > 0) {
			if err := printAll(p.stdout, output, list.Letters, header, row); err != nil {
				return err
			}
			header = nil
		}
		if !last {
			q.Set("after", list.Next)
			continue
		}
		switch {
		case output == "json":
			return printAll(p.stdout, output, append([]letters.Entry{}, all...), nil, row)
		case output == "table" && seen == 0:
			_, err := fmt.Fprintln(p.stdout, "no dead letters")
			return err
		case output == "table" && list.Next != "":
			fmt.Fprintf(p.stderr, "there are more than %d; --limit 0 lists all, --group counts them\n", limit)
		}
		return nil
	}
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func stamp(t time.Time) string { return t.Local().Format(time.DateTime) }

// briefMost is how much of an error or a key a line of a table holds, in characters.
const briefMost = 72

// brief is a text in one line of bounded length.
func brief(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if utf8.RuneCountInString(s) > briefMost {
		s = string([]rune(s)[:briefMost-1]) + "…"
	}
	return dash(s)
}

func (p *program) dlqShow() *cobra.Command {
	var d dead
	var output format
	var limit int
	c := &cobra.Command{
		Use:   "show [PARTITION:OFFSET]",
		Short: "Show dead letters whole: payload, headers, attempts, error, what the upstream answered",
		Long: `Show dead letters as Kafka has them: payload, headers, attempts, error, and the beginning of what
the upstream answered. Name one, or choose some by filters; the newest come first.`,
		Example: `  freshet dlq show 3:120
  freshet dlq show --key somebody`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.check(); err != nil {
				return err
			}
			if len(args) == 1 {
				d.offset = args[0]
			}
			if limit < 1 || limit > pageMost {
				return usageError{fmt.Errorf("--limit is %d; it must lie between 1 and %d", limit, pageMost)}
			}
			api, path, values, err := p.begin(cmd.Context(), &d)
			if err != nil {
				return err
			}
			defer api.keep()()
			ids := []string{d.offset}
			if d.offset == "" {
				if ids, err = idsOf(cmd.Context(), api, path, values, limit); err != nil {
					return err
				}
			}
			return p.showLetters(cmd.Context(), api, path, ids, output)
		},
	}
	d.flags(c)
	c.Flags().IntVar(&limit, "limit", 10, "at most so many")
	c.Flags().StringVar(&d.of, "handled", "all", "open, handled, replayed, purged or all")
	output.flag(c)
	return c
}

// idsOf returns the chosen letters.
func idsOf(ctx context.Context, api *admin, path string, values map[string]string, limit int) ([]string, error) {
	q := queryOf(values)
	q.Set("limit", strconv.Itoa(limit))
	var list letters.List
	if err := api.call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &list); err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range list.Letters {
		ids = append(ids, e.ID)
	}
	if len(ids) == 0 {
		return nil, notFoundError{errors.New("there is no such dead letter")}
	}
	return ids, nil
}

func (p *program) showLetters(ctx context.Context, api *admin, path string, ids []string, output format) error {
	var all []json.RawMessage
	for i, id := range ids {
		var raw json.RawMessage
		if err := api.call(ctx, http.MethodGet, path+"/"+strings.Replace(id, ":", "/", 1), nil, &raw); err != nil {
			return err
		}
		if output != "table" {
			all = append(all, raw)
			continue
		}
		var letter schemas.DeadLetter
		if err := json.Unmarshal(raw, &letter); err != nil {
			return err
		}
		if i > 0 {
			fmt.Fprintln(p.stdout)
		}
		if err := showLetter(p.stdout, id, letter); err != nil {
			return err
		}
	}
	if output == "table" {
		return nil
	}
	return printAll(p.stdout, output, all, nil, nil)
}

// showLetter prints a letter for people. What can't be printed is escaped: it is what
// strangers sent.
func showLetter(w io.Writer, id string, d schemas.DeadLetter) error {
	replay := d.Replay()
	rows := [][]string{
		{"letter", id},
		{"died", stamp(d.Time)},
		{"reason", string(d.Reason)},
		{"error", printable(d.Error)},
		{"attempts", fmt.Sprintf("%d calls of the upstream", d.Attempts)},
		{"replayed", fmt.Sprintf("%d times of at most %d", replay.Count, schemas.MaxReplays)},
		{"record", fmt.Sprintf("%s, partition %d, offset %d", d.Topic, d.Partition, d.Offset)},
		{"worker", printable(d.Worker) + " of " + d.Group},
		{"key", printable(string(d.Key))},
	}
	if d.Status != 0 {
		rows = append(rows, []string{"status", strconv.Itoa(d.Status)})
	}
	if d.ValueBytes != 0 {
		rows = append(rows, []string{"cut", fmt.Sprintf("the payload had %d bytes; all of it lies where the record was read", d.ValueBytes)})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	for _, h := range d.Headers {
		fmt.Fprintf(w, "header  %s: %s\n", printable(h.Key), printable(string(h.Value)))
	}
	fmt.Fprintf(w, "payload\n%s\n", indented(d.Value))
	if len(d.Sample) > 0 {
		fmt.Fprintf(w, "answer, %s\n%s\n", printable(d.SampleType), indented(d.Sample))
	}
	return nil
}

// printable escapes what is no text, and what could move a terminal's cursor.
func printable(s string) string {
	if quoted := strconv.QuoteToGraphic(s); quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// indented is a payload for people: JSON on lines of its own, anything else escaped.
func indented(b []byte) string {
	var out bytes.Buffer
	if json.Valid(b) && json.Indent(&out, b, "  ", "  ") == nil {
		return "  " + out.String()
	}
	lines := strings.Split(string(b), "\n")
	for i, line := range lines {
		lines[i] = "  " + printable(strings.TrimSuffix(line, "\r"))
	}
	return strings.Join(lines, "\n")
}
