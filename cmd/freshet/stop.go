package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/settings"
)

// stopTarget is which sources a stop or resume is for, and why.
type stopTarget struct {
	addr, source, note string
	all                bool
}

func (t *stopTarget) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&t.source, "source", "", "this source (may be left out if there is one)")
	c.Flags().BoolVar(&t.all, "all", false, "all sources")
	c.Flags().StringVar(&t.note, "note", "", "why, for the audit")
	addAddrFlag(c, &t.addr)
}

func (p *program) stop() *cobra.Command {
	var t stopTarget
	var yes bool
	c := &cobra.Command{
		Use:   "stop",
		Short: "Emergency stop: make no call to a source's upstream until it is resumed",
		Long: `Make no call to a source's upstream until it is resumed, through a query service. Every
worker obeys within two seconds. Requests wait meanwhile; none is lost
within a day (HIGH; LOW three days). What a replay has asked for waits with them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.stopOrResume(cmd.Context(), t, "stop", func(names []string) error {
				if yes {
					return nil
				}
				in := cmd.InOrStdin()
				return confirm(cmd.Context(), in, isTerminal(in), p.stderr, "Stop all calls for "+strings.Join(names, ", ")+"?")
			})
		},
	}
	t.addFlags(c)
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (p *program) resume() *cobra.Command {
	var t stopTarget
	c := &cobra.Command{
		Use:   "resume",
		Short: "Take an emergency stop back",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.stopOrResume(cmd.Context(), t, "resume", func([]string) error { return nil })
		},
	}
	t.addFlags(c)
	return c
}

// stopOrResume stops or resumes the sources, if agreed returns nil. One that fails does
// not keep the others from being stopped.
func (p *program) stopOrResume(ctx context.Context, t stopTarget, what string, agreed func(names []string) error) error {
	if t.all && t.source != "" {
		return usageError{errors.New("--source and --all exclude each other; name one source, or take all")}
	}
	api, err := p.newAdminClient(t.addr)
	if err != nil {
		return err
	}
	var names []string
	if t.all {
		names, err = api.sourceNames(ctx)
	} else {
		names = make([]string, 1)
		names[0], err = api.resolveSource(ctx, t.source, ", or take all with --all")
	}
	if err == nil {
		err = agreed(names)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		var state settings.State
		body := map[string]string{}
		if t.note != "" {
			body["note"] = t.note
		}
		if err := api.call(ctx, http.MethodPost, "/sources/"+url.PathEscape(name)+"/"+what, body, &state); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		word := map[bool]string{true: "stopped", false: "running"}[state.Stopped]
		fmt.Fprintf(p.stdout, "%s is %s (revision %d)\n", state.Source, word, state.Revision)
	}
	return errors.Join(errs...)
}

// confirm returns nil if somebody at the terminal says yes. Where nobody can be
// asked it fails at once.
func confirm(ctx context.Context, in io.Reader, terminal bool, out io.Writer, question string) error {
	alone := usageError{errors.New("this asks first, and nobody is at a terminal to answer; give --yes if it is meant")}
	if !terminal {
		return alone
	}
	fmt.Fprint(out, question+" [y/N] ")
	answers := make(chan string, 1)
	go func() { // ends with the line, or with the program
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && line == "" {
			close(answers)
			return
		}
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer, open := <-answers:
		switch {
		case !open:
			return alone
		case answer == "y" || answer == "yes":
			return nil
		}
		return errors.New("not confirmed; nothing was changed")
	case <-ctx.Done():
		return errors.New("interrupted; nothing was changed")
	}
}

// isTerminal reports whether somebody may answer. A device that is none, as
// /dev/null, answers at once that there is nothing.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
