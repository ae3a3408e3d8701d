package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/freshet/freshet/client/js"
)

const (
	oldToken  = "a-token-that-must-not-be-shown"
	freshBody = `{"snapshot":{"basic":{"level":7}},"freshness":"FRESH","lastUpdatedAt":"2026-11-20T20:37:53.5Z","lastCheckedAt":"2026-11-20T20:38:00Z"}`
)

// modulePage loads the module. newClient returns a client of the service with an expired token, and
// with a timeout that is long enough if delays pass 100 times as fast. outcome describes a result or
// an error in one word.
const modulePage = `<!doctype html><title>module</title><link rel="icon" href="data:,"><script type="module">
import * as freshet from '/freshet.js'
const renew = async () => {
	const response = await fetch('/renew', {method: 'POST'})
	if (response.status === 403) throw new freshet.SignedOut()
	return response.json()
}
const e = {source: 'nexon', facet: 'character', key: 'somebody'}
const newClient = options => new freshet.Client('/', {timeout: 1000, token: {value: '` + oldToken + `'}, renew, onSignedOut: () => { window.signOuts++ }, ...options})
const outcome = promise => promise.then(r => r.freshness ?? r.length, e => e.name === 'Problem' ? e.code : e.name)
Object.assign(window, {freshet, e, newClient, outcome, signOuts: 0, ready: true})
</script>`

// service is a query service and an issuer of tokens, of the same origin as the page.
type service struct {
	*httptest.Server
	answer func(n int, r *http.Request, w http.ResponseWriter) // n counts the requests from 1
	issue  func(n int, w http.ResponseWriter)                  // n counts the renewals from 1; nil: renewal n returns the token "token-n"

	mu       sync.Mutex
	requests []*http.Request
	renewals int
}

func startService(t *testing.T, answer func(n int, r *http.Request, w http.ResponseWriter)) *service {
	t.Helper()
	s := &service{answer: answer}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, modulePage) })
	mux.HandleFunc("GET /freshet.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = w.Write(js.Module)
	})
	mux.HandleFunc("POST /renew", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		s.renewals++
		n := s.renewals
		s.mu.Unlock()
		if s.issue != nil {
			s.issue(n, w)
			return
		}
		_, _ = fmt.Fprintf(w, `{"value":"token-%d"}`, n)
	})
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r)
		n := len(s.requests)
		s.mu.Unlock()
		s.answer(n, r, w)
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// counts returns two numbers: renewals, and other requests.
func (s *service) counts() (renewals, requests int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewals, len(s.requests)
}

// header returns the values of a header in all requests.
func (s *service) header(name string) (values []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		values = append(values, r.Header.Get(name))
	}
	return values
}

// openModule opens a page with the module.
func (b *tab) openModule(s *service) {
	b.t.Helper()
	b.open(s.URL)
	b.until(`window.ready === true`)
}

func respond(w http.ResponseWriter, status int, body string, header ...string) {
	w.Header().Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func reject(w http.ResponseWriter, status int, code string, header ...string) {
	respond(w, status, fmt.Sprintf(`{"title":"t","status":%d,"detail":"some detail","code":%q}`, status, code), header...)
}

// abort closes the connection in the middle of a response. Chromium itself would repeat a request
// whose connection is lost before the response.
func abort(w http.ResponseWriter) {
	respond(w, http.StatusOK, "{", "Content-Length", "100")
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func bearer(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// accepts returns a handler that accepts one token, and rejects every other token as expired.
func accepts(token string) func(int, *http.Request, http.ResponseWriter) {
	return func(_ int, r *http.Request, w http.ResponseWriter) {
		if bearer(r) != token {
			reject(w, http.StatusUnauthorized, "token-expired")
			return
		}
		respond(w, http.StatusOK, freshBody)
	}
}

// failing returns a handler that rejects the first n requests.
func failing(n, status int, code string, header ...string) func(int, *http.Request, http.ResponseWriter) {
	return func(i int, _ *http.Request, w http.ResponseWriter) {
		if i <= n {
			reject(w, status, code, header...)
			return
		}
		respond(w, http.StatusOK, freshBody)
	}
}

func conditional(_ int, r *http.Request, w http.ResponseWriter) {
	if r.Header.Get("If-None-Match") == `W/"a"` {
		respond(w, http.StatusNotModified, "", "ETag", `W/"a"`, "Cache-Control", "max-age=5, private", "Age", "3")
		return
	}
	respond(w, http.StatusOK, freshBody, "ETag", `W/"a"`)
}

// issuing returns an issuer that responds to renewal n with the given status, where 0 closes the
// connection. Further renewals return a token.
func issuing(statuses ...int) func(int, http.ResponseWriter) {
	return func(n int, w http.ResponseWriter) {
		switch {
		case n > len(statuses):
			_, _ = fmt.Fprintf(w, `{"value":"token-%d"}`, n)
		case statuses[n-1] == 0:
			abort(w)
		default:
			w.WriteHeader(statuses[n-1])
		}
	}
}

// Each case tests one rule of the module. It has a script for one tab, the expected result, and the
// expected numbers of renewals and requests. Delays pass 100 times as fast.
func TestModule_Rules(t *testing.T) {
	b := newTab(t)
	var firstKey string // idempotency key of the first refresh
	const get, again = `await outcome(c.get(e))`, `[await outcome(c.get(e)), await outcome(c.get(e))].join()`
	for _, row := range []struct {
		name               string
		answer             func(int, *http.Request, http.ResponseWriter)
		issue              func(int, http.ResponseWriter)
		script, want       string
		renewals, requests int
	}{
		{"an expired token is renewed", accepts("token-1"), nil, get, "FRESH", 1, 2},
		{"five requests renew once", accepts("token-1"), nil, `(await Promise.all([1, 2, 3, 4, 5].map(() => outcome(c.get(e))))).join()`, "FRESH,FRESH,FRESH,FRESH,FRESH", 1, 10},
		{"a missing token is renewed", accepts("token-1"), nil, `await outcome(newClient({token: undefined}).get(e))`, "FRESH", 1, 1},
		{"an invalid token is not renewed", failing(9, 401, "token-invalid"), nil, get, "token-invalid", 0, 1},
		{"a token that is refused for ever ends the session", accepts("none"), nil, again + ` + signOuts`, "SignedOut,SignedOut1", 1, 2},
		{"a refused token ends the session of all requests", accepts("none"), nil, `(await Promise.all([1, 2, 3].map(() => outcome(c.get(e))))).join() + signOuts`, "SignedOut,SignedOut,SignedOut1", 1, 6},
		{"a refused renewal ends the session", accepts("none"), issuing(403), again + ` + signOuts`, "SignedOut,SignedOut1", 1, 1},
		{"a network failure of the renewal is repeated", accepts("token-2"), issuing(0), get + ` + signOuts`, "FRESH0", 2, 2},
		{"two network failures end no session", accepts("token-3"), issuing(0, 0), again + ` + signOuts`, "RenewalFailed,FRESH0", 3, 3},
		{"setToken signs in again", accepts("another"), issuing(403), get + ` + (c.setToken({value: 'another'}), ` + get + `)`, "SignedOutFRESH", 1, 2},
		{"a sensitive request is not repeated", accepts("token-1"), nil, `[await outcome(c.refresh(e, {sensitive: true})), await outcome(c.refresh(e, {sensitive: true}))].join()`, "ConfirmRequired,FRESH", 1, 2},
		{
			"a hanging renewal ends no other call", accepts("token-1"), nil,
			`await (async () => {
				let issue, renewals = 0
				const c = newClient({renew: () => { renewals++; return new Promise(resolve => { issue = resolve }) }}), stop = new AbortController()
				const first = outcome(c.get(e, {signal: stop.signal})), second = outcome(c.get(e))
				while (!issue) await new Promise(resolve => setTimeout(resolve))
				stop.abort()
				const ended = await first
				issue({value: 'token-1'})
				return [ended, await second, renewals].join()
			})()`, "AbortError,FRESH,1", 0, 3,
		},
		{
			"a token is renewed early and in the background", accepts(oldToken), nil,
			`await (async () => {
				window.BroadcastChannel = undefined // so the renewal starts before the read continues
				let renewals = 0
				const now = Date.now, token = {value: '` + oldToken + `', expires: now() + 3600_000}
				const c = newClient({token, renew: async () => { renewals++; return {value: 'token-1'} }}), read = [await outcome(c.get(e))]
				Date.now = () => now() + 3290_000
				read.push(await outcome(c.get(e)), renewals)
				Date.now = () => now() + 3310_000
				return [...read, await outcome(c.get(e)), renewals].join()
			})()`, "FRESH,FRESH,0,FRESH,1", 0, 3,
		},
		{"a read is repeated after Retry-After", failing(1, 503, "store-unavailable", "Retry-After", "9"), nil, get, "FRESH", 0, 2},
		{"a long Retry-After goes to the caller", failing(9, 503, "store-unavailable", "Retry-After", "11"), nil, get, "store-unavailable", 0, 1},
		{"a read is repeated twice", failing(9, 500, "internal"), nil, get, "internal", 0, 3},
		{"retries have a budget", failing(99, 500, "internal"), nil, `await (async () => { for (let i = 0; i < 9; i++) await outcome(c.get(e)) })()`, "", 0, 19},
		{"a lost connection is repeated", func(_ int, _ *http.Request, w http.ResponseWriter) { abort(w) }, nil, get, "ConnectionError", 0, 3},
		{"a request has a timeout", func(_ int, r *http.Request, _ http.ResponseWriter) { <-r.Context().Done() }, nil, `await outcome(newClient({timeout: 100, maxRetries: 0}).get(e))`, "ConnectionError", 0, 1},
		{"a silent stream is opened again", func(_ int, r *http.Request, w http.ResponseWriter) {
			respond(w, http.StatusOK, "data: {\"freshness\":\"STALE\"}\n\n", "Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, nil, `await (async () => {
			const seen = []
			for await (const event of c.watch(e)) if (seen.push(event.freshness) === 2) return seen.join()
		})()`, "STALE,STALE", 0, 2},
		{"an unexpected event ends the sequence", func(_ int, _ *http.Request, w http.ResponseWriter) {
			respond(w, http.StatusOK, "data: <html>\n\n", "Content-Type", "text/event-stream")
		}, nil, `await outcome(c.watch(e).next())`, "Error", 0, 1},
		{"a redirect is not followed", func(_ int, r *http.Request, w http.ResponseWriter) {
			http.Redirect(w, r, "/v1/elsewhere", http.StatusTemporaryRedirect)
		}, nil, get, "Error", 0, 1},
		{"a refresh is repeated with its key", func(i int, r *http.Request, w http.ResponseWriter) {
			key := r.Header.Get("Idempotency-Key")
			if i == 1 {
				reject(w, http.StatusServiceUnavailable, "store-unavailable")
				firstKey = key
				return
			}
			if key == "" || key != firstKey {
				t.Errorf("idempotency keys: got %q and %q, want two equal ones", firstKey, key)
			}
			respond(w, http.StatusOK, freshBody)
		}, nil, `await outcome(c.refresh(e))`, "FRESH", 0, 2},
		{"a refresh is not repeated during a cool-down", failing(1, 429, "cooldown", "Retry-After", "1"), nil, `await outcome(c.refresh(e))`, "cooldown", 0, 1},
		{"all requests wait for the rate limit", failing(1, 429, "too-many-requests", "Retry-After", "60", "RateLimit", `"requests";r=0;t=60`), nil, again, "too-many-requests,too-many-requests", 0, 1},
		{"304 returns the snapshot", conditional, nil, again + ` + (await c.get(e)).snapshot.basic.level`, "FRESH,FRESH7", 0, 3},
		{"the cache is bounded", conditional, nil, `await (async () => {
			const c = newClient({maxCacheBytes: 1000}), read = key => c.get({...e, key})
			await read('a'), await read('b'), await read('b'), await read('a')
		})()`, "", 0, 4},
		{"a list has at most 100 keys", nil, nil, `await outcome(c.getMany('nexon', 'character', Array(101).fill('a')))`, "RangeError", 0, 0},
		{"a path cannot change the host", nil, nil, `await outcome(c.stream('.example/v1').next())`, "TypeError", 0, 0},
		{"a key cannot leave its path", nil, nil, `await outcome(c.get({...e, key: '..'}))`, "TypeError", 0, 0},
	} {
		s := startService(t, row.answer)
		s.issue = row.issue
		b.openModule(s)
		got := evaluate[string](b, `(async () => {
			const delay = setTimeout
			window.setTimeout = (f, ms) => delay(f, ms / 100)
			const c = newClient()
			return String(`+row.script+` ?? '')
		})()`)
		if got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
		if renewals, requests := s.counts(); renewals != row.renewals || requests != row.requests {
			t.Errorf("%s: got %d renewals and %d requests, want %d and %d", row.name, renewals, requests, row.renewals, row.requests)
		}
		if etags := s.header("If-None-Match"); row.name == "the cache is bounded" && !slices.Equal(etags, []string{"", "", `W/"a"`, ""}) {
			t.Errorf("%s: got the ETags %q, want one for the second read of b", row.name, etags)
		}
	}
}
