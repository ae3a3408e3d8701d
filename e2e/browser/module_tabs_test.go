package browser

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// newTabs opens n tabs in one Chromium, each with the page of the module.
func newTabs(t *testing.T, n int) []*tab {
	t.Helper()
	tabs := []*tab{newTab(t)}
	for len(tabs) < n {
		tabs = append(tabs, openTab(t, tabs[0].ctx))
	}
	return tabs
}

// expiredTogether returns a handler that accepts the tokens of renewals. It rejects the old token of
// n tabs at the same time.
func expiredTogether(n int) func(int, *http.Request, http.ResponseWriter) {
	all := make(chan struct{})
	return func(i int, r *http.Request, w http.ResponseWriter) {
		if bearer(r) != oldToken {
			respond(w, http.StatusOK, freshBody)
			return
		}
		if i == n {
			close(all)
		}
		<-all
		reject(w, http.StatusUnauthorized, "token-expired")
	}
}

// readInAll lets each tab read the entity at the same time, and returns the outcomes.
func readInAll(tabs []*tab) (outcomes []string) {
	for _, b := range tabs {
		evaluate[bool](b, `(window.c ??= newClient(), true)`)
	}
	for _, b := range tabs {
		evaluate[bool](b, `(window.read = outcome(c.get(e)), true)`)
	}
	for _, b := range tabs {
		outcomes = append(outcomes, evaluate[string](b, `read`))
	}
	return outcomes
}

func TestModule_RenewsOnceForAllTabs(t *testing.T) {
	tabs := newTabs(t, 6)
	for name, prepare := range map[string]string{
		"messages arrive at once": `true`,
		"messages arrive late": `(window.BroadcastChannel = class extends BroadcastChannel {
			set onmessage(receive) { super.onmessage = message => setTimeout(() => receive(message), 100) }
		}, true)`,
	} {
		s := startService(t, expiredTogether(5))
		for _, b := range tabs {
			b.openModule(s)
			evaluate[bool](b, prepare)
		}
		if got := readInAll(tabs[:5]); !slices.Equal(got, slices.Repeat([]string{"FRESH"}, 5)) {
			t.Errorf("%s: got the outcomes %v, want FRESH in each tab", name, got)
		}
		// The last tab still has the old token. The message about the renewal was sent before this
		// tab reads the entity.
		if got := readInAll(tabs[5:]); !slices.Equal(got, []string{"FRESH"}) {
			t.Errorf("%s: got the outcomes %v in the last tab, want FRESH", name, got)
		}
		if renewals, requests := s.counts(); renewals != 1 || requests != 12 {
			t.Errorf("%s: got %d renewals and %d requests, want 1 and 12", name, renewals, requests)
		}
	}
}

func TestModule_RenewsInEachTabAlone(t *testing.T) {
	tabs := newTabs(t, 2)
	for name, prepare := range map[string]string{
		"without locks":    `(Object.defineProperty(navigator, 'locks', {value: undefined}), true)`,
		"without channels": `(window.BroadcastChannel = undefined, true)`,
		"other sessions":   `(window.c = newClient({session: Math.random().toString()}), true)`,
	} {
		s := startService(t, expiredTogether(2))
		for _, b := range tabs {
			b.openModule(s)
			evaluate[bool](b, prepare)
		}
		if got := readInAll(tabs); !slices.Equal(got, []string{"FRESH", "FRESH"}) {
			t.Errorf("%s: got the outcomes %v, want FRESH in each tab", name, got)
		}
		if renewals, _ := s.counts(); renewals != 2 {
			t.Errorf("%s: got %d renewals, want 2", name, renewals)
		}
	}
}

func TestModule_SignsOutAllTabs(t *testing.T) {
	tabs, s := newTabs(t, 3), startService(t, accepts("another"))
	for _, b := range tabs {
		b.openModule(s)
		evaluate[bool](b, `(window.c = newClient(), true)`)
	}
	if got := evaluate[string](tabs[0], `outcome(c.get(e))`); got != "SignedOut" {
		t.Errorf("got %q, want SignedOut", got)
	}
	for _, b := range tabs {
		b.until(`signOuts === 1`)
	}
	if got := readInAll(tabs); !slices.Equal(got, []string{"SignedOut", "SignedOut", "SignedOut"}) {
		t.Errorf("outcomes after the sign-out: got %v, want SignedOut in each tab", got)
	}
	if renewals, requests := s.counts(); renewals != 1 || requests != 2 {
		t.Errorf("got %d renewals and %d requests, want 1 and 2", renewals, requests)
	}
	evaluate[bool](tabs[2], `(c.setToken({value: 'another'}), true)`)
	evaluate[bool](tabs[0], `(async () => {
		while (await outcome(c.get(e)) !== 'FRESH') await new Promise(resolve => setTimeout(resolve, 10))
		return true
	})()`)
}

// Each case has a failure of the renewal. Two tabs request the renewal at the same time.
func TestModule_SharesAFailureBetweenTabs(t *testing.T) {
	tabs := newTabs(t, 2)
	for name, row := range map[string]struct {
		statuses []int
		want     string
		renewals int
	}{
		"network failures":  {[]int{0, 0}, "RenewalFailed", 2},
		"a refused renewal": {[]int{http.StatusForbidden}, "SignedOut", 1},
	} {
		s := startService(t, expiredTogether(2))
		s.issue = issuing(row.statuses...)
		for _, b := range tabs {
			b.openModule(s)
		}
		if got := readInAll(tabs); !slices.Equal(got, []string{row.want, row.want}) {
			t.Errorf("%s: got %v, want %s in each tab", name, got, row.want)
		}
		if got, _ := s.counts(); got != row.renewals {
			t.Errorf("%s: got %d renewals, want %d", name, got, row.renewals)
		}
	}
}

func TestModule_WatchContinuesAfterTheLastEvent(t *testing.T) {
	b := newTab(t)
	s := startService(t, func(n int, r *http.Request, w http.ResponseWriter) {
		switch {
		case bearer(r) == oldToken:
			reject(w, http.StatusUnauthorized, "token-expired")
		case n == 3:
			reject(w, http.StatusServiceUnavailable, "store-unavailable")
		default:
			respond(w, http.StatusOK, fmt.Sprintf(": alive\n\nretry: 1\n\nid: %d.a\nevent: changed\ndata: {\"freshness\":\"FRESH\"}\n\nid: lost", n), "Content-Type", "text/event-stream")
		}
	})
	b.openModule(s)
	got := evaluate[[]string](b, `(async () => {
		const stop = new AbortController(), seen = []
		try {
			for await (const event of newClient().watch(e, {signal: stop.signal, onReconnect: error => seen.push(error?.code ?? 'end')})) {
				seen.push(event.id + event.type + event.freshness)
				if (event.id === '4.a') stop.abort()
			}
		} catch (error) { seen.push(error.name) }
		return seen
	})()`)
	if want := []string{"2.achangedFRESH", "end", "store-unavailable", "4.achangedFRESH", "AbortError"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := s.header("Last-Event-Id"); !slices.Equal(got, []string{"", "", "2.a", "2.a"}) {
		t.Errorf("Last-Event-ID: got %q, want the last event in each reconnect", got)
	}
	if got := s.header("Authorization"); got[1] != "Bearer token-1" {
		t.Errorf("second request: got %q, want the token of the renewal", got[1])
	}
}

func TestModule_ShowsNoToken(t *testing.T) {
	b := newTab(t)
	expired, unavailable := accepts("none"), failing(99, http.StatusServiceUnavailable, "store-unavailable")
	for name, answer := range map[string]func(int, *http.Request, http.ResponseWriter){
		"expired": expired, "invalid": failing(9, http.StatusUnauthorized, "token-invalid"), "unavailable": unavailable,
		"broken": func(_ int, _ *http.Request, w http.ResponseWriter) { abort(w) },
		"a page": func(_ int, _ *http.Request, w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") },
	} {
		s := startService(t, answer)
		b.openModule(s)
		text := evaluate[string](b, `(async () => {
			const token = '`+oldToken+`', texts = [], delay = setTimeout
			window.setTimeout = (f, ms) => delay(f, ms / 100)
			for (const failure of [new Error('the issuer rejects ' + token), new freshet.SignedOut('the issuer rejects ' + token)]) {
				const c = newClient({renew: () => { throw failure }})
				const stop = new AbortController(), follow = () => c.watch(e, {signal: stop.signal, onReconnect: error => stop.abort(error)}).next()
				for (const call of [() => c.get(e), () => c.getMany('nexon', 'character', ['a']), () => c.refresh(e), follow]) {
					const error = await call().catch(error => error)
					texts.push(error.stack, ...Object.getOwnPropertyNames(error).map(name => String(error[name])))
				}
				texts.push(JSON.stringify(c), String(c), JSON.stringify(Object.keys(c)))
			}
			try { newClient({token: {value: token + '\n'}}) } catch (error) { texts.push(String(error), error.stack) }
			texts.push(JSON.stringify({...localStorage, ...sessionStorage}), document.cookie, location.href)
			texts.push(...performance.getEntriesByType('resource').map(r => r.name))
			return texts.join('\n')
		})()`)
		text += strings.Join(b.takeLogged(), "\n")
		if strings.Contains(text, oldToken) {
			t.Errorf("%s: got the token in the texts, want it in none:\n%s", name, text)
		}
		if !strings.Contains(text, "/v1/nexon/character/somebody") {
			t.Errorf("%s: got no URL of a request in the texts, want one:\n%s", name, text)
		}
	}
}

// The console serves the module, so a page of the query service can import it.
func TestModule_UsesAQueryService(t *testing.T) {
	b := newTab(t)
	d := startDev(t, "--no-demo")
	b.open(d.url + "/livez")
	got := evaluate[[]string](b, `(async () => {
		const {Client} = await import('/console/assets/freshet.js')
		const c = new Client('/'), e = {source: 'nexon', facet: 'character', key: 'somebody'}, seen = []
		const first = await c.get(e, {wait: 20}), second = await c.get(e)
		seen.push(first.freshness, second.freshness, String(JSON.stringify(first.snapshot) === JSON.stringify(second.snapshot)))
		seen.push(...(await c.getMany('nexon', 'character', ['somebody', 'x'.repeat(101)])).map(item => item.key.slice(0, 8) + item.status))
		for await (const event of c.watch(e)) {
			seen.push(event.type)
			if (event.type === 'checked') break
			seen.push((await c.refresh(e, {wait: 20})).freshness)
		}
		return seen
	})()`)
	if want := []string{"FRESH", "FRESH", "true", "somebody200", "xxxxxxxx400", "changed", "FRESH", "checked"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := d.metric("http_request_duration_seconds_count", `status="304"`); got != 1 {
		t.Errorf("got %v responses 304, want 1", got)
	}
}

func TestModule_HasTheDeclaredTypes(t *testing.T) {
	b, s := newTab(t), startService(t, nil)
	b.openModule(s)
	text, err := os.ReadFile("../../client/js/freshet.d.ts")
	if err != nil {
		t.Fatal(err)
	}
	declared := []string{"constructor"}
	for _, m := range regexp.MustCompile(`(?m)^export class (\w+)|^  (\w+)(?:<.*>)?\(.*\): `).FindAllStringSubmatch(string(text), -1) {
		declared = append(declared, m[1]+m[2])
	}
	slices.Sort(declared)
	got := evaluate[[]string](b, `[...Object.keys(freshet), ...Object.getOwnPropertyNames(freshet.Client.prototype)].sort()`)
	if !slices.Equal(got, declared) {
		t.Errorf("got the names %q, want the names in freshet.d.ts: %q", got, declared)
	}
}
