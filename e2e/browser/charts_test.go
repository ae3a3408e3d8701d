package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const callsOfNexon = `document.querySelector('[data-chart="calls"][data-source="nexon"]')`

// openChart opens the overview and waits until the chart of the calls of nexon is drawn.
func openChart(t *testing.T) *tab {
	t.Helper()
	b, _ := openStill(t, "")
	b.until(callsOfNexon + `?.hasAttribute('aria-valuetext')`)
	return b
}

func TestChart_KeysMoveTheCursor(t *testing.T) {
	b := openChart(t)
	evaluate[bool](b, `(`+callsOfNexon+`.focus(), true)`)
	for _, step := range []struct{ name, key, want string }{
		{"End", kb.End, "12:00:30: "},
		{"left", kb.ArrowLeft, "12:00:25: "},
		{"right", kb.ArrowRight, "12:00:30: "},
		{"right at the end", kb.ArrowRight, "12:00:30: "},
		{"page down", kb.PageDown, "11:55:30: "},
		{"page up", kb.PageUp, "12:00:30: "},
		{"Home", kb.Home, "11:00:35: "},
		{"left at the start", kb.ArrowLeft, "11:00:35: "},
	} {
		b.must(chromedp.KeyEvent(step.key))
		if got := evaluate[string](b, callsOfNexon+`.getAttribute('aria-valuetext')`); !strings.HasPrefix(got, step.want) {
			t.Errorf("%s: got %q, want the sample of %s", step.name, got, step.want)
		}
	}
}

// The label of a mark begins where its period begins. A label that ends there would cover another label.
func TestChart_LabelsBeginAtTheirMarks(t *testing.T) {
	b := openChart(t)
	got := evaluate[map[string]string](b, `new Promise(resolve => {
		const drawn = {}, of = `+callsOfNexon+`.querySelector('canvas'), { fillText } = CanvasRenderingContext2D.prototype
		CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
			if (this.canvas === of) drawn[text] = this.textAlign
			return fillText.call(this, text, ...at)
		}
		freshetCharts.redraw()
		requestAnimationFrame(() => resolve(drawn))
	})`)
	for _, label := range []string{"backoff", "stopped", "settings", "start"} {
		if got[label] != "left" {
			t.Errorf("alignment of the label %q: got %q, want left (all labels: %v)", label, got[label], got)
		}
	}
}

func TestChart_TextNamesTheValues(t *testing.T) {
	b := openChart(t)
	const want = "12:00:30: 2xx "
	if got := b.text(`[data-chart="calls"][data-source="nexon"] + .values`); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, " a second; allowed 450") {
		t.Errorf("text below the chart: got %q, want %q … %q", got, want, "a second; allowed 450")
	}
}

func TestChart_GapIsUnknown(t *testing.T) {
	b := openChart(t)
	evaluate[bool](b, `(`+callsOfNexon+`.focus(), true)`)
	for range 4 { // each press moves the keyboard cursor back by 5 min, so that it ends 20 min before the newest sample
		b.must(chromedp.KeyEvent(kb.PageDown))
	}
	if got, want := evaluate[string](b, callsOfNexon+`.getAttribute('aria-valuetext')`), "11:40:30: 2xx"; !strings.HasPrefix(got, want) {
		t.Errorf("after the gap: got %q, want %q first", got, want)
	}
	b.must(chromedp.KeyEvent(kb.PageDown)) // now the keyboard cursor of the chart is at 11:35:30
	for range 12 {
		b.must(chromedp.KeyEvent(kb.ArrowRight)) // after the last press the cursor is at 11:36:30
	}
	if got, want := evaluate[string](b, callsOfNexon+`.getAttribute('aria-valuetext')`), "11:36:30: unknown; allowed unknown"; got != want {
		t.Errorf("in the gap: got %q, want %q", got, want)
	}
}

// The hour of data stays complete when the stream connects again and sends all samples once more.
func TestChart_KeepsSamplesAfterReconnect(t *testing.T) {
	b := openChart(t)
	const count = callsOfNexon + `.getAttribute('aria-valuemax')`
	before := evaluate[string](b, count)
	evaluate[bool](b, `(dispatchEvent(new Event('pagehide')), dispatchEvent(new Event('pageshow')), true)`)
	b.until(`document.getElementById('live-state').textContent === 'Live,'`)
	if got := evaluate[string](b, count); got != before {
		t.Errorf("highest index of a sample: got %s, want %s", got, before)
	}
}
