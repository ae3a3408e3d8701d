package browser

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// press presses the keys in their order.
func (b *tab) press(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		b.must(chromedp.KeyEvent(key))
	}
}

// openPalette presses the key "/". chromedp.KeyEvent sends the character as an event of its own, which the
// handler of the key can't prevent, as it can with a real keyboard.
func (b *tab) openPalette() {
	b.t.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		text := map[input.DispatchKeyEventType]string{input.DispatchKeyEventTypeKeyDown: "/"}[kind]
		b.must(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
			_, err := cdp.Call(ctx, target, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: "/", Text: text})
			return err
		}))
	}
	b.until(`document.getElementById('palette').open`)
}

func TestPalette_OpensResultByKeyboard(t *testing.T) {
	b, _ := openStill(t, "/settings")
	b.openPalette()
	b.press("a1", kb.ArrowDown, kb.ArrowUp)
	b.until(`document.activeElement.getAttribute('aria-activedescendant') === document.querySelector('#palette [role=option][aria-selected=true]')?.id`)
	evaluate[bool](b, `(window.left = true, true)`)
	b.press(kb.Enter)
	b.until(`!window.left && document.readyState === 'complete'`)
	if got, want := evaluate[string](b, `location.pathname + location.search`), "/console/lookup?facet=github%2Frepository&key=a1"; got != want {
		t.Errorf("page: got %s, want %s", got, want)
	}
}

func TestPalette_ClosesWithEscape(t *testing.T) {
	b, _ := openStill(t, "/settings")
	b.openPalette()
	b.press("a", kb.Escape)
	b.until(`!document.getElementById('palette').open`)
}

func TestPalette_FindsProcessOfPartition(t *testing.T) {
	b, _ := openStill(t, "/queues")
	b.openPalette()
	b.press("partition 7")
	b.untilText("#palette-0", `^Partition 7 of nexon\.update-priority-\w+: process \S+$`)
	b.press(kb.Enter)
	b.until(`location.pathname === '/console/processes' && document.readyState === 'complete'`)
}
