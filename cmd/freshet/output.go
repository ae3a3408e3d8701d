package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
)

// format is an output format of lists: table, json (one array) or jsonl (one JSON object per
// line).
type format string

// addFlag adds the flag -o to a command. The command then rejects an unknown format before it runs.
func (f *format) addFlag(c *cobra.Command) {
	c.PreRunE = func(*cobra.Command, []string) error { return f.check() }
	c.Flags().StringVarP((*string)(f), "output", "o", "table", "print in this format: table, json or jsonl")
}

func (f format) check() error {
	if !slices.Contains([]format{"table", "json", "jsonl"}, f) {
		return app.UsageErrorf("-o is %q; it must be table, json or jsonl", string(f))
	}
	return nil
}

// printAll prints a list in a format. rows returns the table rows of one element. If header is nil,
// the table has no header row.
func printAll[T any](w io.Writer, f format, all []T, header []string, rows func(T) [][]string) error {
	encoder := json.NewEncoder(w)
	switch f {
	case "json":
		encoder.SetIndent("", "  ")
		return encoder.Encode(all)
	case "jsonl":
		for _, element := range all {
			if err := encoder.Encode(element); err != nil {
				return err
			}
		}
		return nil
	}
	var lines [][]string
	if header != nil {
		lines = append(lines, header)
	}
	for _, element := range all {
		lines = append(lines, rows(element)...)
	}
	return printTable(w, lines)
}

func printTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}
