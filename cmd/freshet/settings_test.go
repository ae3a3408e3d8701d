package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/settings"
)

// mustRun runs a command against the running dev process. It fails the test unless the command
// exits with the code and prints the words: to stdout on success, otherwise to stderr.
func (d *dev) mustRun(code int, words []string, args ...string) string {
	d.Helper()
	got, stdout, stderr := command(d.T, []string{"FRESHET_ADDR=" + d.api}, args...)
	said, silent := stdout, stderr
	if code != 0 {
		said, silent = stderr, stdout
	}
	if got != code || silent != "" {
		d.Errorf("%q: got exit %d, stdout %q, stderr %q; want %d, output only to one of them", args, got, stdout, stderr, code)
	}
	for _, w := range words {
		if !strings.Contains(said, w) {
			d.Errorf("%q: got %q, want %q in it", args, said, w)
		}
	}
	return stdout
}

func (d *dev) state() settings.State {
	d.Helper()
	var s settings.State
	if err := json.Unmarshal([]byte(d.mustRun(0, nil, "settings", "get", "-o", "jsonl")), &s); err != nil {
		d.Fatal(err)
	}
	return s
}

func TestSettings_GetSetRejectReset(t *testing.T) {
	d := startDev(t, "--no-demo")
	table := d.mustRun(0, nil, "settings", "get")
	for _, row := range []string{"SOURCE SETTING CONFIGURED NOW", "nexon stopped false false", "nexon second.target 450 450", "nexon day.highReserve 25/s 25/s"} {
		if !strings.Contains(strings.Join(strings.Fields(table), " "), row) {
			t.Errorf("settings: got\n%s\nwant a row %q", table, row)
		}
	}

	d.mustRun(0, []string{"revision"}, "settings", "set", "--source", "nexon", "second.target=400", "second.highReserve=120", "day.limit=15000000")
	s := d.state()
	if p := s.Effective.Policies; s.Revision != 1 || p[0].Target != 400 || p[0].HighReserve.Calls != 120 || p[1].Limit != 15_000_000 {
		t.Errorf("got %+v, want revision 1, second: target 400, 120 reserved for HIGH, day: limit 15000000", s)
	}
	table = strings.Join(strings.Fields(d.mustRun(0, nil, "settings", "get", "--source", "nexon")), " ")
	for _, row := range []string{"nexon second.target 450 400", "nexon revision 0 1, 20"} {
		if !strings.Contains(table, row) {
			t.Errorf("got %[2]s, want %[1]q in it", row, table)
		}
	}

	d.mustRun(1, []string{`policies[0] "second": target: 600 is above the limit of 500`}, "settings", "set", "second.target=600", "day.limit=1")
	if again := d.state(); again.Revision != 1 {
		t.Errorf("after a rejected change: got %+v, want revision 1", again)
	}
	d.mustRun(0, nil, "settings", "set", "second.target=")
	if s := d.state(); s.Revision != 2 || s.Effective.Policies[0].Target != 450 || s.Effective.Policies[0].HighReserve.Calls != 120 {
		t.Errorf("got %+v, want revision 2, second: target 450, 120 reserved for HIGH", s)
	}

	var entries []settings.Entry
	if err := json.Unmarshal([]byte(d.mustRun(0, nil, "settings", "audit", "-o", "json")), &entries); err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 || entries[0].Action != "set" || entries[0].Actor != "unauthenticated@127.0.0.1" || !strings.Contains(string(entries[0].Before), "15000000") {
		t.Errorf("audit: got %+v, want 2 entries, the newest set by unauthenticated@127.0.0.1, 15000000 in its settings before", entries)
	}
	if text := d.mustRun(0, []string{"AT", "unauthenticated@127.0.0.1"}, "settings", "audit", "--limit", "1"); strings.Count(text, "\n") != 2 {
		t.Errorf("audit with limit 1: got\n%s\nwant 2 lines", text)
	}

	d.mustRun(3, []string{`unknown source "github"; the configuration has nexon`}, "settings", "get", "--source", "github")
	d.mustRun(3, []string{`unknown source`}, "settings", "set", "--source", "github", "second.target=5")
	d.mustRun(1, []string{"between 1 and 1000"}, "settings", "audit", "--limit", "0")
	if code, stderr := d.stop(); code != 0 || stderr != "" {
		t.Errorf("stop: got exit %d, want 0: %s", code, stderr)
	}
}

func TestStop_AndResumeByCommand(t *testing.T) {
	d := startDev(t, "--no-demo")
	d.mustRun(2, []string{"--yes"}, "stop") // a test has no terminal for the confirmation, so stop must fail and name the flag --yes
	if d.state().Stopped {
		t.Error("without a confirmation: got stopped, want not stopped")
	}
	d.mustRun(0, []string{"nexon is stopped (revision 1)"}, "stop", "--yes", "--note", "they asked us to")
	d.mustRun(0, []string{"nexon is stopped (revision 1)"}, "stop", "--yes", "--source", "nexon")
	if !d.state().Stopped {
		t.Error("after stop: got not stopped, want stopped")
	}
	d.mustRun(0, []string{"nexon is running (revision 2)"}, "resume", "--all")
	d.mustRun(0, []string{"nexon is running (revision 2)"}, "resume")
	d.mustRun(0, []string{"stop", "they asked us to", `{"stopped":true}`}, "settings", "audit")
	d.mustRun(3, []string{"unknown source"}, "stop", "--yes", "--source", "github")
	d.mustRun(2, []string{"exclude each other"}, "stop", "--yes", "--source", "nexon", "--all")
}

func TestCommands_NeedSourceIfSeveral(t *testing.T) {
	source := "quota: {policies: [{name: second, limit: 500, window: 1s}]}, facets: {f: {documents: {d: {path: \"/{key}\"}}}}"
	file := write(t, fmt.Sprintf("sources:\n  a: {baseURL: http://a.example, %s}\n  b: {baseURL: http://b.example, %s}\n", source, source))
	d := startDev(t, "--simulate", "--config", file)
	d.mustRun(2, []string{"choose one of a, b with --source, or use --all"}, "stop", "--yes")
	d.mustRun(2, []string{"choose one of a, b with --source"}, "settings", "set", "second.limit=40")
	d.mustRun(0, []string{"b is stopped (revision 1)"}, "stop", "--yes", "--source", "b")
	d.mustRun(0, []string{"a is stopped (revision 1)", "b is stopped (revision 1)"}, "stop", "--yes", "--all")
	if text := d.mustRun(0, nil, "settings", "get", "-o", "jsonl"); strings.Count(text, `"stopped":true,"revision":1`) != 2 {
		t.Errorf("settings: got %s, want 2 that contain %s", text, `"stopped":true,"revision":1`)
	}
}

func TestCommand_UsageErrorsBeforeAnyCall(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("call: got %s %s, want none", r.Method, r.URL) }))
	defer server.Close()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"settings"}, "a subcommand is missing"},
		{[]string{"settings", "get", "-o", "xml"}, "table, json or jsonl"},
		{[]string{"settings", "audit", "-o", "xml"}, "table, json or jsonl"},
		{[]string{"settings", "set"}, "requires at least 1 arg"},
		{[]string{"settings", "set", "second.target"}, "write it as in second.target=400"},
		{[]string{"settings", "set", "second.target=1", "second.target="}, "second.target is set twice"},
		{[]string{"settings", "set", "second.window=2s"}, `unknown setting "second.window"`},
		{[]string{"settings", "set", "target=2"}, `unknown setting "target"`},
		{[]string{"settings", "set", "second.target=fast"}, `second.target: "fast" must be a whole number`},
		{[]string{"settings", "set", "second.highReserve=fast"}, `second.highReserve: "fast" must be a number of calls a window, or a rate`},
		{[]string{"settings", "get", "--addr", "8080"}, "must be host:port or a URL"},
		{[]string{"resume", "--addr", "ftp://x"}, "must be host:port or a URL"},
	} {
		code, stdout, stderr := command(t, []string{"FRESHET_ADDR=" + server.URL}, c.args...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: got exit %d, stdout %q, stderr %q; want 2, none, a text that contains %q", c.args, code, stdout, stderr, c.want)
		}
	}
}

func TestAdminClient_NamesUnexpectedServer(t *testing.T) {
	for answer, want := range map[string]string{
		"404 page not found": "unexpected response 404 Not Found",
		"200 <html>":         "unexpected response 200 OK",
		"302 elsewhere":      "unexpected response 302 Found",
		`404 {"code":"no-such-path","detail":"none"}`: "unexpected response 404",
		`503 {"code":"x","detail":"not now"}`:         "freshet: not now\n",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			var status int
			_, _ = fmt.Sscan(answer, &status)
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, answer[4:])
		}))
		code, stdout, stderr := command(t, nil, "settings", "get", "--addr", server.URL)
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: got exit %d, stdout %q, stderr %q; want 1, none, a text that contains %q", answer, code, stdout, stderr, want)
		}
		server.Close()
	}
	for _, args := range [][]string{{"settings", "get"}, {"settings", "set", "second.target=1"}, {"settings", "audit"}, {"stop", "--yes"}, {"resume"}} {
		code, stdout, stderr := command(t, []string{"FRESHET_QUERY_LISTEN=0.0.0.0:1"}, args...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, "no response from http://127.0.0.1:1: connect: connection refused; start `freshet query`") || !strings.Contains(stderr, "--addr or FRESHET_ADDR") {
			t.Errorf("%q: got exit %d, stdout %q, stderr %q; want 1, none, a text that contains %q, %q", args, code, stdout, stderr,
				"no response from http://127.0.0.1:1: connect: connection refused; start `freshet query`", "--addr or FRESHET_ADDR")
		}
	}
}

func TestAdminClient_SendsTokenSilently(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		_, _ = io.WriteString(w, `{"entries":[]}`)
	}))
	defer server.Close()
	for token, want := range map[string]string{"hunter2": "Bearer hunter2", "": ""} {
		code, stdout, stderr := command(t, []string{"FRESHET_TOKEN=" + token}, "settings", "audit", "--addr", strings.TrimPrefix(server.URL, "http://"))
		if code != 0 || got != want || strings.Contains(stdout+stderr, "hunter2") {
			t.Errorf("got Authorization %q, exit %d, output %s%s; want %q, 0, a text without the token", got, code, stdout, stderr, want)
		}
	}
}

func TestStop_NeedsNoValidConfiguration(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"source":"nexon","stopped":true,"revision":7}`)
	}))
	defer server.Close()
	env := []string{"FRESHET_ADDR=" + server.URL, "FRESHET_NO_SUCH_SETTING=x"}
	if code, stdout, stderr := command(t, env, "stop", "--yes", "--source", "nexon", "--config", write(t, "nonsense: [")); code != 0 || stdout != "nexon is stopped (revision 7)\n" {
		t.Errorf("stop: got exit %d, stdout %q, stderr %q; want 0, %q", code, stdout, stderr, "nexon is stopped (revision 7)\n")
	}
}

func TestConfirm_RequiresYesAtTerminal(t *testing.T) {
	for answer, meant := range map[string]bool{"y\n": true, "YES\n": true, " yes \n": true, "n\n": false, "\n": false, "yess\n": false, "y": true, "": false} {
		var asked strings.Builder
		err := confirm(t.Context(), strings.NewReader(answer), true, &asked, "Stop?")
		if (err == nil) != meant || asked.String() != "Stop? [y/N] " {
			t.Errorf("%q: got %v after %q, want a confirmation: %v, after %q", answer, err, asked.String(), meant, "Stop? [y/N] ")
		}
	}
	if err := confirm(t.Context(), strings.NewReader("y\n"), false, io.Discard, "Stop?"); err == nil || !errors.As(err, new(app.UsageError)) {
		t.Errorf("without a terminal: got %v, want a usage error", err)
	}
	silent, keyboard := io.Pipe()
	defer func() { _ = keyboard.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := confirm(ctx, silent, true, io.Discard, "Stop?"); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("interrupted: got %v, want an error that contains %q", err, "interrupted")
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if isTerminal(file) || isTerminal(strings.NewReader("")) {
		t.Error("isTerminal: got true for a file or a string, want false")
	}
}
