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

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/settings"
)

// stopTarget holds the flags of stop and resume: the sources and the reason.
type stopTarget struct {
	addr, source, note string
	all                bool
}

func (t *stopTarget) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&t.source, "source", "", "select this source (required if there are several, unless --all)")
	c.Flags().BoolVar(&t.all, "all", false, "select all sources")
	c.Flags().StringVar(&t.note, "note", "", "write this reason to the audit")
	addAddrFlag(c, &t.addr)
}

func stopCommand(p *program) *cobra.Command {
	var t stopTarget
	c := &cobra.Command{
		Use:   "stop",
		Short: "Emergency stop: send no calls to a source's upstream until resume",
		Long: `Stop all calls to a source's upstream, through a query service, until freshet resume. Every
worker stops within two seconds. Update requests and replays wait in Kafka meanwhile; HIGH
requests expire after a day, LOW ones after three days.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.stopOrResume(cmd.Context(), t, "stop", func(names []string) error {
				return p.confirm(cmd, "Stop all calls for "+strings.Join(names, ", ")+"?")
			})
		},
	}
	t.addFlags(c)
	addYesFlag(c)
	return c
}

func resumeCommand(p *program) *cobra.Command {
	var t stopTarget
	c := &cobra.Command{
		Use:   "resume",
		Short: "End an emergency stop",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.stopOrResume(cmd.Context(), t, "resume", func([]string) error { return nil })
		},
	}
	t.addFlags(c)
	return c
}

// stopOrResume sends the action "stop" or "resume" for each selected source. It first calls the
// function `agreed`, which asks the user to confirm the action for these sources. If `agreed`
// returns an error, no action is sent. If the action fails for one source, it is still sent for the
// other sources.
func (p *program) stopOrResume(ctx context.Context, t stopTarget, what string, agreed func(names []string) error) error {
	if t.all && t.source != "" {
		return app.UsageErrorf("--source and --all exclude each other; use one of them")
	}
	api, err := p.newAdminClient(t.addr)
	if err != nil {
		return err
	}
	var names []string
	if t.all {
		names, err = api.Sources(ctx)
	} else {
		names = make([]string, 1)
		names[0], err = resolveSource(ctx, api, t.source, ", or use --all")
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
		if err := api.Call(ctx, http.MethodPost, "/sources/"+url.PathEscape(name)+"/"+what, body, &state); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		word := map[bool]string{true: "stopped", false: "running"}[state.Stopped]
		fmt.Fprintf(p.Stdout, "%s is %s (revision %d)\n", state.Source, word, state.Revision)
	}
	return errors.Join(errs...)
}

// addYesFlag adds the flag --yes, with which a command does not ask for confirmation.
func addYesFlag(c *cobra.Command) { c.Flags().Bool("yes", false, "do not ask for confirmation") }

// isConfirmed reports whether the flag --yes is set.
func isConfirmed(cmd *cobra.Command) bool {
	yes, err := cmd.Flags().GetBool("yes")
	return err == nil && yes
}

// confirm asks the user of a command a yes/no question, unless the flag --yes is set. It returns nil for
// yes.
func (p *program) confirm(cmd *cobra.Command, question string) error {
	if isConfirmed(cmd) {
		return nil
	}
	in := cmd.InOrStdin()
	return confirm(cmd.Context(), in, isTerminal(in), p.Stderr, question)
}

// confirm asks a yes/no question at the terminal and returns nil for yes. Without a terminal it
// returns an app.UsageError at once.
func confirm(ctx context.Context, in io.Reader, terminal bool, out io.Writer, question string) error {
	noTerminal := app.UsageErrorf("confirmation needs a terminal; pass --yes to skip it")
	if !terminal {
		return noTerminal
	}
	fmt.Fprint(out, question+" [y/N] ")
	answers := make(chan string, 1)
	go func() { // this goroutine ends when the user has entered a line, or with the process
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
			return noTerminal
		case answer == "y" || answer == "yes":
			return nil
		}
		return errors.New("not confirmed; nothing was changed")
	case <-ctx.Done():
		return errors.New("interrupted; nothing was changed")
	}
}

// isTerminal reports whether `in` is a character device. It also returns true for /dev/null, from
// which confirm then reads EOF.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
