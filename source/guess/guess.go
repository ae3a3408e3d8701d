package guess

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/announced"
	"github.com/freshet/freshet/source/trial"
)

// MaxCalls is the maximum number of calls of one Run, and therefore the maximum number of URLs. Each
// call can follow one redirect within its host.
const MaxCalls = 3

// maxBody and callTimeout bound one call.
const (
	maxBody     = 4 << 20
	callTimeout = 10 * time.Second
)

// Options configures Run.
type Options struct {
	// URLs are example URLs, each with an existing id. If the list is empty, Run writes an example
	// configuration.
	URLs []string
	// AuthHeader is the name of the header with the credential, or "Name: prefix". AuthEnv is the
	// environment variable with the credential, and Secret its value.
	AuthHeader, AuthEnv, Secret string
	Limits                      []Limit
	// Pause is the time between two calls of the same host.
	Pause time.Duration
	// File is the name of the written file, which the file's first comments mention.
	File string
}

// Note is one line for the user. Kind is "called", "guess" or "check".
type Note struct{ Kind, Text string }

// Result is the written configuration and its explanation.
type Result struct {
	File  []byte
	Notes []Note
	// Env is the name of the environment variable that the user must set to the credential of a URL,
	// or empty. Basic is true if the variable's value is the base64 form of user:password.
	Env   string
	Basic bool
	// Entities are the example entities, as source/facet/key.
	Entities []string
}

// minHidden is the minimum length in bytes of a secret that is replaced in notes. In text from a
// response, package source replaces secrets of at least six bytes.
const minHidden = 3

// run is the state of one call of the function Run.
type run struct {
	options Options
	calls   int
	result  Result
	called  map[string]bool // hosts that were called
	refused map[string]bool // hosts that are not called any more
	secrets []string        // texts that no note may contain
}

func (r *run) note(kind, format string, args ...any) {
	n := Note{kind, trial.Printable(fmt.Sprintf(format, args...))}
	for _, secret := range r.secrets {
		n.Text = strings.ReplaceAll(n.Text, secret, "REDACTED")
	}
	if !slices.Contains(r.result.Notes, n) {
		r.result.Notes = append(r.result.Notes, n)
	}
}

// Run calls the URLs and returns a configuration for them. An InputError means that nothing was
// called. Any other error means that a URL could not be reached.
func Run(ctx context.Context, o Options) (Result, error) {
	if len(o.URLs) > MaxCalls {
		return Result{}, inputError("%d URLs were given; init makes at most %d calls, so write at most %d URLs", len(o.URLs), MaxCalls, MaxCalls)
	}
	auth, err := o.auth()
	if err != nil {
		return Result{}, err
	}
	if len(o.URLs) == 0 {
		return template(o, auth), nil
	}
	addresses, err := parseAll(o, auth)
	if err != nil {
		return Result{}, err
	}
	r := &run{options: o, called: map[string]bool{}, refused: map[string]bool{}}
	for _, a := range addresses {
		for _, secret := range []string{a.secret, a.password} {
			if len(secret) >= minHidden {
				r.secrets = append(r.secrets, secret)
			}
		}
	}
	probes, err := r.callAll(ctx, addresses)
	if err != nil {
		return Result{}, err
	}
	sources := r.sources(probes)
	r.result.File = write(r.head(), sources)
	return r.result, nil
}

// auth returns the credential of the options.
func (o Options) auth() (source.Auth, error) {
	if o.AuthHeader == "" {
		return source.Auth{}, nil
	}
	name, prefix, hasPrefix := strings.Cut(o.AuthHeader, ":")
	name, prefix = strings.TrimSpace(name), strings.TrimSpace(prefix)
	switch {
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }):
		return source.Auth{}, inputError("--auth-header must be the name of a header, as in X-Api-Key, or a name and a prefix, as in \"Authorization: Bearer\"")
	case strings.ContainsFunc(prefix, func(r rune) bool { return r < ' ' || r > '~' }) || len(prefix) > 20 || isSecret("prefix", prefix) || looksRandom(prefix):
		return source.Auth{}, inputError("--auth-header: after the colon comes only a prefix such as Bearer; the credential is read from the variable of --auth-env")
	}
	a := source.Auth{Header: name, SecretEnv: o.AuthEnv}
	switch {
	case hasPrefix && prefix != "":
		a.Prefix = prefix + " "
	case strings.EqualFold(name, "Authorization") && !strings.Contains(o.Secret, " ") && !hasPrefix:
		a.Prefix = "Bearer "
	}
	return a, nil
}

// parseAll parses the URLs. At most one credential is sent, and only to one host.
func parseAll(o Options, auth source.Auth) ([]address, error) {
	all := make([]address, len(o.URLs))
	for i, raw := range o.URLs {
		var err error
		if all[i], err = parse(i+1, raw); err != nil {
			return nil, err
		}
		if all[i].base != all[0].base && (auth.Header != "" || all[i].secret != "" || all[0].secret != "") {
			return nil, inputError("the credential would be sent to two hosts; run init once for each host, with another --output")
		}
		if auth.Header != "" {
			if all[i].secret != "" {
				return nil, inputError("URL %d contains a credential, and --auth-header names another; freshet sends one", i+1)
			}
			if strings.HasPrefix(all[i].base, "http:") && !all[i].loopback {
				return nil, inputError("URL %d: the credential would be sent unencrypted over http; use https", i+1)
			}
			all[i].auth, all[i].secret = auth, o.Secret
		}
	}
	for i := range all {
		for j := range all[:i] {
			switch {
			case all[i].base != all[j].base:
			case all[i].secret != "" && all[j].secret != "" && (all[i].secret != all[j].secret || all[i].auth != all[j].auth):
				return nil, inputError("URLs %d and %d contain different credentials; freshet sends one to a host in this configuration", j+1, i+1)
			case all[i].template == all[j].template:
				return nil, inputError("URLs %d and %d have the same path %s; write one of them", j+1, i+1, trial.Printable(all[i].template))
			case all[i].secret == "":
				all[i].auth, all[i].secret = all[j].auth, all[j].secret
			default:
				all[j].auth, all[j].secret = all[i].auth, all[i].secret
			}
		}
	}
	return all, nil
}

// probe is one URL with the responses to it.
type probe struct {
	address
	answer trial.Answer
	in     source.Inspection
	called bool
	again  *trial.Answer // answer to the second call; nil means that the URL was called only once
}

// callAll calls each URL once. It then calls the URLs a second time, until MaxCalls calls are made.
func (r *run) callAll(ctx context.Context, addresses []address) ([]probe, error) {
	probes := make([]probe, len(addresses))
	for i, a := range addresses {
		probes[i].address = a
		if r.refused[a.base] {
			r.note("check", "%s was not called, because the host refused the call before", a.template)
			continue
		}
		answer, err := r.call(ctx, a, source.Validator{})
		if err != nil {
			return nil, err
		}
		probes[i].answer, probes[i].in, probes[i].called = answer, answer.Documents[0], true
		r.noteCall(a, answer)
		if answer.Class == source.Quota || answer.Class == source.AuthRefused {
			r.refused[a.base] = true
		}
	}
	for i := range probes {
		p := &probes[i]
		if r.calls >= MaxCalls || r.refused[p.base] || !p.called || p.answer.Class != source.OK || exhausted(p.in) {
			continue
		}
		again, err := r.call(ctx, p.address, p.answer.Validator)
		if err != nil {
			return nil, err
		}
		p.again = &again
		r.noteCall(p.address, again)
	}
	return probes, nil
}

// exhausted reports whether the response's headers report that no calls remain.
func exhausted(in source.Inspection) bool {
	found, _ := announced.Detect(in.Header, time.Now())
	return slices.ContainsFunc(found, func(f announced.Detected) bool { return f.Remaining == 0 })
}

func (r *run) noteCall(a address, answer trial.Answer) {
	in := answer.Documents[0]
	kind := strings.TrimSpace(trial.Printable(in.Header.Get("Content-Type")))
	if kind == "" {
		kind = "no content type"
	}
	path, _, _ := strings.Cut(a.template, "?")
	r.note("called", "call %d: GET %s%s: %s, %s, %s, %d ms, class %s", r.calls, a.base, path, trial.Status(in.Status), kind, trial.Size(len(in.Body)), answer.Took.Milliseconds(), answer.Class)
}

// call makes one call of a URL through package source.
func (r *run) call(ctx context.Context, a address, v source.Validator) (trial.Answer, error) {
	if r.called[a.base] && r.options.Pause > 0 {
		timer := time.NewTimer(r.options.Pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return trial.Answer{}, context.Cause(ctx)
		}
	}
	r.called[a.base] = true
	r.calls++
	config := source.DefaultConfig()
	config.BaseURL, config.Auth, config.Timeout, config.MaxBody = a.base, a.auth, callTimeout, maxBody
	f := source.DefaultFacet()
	f.Documents, f.Conditional = map[string]source.Document{a.facet: {Path: a.literal}}, true
	config.Facets = map[string]source.Facet{"probe": f}
	s, err := source.New("init", config, map[string]string{"": a.secret}, 1)
	if err != nil {
		return trial.Answer{}, inputError("%s: %v", a.base, err)
	}
	defer s.Close()
	answer, err := trial.Call(ctx, s, source.Request{Facet: "probe", Key: "x", Validator: v}, nil)
	if err == nil && answer.Documents[0].Status == 0 {
		err = fmt.Errorf("no response from %s: %w; check the address, and that this machine can reach it", a.base, answer.Err)
	}
	return answer, err
}

// head returns the comments before the configuration.
func (r *run) head() []string {
	all := []string{fmt.Sprintf("Written by freshet init after %s. CHECK marks guesses.", trial.Plural(r.calls, "call"))}
	next := "Next: freshet config check --config " + r.options.File
	if len(r.result.Entities) > 0 {
		next += "; freshet try " + ShellQuote(r.result.Entities[0]) + " --config " + r.options.File
	}
	return append(all, next)
}

// ShellQuote returns a word as a shell reads it.
// A text with a character that a shell interprets is put in quotes.
func ShellQuote(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune("/_-.:,@%+=", r)
	}) {
		return text
	}
	return "'" + strings.ReplaceAll(trial.Printable(text), "'", `'\''`) + "'"
}
