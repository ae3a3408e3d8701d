package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/observe"
)

// usageError reports wrong arguments or flags: exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// notFoundError reports that the named object does not exist: exit code 3.
type notFoundError struct{ error }

func (e notFoundError) Unwrap() error { return e.error }

// partialError reports that an operation succeeded in part, or has not finished yet: exit code 4.
type partialError struct{ error }

func (e partialError) Unwrap() error { return e.error }

// program holds the environment and the output streams that all commands share.
type program struct {
	env            []string
	stdout, stderr io.Writer
	configFile     string
	mask           *masker // redacts secrets in stderr
}

func newRoot(env []string, stdout, stderr io.Writer) *cobra.Command {
	p := &program{env: env, stdout: stdout, mask: &masker{}}
	p.stderr = p.mask.writer(stderr)
	root := &cobra.Command{
		Use:   "freshet",
		Short: "Keeps local snapshots of rate-limited data fresh, and serves them in milliseconds",
		Long: `freshet keeps local snapshots of data fresh when that data lives behind a rate-limited API.
It serves reads in milliseconds, whatever that API is doing.

Try it, everything in one process:       freshet dev
Deploy on real services, in this order:  freshet migrate up, freshet topics ensure,
                                         freshet query, freshet worker, freshet scheduler`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},

		SuggestionsMinimumDistance: 2,
	}
	root.SetOut(stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())}
	})
	root.PersistentFlags().StringVar(&p.configFile, "config", lookup(env, "FRESHET_CONFIG"), "configuration file (YAML); FRESHET_… environment variables override it")
	root.AddCommand(p.dev(), p.query(), p.worker(), p.scheduler(), p.entities(), p.snapshot(), p.dlq(), p.settings(), p.limiter(), p.stop(), p.resume(), p.keys(),
		p.simulate(), p.migrate(), p.topics(), p.config(), p.init(), p.try(),
		p.healthcheck(), p.version())
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

// rejectUnknownArgs makes an unexpected argument or an unknown subcommand a usageError, for a
// command and all its subcommands.
func rejectUnknownArgs(c *cobra.Command) {
	if c.Args == nil {
		c.Args = cobra.NoArgs
	}
	args := c.Args
	c.Args = func(c *cobra.Command, list []string) error {
		if err := args(c, list); err != nil {
			return usageError{fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())}
		}
		return nil
	}
	if c.HasSubCommands() && c.RunE == nil {
		c.RunE = func(c *cobra.Command, _ []string) error {
			return usageError{fmt.Errorf("a subcommand is missing; see `%s --help`", c.CommandPath())}
		}
	}
	for _, sub := range c.Commands() {
		rejectUnknownArgs(sub)
	}
}

func lookup(env []string, name string) string {
	for _, entry := range env {
		if len(entry) > len(name) && entry[:len(name)] == name && entry[len(name)] == '=' {
			return entry[len(name)+1:]
		}
	}
	return ""
}

// load returns the configuration of a command. Errors and logs never show its secrets.
func (p *program) load() (Config, error) {
	text, err := os.ReadFile(p.configFile)
	if err != nil {
		text = nil // ignore the error here: loadConfig below reads the same file and returns the error
	}
	p.mask.learn(text, p.env)
	c, err := loadConfig(p.configFile, p.env)
	return c, p.mask.maskError(err)
}

// requireSecret reads a credential and redacts it in all logs from now on.
func (p *program) requireSecret(at secretRef) (string, error) {
	secret, err := requireSecret(at)
	p.mask.add(secretPart{secret, true})
	return secret, err
}

// logger returns the log of this process. Signals can change its level until ctx ends.
func (p *program) logger(ctx context.Context, c LogConfig) *slog.Logger {
	var level slog.LevelVar
	level.Set(c.Level)
	options := &slog.HandlerOptions{Level: &level}
	var h slog.Handler = slog.NewTextHandler(p.stderr, options)
	if c.Format == "json" {
		h = slog.NewJSONHandler(p.stderr, options)
	}
	log := slog.New(observe.TraceHandler(h))
	handleLevelSignals(ctx, &level, c.Level, log)
	return log
}

// connect connects to the real services. It returns the parts of a role and a function that
// closes the connections.
func (p *program) connect(ctx context.Context, config Config) (_ parts, _ func(), err error) {
	parts := parts{config: config, secret: p.requireSecret}
	parts.log = p.logger(ctx, config.Log)
	parts.registry, parts.reg = newRegistry(config.Metrics.Namespace)
	if parts.kafka, err = config.Kafka.kafkaOptions(); err != nil {
		return parts, nil, err
	}
	if parts.rdb, err = config.Redis.newClient(redisTimeout); err != nil {
		return parts, nil, err
	}
	db, err := openPostgres(ctx, config.Database)
	if err != nil {
		_ = parts.rdb.Close()
		return parts, nil, err
	}
	parts.store = db
	closeAll := func() { db.Close(); _ = parts.rdb.Close() }
	tracer, flush, err := config.Tracing.newTracer(ctx, parts.log)
	if err != nil {
		closeAll()
		return parts, nil, err
	}
	parts.trace = tracer
	registerRedisMetrics(parts.rdb, parts.reg)
	registerPoolMetrics(db, parts.reg)
	return parts, func() { flush(); closeAll() }, nil
}

// release is the version of a release build, such as v1.2.3. The linker sets it:
// -ldflags "-X main.release=v1.2.3". It is empty in other builds.
var release string

// version returns the version of this build.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(release, info)
}

// versionOf returns release or, if it is empty, the module version in the build info. Builds with
// `go install …@v1.2.3` and builds in a checkout have a module version. Builds without the
// repository, as in a container image, have none; for them it returns v0.0.0-dev.
func versionOf(release string, info *debug.BuildInfo) string {
	switch {
	case release != "":
		return release
	case info != nil && info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	return "v0.0.0-dev"
}

func (p *program) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(p.stdout, "freshet", version())
			return err
		},
	}
}
