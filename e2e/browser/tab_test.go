package browser

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/freshet/freshet/servicetest"
)

// tab is a tab of a headless Chromium, and the messages that its pages logged.
type tab struct {
	t      *testing.T
	ctx    context.Context
	mu     sync.Mutex
	logged []string
}

// newTab starts a Chromium that ends with the test, and lets the test run in parallel with other
// tests. Without Chromium the test is skipped, or fails if FRESHET_TEST_REQUIRE is set. Call
// newTab before anything is built or started, because a skipped test needs no programs.
func newTab(t *testing.T) *tab {
	t.Helper()
	t.Parallel()
	program := servicetest.Program(t, "chromium", "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	return openTab(t, ctx)
}

// openTab opens a tab in the Chromium of the context, or starts this Chromium.
func openTab(t *testing.T, chromium context.Context) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(chromium)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	b.must(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		if _, err := cdp.Call(ctx, target, runtime.Enable, cdp.Empty{}); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, target, log.Enable, cdp.Empty{})
		return err
	}))
	if err := chromedp.Listen(ctx, b.record); err != nil {
		t.Fatal(err)
	}
	return b
}

// record stores each message that a page logs: script errors, output of console.log and the like,
// and violations of the page's content security policy.
func (b *tab) record(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelVerbose {
			return // ignore messages of the level verbose: they are only hints for developers
		}
		b.logged = append(b.logged, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		b.logged = append(b.logged, text)
	case *runtime.EventConsoleAPICalled:
		b.logged = append(b.logged, fmt.Sprint("console.", e.Type))
	}
}

// takeLogged returns the messages that were logged since the last call of takeLogged.
func (b *tab) takeLogged() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.logged
	b.logged = nil
	return all
}

func (b *tab) must(action chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if _, err := chromedp.Run(b.ctx, action); err != nil {
		b.t.Fatal(err)
	}
}

// evaluate runs a script in the page and returns its result. If the script returns a promise,
// evaluate waits for the promise and returns its value.
func evaluate[T any](b *tab, script string) T {
	b.t.Helper()
	result, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%.200s: %v", script, err)
	}
	return result
}

// open opens a page in the light theme and 1280 pixels wide.
func (b *tab) open(url string) {
	b.t.Helper()
	b.openAs(url, 1280, "light")
}

// openAs opens a page in a theme, light or dark, and a width in pixels.
func (b *tab) openAs(url string, width int64, theme string) {
	b.t.Helper()
	b.must(chromedp.EmulateViewport(width, 900))
	b.must(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: schemeFeature, Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
		})
		return err
	}))
	if _, err := chromedp.Run(b.ctx, chromedp.Navigate(url)); err != nil {
		b.t.Fatalf("open %s: %v", url, err)
	}
}

// schemeFeature is the CSS media feature that selects the light or the dark theme.
const schemeFeature = "prefers-color-scheme" //nolint:misspell // the word of CSS

// until waits until the script returns true. No script can run while a page loads, so a script that
// fails is run again.
func (b *tab) until(script string) {
	b.t.Helper()
	var last error
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(timeout); ; {
		holds, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](script))
		if err == nil && holds {
			return
		}
		last = err
		select {
		case <-tick.C:
		case <-limit:
			b.t.Fatalf("got false (last error: %v), want true within %v on %s: %s\n%s", last, timeout, evaluate[string](b, "location.href"), script, b.text("body"))
		}
	}
}

// text returns the text of an element, or an empty string if the element does not exist.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return evaluate[string](b, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
}

// untilText waits until the text of an element matches the pattern, and returns the text.
func (b *tab) untilText(selector, pattern string) (text string) {
	b.t.Helper()
	match := regexp.MustCompile(pattern)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(timeout); ; {
		text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector)))
		if err == nil && match.MatchString(text) {
			return text
		}
		select {
		case <-tick.C:
		case <-limit:
			b.t.Fatalf("%s on %s: got %q (%v), want a match of %q within %v; the page:\n%s", selector, evaluate[string](b, "location.href"), text, err, pattern, timeout, b.text("main"))
		}
	}
}

// untilLive waits until the page has received live data.
func (b *tab) untilLive() {
	b.t.Helper()
	b.until(`document.getElementById('live-state')?.textContent === 'Live,'`)
}

// submit clicks an element that leads to another page, and waits for that page.
func (b *tab) submit(selector string) {
	b.t.Helper()
	if !evaluate[bool](b, fmt.Sprintf(`(() => { window.left = true; const e = document.querySelector(%q); e?.click(); return !!e })()`, selector)) {
		b.t.Fatalf("got no element %s on %s, want one to click", selector, evaluate[string](b, "location.href"))
	}
	b.until(`!window.left && document.readyState === 'complete'`)
}

// choose sets the value of a field.
func (b *tab) choose(selector, value string) {
	b.t.Helper()
	evaluate[bool](b, fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.value = %q; e.dispatchEvent(new Event('change')); return true })()`, selector, value))
}
