package browser

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

const (
	// job is the path of the DLQ job that runs in the consoles with fake data.
	job = "/dlq/jobs/0198b2c0-0000-7000-8000-000000000001"
	// streamsPerClient is the maximum number of live streams that one client may open. Package
	// console defines the same limit as maxViewersPerClient.
	streamsPerClient = 8
)

// change makes a console with fake data show another state. name is the change: "stop-source",
// "end-job" or "revoke".
func change(t *testing.T, console, name string) {
	t.Helper()
	if got, text := request(t, http.MethodPost, strings.TrimSuffix(console, "/console")+"/fakes/"+name); got != http.StatusOK {
		t.Fatalf("change %s: got %d %s, want 200", name, got, text)
	}
}

// openStill opens a page of the console whose clock is stopped, and returns the console's URL.
func openStill(t *testing.T, path string) (b *tab, console string) {
	t.Helper()
	b = newTab(t)
	console = startConsoles(t)["still"]
	b.open(console + path)
	return b, console
}

func TestLivePage_ShowsChanges(t *testing.T) {
	b, console := openStill(t, "")
	b.untilLive()
	b.untilText(`[data-item="state.nexon"]`, "^flowing$")
	change(t, console, "stop-source")
	b.until(`document.querySelector('[data-item="state.nexon"]').dataset.tone === 'bad'`)
	b.untilText(`[data-list="problems"]`, "stopped by an operator")
}

func TestLivePage_ShowsMarkupAsText(t *testing.T) {
	b, console := openStill(t, "/limiter?source=nexon")
	b.untilLive()
	change(t, console, "stop-source")
	b.untilText(`[data-rows="policies.nexon"]`, `<img src=x onerror=alert\(1\)>`)
	if got := evaluate[int](b, `document.querySelectorAll('main img').length`); got != 0 {
		t.Errorf("images in the page: got %d, want 0", got)
	}
	for _, text := range b.takeLogged() {
		t.Errorf("the page logged %q, want nothing", text)
	}
}

func TestLivePage_ShowsStaleAfterRevocation(t *testing.T) {
	b, console := openStill(t, "")
	b.untilLive()
	change(t, console, "revoke")
	b.until(`document.getElementById('live-state').textContent.startsWith('Not live: reload the page')`)
	b.until(`document.body.hasAttribute('data-stale')`)
}

func TestLivePage_RetriesRejectedStream(t *testing.T) {
	b := newTab(t)
	console := startConsoles(t)["still"]
	ctx, closeStreams := context.WithCancel(t.Context())
	defer closeStreams()
	for i := range streamsPerClient {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, console+"/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stream.Body.Close() }()
		if stream.StatusCode != http.StatusOK {
			t.Fatalf("stream %d: got %s, want 200", i, stream.Status)
		}
	}
	b.open(console + "/limiter")
	b.until(`document.body.hasAttribute('data-stale')`)
	if got := b.text(".as-of"); !strings.Contains(got, "Not live") {
		t.Errorf("with its stream rejected the page shows %q, want %q in it", got, "Not live")
	}
	closeStreams()
	b.untilLive()
	b.until(`!document.body.hasAttribute('data-stale')`)
}

// A list item that did not change keeps its HTML element, so that selected text in the item stays
// selected.
func TestLivePage_KeepsUnchangedItems(t *testing.T) {
	b := newTab(t)
	b.open(startConsoles(t)["busy"])
	next := func() {
		evaluate[bool](b, `(window.was = document.getElementById('live-at').textContent, true)`)
		b.until(`document.getElementById('live-at').textContent !== window.was`)
	}
	const item = `[...document.querySelectorAll('[data-list] li')].find(e => e.textContent.startsWith('github: the lag of its LOW lane is 26 min'))`
	b.until(`!!` + item)
	next() // skip the first event, which only replaces the content that the server rendered
	evaluate[bool](b, `(window.item = `+item+`, true)`)
	next()
	next()
	if !evaluate[bool](b, `window.item.isConnected`) {
		t.Error("got a new element for an unchanged item, want the same element")
	}
}

// A link in a replaced item would lose the focus, and the next press of the Tab key would begin at the
// top of the page.
func TestLivePage_KeepsFocusInChangedItems(t *testing.T) {
	b, console := openStill(t, "")
	b.untilLive()
	evaluate[bool](b, `(window.had = [...document.querySelectorAll('[data-list="problems"] a')].at(-1), window.had.focus(), true)`)
	change(t, console, "stop-source")
	b.untilText(`[data-list="problems"]`, "stopped by an operator")
	if evaluate[bool](b, `window.had.isConnected`) {
		t.Fatal("the item with the focus: got it unchanged, want a new element")
	}
	if !evaluate[bool](b, `!!document.activeElement.closest('[data-list="problems"]')`) {
		t.Errorf("focus: got %s, want a link of the list", evaluate[string](b, `document.activeElement.outerHTML.slice(0, 100)`))
	}
}

func TestJobPage_ReloadsWhenJobEnds(t *testing.T) {
	b, console := openStill(t, job)
	b.untilLive()
	change(t, console, "end-job")
	b.until(`document.readyState === 'complete' && [...document.querySelectorAll('dt')].some(e => e.textContent === 'Ended')`)
	if evaluate[bool](b, `!!document.querySelector('form[action$="/stop"]')`) {
		t.Error("got a stop button for a job that ended, want none")
	}
}

func TestJobPage_ShowsMessageOnce(t *testing.T) {
	b, console := openStill(t, job+"?notice=started")
	b.untilLive()
	if got := b.text(".notice"); got != "The job was started." {
		t.Errorf("message: got %q, want %q", got, "The job was started.")
	}
	if got := evaluate[string](b, `location.search`); got != "" {
		t.Errorf("query of the page: got %q, want none, so that a reload does not repeat the message", got)
	}
	change(t, console, "end-job")
	b.until(`document.readyState === 'complete' && !document.querySelector('.notice')`)
}
