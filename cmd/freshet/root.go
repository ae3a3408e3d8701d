package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
)

// partialError reports that an operation succeeded in part, or has not finished yet: exit code 4.
type partialError struct{ error }

func (e partialError) Unwrap() error { return e.error }

// run executes a command and returns the exit code: 0 success, 1 error, 2 usage error, 3 not
// found, 4 partial success. Data goes to stdout, everything else to stderr.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	root := newRoot(env, stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(root.ErrOrStderr(), "freshet: "+err.Error())
	if errors.As(err, new(app.UsageError)) {
		return 2
	}
	if errors.As(err, new(app.NotFoundError)) {
		return 3
	}
	if errors.As(err, new(partialError)) {
		return 4
	}
	return 1
}

// program is the current process. All commands share its environment and its output streams.
type program struct{ *app.Process }

func newRoot(env []string, stdout, stderr io.Writer) *cobra.Command {
	p := &program{app.NewProcess(env, stdout, stderr)}
	root := &cobra.Command{
		Use:   "freshet",
		Short: "Keeps local snapshots of rate-limited data fresh, and serves them in milliseconds",
		Long: `freshet keeps local snapshots of data fresh when that data lives behind a rate-limited API.
It serves reads in milliseconds, whatever that API is doing.

Try it, everything in one process:       freshet dev
Deploy on real services, in this order:  freshet migrate up, freshet topics ensure,
                                         freshet query, freshet worker, freshet scheduler`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       app.Version(),

		SuggestionsMinimumDistance: 2,
	}
	root.SetOut(stdout)
	root.SetErr(p.Stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return app.UsageErrorf("%w; see `%s --help`", err, c.CommandPath())
	})
	root.PersistentFlags().StringVar(&p.ConfigFile, "config", app.Lookup(env, "FRESHET_CONFIG"), "read this configuration file (YAML); FRESHET_… environment variables override it")
	root.SetVersionTemplate("freshet {{.Version}}\n")
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run", []*cobra.Command{devCommand(p), queryCommand(p), workerCommand(p), schedulerCommand(p), simulateCommand(p), healthcheckCommand(p)}},
		{"Operate", []*cobra.Command{limiterCommand(p), settingsCommand(p), stopCommand(p), resumeCommand(p), dlqCommand(p), runsCommand(p), creditsCommand(p), maintainCommand(p), topicsCommand(p), migrateCommand(p)}},
		{"Data", []*cobra.Command{snapshotCommand(p), entitiesCommand(p)}},
		{"Configure", []*cobra.Command{initCommand(p), tryCommand(p), configCommand(p), keysCommand(p), credentialsCommand(p)}},
		{"Other", []*cobra.Command{versionCommand(p)}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title + ":"})
		for _, c := range group.commands {
			c.GroupID = group.title
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID("Other")
	root.SetCompletionCommandGroupID("Other")
	root.InitDefaultCompletionCmd()
	root.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := ""
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = " (did you mean " + near[0] + "?)"
		}
		return fmt.Errorf("unknown command %q%s", args[0], hint)
	}
	root.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	rejectUnknownArgs(root)
	return root
}

// rejectUnknownArgs makes an unexpected argument or an unknown subcommand an app.UsageError, for a
// command and all its subcommands.
func rejectUnknownArgs(c *cobra.Command) {
	if c.Args == nil {
		c.Args = cobra.NoArgs
	}
	args := c.Args
	c.Args = func(c *cobra.Command, list []string) error {
		if err := args(c, list); err != nil {
			return app.UsageErrorf("%w; see `%s --help`", err, c.CommandPath())
		}
		return nil
	}
	if c.HasSubCommands() && c.RunE == nil {
		c.RunE = func(c *cobra.Command, _ []string) error {
			return app.UsageErrorf("a subcommand is missing; see `%s --help`", c.CommandPath())
		}
	}
	for _, sub := range c.Commands() {
		rejectUnknownArgs(sub)
	}
}

func versionCommand(p *program) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version. With -o json, print the commit, its date, the Go version, and whether the
working tree was modified, too.`,
		RunE: func(*cobra.Command, []string) error {
			switch output {
			case "text":
				_, err := fmt.Fprintln(p.Stdout, "freshet", app.Version())
				return err
			case "json":
				encoder := json.NewEncoder(p.Stdout)
				encoder.SetIndent("", "  ")
				return encoder.Encode(app.ReadBuild())
			}
			return app.UsageErrorf("-o is %q; it must be text or json", output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "print in this format: text or json")
	return c
}
