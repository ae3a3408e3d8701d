package console

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

//go:embed testdata/accessible.js
var accessible string

// tab is a page of a headless Chromium, and what it complained of.
type tab struct {
	t       *testing.T
	ctx     context.Context
	mu      sync.Mutex
	trouble []string
}

func newTab(t *testing.T) *tab {
	t.Helper()
	program := servicetest.Program(t, "chromium", "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	b.must(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		if _, err := cdp.Call(ctx, target, runtime.Enable, cdp.Empty{}); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, target, log.Enable, cdp.Empty{})
		return err
	}))
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	return b
}

// hear notes what a page complains of: scripts' errors, and what its policy forbids.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelVerbose {
			return // a hint for developers
		}
		b.trouble = append(b.trouble, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *runtime.EventExceptionThrown:
		b.trouble = append(b.trouble, e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.trouble = append(b.trouble, fmt.Sprint("console.", e.Type))
	}
}

func (b *tab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.trouble
	b.trouble = nil
	return all
}

func (b *tab) must(action chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if _, err := chromedp.Run(b.ctx, action); err != nil {
		b.t.Fatal(err)
	}
}

func ask[T any](b *tab, script string) T {
	b.t.Helper()
	brought, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%.200s: %v", script, err)
	}
	return brought
}

// until waits for a page to say so.
func (b *tab) until(script string) {
	b.t.Helper()
	ask[bool](b, fmt.Sprintf(`new Promise((resolve, reject) => {
		const end = Date.now() + 20000
		const look = () => (%s) ? resolve(true) : Date.now() > end ? reject(new Error('in vain')) : setTimeout(look, 30)
		look()
	})`, script))
}

func (b *tab) open(url string, width int64, theme string) {
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

// schemeFeature is what a page asks for its theme.
const schemeFeature = "prefers-color-scheme" //nolint:misspell // the word of CSS

// sights are the pages that are looked at.
var sights = []struct{ name, path string }{
	{"overview", root},
	{"look", root + "/look?facet=nexon%2Fcharacter&key=3fa8b1c2d4"},
	{"look-empty", root + "/look"},
	{"queues", root + "/queues"},
	{"limiter", root + "/limiter"},
	{"schedule", root + "/schedule"},
	{"letters", root + "/letters?source=nexon"},
	{"letter", root + "/letters/nexon/3/120"},
	{"plan", root + "/letters/plan?source=nexon&kind=REPLAY&lane=LOW&rate=50&note=after+the+outage"},
	{"job", root + "/letters/jobs/0198b2c0-0000-7000-8000-000000000001"},
	{"settings", root + "/settings"},
	{"activity", root + "/activity"},
	{"refused", root + "/nowhere"},
}

func TestEveryPageIsWellSeenInABrowser(t *testing.T) {
	r := busyFor(t, 240, weathered)
	fillRig(r)
	b := newTab(t)
	address := strings.TrimSuffix(r.serve(), root)
	asking := newRig(t)
	asking.asks = true
	login := asking.serve() + "/login?to=/console/letters"
	for _, s := range sights {
		b.see(s.name, address+s.path)
	}
	b.see("login", login)
}

// see looks at a page, wide and narrow, light and dark.
func (b *tab) see(name, url string) {
	b.t.Helper()
	for _, width := range []int64{1280, 400} {
		for _, theme := range []string{"light", "dark"} {
			at := fmt.Sprintf("%s-%d-%s", name, width, theme)
			b.open(url, width, theme)
			if dark := ask[bool](b, `matchMedia('(`+schemeFeature+`: dark)').matches`); dark != (theme == "dark") {
				b.t.Errorf("%s is not %s", at, theme)
			}
			if slices.Contains([]string{"overview", "limiter", "queues", "schedule", "settings", "job"}, name) {
				b.until(`document.getElementById('live-state').textContent === 'Live,'`)
			}
			if name == "overview" {
				b.until(`document.querySelectorAll('.uplot canvas').length === 2`)
			}
			if wide := ask[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wide > 0 {
				b.t.Errorf("%s is %d pixels too wide", at, wide)
			}
			for _, fault := range ask[[]string](b, accessible) {
				b.t.Errorf("%s: %s", at, fault)
			}
			for _, text := range b.complaints() {
				if name != "refused" || !strings.Contains(text, "404") {
					b.t.Errorf("%s complains: %s", at, text)
				}
			}
			if width == 1280 && theme == "light" {
				b.reachAll(at)
			}
			if pictures := os.Getenv("FRESHET_TEST_SCREENSHOTS"); pictures != "" {
				b.picture(filepath.Join(pictures, at+".png"), width)
			}
		}
	}
}

// picture keeps the whole page as a picture.
func (b *tab) picture(file string, width int64) {
	b.t.Helper()
	height := ask[int64](b, `document.documentElement.scrollHeight`)
	b.must(chromedp.EmulateViewport(width, height))
	b.until(`new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
	image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(file, image, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// reachAll goes through the page by the Tab key: it must reach, in their order, all that can
// be used, and show where it is.
func (b *tab) reachAll(at string) {
	b.t.Helper()
	ask[bool](b, `document.activeElement.blur(), window.reached = [], true`)
	all := ask[int](b, `(window.usable = [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex="0"]')].filter(e => e.checkVisibility())).length`)
	for range 6*all + 20 { // a field for a time has several stops
		b.must(chromedp.KeyEvent("\t"))
		if !ask[bool](b, `(() => {
			const e = document.activeElement
			if (e === document.body || window.reached.length && e === window.usable[0] && window.reached.at(-1) !== e) return false
			if (window.reached.at(-1) !== e) window.reached.push(e)
			if (getComputedStyle(e).outlineStyle === 'none') e.dataset.unseen = 'yes'
			return true
		})()`) {
			break
		}
	}
	for _, fault := range ask[[]string](b, `[
		...window.usable.filter(e => !window.reached.includes(e) && e.isConnected).map(e => 'is not reached: ' + e.outerHTML.slice(0, 100)),
		...window.reached.filter(e => e.dataset.unseen).map(e => 'has the focus unseen: ' + e.outerHTML.slice(0, 100)),
		...window.reached.filter((e, i) => i && e.isConnected && !(e.compareDocumentPosition(window.reached[i - 1]) & 2)).map(e => 'is reached out of turn: ' + e.outerHTML.slice(0, 100)),
	]`) {
		b.t.Errorf("%s: %s", at, fault)
	}
}

func TestTheColoursThatWereChosenAreThereAgainAtOnce(t *testing.T) {
	r := newRig(t)
	b := newTab(t)
	b.open(r.serve()+"/settings", 1280, "light")
	ground := func() string { return ask[string](b, `getComputedStyle(document.body).backgroundColor`) }
	light := ground()
	ask[bool](b, `(() => { const s = document.getElementById('theme'); s.value = 'dark'; s.dispatchEvent(new Event('change')); return true })()`)
	dark := ground()
	if dark == light {
		t.Error("nothing has changed")
	}
	// The script in the head has run before anything of the body is there.
	b.must(chromedp.Reload())
	if got := ground(); got != dark || ask[string](b, `document.getElementById('theme').value`) != "dark" {
		t.Errorf("%s, and it was %s", got, dark)
	}
	if !ask[bool](b, `(() => { const s = document.querySelector('script[src*="theme.js"]'); return s.parentElement === document.head && !s.defer && !s.async })()`) {
		t.Error("the page is drawn before its colours are known")
	}
	ask[bool](b, `(() => { const s = document.getElementById('theme'); s.value = ''; s.dispatchEvent(new Event('change')); return true })()`)
	if got := ground(); got != light || ask[int](b, `localStorage.length`) != 0 {
		t.Errorf("%s, and it was %s", got, light)
	}
}

func TestAPageFollowsWhatHappensAndSaysWhenItDoesNot(t *testing.T) {
	r := newRig(t)
	b := newTab(t)
	b.open(r.serve(), 1280, "light")
	b.until(`document.getElementById('live-state').textContent === 'Live,'`)
	b.until(`document.querySelector('[data-fact="state.nexon"]').textContent === 'flowing'`)
	r.mu.Lock()
	v := r.views["nexon"]
	v.State = "stopped"
	v.Policies[0].Name = "<img src=x onerror=alert(1)>"
	r.views["nexon"] = v
	r.mu.Unlock()
	b.until(`document.querySelector('[data-fact="state.nexon"]').dataset.tone === 'bad' && document.querySelector('[data-list="wrong"]').textContent.includes('stopped by hand')`)
	r.mu.Lock()
	r.revoked = true
	r.mu.Unlock()
	b.until(`document.getElementById('live-state').textContent.startsWith('Not live: load the page again') && document.body.hasAttribute('data-stale')`)
}
