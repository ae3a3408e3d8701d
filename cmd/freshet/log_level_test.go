package main

import (
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLogLevel_RevertsAfterDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogLevel(slog.LevelInfo)
		check := func(want slog.Level, what string) {
			t.Helper()
			synctest.Wait()
			if got := l.now.Level(); got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		l.set(slog.LevelDebug, time.Minute)
		<-time.After(59 * time.Second)
		check(slog.LevelDebug, "within its time")
		<-time.After(2 * time.Second)
		check(slog.LevelInfo, "after its time")

		l.set(slog.LevelDebug, time.Minute)
		<-time.After(30 * time.Second)
		l.set(slog.LevelError, 2*time.Minute) // the timer of the first change must not revert the second change
		<-time.After(time.Minute)
		check(slog.LevelError, "after another one's time")
		<-time.After(2 * time.Minute)
		check(slog.LevelInfo, "after both")

		l.set(slog.LevelDebug, 0)
		<-time.After(48 * time.Hour)
		check(slog.LevelDebug, "without an end")
		if s := l.state(); s.Until != nil || s.String() != "debug, until the process ends; info is configured" {
			t.Errorf("got %+v: %s, want no end, %q", s, s, "debug, until the process ends; info is configured")
		}
		l.set(slog.LevelInfo, time.Minute)
		if s := l.state(); s.Until != nil || s.String() != "info" {
			t.Errorf("got %+v: %s, want no end, %q", s, s, "info")
		}
	})
}

func TestLog_ChangesLevelOfRunningProcess(t *testing.T) {
	d := startDev(t, "--no-demo")
	said := func(args ...string) (int, string, string) {
		return command(t, []string{"FRESHET_OPS_LISTEN=" + strings.TrimPrefix(d.api, "http://")}, append([]string{"log"}, args...)...)
	}
	if code, out, notes := said(); code != 0 || out != "warn\n" {
		t.Errorf("got exit %d, stdout %q, stderr %q; want 0, %q", code, out, notes, "warn\n")
	}
	if code, out, notes := said("debug", "--for", "5m"); code != 0 || !strings.HasPrefix(out, "debug, until ") || !strings.HasSuffix(out, "; then warn\n") {
		t.Errorf("got exit %d, stdout %q, stderr %q; want 0, debug with an end, %q", code, out, notes, "; then warn\n")
	}
	if code, out, notes := said("warn"); code != 0 || out != "warn\n" {
		t.Errorf("got exit %d, stdout %q, stderr %q; want 0, %q", code, out, notes, "warn\n")
	}
	for args, want := range map[string]string{
		"loud":             `level: "loud" must be debug, info, warn or error`,
		"INFO+2":           `level: "INFO+2" must be debug, info, warn or error`,
		"debug --for x":    `for: "x" must be a duration up to 24h`,
		"debug --for 25h":  `for: "25h" must be a duration up to 24h`,
		"debug --for -1s":  `for: "-1s" must be a duration up to 24h`,
		"debug info error": "accepts at most 1 arg",
	} {
		if code, _, notes := said(strings.Fields(args)...); code != 2 || !strings.Contains(notes, want) {
			t.Errorf("%s: got exit %d, output %q; want 2, a text that contains %q", args, code, notes, want)
		}
	}
	// The admin API must check a request body like the command does, and reject an invalid one with
	// status 400.
	for body, want := range map[string]int{
		`{"level": "info", "for": "1m"}`: http.StatusOK, `{"level": "x"}`: http.StatusBadRequest,
		`{"level": "info", "to": 1}`: http.StatusBadRequest, `[]`: http.StatusBadRequest,
	} {
		if status := putLevel(t, d.api+logLevelPath, body); status != want {
			t.Errorf("%s: got status %d, want %d", body, status, want)
		}
	}
}

func putLevel(t *testing.T, url, body string) (status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func TestLogLevel_RequiresLoopback(t *testing.T) {
	l := newLogLevel(slog.LevelInfo)
	p := parts{levels: l, log: slog.New(slog.DiscardHandler)}
	p.registry, p.reg = newRegistry("freshet")
	ops := p.newOpsHandler(&health{})
	for _, c := range []struct {
		name, from, host string
		header           http.Header
		want             int
	}{
		{"this machine", "127.0.0.1:5000", "localhost:9464", nil, http.StatusOK},
		{"this machine, by IPv6", "[::1]:5000", "[::1]:9464", nil, http.StatusOK},
		{"another machine", "10.0.0.7:5000", "10.0.0.1:9464", nil, http.StatusMisdirectedRequest},
		{"another machine that says otherwise", "10.0.0.7:5000", "localhost", nil, http.StatusForbidden},
		{"a page whose name leads here", "127.0.0.1:5000", "evil.example", nil, http.StatusMisdirectedRequest},
		{"another machine, by a proxy on this one", "127.0.0.1:5000", "127.0.0.1:9464", http.Header{"X-Forwarded-For": {"203.0.113.9"}}, http.StatusForbidden},
		{"a proxy that adds X-Forwarded-Host only", "127.0.0.1:5000", "127.0.0.1:9464", http.Header{"X-Forwarded-Host": {"ops.example"}}, http.StatusForbidden},
		{"a page of another site", "127.0.0.1:5000", "localhost:9464", http.Header{"Sec-Fetch-Site": {"cross-site"}}, http.StatusForbidden},
	} {
		l.set(slog.LevelInfo, 0)
		r := httptest.NewRequest(http.MethodPut, logLevelPath, strings.NewReader(`{"level":"debug"}`))
		r.RemoteAddr, r.Host = c.from, c.host
		maps.Copy(r.Header, c.header)
		w := httptest.NewRecorder()
		ops.ServeHTTP(w, r)
		if changed := l.now.Level() == slog.LevelDebug; w.Code != c.want || changed != (c.want == http.StatusOK) {
			t.Errorf("%s: got status %d, changed: %v; want status %d", c.name, w.Code, changed, c.want)
		}
	}
}
