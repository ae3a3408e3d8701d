package main

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// viewer is somebody at the console of a running dev.
type viewer struct {
	*dev
	ctx context.Context
}

func (v viewer) open(path string) {
	v.Helper()
	if _, err := chromedp.Run(v.ctx, chromedp.Navigate(v.api+path)); err != nil {
		v.Fatalf("open %s: %v", path, err)
	}
}

// says returns the text of an element; empty if there is none.
func (v viewer) says(selector string) string {
	v.Helper()
	return script[string](v.ctx, v.T, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
}

// until waits until an element says what matches.
func (v viewer) until(selector, pattern string) string {
	v.Helper()
	match := regexp.MustCompile(pattern)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for limit := time.After(patience); ; {
		text, err := chromedp.Run(v.ctx, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector)))
		if err == nil && match.MatchString(text) { // while a page is loaded anew, as that of a job that ends, there is nobody to ask
			return text
		}
		select {
		case <-look.C:
		case <-limit:
			v.Fatalf("%s does not say %q on %s:\n%s", selector, pattern, script[string](v.ctx, v.T, "location.href"), v.says("main"))
		}
	}
}

// press clicks what leads to another page, and waits for that.
func (v viewer) press(selector string) {
	v.Helper()
	found := script[bool](v.ctx, v.T, fmt.Sprintf(`(() => { window.pressed = true; const e = document.querySelector(%q); e?.click(); return !!e })()`, selector))
	if !found {
		v.Fatalf("there is no %s on %s", selector, script[string](v.ctx, v.T, "location.href"))
	}
	within(v, patience, "the page behind "+selector, func() bool {
		gone, err := chromedp.Run(v.ctx, chromedp.Evaluate[bool](`!window.pressed && document.readyState === "complete"`))
		return err == nil && gone // while it is loaded nothing can be asked
	})
}

func (v viewer) set(selector, value string) {
	v.Helper()
	script[bool](v.ctx, v.T, fmt.Sprintf(`(() => { document.querySelector(%q).value = %q; return true })()`, selector, value))
}

// weather presses the button of a weather on the overview.
func (v viewer) weather(name string) {
	v.Helper()
	v.open("/console")
	v.press(`button[value="` + name + `"]`)
}

// The four questions of an operator are answered by named elements, and every act of the
// console does what it says, on a running dev.
func TestTheConsoleAnswersAndActsOnARunningDev(t *testing.T) {
	d := startDev(t)
	v := viewer{d, browser(t, d.api+"/console")}

	// What is the budget doing? Everything moves within ten seconds.
	v.until("#budget-says", `nexon uses [\d.]+ of 450 calls a second \(HIGH [\d.]+, LOW [\d.]+\); .* calls of the day are left for .*; nothing brakes it\.`)
	v.until("#wrong", "Nothing is wrong")
	within(t, patience, "calls in both lanes", func() bool {
		return d.sum("rate_limiter_acquired_total", `"HIGH"`) > 0 && d.sum("rate_limiter_acquired_total", `"LOW"`) > 0
	})

	// Why is this key stale? Look it up, and have it refreshed.
	v.until("[data-rows='reads']", `nexon`)
	v.open("/console/look?facet=nexon/character&key=somebody")
	v.until("#why-stale", "Nothing is stored")
	v.press(`form[action="/console/look"][method=post] button`)
	v.until("#told", "A refresh is queued")
	within(t, patience, "an answer to the refresh", func() bool {
		v.open("/console/look?facet=nexon/character&key=somebody")
		return strings.Contains(v.says("#why-stale"), "Checked")
	})

	// What is prefetched, and what comes round?
	v.open("/console/schedule")
	v.until("[data-fact='schedule.nexon']", `A scheduler looked .* LOW spends [\d.]+ calls a second of the [\d.]+ that it may\. Prefetching may feed it [\d.]+ a second\..* has asked for \d+ entit`)
	v.until("[data-rows='tiers.nexon']", `character\s+hot\s+[\d,]+\s+every 1 min\s+\d+\s+`)
	v.until("[data-rows='rounds.nexon']", `retries of what has failed\s+\d+\s`)
	v.until("[data-rows='schedulers.nexon']", `(just now|\d+ s ago)\s+100 %`)

	// Break the upstream, and watch the brake.
	v.weather("storm")
	v.open("/console/limiter")
	v.until("#budget-says", "it is braked until .*, because the upstream refused calls")
	v.open("/console")
	v.until("#wrong", "needs? a look")

	// What died since yesterday, and why?
	v.weather("poisoned")
	within(t, 2*patience, "dead letters", func() bool {
		for i := range 5 {
			d.read(fmt.Sprintf("poisoned-%d3", i))
		}
		return d.sum("settled_total", `"dead_letter"`) >= 3
	})
	v.open("/console/letters?source=nexon")
	v.until("#died-since-yesterday", `(?s)requests? died since yesterday.*UPSTREAM_4XX.*takes the request itself for wrong.*OPENAPI00004`)

	// Is it safe to replay? Not before its cause is mended; then it is done.
	safe := v.until("#safe-to-replay", "^(Not yet|No)")
	if !strings.Contains(safe, "would come back unless") {
		t.Error(safe)
	}
	v.weather("well")
	within(t, 2*patience, "calls that flow", func() bool { return d.view().State == "flowing" })
	v.open("/console/letters?source=nexon&reason=UPSTREAM_4XX")
	v.set("#note", "the keys are accepted again")
	v.press(`form[action="/console/letters/plan"] button`)
	open := v.until("#plan-count", `^\d+$`)
	v.press(`form[action="/console/letters/start"] button`)
	v.until("#job-progress", open+" of "+open+" replayed")
	within(t, patience, "the end of what was dead", func() bool {
		r := d.read("poisoned-03")
		return r.status == http.StatusOK
	})
	v.open("/console/letters?source=nexon&handled=replayed")
	v.until("#h-groups", "chosen, by cause")

	// Stop, and go on.
	v.open("/console/settings")
	v.set("#halt-nexon", "to be tried")
	v.press(`form[action="/console/settings/nexon/stop"] button`)
	v.open("/console")
	v.until("#wrong", "needs? a look")
	v.until("#budget-says", "stopped")
	v.open("/console/settings")
	v.press(`form[action="/console/settings/nexon/resume"] button`)
	v.open("/console")
	v.until("#budget-says", `nothing brakes it|comes back`)

	// Who did all that?
	v.open("/console/activity")
	text := v.says("main")
	for _, act := range []string{"stopped the source", "resumed the source", "to be tried", "ordered a replay", "had a replay done", "the keys are accepted again", "unauthenticated@127.0.0.1"} {
		if !strings.Contains(text, act) {
			t.Errorf("the activity has no %q: %s", act, text)
		}
	}
	for _, path := range []string{"/console/queues", "/console/limiter"} {
		v.open(path)
		v.until("h1", ".")
	}
}
