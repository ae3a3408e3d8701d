//go:build !production

package app

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"
)

// runDevWithBrowser runs dev with a fake browser that returns the error `ended`. runDevWithBrowser
// returns the opened URL, the console's URL and the log lines about the browser.
func runDevWithBrowser(t *testing.T, o DevOptions, ended error) (url, console, log string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	p := NewProcess(nil, &out, &errs)
	o.Listen, o.NoDemo = "127.0.0.1:0", true
	o.Browser = func(_ context.Context, u string) error {
		url = u
		cancel()
		return ended
	}
	if err := p.RunDev(ctx, o, time.Now()); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(errs.String()) { // stderr also has other log lines, because dev was stopped early
		if strings.Contains(line, "browser") {
			log += line
		}
	}
	return url, regexp.MustCompile(`Console +(\S+)`).FindStringSubmatch(out.String())[1], log
}

func TestDev_OpensConsoleOnRequest(t *testing.T) {
	url, console, log := runDevWithBrowser(t, DevOptions{}, nil)
	if url == "" || url != console || !strings.HasSuffix(url, "/console") || log != "" {
		t.Errorf("got URL %q, printed %q, log %q; want the printed URL with the suffix /console, no log", url, console, log)
	}
	_, console, log = runDevWithBrowser(t, DevOptions{}, errors.New("no such program"))
	if strings.Count(log, "\n") != 1 || !strings.Contains(log, "no such program") || !strings.Contains(log, console) {
		t.Errorf("log: got %q, want one line that contains %q, %q", log, "no such program", console)
	}
}
