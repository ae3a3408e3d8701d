package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
)

func dlqShow(p *program) *cobra.Command {
	var d deadLetterFilter
	var output format
	var limit int
	c := &cobra.Command{
		Use:   "show [PARTITION:OFFSET]",
		Short: "Show complete dead letters: payload, headers, attempts, error, upstream response",
		Long: `Show complete dead letters from Kafka: payload, headers, attempts, error, and the beginning of
the upstream's response. Pass one PARTITION:OFFSET, or filters; newest first.`,
		Example: `  freshet dlq show 3:120
  freshet dlq show --key somebody`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				d.offset = args[0]
			}
			if limit < 1 || limit > maxPageSize {
				return app.UsageErrorf("--limit is %d; it must be between 1 and %d", limit, maxPageSize)
			}
			api, path, values, err := p.prepareDLQ(cmd.Context(), &d)
			if err != nil {
				return err
			}
			defer api.KeepAlive(maxBatchesInFlight)()
			ids := []string{d.offset}
			if d.offset == "" {
				if ids, err = listIDs(cmd.Context(), api, path, values, limit); err != nil {
					return err
				}
			}
			return p.showDeadLetters(cmd.Context(), api, path, ids, d.offset == "", output)
		},
	}
	d.addFlags(c)
	c.Flags().IntVar(&limit, "limit", 10, "print at most this number of dead letters")
	c.Flags().StringVar(&d.handled, "handled", "all", "select dead letters in this state: open, handled, replayed, purged or all")
	output.addFlag(c)
	return c
}

// listIDs returns the IDs of the newest dead letters that match the filter.
func listIDs(ctx context.Context, api *adminClient, path string, values map[string]string, limit int) ([]string, error) {
	q := queryOf(values)
	q.Set("limit", strconv.Itoa(limit))
	var list dlq.DeadLetterList
	if err := api.Call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &list); err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range list.DeadLetters {
		ids = append(ids, e.ID)
	}
	if len(ids) == 0 {
		return nil, app.NotFoundError{Err: errors.New("no dead letter matches the filters")}
	}
	return ids, nil
}

// showDeadLetters prints dead letters. A dead letter can't be printed if Kafka has deleted it or if
// it can't be decoded. If `chosen` is true (a filter selected the IDs), such a dead letter is
// reported to stderr and skipped. If `chosen` is false, showDeadLetters returns an error.
func (p *program) showDeadLetters(ctx context.Context, api *adminClient, path string, ids []string, chosen bool, output format) error {
	var all []json.RawMessage
	lost := 0
	for i, id := range ids {
		var raw json.RawMessage
		err := api.Call(ctx, http.MethodGet, path+"/"+strings.Replace(id, ":", "/", 1), nil, &raw)
		if chosen && (errors.As(err, new(app.NotFoundError)) || errors.As(err, new(invalidItemsError))) {
			fmt.Fprintf(p.Stderr, "dead letter %s: %v\n", id, err)
			lost++
			continue
		}
		if err != nil {
			return err
		}
		if output != "table" {
			all = append(all, raw)
			continue
		}
		var deadLetter schemas.DeadLetter
		if err := json.Unmarshal(raw, &deadLetter); err != nil {
			return err
		}
		if i > lost {
			fmt.Fprintln(p.Stdout)
		}
		if err := showDeadLetter(p.Stdout, id, deadLetter); err != nil {
			return err
		}
	}
	if output != "table" {
		if err := printAll(p.Stdout, output, append([]json.RawMessage{}, all...), nil, nil); err != nil {
			return err
		}
	}
	if lost > 0 {
		return partialError{fmt.Errorf("%d of %d dead letters can't be shown", lost, len(ids))}
	}
	return nil
}

// showDeadLetter prints one dead letter as text. It escapes unprintable characters, because the
// content can come from clients and from the upstream.
func showDeadLetter(w io.Writer, id string, d schemas.DeadLetter) error {
	replay := d.Replay()
	rows := [][]string{
		{"id", id},
		{"time", formatTime(d.Time)},
		{"reason", escapeUnprintable(string(d.Reason))},
		{"error", escapeUnprintable(d.Error)},
		{"attempts", fmt.Sprintf("%d upstream calls", d.Attempts)},
		{"replays", fmt.Sprintf("%d of at most %d", replay.Count, schemas.MaxReplays)},
		{"record", fmt.Sprintf("%s, partition %d, offset %d", escapeUnprintable(d.Topic), d.Partition, d.Offset)},
		{"worker", escapeUnprintable(d.Worker + " of " + d.Group)},
		{"key", escapeUnprintable(string(d.Key))},
	}
	if d.Status != 0 {
		rows = append(rows, []string{"status", strconv.Itoa(d.Status)})
	}
	if d.ValueBytes != 0 {
		rows = append(rows, []string{"truncated", fmt.Sprintf("the payload had %d bytes; the original record has all of them", d.ValueBytes)})
	}
	if err := printTable(w, rows); err != nil {
		return err
	}
	for _, h := range d.Headers {
		fmt.Fprintf(w, "header  %s: %s\n", escapeUnprintable(h.Key), escapeUnprintable(string(h.Value)))
	}
	fmt.Fprintf(w, "payload\n%s\n", formatPayload(d.Value))
	if len(d.Sample) > 0 {
		fmt.Fprintf(w, "response, %s\n%s\n", escapeUnprintable(d.SampleType), formatPayload(d.Sample))
	}
	return nil
}

// escapeUnprintable escapes invalid UTF-8, control characters and invisible characters. Control
// characters could move a terminal's cursor. Invisible characters, such as direction marks, could
// disguise the text.
func escapeUnprintable(s string) string {
	var b strings.Builder
	for s != "" {
		r, size := utf8.DecodeRuneInString(s)
		if unicode.IsGraphic(r) && (r != utf8.RuneError || size > 1) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteToGraphic(s[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[size:]
	}
	return b.String()
}

// formatPayload returns a payload as indented lines: JSON is formatted, and unprintable
// characters are escaped.
func formatPayload(b []byte) string {
	var out bytes.Buffer
	if json.Valid(b) && json.Indent(&out, b, "", "  ") == nil {
		b = out.Bytes()
	}
	lines := strings.Split(string(b), "\n")
	for i, line := range lines {
		lines[i] = "  " + escapeUnprintable(strings.TrimSuffix(line, "\r"))
	}
	return strings.Join(lines, "\n")
}
