package console

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/freshet/freshet/store"
)

func TestAStreamThatIsRefusedIsTriedAgainAndThePageSaysThatItIsOld(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	var leave []func()
	for range viewersOfOne {
		l, ok := r.viewers.come("unauthenticated@127.0.0.1")
		if !ok {
			t.Fatal("no place")
		}
		leave = append(leave, l)
	}
	b := newTab(t)
	b.open(r.serve()+"/limiter", 1280, "light")
	b.until(`document.body.hasAttribute('data-stale')`)
	if text := ask[string](b, `document.querySelector('.as-of').textContent`); !strings.Contains(text, "Not live") {
		t.Error(text)
	}
	for _, l := range leave {
		l()
	}
	b.until(`document.getElementById('live-state').textContent === 'Live,' && !document.body.hasAttribute('data-stale')`)
}

func TestAnItemOfAListThatIsAsItWasIsLeftAlone(t *testing.T) {
	r := busyFor(t, 2)
	fillRig(r)
	b := newTab(t)
	b.open(r.serve(), 1280, "light")
	next := func() {
		ask[bool](b, `(window.was = document.getElementById('live-at').textContent, true)`)
		b.until(`document.getElementById('live-at').textContent !== window.was`)
	}
	const steady = `[...document.querySelectorAll('[data-list] li')].find(e => e.textContent.startsWith('github: its LOW lane is 26 min behind'))`
	b.until(steady)
	next() // the first comes to a page that was made without the script
	ask[bool](b, `(window.item = `+steady+`, true)`)
	next()
	next()
	if !ask[bool](b, `window.item.isConnected`) {
		t.Error("it is made anew each second, under the eyes of who reads it")
	}
}

func TestAPageOfAJobIsLoadedAnewWhenTheJobEnds(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	b := newTab(t)
	b.open(r.serve()+"/letters/jobs/"+r.jobs[0].ID+"?said=started", 1280, "light")
	b.until(`document.getElementById('live-state').textContent === 'Live,'`)
	if got := ask[string](b, `location.search + document.querySelector('.said').textContent`); got != "The job is ordered." {
		t.Errorf("%q: it is said again with each load", got)
	}
	r.mu.Lock()
	r.jobs[0].State, r.jobs[0].EndedAt = store.JobDone, then
	r.mu.Unlock()
	until(t, "the page tells when it ended", func() bool {
		there, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.readyState === 'complete' && [...document.querySelectorAll('dt')].some(e => e.textContent === 'Ended')`))
		return err == nil && there // while it is loaded there is nobody to ask
	})
	if ask[bool](b, `!!document.querySelector('form[action$="/stop"]') || !!document.querySelector('.said')`) {
		t.Error("a job that has ended is offered to be stopped")
	}
}
