package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/trial"
)

func tryCommand(p *program) *cobra.Command {
	var output string
	var params []string
	o := trial.Options{}
	c := &cobra.Command{
		Use:   "try SOURCE/FACET/KEY",
		Short: "Call the upstream once, and show how the configuration reads the response",
		Long: `Call the upstream once for an entity, store nothing, and show the URL, the class of the response and
the setting that decided it, the reported limits, the stored content and its hash, and the settings
to change. The command needs no Redis, Kafka or database.

The call does not pass the limiter. It sends one call for each document of the facet, at most two
if the upstream redirects, and with --twice the same number again. Of a paged document it calls the
first page. Exit code 1: the response has no content; 3: the upstream has no such entity.`,
		Example: `  freshet try shop/product/42 --config freshet.yaml
  freshet try shop/product/42 --twice
  freshet try github/issues/golang/go`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&o.Twice, "twice", false, "make the call a second time, and show the members that changed")
	c.Flags().DurationVar(&o.Pause, "pause", time.Second, "time between the two calls of --twice")
	c.Flags().StringArrayVar(&params, "param", nil, "value of a param of the facet, as NAME=VALUE; can be repeated")
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if output != "table" && output != "json" {
			return app.UsageErrorf("-o is %q; it must be table or json", output)
		}
		if o.Pause < 0 || o.Pause > time.Hour {
			return app.UsageErrorf("--pause is %v; it must be from 0s to 1h", o.Pause)
		}
		e, err := parseEntity(args[0])
		if err != nil {
			return err
		}
		values := map[string]string{}
		for _, param := range params {
			name, value, found := strings.Cut(param, "=")
			if !found || name == "" {
				return app.UsageErrorf("--param must be NAME=VALUE, as in --param owner=golang; got %q", param)
			}
			values[name] = value
		}
		return runTry(p, cmd, e, values, o, output)
	}
	return c
}

// runTry makes the calls and prints the report on stdout.
func runTry(p *program, cmd *cobra.Command, e schemas.Entity, params map[string]string, o trial.Options, output string) error {
	report, err := p.Try(cmd.Context(), e, params, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.Stderr, "The call counts in the quota of %s, but did not pass its limiter. Nothing is stored.\n", e.Source)
	out := p.MaskWriter(p.Stdout)
	if output == "json" {
		text, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return fmt.Errorf("encode the report: %w", err)
		}
		if _, err := out.Write(append(text, '\n')); err != nil {
			return err
		}
	} else {
		var text strings.Builder
		if err := report.WriteText(&text); err != nil {
			return err
		}
		if _, err := out.Write([]byte(text.String())); err != nil {
			return err
		}
	}
	switch source.Class(report.Class) {
	case source.OK, source.NotModified:
		return nil
	case source.NotFound:
		return app.NotFoundError{Err: errors.New("the upstream has no such entity")}
	default:
		return errors.New(report.Error)
	}
}
