package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/renewal"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/token"
	"github.com/freshet/freshet/source/trial"
)

// Try calls the upstream for an entity with the configured source and its credentials. The calls do
// not pass the limiter, and nothing is stored. params are values for params of the facet.
func (p *Process) Try(ctx context.Context, e schemas.Entity, params map[string]string, o trial.Options) (trial.Report, error) {
	config, err := p.Load(RequiredSources)
	if err != nil {
		return trial.Report{}, err
	}
	s, known := config.Sources[e.Source]
	if !known {
		return trial.Report{}, NotFoundError{Err: fmt.Errorf("the configuration has no source %q; it has %s", e.Source, joinNames(config.Sources))}
	}
	facet, known := s.Facets[e.Facet]
	if !known {
		return trial.Report{}, NotFoundError{Err: fmt.Errorf("source %s has no facet %q; it has %s", e.Source, e.Facet, joinNames(s.Facets))}
	}
	if facet.Derived != nil {
		return trial.Report{}, UsageErrorf("%s/%s is derived: its content is computed from stored items, so there is no call to try; try %s", e.Source, e.Facet, joinNames(facet.Derived.Over))
	}
	if err := checkParams(facet, params); err != nil {
		return trial.Report{}, UsageErrorf("%w", err)
	}
	src, choose, err := p.trialSource(ctx, e.Source, s)
	if err != nil {
		return trial.Report{}, err
	}
	defer src.Close()
	if err := src.CheckKey(e.Facet, e.Key); err != nil {
		return trial.Report{}, UsageErrorf("%w", err)
	}
	missing := src.MissingParams(e.Facet, e.Key, params)
	compiled, _ := src.Facet(e.Facet)
	for _, a := range compiled.Aliases() {
		if params[a.Param] == "" { // a trial calls only one facet, so it can't read the value from the other facet
			return trial.Report{}, UsageErrorf("{%s} comes from facet %s: try that facet first, then set its value with --param %s=VALUE", a.Param, a.From, a.Param)
		}
	}
	if len(missing) > 0 {
		return trial.Report{}, UsageErrorf("nothing provides %s; set each with --param NAME=VALUE", strings.Join(missing, " and "))
	}
	o.Choose, o.Limits, o.Mask = choose, trialLimits(s.Quota.Policies), maskURL(s.BaseURL, facet)
	report, err := trial.Run(ctx, src, s.Config, source.Request{Facet: e.Facet, Key: e.Key, Params: params}, o)
	return report, p.MaskError(err)
}

// maskURL returns a function that redacts the secrets which the configuration writes into a URL:
// into the base URL of the source, or into the documents or params of the facet.
func maskURL(baseURL string, f source.Facet) func(string) string {
	secrets := findSecrets([]string{"baseURL"}, baseURL)
	for _, d := range f.Documents {
		secrets = append(secrets, findSecrets([]string{"baseURL"}, d.BaseURL)...)
		secrets = append(secrets, findSecrets([]string{"path"}, d.Path)...)
	}
	for name, value := range f.Params {
		secrets = append(secrets, findSecrets([]string{"params", name}, value.Text)...)
	}
	return func(url string) string { return replaceSecrets(url, secrets, func(secretPart) bool { return true }) }
}

// checkParams returns an error if a param is unknown to the facet.
func checkParams(f source.Facet, params map[string]string) error {
	for name := range params {
		if _, known := f.Params[name]; !known {
			return fmt.Errorf("--param: the facet has no param %q; it has %s", name, joinNames(f.Params))
		}
	}
	return nil
}

// trialSource returns the source with all credentials that exist in this environment. The returned
// function `choose` gets the names of candidate credentials and returns the first one that exists.
func (p *Process) trialSource(ctx context.Context, name string, s SourceConfig) (_ *source.Source, choose func([]string) (string, error), err error) {
	secrets, missing := map[string]string{}, map[string]error{}
	for _, one := range renewing(s) {
		if secrets[one.Name], err = trialToken(ctx, p, one); err != nil {
			delete(secrets, one.Name)
			missing[one.Name] = fmt.Errorf("sources.%s.credentials: %s: %w", name, one.Name, err)
		}
	}
	for _, at := range secretRefs(s.Config) {
		if secrets[at.name], err = p.requireSecret(at); err != nil {
			delete(secrets, at.name)
			missing[at.name] = fmt.Errorf("sources.%s.%w", name, err)
		}
	}
	src, err := source.New(name, s.Config, secrets, s.maxConnections())
	if err != nil {
		return nil, nil, p.MaskError(err)
	}
	for _, one := range renewing(s) {
		if secrets[one.Name] != "" {
			if err := src.SetToken(one.Name, secrets[one.Name], 1, time.Now().Add(time.Hour)); err != nil {
				return nil, nil, p.MaskError(err)
			}
		}
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

// trialToken requests a token that is not stored. A refresh token is not used, because its use could
// replace the stored one.
func trialToken(ctx context.Context, p *Process, c renewal.Credential) (string, error) {
	if c.Token.Grant == token.RefreshToken {
		return "", errors.New("a trial does not use a refresh token, because its use can replace the one that the workers need; set secretEnv instead of token for the trial")
	}
	secrets, err := renewal.ReadSecrets(c.Token, readTokenSecret(p.requireSecret))
	if err != nil {
		return "", err
	}
	req, err := c.Token.NewRequest(ctx, secrets, "", time.Now())
	if err != nil {
		return "", err
	}
	answer, err := c.Token.Do(token.NewClient(renewal.CallTimeout), req, slices.Collect(maps.Values(secrets)))
	if err == nil {
		p.AddSecret(answer.Value)
	}
	return answer.Value, p.MaskError(err)
}

// trialLimits returns the limit of each policy. The limit's window is 0 if the policy does not count
// all GET requests in a window.
func trialLimits(policies []limiter.Policy) (all []trial.Limit) {
	for _, p := range policies {
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
