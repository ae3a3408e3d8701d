package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/freshet/freshet/e2e/harness"
)

const (
	documentUsers    = 3_000 // number of users unless a flag names another
	fetchedDocuments = 6     // number of layouts without a file; the other layouts are static files
)

// documents judges the responses to 3,000 users (k6) that read 39 layouts in 12 folders. 85 % of the
// layouts are static files. The other layouts are fetched from an upstream that allows three calls at
// once. With the flag --results, the summary of k6 is stored in the directory of the results, as
// documents.json.
func documents(ctx context.Context, s *site, o options) error {
	o.users = cmp.Or(o.users, documentUsers)
	k6, err := findK6(ctx, s.Root, o.k6)
	if err != nil {
		return err
	}
	dir := filepath.Join(s.Dir, "layouts")
	static := harness.DocumentKeys[fetchedDocuments:]
	for _, key := range static {
		if err := harness.WriteLayout(dir, key, key); err != nil {
			return err
		}
	}
	if _, err := s.PrepareCourt(ctx, "500ms-1500ms", fmt.Sprintf("wait: 30s, static: {dir: %q}", dir)); err != nil {
		return err
	}
	if _, err := s.Worker(ctx, "worker"); err != nil {
		return err
	}
	p, err := s.StartQuery(ctx, "query", "")
	if err != nil {
		return err
	}
	sum, err := s.users(ctx, k6, filepath.Join(s.Root, "e2e", "scenarios", "documents.js"), map[string]string{
		"API": p.URL(), "SOURCE": s.Source, "PHASE": "documents", "KEYS": strings.Join(harness.DocumentKeys, " "),
		"USERS": strconv.Itoa(o.users), "SECONDS": strconv.Itoa(o.seconds),
	}, func() {})
	if err != nil {
		return err
	}
	if o.results != "" {
		text, err := os.ReadFile(filepath.Join(s.Dir, "summary-documents.json"))
		if err == nil {
			err = os.WriteFile(filepath.Join(filepath.Dir(o.results), "documents.json"), text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("keep the summary of k6: %w", err)
		}
	}
	stats, err := s.CourtStats(ctx)
	if err != nil {
		return err
	}
	value := func(metric, name string) float64 { return sum.Metrics[metric].Values[name] }
	t := &table{}
	t.report("requests of up to "+strconv.Itoa(o.users)+" users", "%.0f", value("http_reqs", "count"))
	t.judgeThresholds(sum, "http_req_failed", "failed requests", percent(value("http_req_failed", "rate")))
	t.judgeThresholds(sum, "xml_errors", "responses without a whole layout", fmt.Sprintf("%.0f", value("xml_errors", "count")))
	t.judgeThresholds(sum, "http_req_duration", "latency, p95", fmt.Sprintf("%.1f ms", value("http_req_duration", "p(95)")))
	t.report("  p50, p99, max", "%.1f, %.1f, %.1f ms", value("xml_latency", "med"), value("xml_latency", "p(99)"), value("xml_latency", "max"))
	t.report("degraded responses", "%.0f", value("degraded", "count"))
	t.judgeEqual("calls to the upstream", stats.Arrivals, fetchedDocuments)
	t.judge("calls in flight, refused calls", fmt.Sprintf("%d, %d", stats.MaxInFlight, stats.Refused), "<=3, 0", stats.MaxInFlight <= 3 && stats.Refused == 0)
	s.addResult("documents", t)
	return nil
}
