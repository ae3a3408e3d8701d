package browser

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// accessible is a script that returns the accessibility faults of the page.
//
//go:embed testdata/accessible.js
var accessible string

var screenshots = flag.String("screenshots", "", "write a picture of every page of the console to this absolute path of a folder")

// pages are the pages of "busy", a console with fake data. The field live is true for pages that
// receive live data.
var pages = []struct {
	name, path string
	live       bool
}{
	{"overview", "", true},
	{"look", "/lookup?facet=nexon%2Fcharacter&key=3fa8b1c2d4", false},
	{"look-empty", "/lookup", false},
	{"items", "/items?facet=nexon%2Fcharacter", false},
	{"calls", "/calls", true},
	{"clients", "/clients", false},
	{"client", "/clients/account?client=key%3A0199c8a06f3e+a-partner", false},
	{"processes", "/processes", true},
	{"queues", "/queues", true},
	{"limiter", "/limiter", true},
	{"schedule", "/schedule", true},
	{"runs", "/runs", false},
	{"run", "/runs/0198b2c0-0000-7000-8000-0000000000aa", false},
	{"collection", "/collection?facet=nexon%2Fcharacter&key=3fa8b1c2d4&item=3", false},
	{"dlq", "/dlq?source=nexon", false},
	{"dead-letter", "/dlq/nexon/3/120", false},
	{"plan", "/dlq/plan?source=nexon&kind=REPLAY&lane=LOW&rate=50&note=after+the+outage", false},
	{"job", "/dlq/jobs/0198b2c0-0000-7000-8000-000000000001", true},
	{"settings", "/settings", true},
	{"activity", "/activity", false},
	{"refused", "/nowhere", false},
}

// TestPages_AreAccessible opens every page in a wide and a narrow window, in the light and the dark
// theme. With -screenshots it writes <page>-<width>-<theme>.png.
func TestPages_AreAccessible(t *testing.T) {
	b := newTab(t)
	consoles := startConsoles(t)
	for _, p := range pages {
		b.inspect(p.name, consoles["busy"]+p.path, p.live)
	}
	b.inspect("login", consoles["login"]+"/login?to=/console/dlq", false)
}

// inspect opens a page and reports each of its accessibility faults and logged messages.
func (b *tab) inspect(name, url string, live bool) {
	b.t.Helper()
	for _, width := range []int64{1280, 400} {
		for _, theme := range []string{"light", "dark"} {
			at := fmt.Sprintf("%s-%d-%s", name, width, theme)
			b.openAs(url, width, theme)
			if got := evaluate[bool](b, `matchMedia('(`+schemeFeature+`: dark)').matches`); got != (theme == "dark") {
				b.t.Errorf("%s: got dark=%t, want %t", at, got, theme == "dark")
			}
			if live {
				b.untilLive()
			}
			if name == "overview" {
				b.until(`document.querySelectorAll('.uplot canvas').length === 12`)
			}
			if got := evaluate[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); got > 0 {
				b.t.Errorf("%s: got a page %d pixels wider than the window, want 0", at, got)
			}
			b.inspectContent(at)
			if name == "overview" {
				evaluate[bool](b, `(document.querySelector('main .what').click(), true)`)
				b.inspectContent(at + " with an open definition")
				evaluate[bool](b, `(document.querySelector('.term:popover-open').hidePopover(), document.getElementById('palette-open').click(), true)`)
				b.inspectContent(at + " with an open palette")
				evaluate[bool](b, `(document.getElementById('palette').close(), true)`)
			}
			for _, text := range b.takeLogged() {
				if name != "refused" || !strings.Contains(text, "404") {
					b.t.Errorf("%s: the page logged %q, want nothing", at, text)
				}
			}
			if theme == "light" && (width == 1280 || *screenshots != "") { // a narrow page has the same elements in the same order
				b.inspectTabKey(at)
			}
			if *screenshots != "" {
				b.screenshot(filepath.Join(*screenshots, at+".png"), width)
			}
		}
	}
}

// inspectContent reports the accessibility faults of the page as it is.
func (b *tab) inspectContent(at string) {
	b.t.Helper()
	for _, fault := range append(evaluate[[]string](b, accessible), b.findWithAxe()...) {
		b.t.Errorf("%s: %s", at, fault)
	}
}

// screenshot writes a picture of the whole page.
func (b *tab) screenshot(file string, width int64) {
	b.t.Helper()
	height := evaluate[int64](b, `document.documentElement.scrollHeight`)
	b.must(chromedp.EmulateViewport(width, height))
	evaluate[bool](b, `new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
	image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(file, image, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// inspectTabKey presses the Tab key repeatedly. The focus must reach every link, button and field
// in the order of the page. Each element must be visibly marked while it has the focus.
func (b *tab) inspectTabKey(at string) {
	b.t.Helper()
	evaluate[bool](b, `document.activeElement.blur(), window.reached = [], true`)
	all := evaluate[int](b, `(window.usable = [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex="0"]')].filter(e => e.checkVisibility())).length`)
	for range 6*all + 20 { // press Tab more often than there are elements: an input field for a time takes several Tab presses
		b.must(chromedp.KeyEvent("\t"))
		if !evaluate[bool](b, `(() => {
			const e = document.activeElement
			if (e === document.body || window.reached.length && e === window.usable[0] && window.reached.at(-1) !== e) return false
			if (window.reached.at(-1) !== e) window.reached.push(e)
			if (getComputedStyle(e).outlineStyle === 'none') e.dataset.unseen = 'yes'
			return true
		})()`) {
			break
		}
	}
	for _, fault := range evaluate[[]string](b, `[
		...window.usable.filter(e => !window.reached.includes(e) && e.isConnected).map(e => 'is not reached: ' + e.outerHTML.slice(0, 100)),
		...window.reached.filter(e => e.dataset.unseen).map(e => 'does not show its focus: ' + e.outerHTML.slice(0, 100)),
		...window.reached.filter((e, i) => i && e.isConnected && window.reached[i - 1].isConnected && !(e.compareDocumentPosition(window.reached[i - 1]) & 2)).map(e => 'is reached out of order: ' + e.outerHTML.slice(0, 100)),
	]`) {
		b.t.Errorf("%s: the Tab key: %s", at, fault)
	}
}

// background returns the colour of the page's background.
func (b *tab) background() string {
	b.t.Helper()
	return evaluate[string](b, `getComputedStyle(document.body).backgroundColor`)
}

func TestTheme_IsKeptAfterReload(t *testing.T) {
	b := newTab(t)
	b.open(startConsoles(t)["still"] + "/settings")
	light := b.background()
	b.choose("#theme", "dark")
	dark := b.background()
	if dark == light {
		t.Errorf("background after the choice of dark: got %s, want another than the light one", dark)
	}
	b.must(chromedp.Reload())
	if got := b.background(); got != dark {
		t.Errorf("background after a reload: got %s, want %s", got, dark)
	}
	if got := evaluate[string](b, `document.getElementById('theme').value`); got != "dark" {
		t.Errorf("chosen theme after a reload: got %q, want dark", got)
	}
}

// A script in the page's head sets the theme before any content is drawn. A dark page therefore
// never appears light for a moment.
func TestTheme_IsSetBeforeContentIsDrawn(t *testing.T) {
	b := newTab(t)
	b.open(startConsoles(t)["still"] + "/settings")
	got := evaluate[[]string](b, `(() => {
		const s = document.querySelector('script[src*="theme.js"]')
		return [s.parentElement.tagName, String(s.defer), String(s.async)]
	})()`)
	if want := []string{"HEAD", "false", "false"}; !slices.Equal(got, want) {
		t.Errorf("parent, defer and async of the script: got %v, want %v", got, want)
	}
}

func TestTheme_FollowsSystemAgain(t *testing.T) {
	b := newTab(t)
	b.open(startConsoles(t)["still"] + "/settings")
	light := b.background()
	b.choose("#theme", "dark")
	b.choose("#theme", "")
	if got := b.background(); got != light {
		t.Errorf("background: got %s, want %s", got, light)
	}
	if got := evaluate[int](b, `localStorage.length`); got != 0 {
		t.Errorf("items in localStorage: got %d, want 0", got)
	}
}
