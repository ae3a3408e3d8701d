package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// prometheus is a Prometheus server that scrapes the scenario's processes.
type prometheus struct {
	*harness.Process
	api string
}

// rulesGlob matches the rule files of the repository.
const rulesGlob = "deploy/prometheus/rules/*.yml"

// interval matches the line that sets the interval of a rule group. Those intervals are too long
// for the scenario.
var interval = regexp.MustCompile(`(?m)^\s+interval:.*\n`)

// startPrometheus starts a server that scrapes the targets once a second. If `rules` is true, the
// server also evaluates the repository's rules once a second.
func (s *site) startPrometheus(ctx context.Context, name string, targets []target, rules bool, flags ...string) (*prometheus, error) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		return nil, errors.New("prometheus is not installed; install it with: apt-get install -y --no-install-recommends prometheus")
	}
	dir := filepath.Join(s.Dir, name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	var text strings.Builder
	text.WriteString("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules-*.yml]\nscrape_configs:\n- job_name: freshet\n  static_configs:\n")
	for _, t := range targets {
		fmt.Fprintf(&text, "  - {targets: [%q], labels: {role: %q}}\n", t.address, t.role)
	}
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(text.String()), 0o600); err != nil {
		return nil, err
	}
	if rules {
		if err := copyRules(s.Root, dir); err != nil {
			return nil, err
		}
	}
	port, err := s.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort("127.0.0.1", port)
	p, err := s.StartProgram(ctx, name, "Server is ready to receive web requests", nil, program, append([]string{
		"--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", address,
	}, flags...)...)
	if err != nil {
		return nil, err
	}
	return &prometheus{p, "http://" + address + "/api/v1/"}, nil
}

// copyRules copies the rule files into a directory and removes the intervals of the rule groups.
func copyRules(root, dir string) error {
	files, err := filepath.Glob(filepath.Join(root, rulesGlob))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no rule file matches %s", rulesGlob)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "rules-"+filepath.Base(file)), interval.ReplaceAll(text, nil), 0o600); err != nil {
			return err
		}
	}
	return err
}

// get calls Prometheus' HTTP API and decodes the field "data" of the response into the parameter
// "into".
func (p *prometheus) get(ctx context.Context, path string, query url.Values, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.api+path, strings.NewReader(query.Encode()))
	if len(query) == 0 { // without parameters the API accepts only GET
		req, err = http.NewRequestWithContext(ctx, http.MethodGet, p.api+path, http.NoBody)
	}
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client := http.Client{Timeout: harness.Timeout}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %s: %w", path, resp.Status, err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

// sample is the value of a series at one time. In JSON it is an array of the time and the value, such
// as [1700000000.5, "1"].
type sample struct {
	at    time.Time
	value float64
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *sample) UnmarshalJSON(text []byte) error {
	var at float64
	var value string
	if err := json.Unmarshal(text, &[]any{&at, &value}); err != nil {
		return err
	}
	s.at = time.UnixMilli(int64(at * 1000))
	var err error
	s.value, err = strconv.ParseFloat(value, 64)
	return err
}

// series is one time series of a query result.
type series struct {
	Metric map[string]string
	Values []sample
}

// last returns the newest value, or NaN.
func (s series) last() float64 {
	if len(s.Values) == 0 {
		return math.NaN()
	}
	return s.Values[len(s.Values)-1].value
}

// query evaluates a query at the current time.
func (p *prometheus) query(ctx context.Context, query string) ([]series, error) {
	at := time.Now()
	return p.queryRange(ctx, query, at, at)
}

// queryRange evaluates a query for each second between two times.
func (p *prometheus) queryRange(ctx context.Context, query string, from, to time.Time) ([]series, error) {
	var data struct{ Result []series }
	at := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	err := p.get(ctx, "query_range", url.Values{"query": {query}, "start": {at(from)}, "end": {at(to)}, "step": {"1"}}, &data)
	return data.Result, err
}

// countNumbers counts the samples that are not NaN. A quantile of a histogram without observations
// is NaN.
func countNumbers(all []series) (n int) {
	for _, s := range all {
		for _, v := range s.Values {
			if !math.IsNaN(v.value) {
				n++
			}
		}
	}
	return n
}

// rule is a rule that Prometheus has loaded.
type rule struct {
	Name, Query, Health, LastError, Type, State string
	Labels                                      map[string]string
}

func (p *prometheus) rules(ctx context.Context) (all []rule, err error) {
	var data struct{ Groups []struct{ Rules []rule } }
	err = p.get(ctx, "rules", nil, &data)
	for _, g := range data.Groups {
		all = append(all, g.Rules...)
	}
	return all, err
}

// alert contains the severity and the state (pending or firing) of an alert.
type alert struct{ severity, state string }

func (p *prometheus) alerts(ctx context.Context) (map[string]alert, error) {
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	err := p.get(ctx, "alerts", nil, &data)
	found := map[string]alert{}
	for _, a := range data.Alerts {
		found[a.Labels["alertname"]] = alert{a.Labels["severity"], a.State}
	}
	return found, err
}

// maxPending is the longest time for which an alert may be pending without being counted as active.
// On a busy machine a single missed scrape can make an alert pending.
const maxPending = 5 * time.Second

// alertsDuring returns the alerts that fired between two times, or were pending for longer than
// maxPending.
func (p *prometheus) alertsDuring(ctx context.Context, from, to time.Time) (map[string]alert, error) {
	all, err := p.queryRange(ctx, "ALERTS", from, to)
	found := map[string]alert{}
	for _, s := range all {
		if state := s.Metric["alertstate"]; state == "firing" || len(s.Values) > int(maxPending.Seconds()) {
			found[s.Metric["alertname"]] = alert{s.Metric["severity"], state}
		}
	}
	return found, err
}

// seriesSince returns the labels of every series that matches the selector and has a sample after
// the given time.
func (p *prometheus) seriesSince(ctx context.Context, selector string, from time.Time) (all []map[string]string, err error) {
	query := url.Values{"match[]": {selector}, "start": {strconv.FormatInt(from.Unix(), 10)}}
	return all, p.get(ctx, "series", query, &all)
}
