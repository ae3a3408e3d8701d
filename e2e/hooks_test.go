package e2e

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// hooked is an installation whose source has two webhooks: at-once without a delay, and delayed with a
// delay of 5 s.
type hooked struct {
	*fleet
	secret, file string // the secret of both webhooks, and the path of the file that contains it
}

const hooksConfig = `
webhooks:
  at-once:
    verify: {scheme: github, secretFile: %[1]q}
    map: [{when: {header: X-GitHub-Event, equals: [changed]}, facet: character, key: "body:events.#.key"}]
  delayed:
    verify: {scheme: github, secretFile: %[1]q}
    map: [{facet: character, key: "body:events.#.key", delay: 5s}]
facets:
`

func newHooked(t testing.TB) *hooked {
	t.Helper()
	f := newSite(t)
	h := &hooked{f, rand.Text(), filepath.Join(f.Dir, "hook-secret")}
	f.check(os.WriteFile(h.file, []byte(h.secret), 0o600))
	f.Edits = []string{"\nfacets:\n", fmt.Sprintf(hooksConfig, h.file)}
	f.check(f.UseProxies(f.Context()))
	return h
}

// deliver sends a delivery for keys, and returns the status and the body.
func (h *hooked) deliver(ctx context.Context, api, hook string, keys ...string) (int, string, error) {
	body := `{"events":[{"key":"` + strings.Join(keys, `"},{"key":"`) + `"}]}`
	m := hmac.New(sha256.New, []byte(h.secret))
	m.Write([]byte(body))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, api+"/hooks/"+h.Source+"/"+hook, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(m.Sum(nil)))
	req.Header.Set("X-GitHub-Event", "changed")
	return h.do(req)
}

func (h *hooked) do(req *http.Request) (int, string, error) {
	resp, err := h.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// page returns the body of the response to a GET request.
func (h *hooked) page(url string) string {
	h.Helper()
	req, err := http.NewRequestWithContext(h.Context(), http.MethodGet, url, http.NoBody)
	h.check(err)
	status, body, err := h.do(req)
	if err != nil || status != http.StatusOK {
		h.Fatalf("%s: got %d, %v, want 200", url, status, err)
	}
	return body
}

// want sends a delivery. It fails the test unless the response has this status and its body contains
// the text.
func (h *hooked) want(status int, text, api, hook string, keys ...string) {
	h.Helper()
	if got, body, err := h.deliver(h.Context(), api, hook, keys...); err != nil || got != status || !strings.Contains(body, text) {
		h.Errorf("delivery of %q: got %d %.200s, %v, want %d with %q", keys, got, body, err, status, text)
	}
}

// store stores snapshots of n entities with the keys key0, key1 and so on.
func (h *hooked) store(n int) {
	h.Helper()
	h.check(h.Store(h.Context(), harness.Stored{Facet: "character", Prefix: "key", Count: n, Checked: time.Now().Add(-time.Minute)}))
}

// versioned is an upstream whose content is a version number. The content of a response is the version
// at the time when its call arrived. The response is sent when the channel release is closed.
type versioned struct {
	current, calls atomic.Int64
	release        chan struct{}
}

func (v *versioned) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	content := fmt.Sprintf(`{"version":"version-%d"}`, v.current.Load())
	v.calls.Add(1)
	<-v.release
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, content)
}

// The upstream changes while a fetch is in flight, and sends a delivery. The fetch in flight can have
// old content, so the delivery must cause another fetch.
func TestHooks_FetchAfterTheDelivery(t *testing.T) {
	t.Parallel()
	h := newHooked(t)
	h.prepare()
	upstream := &versioned{release: make(chan struct{})}
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	h.Upstream = server.URL
	api := h.query()
	h.worker()
	h.check(h.Register(t.Context(), "character", 1))
	h.want(http.StatusNoContent, "", api, "at-once", "made-up")
	h.want(http.StatusAccepted, `"requested":1,"delayed":0,"held":0,"unknownKeys":1`, api, "at-once", "due-0", "made-up")
	h.until(timeout, "a fetch in flight", func() bool { return upstream.calls.Load() == 1 })
	for range 3 { // these deliveries coalesce to one request
		upstream.current.Add(1)
		h.want(http.StatusAccepted, `"requested":1`, api, "at-once", "due-0")
	}
	close(upstream.release)
	h.untilCommitted()
	if body := h.page(api + "/v1/" + h.Source + "/character/due-0"); !strings.Contains(body, "version-3") {
		t.Errorf("snapshot: got %.200s, want the content of the last change", body)
	}
	equal(t, "calls", upstream.calls.Load(), 2)
	h.until(timeout, "the times until the snapshots in the metrics", func() bool {
		return strings.Contains(h.page(api+"/metrics"), `hook_to_stored_seconds_count{name="at-once",source="`+h.Source+`"} 4`)
	})
}

func TestHooks_ManyDeliveriesCauseFewCalls(t *testing.T) {
	t.Parallel()
	const senders = 16
	// The short form of the test sends 4,000 deliveries as fast as possible. The long form sends
	// 10,000, evenly spread over a minute.
	deliveries, length := size(int64(4_000), 10_000), size(0, time.Minute)
	h := newHooked(t)
	h.prepare("--latency", "100ms-300ms")
	api := h.query()
	h.worker()
	h.store(1)
	began := time.Now()
	var next, repeated atomic.Int64
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for n := next.Add(1); n <= deliveries; n = next.Add(1) {
				<-time.After(time.Until(began.Add(length * time.Duration(n) / time.Duration(deliveries))))
				status, body, err := h.deliver(h.Context(), api, "delayed", "key0")
				for err == nil && status == http.StatusServiceUnavailable { // a busy machine may need longer than the deadline; then the sender repeats the delivery
					repeated.Add(1)
					status, body, err = h.deliver(h.Context(), api, "delayed", "key0")
				}
				if err != nil || status != http.StatusAccepted || !strings.Contains(body, `"delayed":1`) {
					t.Errorf("delivery %d: got %d %.200s, %v, want 202", n, status, body, err)
					return
				}
			}
		})
	}
	all.Wait()
	ended := time.Now()
	h.until(timeout, "a fetch after the last delivery", func() bool { return h.one(checkedSince, ended.UnixMicro()) == 1 })
	h.untilCommitted()
	calls := h.stats().Arrivals
	t.Logf("%d deliveries and %d repeated ones in %v: %d calls", deliveries, repeated.Load(), ended.Sub(began).Round(time.Millisecond), calls)
	atMost(t, "repeated deliveries", repeated.Load(), deliveries/100)
	atMost(t, "calls", calls, 3)
	equal(t, "rows of the outbox", h.one("SELECT count(*) FROM outbox"), 0)
}

// While Redis, Kafka or the database is unavailable, the response to a delivery is 503 and no entity is
// requested. After the outage the delivery is repeated. It must be accepted, and its entity must be
// fetched.
func TestHooks_UnavailableWithoutEffect(t *testing.T) {
	t.Parallel()
	h := newHooked(t)
	h.prepare("--latency", "30ms-30ms")
	api := h.query()
	h.worker()
	h.store(3)
	for i, outage := range []struct {
		name  string
		proxy *harness.Proxy
	}{{"redis", h.RedisProxy}, {"kafka", h.Kafka.Proxy}, {"database", h.DatabaseProxy}} {
		key := fmt.Sprint("key", i)
		outage.proxy.Refuse(true)
		outage.proxy.Cut()
		for range 2 {
			if status, body, err := h.deliver(t.Context(), api, "at-once", key); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(body, "again") {
				t.Errorf("%s unavailable: got %d %.200s, %v, want 503", outage.name, status, body, err)
			}
		}
		outage.proxy.Refuse(false)
		before := time.Now()
		h.until(timeout, "an accepted delivery after the outage of "+outage.name, func() bool {
			status, _, err := h.deliver(t.Context(), api, "at-once", key)
			return err == nil && status == http.StatusAccepted
		})
		h.until(timeout, "a fetch after the outage of "+outage.name, func() bool {
			return h.one("SELECT count(*) FROM snapshot_state WHERE key = $1 AND last_checked_at >= $2", key, before.UnixMicro()) == 1
		})
	}
}

// A refused delivery must have no effect. The output of the processes must not contain the secret.
func TestHooks_RefuseHostileDeliveries(t *testing.T) {
	t.Parallel()
	h := newHooked(t)
	h.prepare()
	api := h.query()
	h.store(1)
	sign := func(body, secret string) string {
		m := hmac.New(sha256.New, []byte(secret))
		m.Write([]byte(body))
		return "sha256=" + hex.EncodeToString(m.Sum(nil))
	}
	good := `{"events":[{"key":"key0"}]}`
	deep := strings.Repeat(`{"a":[`, 2<<20)
	for name, d := range map[string]struct {
		body, signature string
		status          int
	}{
		"no signature":    {good, "", http.StatusUnauthorized},
		"other secret":    {good, sign(good, "another-secret-of-16"), http.StatusUnauthorized},
		"altered body":    {good + " ", sign(good, h.secret), http.StatusUnauthorized},
		"secret as value": {good, h.secret, http.StatusUnauthorized},
		"30 MB":           {strings.Repeat("x", 30<<20), sign("x", h.secret), http.StatusRequestEntityTooLarge},
		"deep":            {deep, sign(deep, h.secret), http.StatusBadRequest},
		"not JSON":        {"payload=x", sign("payload=x", h.secret), http.StatusBadRequest},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api+"/hooks/"+h.Source+"/at-once", bytes.NewReader([]byte(d.body)))
		h.check(err)
		req.Header.Set("X-GitHub-Event", "changed")
		if d.signature != "" {
			req.Header.Set("X-Hub-Signature-256", d.signature)
		}
		status, body, err := h.do(req)
		if len(d.body) > 1<<20 && err != nil { // the service may close the connection before a long body is sent completely
			continue
		}
		if err != nil || status != d.status || strings.Contains(body, h.secret) {
			t.Errorf("%s: got %d %.200s, %v, want %d", name, status, body, err, d.status)
		}
	}
	equal(t, "records", h.lag(), 0)
	h.want(http.StatusAccepted, `"requested":1`, api, "at-once", "key0") // the service still accepts valid deliveries
	h.check(os.WriteFile(h.file, []byte(h.secret+"\n"+strings.ToLower(h.secret)+"\n"), 0o600))
	h.until(timeout, "the second secret", func() bool {
		other := *h
		other.secret = strings.ToLower(h.secret)
		status, _, err := other.deliver(t.Context(), api, "at-once", "key0")
		return err == nil && status == http.StatusAccepted
	})
	h.want(http.StatusAccepted, `"requested":1`, api, "at-once", "key0") // the first secret is still valid
	text, page := h.page(api+"/metrics"), h.page(api+"/console/schedule")
	if !strings.Contains(text, `hooks_total{name="at-once",result="bad-signature"`) || !strings.Contains(page, "at-once") {
		t.Error("metrics and console: got no deliveries of the webhook, want them")
	}
	output := []string{text, page}
	logs, err := filepath.Glob(filepath.Join(h.Dir, "*.log"))
	h.check(err)
	if len(logs) == 0 {
		t.Error("logs of the processes: got none")
	}
	for _, file := range logs {
		log, err := os.ReadFile(file)
		h.check(err)
		output = append(output, string(log))
	}
	for _, text := range output {
		if strings.Contains(text, h.secret) {
			t.Errorf("output: got the secret in %.200s, want none", text)
		}
	}
}

// BenchmarkHooks compares two rates of a query service: of accepted deliveries and of accepted
// refreshes. The rounds of the two alternate. Each request is for a different stored entity, so each
// publishes a record. It reports both rates and their ratio.
func BenchmarkHooks(b *testing.B) {
	const rounds, senders, perRound = 8, 32, 1500
	h := newHooked(b)
	h.Env = []string{"FRESHET_ACCESS_LIMITS_OUTSTANDING=0s", "FRESHET_ACCESS_LIMITS_REQUESTS=0", "FRESHET_ACCESS_LIMITS_NEW_KEYS=0"}
	h.prepare()
	api := h.query()
	next, prefix := 0, ""
	store := func(n int) {
		next, prefix = 0, rand.Text()
		h.check(h.Store(b.Context(), harness.Stored{Facet: "character", Prefix: prefix, Count: n, Checked: time.Now().Add(-time.Minute)}))
	}
	round := func(do func(key string) (int, string, error)) float64 {
		first := next
		next += perRound
		var n atomic.Int64
		var all sync.WaitGroup
		began := time.Now()
		for range senders {
			all.Go(func() {
				for i := n.Add(1); i <= perRound; i = n.Add(1) {
					if status, body, err := do(fmt.Sprint(prefix, first+int(i)-1)); err != nil || status != http.StatusAccepted {
						b.Errorf("request: got %d %.200s, %v, want 202", status, body, err)
						return
					}
				}
			})
		}
		all.Wait()
		return perRound / time.Since(began).Seconds()
	}
	hook := func(key string) (int, string, error) { return h.deliver(b.Context(), api, "at-once", key) }
	refresh := func(key string) (int, string, error) {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, api+"/v1/"+h.Source+"/character/"+key+"/refresh", http.NoBody)
		if err != nil {
			return 0, "", err
		}
		return h.do(req)
	}
	store(2 * perRound)
	round(hook) // the first round fills the caches
	round(refresh)
	for b.Loop() {
		store(2 * rounds * perRound)
		var hooks, refreshes []float64
		for range rounds {
			hooks, refreshes = append(hooks, round(hook)), append(refreshes, round(refresh))
		}
		b.ReportMetric(median(hooks), "hooks/s")
		b.ReportMetric(median(refreshes), "refreshes/s")
		b.ReportMetric(median(hooks)/median(refreshes), "ratio")
	}
}
