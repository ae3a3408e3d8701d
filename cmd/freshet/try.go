package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/trial"
)

func (p *program) try() *cobra.Command {
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
  freshet try github/issues/golang-go --param owner=golang --param repo=go`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&o.Twice, "twice", false, "make the call a second time, and show the members that changed")
	c.Flags().DurationVar(&o.Pause, "pause", time.Second, "time between the two calls of --twice")
	c.Flags().StringArrayVar(&params, "param", nil, "value of a param of the facet, as NAME=VALUE; can be repeated")
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if output != "table" && output != "json" {
			return usageError{fmt.Errorf("-o is %q; it must be table or json", output)}
		}
		if o.Pause < 0 || o.Pause > time.Hour {
			return usageError{fmt.Errorf("--pause is %v; it must be from 0s to 1h", o.Pause)}
		}
		e, err := parseEntity(args[0])
		if err != nil {
			return err
		}
		request := source.Request{Facet: e.Facet, Key: e.Key, Params: map[string]string{}}
		for _, param := range params {
			name, value, found := strings.Cut(param, "=")
			if !found || name == "" {
				return usageError{fmt.Errorf("--param must be NAME=VALUE, as in --param owner=golang; got %q", param)}
			}
			request.Params[name] = value
		}
		return p.runTry(cmd, e, request, o, output)
	}
	return c
}

// runTry makes the calls and prints the report on stdout.
func (p *program) runTry(cmd *cobra.Command, e schemas.Entity, request source.Request, o trial.Options, output string) error {
	config, err := p.load()
	if err != nil {
		return err
	}
	s, known := config.Sources[e.Source]
	if !known {
		return notFoundError{fmt.Errorf("the configuration has no source %q; it has %s", e.Source, joinNames(config.Sources))}
	}
	facet, known := s.Facets[e.Facet]
	if !known {
		return notFoundError{fmt.Errorf("source %s has no facet %q; it has %s", e.Source, e.Facet, joinNames(s.Facets))}
	}
	if err := checkParams(facet, request.Params); err != nil {
		return usageError{err}
	}
	src, choose, err := p.trialSource(e.Source, s)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := src.CheckKey(e.Facet, e.Key); err != nil {
		return usageError{err}
	}
	o.Choose, o.Limits = choose, s.trialLimits()
	o.Mask = s.maskURL(facet)
	report, err := trial.Run(cmd.Context(), src, s.Config, request, o)
	if err != nil {
		return p.mask.maskError(err)
	}
	fmt.Fprintf(p.stderr, "The call counts in the quota of %s, but did not pass its limiter. Nothing is stored.\n", e.Source)
	out := p.mask.writer(p.stdout)
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
		return notFoundError{errors.New("the upstream has no such entity")}
	default:
		return errors.New(report.Error)
	}
}

// maskURL returns a function that redacts the secrets which the configuration writes into a URL.
func (s SourceConfig) maskURL(f source.Facet) func(string) string {
	secrets := findSecrets([]string{"baseURL"}, s.BaseURL)
	for _, d := range f.Documents {
		secrets = append(secrets, findSecrets([]string{"path"}, d.Path)...)
	}
	for name, value := range f.Params {
		secrets = append(secrets, findSecrets([]string{"params", name}, value)...)
	}
	return func(url string) string { return replaceSecrets(url, secrets, func(secretPart) bool { return true }) }
}

// checkParams returns an error if a param is unknown to the facet, or if a param has no value.
func checkParams(f source.Facet, params map[string]string) error {
	for name := range params {
		if _, known := f.Params[name]; !known {
			return fmt.Errorf("--param: the facet has no param %q; it has %s", name, joinNames(f.Params))
		}
	}
	if f.HasMissingParams(params) {
		return fmt.Errorf("the facet has params without a value; set each with --param NAME=VALUE; it has %s", joinNames(f.Params))
	}
	return nil
}

// trialSource returns the source with all credentials that exist in this environment. The function
// choose returns the first candidate that exists.
func (p *program) trialSource(name string, s SourceConfig) (_ *source.Source, choose func([]string) (string, error), err error) {
	secrets, missing := map[string]string{}, map[string]error{}
	for _, at := range secretRefs(s.Config) {
		if secrets[at.name], err = p.requireSecret(at); err != nil {
			delete(secrets, at.name)
			missing[at.name] = fmt.Errorf("sources.%s.%w", name, err)
		}
	}
	src, err := source.New(name, s.Config, secrets, s.maxConnections())
	if err != nil {
		return nil, nil, p.mask.maskError(err)
	}
	return src, func(candidates []string) (string, error) {
		for _, candidate := range candidates {
			if missing[candidate] == nil {
				return candidate, nil
			}
		}
		return "", missing[candidates[0]]
	}, nil
}

// trialLimits returns the policies of the quota that count calls in a window.
func (s SourceConfig) trialLimits() (all []trial.Limit) {
	for _, p := range s.Quota.Policies {
		l := trial.Limit{Policy: p.Name, Calls: p.Limit, Window: time.Duration(p.Window)}
		if p.Window == limiter.Day {
			l.Window = 24 * time.Hour
		}
		if p.Unit != "" || p.Restore > 0 || p.MinInterval != nil || p.Window == limiter.InFlight || len(p.CountedStatuses) > 0 || len(p.Match.Endpoints) > 0 || len(p.Match.Methods) > 0 && p.Match.Methods[0] != http.MethodGet {
			l.Window = 0
		}
		all = append(all, l)
	}
	return all
}
