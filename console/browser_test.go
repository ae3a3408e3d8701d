package console

import (
	"context"
	_ "embed"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/freshet/freshet/limiter"
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
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
		})
		return err
	}))
	if _, err := chromedp.Run(b.ctx, chromedp.Navigate(url)); err != nil {
		b.t.Fatalf("open %s: %v", url, err)
	}
}

// busy has the rig's time pass, and its limiter count, as in an installation at work; the
// charts have some minutes to show.
func busy(t *testing.T, changes ...func(*Needs)) *rig {
	var mu sync.Mutex
	var before time.Duration
	began := time.Now()
	passed := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return before + time.Since(began)
	}
	r := newRig(t, append(changes, func(n *Needs) { n.Clock = func() time.Time { return then.Add(passed() - 4*time.Minute) } })...)
	r.view = func(source string) limiter.View {
		if source == "github" {
			return brakedView(passed() - 4*time.Minute)
		}
		return wavyView(passed() - 4*time.Minute)
	}
	for range 240 {
		r.sampler.look(t.Context())
		mu.Lock()
		before += time.Second
		mu.Unlock()
	}
	return r
}

// sights are the pages that are looked at.
var sights = []struct{ name, path string }{
	{"overview", root},
	{"look", root + "/look?facet=nexon%2Fcharacter&key=3fa8b1c2d4"},
	{"look-empty", root + "/look"},
	{"queues", root + "/queues"},
	{"limiter", root + "/limiter"},
	{"letters", root + "/letters?source=nexon"},
	{"letter", root + "/letters/nexon/3/120"},
	{"plan", root + "/letters/plan?source=nexon&kind=REPLAY&lane=LOW&rate=50&note=after+the+outage"},
	{"job", root + "/letters/jobs/0198b2c0-0000-7000-8000-000000000001"},
	{"settings", root + "/settings"},
	{"activity", root + "/activity"},
	{"refused", root + "/nowhere"},
}

func TestEveryPageIsWellSeenInABrowser(t *testing.T) {
	r := busy(t, weathered)
	fillRig(r)
	server := httptest.NewServer(r)
	t.Cleanup(func() {
		server.CloseClientConnections() // those that watch
		server.Close()
	})
	b := newTab(t)
	pictures := os.Getenv("FRESHET_TEST_SCREENSHOTS")
	for _, s := range sights {
		for _, width := range []int64{1280, 400} {
			for _, theme := range []string{"light", "dark"} {
				at := fmt.Sprintf("%s-%d-%s", s.name, width, theme)
				b.open(server.URL+s.path, width, theme)
				if s.name == "overview" || s.name == "limiter" || s.name == "queues" || s.name == "job" {
					b.until(`document.getElementById('live-state').textContent === 'Live,'`)
				}
				if s.name == "overview" {
					b.until(`document.querySelectorAll('.uplot canvas').length === 2`)
				}
				if wide := ask[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wide > 0 {
					t.Errorf("%s is %d pixels too wide", at, wide)
				}
				for _, fault := range ask[[]string](b, accessible) {
					t.Errorf("%s: %s", at, fault)
				}
				for _, text := range b.complaints() {
					if s.name != "refused" || !strings.Contains(text, "404") {
						t.Errorf("%s complains: %s", at, text)
					}
				}
				if pictures != "" {
					b.picture(filepath.Join(pictures, at+".png"), width)
				}
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
