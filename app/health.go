package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/status"
)

// healthCheck checks one dependency. A failed required check makes the process not ready.
type healthCheck struct {
	required bool
	run      func(ctx context.Context) error
}

// checkResult is the result of a healthCheck: its error, and how long it took.
type checkResult struct {
	err  error
	took time.Duration
}

// readsCheckName is the name of the health check that reports whether the query service can serve
// reads.
const readsCheckName = "reads"

// health runs the health checks. It caches their results for healthCacheTTL, so that frequent
// probes do not load the dependencies.
type health struct {
	checks map[string]healthCheck
	found  status.Cached[map[string]checkResult]
	// sources returns the state of each source, from memory; nil in a process that has none.
	sources func() map[string]sourceHealth
}

func newHealth(checks map[string]healthCheck, log *slog.Logger) *health {
	h := &health{checks: checks}
	h.found.Read, h.found.Timeout, h.found.Clock, h.found.Log = h.runAll, pingTimeout, time.Now, log
	return h
}

// newQueryHealth returns the health checks of the query service. The function `reads` reports whether
// reads can be answered. The check of the issuer uses the result of the last fetch of its keys.
func newQueryHealth(p parts, guard *access.Guard, reads func(context.Context) error) *health {
	checks := map[string]healthCheck{
		readsCheckName: {required: true, run: reads},
		"database":     {run: p.store.Ping},
		"redis":        {run: func(ctx context.Context) error { return p.rdb.Ping(ctx).Err() }},
		"kafka":        {run: p.client.Ping},
	}
	if p.config.Access.JWKSURL != "" {
		checks["issuer"] = healthCheck{run: guard.CheckIssuer}
	}
	return newHealth(checks, p.log)
}

const (
	healthCacheTTL = time.Second
	pingTimeout    = time.Second // timeout of one check of all dependencies
)

// checkAll runs all checks concurrently, or returns the cached results.
func (h *health) checkAll(ctx context.Context) map[string]checkResult {
	found, _, _ := h.found.Get(context.WithoutCancel(ctx), healthCacheTTL)
	return found
}

// runAll runs all checks. Its error is always nil, because a failed check is a result.
func (h *health) runAll(ctx context.Context) (map[string]checkResult, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	found := map[string]checkResult{}
	for name, c := range h.checks {
		wg.Go(func() {
			began := time.Now()
			err := c.run(ctx)
			mu.Lock()
			defer mu.Unlock()
			found[name] = checkResult{err, time.Since(began)}
		})
	}
	wg.Wait()
	return found, nil
}

// missing returns the names of the required checks that failed. found holds the result of each
// check.
func (h *health) missing(found map[string]checkResult) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(h.checks)) {
		if h.checks[name].required && found[name].err != nil {
			names = append(names, name)
		}
	}
	return names
}

func (h *health) handleReady(w http.ResponseWriter, r *http.Request) {
	if missing := h.missing(h.checkAll(r.Context())); len(missing) > 0 {
		http.Error(w, "not ready: "+strings.Join(missing, ", ")+" unavailable; see /healthz?verbose", http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// dependencyHealth is the state of one dependency in the response of /healthz?verbose.
type dependencyHealth struct {
	State   string  `json:"state"` // state of the dependency: connected, error or timeout
	Seconds float64 `json:"seconds"`
	Reason  string  `json:"reason,omitempty"`
}

// health returns the result in the form of the response.
func (r checkResult) health() dependencyHealth {
	d := dependencyHealth{State: "connected", Seconds: r.took.Round(time.Microsecond).Seconds()}
	if r.err == nil {
		return d
	}
	d.State, d.Reason = "error", r.err.Error()
	if late, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](r.err); ok && late.Timeout() {
		d.State = "timeout"
	}
	return d
}

// sourceHealth is the state of one source in the response of /healthz?verbose.
type sourceHealth struct {
	State string     `json:"state"` // state of the source: a state of the limiter, or unknown
	Until *time.Time `json:"until,omitempty"`
}

// healthReport is the response of /healthz. healthDetails is nil without ?verbose.
type healthReport struct {
	Status    healthStatus `json:"status"`
	Timestamp time.Time    `json:"timestamp"`
	*healthDetails
}

// healthDetails are the values that help attackers, so the query service serves ?verbose to
// administrators only.
type healthDetails struct {
	Version      string                      `json:"version"`
	Ready        bool                        `json:"ready"`
	Dependencies map[string]dependencyHealth `json:"dependencies"`
	Sources      map[string]sourceHealth     `json:"sources,omitempty"`
}

// healthStatus is the health of the whole process.
type healthStatus string

const (
	healthPass healthStatus = "pass"
	healthWarn healthStatus = "warn"
	healthFail healthStatus = "fail"
)

// report returns the health of the process with all details. The sources can only cause a warning,
// never a failure.
func (h *health) report(ctx context.Context) healthReport {
	found := h.checkAll(ctx)
	details := &healthDetails{Version(), len(h.missing(found)) == 0, map[string]dependencyHealth{}, nil}
	report := healthReport{healthPass, time.Now().UTC().Truncate(time.Millisecond), details}
	for name, result := range found {
		if details.Dependencies[name] = result.health(); result.err != nil {
			report.Status = healthWarn
		}
	}
	if h.sources != nil {
		details.Sources = h.sources()
	}
	for _, s := range details.Sources {
		if s.State != string(limiter.StateFlowing) && s.State != sourceUnknown {
			report.Status = healthWarn
		}
	}
	if !details.Ready {
		report.Status = healthFail
	}
	return report
}

// handleHealth responds with the health of the process, as JSON or as a page. With ?verbose the
// response has the details.
func (h *health) handleHealth(w http.ResponseWriter, r *http.Request) {
	report := h.report(r.Context())
	if !r.URL.Query().Has("verbose") {
		report.healthDetails = nil
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Vary", "Accept")
	status := http.StatusOK
	if report.Status == healthFail {
		status = http.StatusServiceUnavailable
	}
	if prefersHTML(r) {
		report.writePage(w, status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(report) // Encode returns an error only if the client has disconnected
}

// sourceUnknown is the state of a source whose limiter this process has not read recently.
const sourceUnknown = "unknown"

// sourcesHealth returns the state of each source, as this process has read its limiter last. It
// calls neither an upstream nor Redis.
func (w *waits) sourcesHealth() map[string]sourceHealth {
	all := map[string]sourceHealth{}
	for name := range w.sources {
		state, until, known := w.state(name)
		s := sourceHealth{State: string(state)}
		if !known {
			s.State = sourceUnknown
		}
		if !until.IsZero() {
			s.Until = &until
		}
		all[name] = s
	}
	return all
}
