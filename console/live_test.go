package console

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store/deadletters"
)

// testStream is an open live stream.
type testStream struct {
	t      *testing.T
	answer *http.Response
	lines  *bufio.Scanner
	end    context.CancelFunc
}

// serve makes the rig's console available by HTTP and returns its URL.
func (r *rig) serve() string { return serveHandler(r.t, r) }

// serveHandler serves a handler until the test ends and returns the URL of the console.
func serveHandler(t *testing.T, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL + root
}

func follow(t *testing.T, url string, headers ...string) *testStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	q, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	return &testStream{t, answer, lines, cancel}
}

// next returns the next event. ok is false at the end of the stream.
func (l *testStream) next() (f liveStatus, ok bool) {
	l.t.Helper()
	for l.lines.Scan() {
		if text, is := strings.CutPrefix(l.lines.Text(), "data: "); is {
			if err := json.Unmarshal([]byte(text), &f); err != nil {
				l.t.Fatal(err)
			}
			return f, true
		}
	}
	return f, false
}

func (r *rig) viewCallCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.viewCalls
}

func TestLive_OneSamplerServesAllViewers(t *testing.T) {
	r := runFor(t, 3)
	url := r.serve()
	one, two := follow(t, url+"/live?charts=1"), follow(t, url+"/live?source=nexon")
	if h := one.answer.Header; h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("headers: got %v, want text/event-stream and no-store", h)
	}
	first, _ := one.next()
	second, _ := one.next()
	if !strings.Contains(first.Items["budget.nexon"].Text, " of 450 calls a second") || first.Items["state.github"].Text != "backing-off" || len(first.Rows["policies.nexon"]) != 2 {
		t.Errorf("first event: got %+v, want the budget of nexon, github backing-off and 2 policies", first)
	}
	// The first event contains the whole history, later events only new samples.
	if a, b := first.History["nexon"].Times, second.History["nexon"].Times; len(a) != 720 || len(b) > 1 || len(b) == 1 && b[0] != a[719]+5 {
		t.Errorf("samples: got %d, then %v, want 720, then at most the next one after %d", len(a), b, a[len(a)-1])
	}
	other, _ := two.next()
	if _, others := other.Items["budget.github"]; others || len(other.Items["budget.nexon"].Text) == 0 || other.History != nil {
		t.Errorf("event of nexon: got %+v, want its budget, no budget of github and no history", other)
	}
	// With two viewers the limiter is still read only once a second for each source.
	before := r.viewCallCount()
	for range 2 {
		one.next()
		two.next()
	}
	if n := r.viewCallCount() - before; n > 8 {
		t.Errorf("limiter reads in two seconds: got %d, want at most 8", n)
	}
	one.end()
	two.end()
	servicetest.WaitFor(t, 30*time.Second, "the end of the sampling", func() bool {
		r.sampler.mu.Lock()
		defer r.sampler.mu.Unlock()
		return r.sampler.stop == nil && len(r.sampler.viewers) == 0 && r.viewerCount() == 0
	})
	// The sampler has stopped, because there are no viewers. A new viewer must start it again.
	if _, ok := follow(t, url+"/live").next(); !ok {
		t.Error("the stream has ended")
	}
}

// viewerCount returns the number of open live streams.
func (r *rig) viewerCount() int {
	r.viewers.mu.Lock()
	defer r.viewers.mu.Unlock()
	return r.viewers.total + len(r.viewers.byClient)
}

func TestLive_BoundsViewers(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	refused := func(when string) {
		t.Helper()
		for _, path := range []string{"/live", "/live/jobs/" + r.jobs[0].ID} {
			if answer := r.do("GET", root+path, nil); answer.status != 503 || answer.header.Get("Retry-After") == "" {
				t.Errorf("%s, %s: got %d and Retry-After %q, want 503 and a time",
					when, path, answer.status, answer.header.Get("Retry-After"))
			}
		}
	}
	var leave []func()
	come := func(name string) {
		l, ok := r.viewers.acquire(name)
		if !ok {
			t.Fatalf("place for %s: got none, want one", name)
		}
		leave = append(leave, l)
	}
	for range maxViewersPerClient {
		come("unauthenticated@192.0.2.7")
	}
	refused("of one name")
	come("somebody else")
	for _, l := range leave {
		l()
	}
	if n := r.viewerCount(); n != 0 {
		t.Errorf("viewers after all left: got %d, want 0", n)
	}
	for i := range maxViewers {
		come(strconv.Itoa(i))
	}
	refused("of all")
}

func TestLive_CountsAnIPv6NetworkAsOneClient(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	for range maxViewersPerClient {
		if _, ok := r.viewers.acquire(access.Client{Name: "unauthenticated@2001:db8::1"}.BoundName()); !ok {
			t.Fatal("a stream within the limit was rejected")
		}
	}
	ctx, end := context.WithCancel(t.Context())
	end() // if the stream is accepted by mistake, it ends at once, so the test does not hang
	q := httptest.NewRequestWithContext(ctx, http.MethodGet, root+"/live", nil)
	q.RemoteAddr = "[2001:db8::2]:4711"
	w := httptest.NewRecorder()
	r.ServeHTTP(w, q)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("a stream of another address of the network: got %d, want 503", w.Code)
	}
}

func TestConsole_RateLimitsNonAdmins(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.loginRequired, r.requestLimit = true, 2
	for i, want := range []int{200, 200, 429, 429} {
		d := r.get(root+[]string{"/limiter", "/dlq", "", "/live"}[i], "Authorization", "Bearer inspect")
		if d.status != want || want == 429 && (d.header.Get("Retry-After") != "90" || !strings.Contains(d.textByID("rejected"), "more than they may")) {
			t.Errorf("request %d: got %d %v %s, want %d, and with 429 a Retry-After of 90 and the reason",
				i, d.status, d.header, d.textByID("rejected"), want)
		}
	}
	if d := r.open("POST", root+"/lookup", posts["/lookup"], "Authorization", "Bearer inspect,refresh"); d.status != 429 || r.actionsDone() > 0 {
		t.Errorf("refresh: got %d and %d actions, want 429 and none", d.status, r.actionsDone())
	}
	before := len(r.counted)
	if d := r.get(root+"/limiter", "Authorization", "Bearer admin"); d.status != 200 || len(r.counted) > before {
		t.Errorf("admin: got %d, want no rate limit", d.status)
	}
}

func TestLive_AnswersHEADAtOnce(t *testing.T) {
	r := newRig(t)
	if answer := r.do("HEAD", root+"/live", nil); answer.status != 200 || answer.header.Get("Content-Type") != "text/event-stream" || answer.body != "" {
		t.Errorf("HEAD: got %+v, want 200, text/event-stream and no body", answer)
	}
}

func TestLive_EndsWithItsPermission(t *testing.T) {
	r := newRig(t)
	r.loginRequired = true
	url := r.serve()
	for token, want := range map[string]int{"": 401, "wrong": 401, "read": 403, "inspect": 200} {
		if got := follow(t, url+"/live", "Authorization", "Bearer "+token).answer.StatusCode; got != want {
			t.Errorf("status with the token %q: got %d, want %d", token, got, want)
		}
	}
	l := follow(t, url+"/live", "Authorization", "Bearer inspect")
	if _, ok := l.next(); !ok {
		t.Fatal("the stream sent no event")
	}
	r.mu.Lock()
	r.revoked = true
	r.mu.Unlock()
	for ok := true; ok; {
		_, ok = l.next()
	}
	if got := r.do("GET", root+"/live?source=nowhere", nil, "Authorization", "Bearer inspect").status; got != 401 {
		t.Errorf("unknown source: got %d, want 401", got)
	}
}

func TestLiveJob_StreamsUntilItsEnd(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	url := r.serve() + "/live/jobs/"
	l := follow(t, url+r.jobs[0].ID)
	if f, _ := l.next(); f.Items["job.state"].Text != "RUNNING" || f.Items["job.done"].Text != "4,112 of 12,254 replayed, 16 stay open" || *f.Items["job.done"].Percent != 33 || len(f.Rows["refused"]) != 2 {
		t.Errorf("first event: got %+v, want RUNNING, 4,112 of 12,254 replayed, 33 percent and 2 refusals", f)
	}
	r.mu.Lock()
	r.jobs[0].State, r.jobs[0].Done, r.jobs[0].Error = deadletters.JobDone, 12_238, "long past"
	r.mu.Unlock()
	var last liveStatus
	for f, ok := l.next(); ok; f, ok = l.next() {
		last = f
	}
	if last.Items["job.state"].Text != "DONE" || last.Items["job.error"].Text != "" || *last.Items["job.done"].Percent != 100 {
		t.Errorf("last event: got %+v, want DONE, no error and 100 percent", last)
	}
	waits := deadletters.Job{Error: "Kafka does not answer", State: deadletters.JobRunning, Kind: deadletters.PurgeJob}
	if f := jobStatus(waits, testNow); f.Items["job.error"].Text != "Waiting: Kafka does not answer" || f.Items["job.done"].Text != "0 of 0 purged" {
		t.Errorf("items of a waiting job: got %+v, want its error, and 0 of 0 purged", f.Items)
	}
	for updated, want := range map[time.Duration]statusItem{2 * time.Second: {Text: "Its last progress was 2 s ago."}, 6 * time.Minute: {Text: "Its last progress was 6 min ago. No process is working on it: check that a query service with this source is running.", Tone: toneWarn}} {
		waits.UpdatedAt = testNow.Add(-updated)
		if f := jobStatus(waits, testNow); f.Items["job.last"] != want {
			t.Errorf("job.last: got %+v, want %+v", f.Items["job.last"], want)
		}
	}
	if got := follow(t, url+"none").answer.StatusCode; got != 404 {
		t.Errorf("unknown job: got %d, want 404", got)
	}
}

func TestRate_MeasuresProcessReports(t *testing.T) {
	r := newRig(t)
	view := func(at time.Duration, processes ...limiter.ProcessView) *limiter.View {
		return &limiter.View{State: limiter.StateFlowing, At: testNow.Add(at), Processes: processes}
	}
	process := func(name string, at time.Duration, high, low int64) limiter.ProcessView {
		return limiter.ProcessView{Process: name, At: testNow.Add(at), High: limiter.LaneView{Granted: high}, Low: limiter.LaneView{Granted: low}}
	}
	const s = time.Second
	for i, c := range []struct {
		view *limiter.View
		want rates
	}{
		{nil, rates{}},
		{&limiter.View{State: limiter.StateUnused}, rates{Known: true}},
		{view(0), rates{Known: true}}, // there is no process that could make calls, so both rates must be known and 0
		{view(0, process("a", 0, 0, 0)), rates{}},
		{view(1*s, process("a", 1*s, 10, 100)), rates{}}, // the two reports are only 1 s apart, so the rates are unknown
		{view(2*s, process("a", 2*s, 20, 200)), rates{10, 100, true}},
		{view(3*s, process("a", 2*s, 20, 200)), rates{10, 100, true}}, // the process has sent no newer report, so the rate stays the same
		{view(4*s, process("a", 4*s, 60, 200)), rates{20, 0, true}},
		{view(5*s, process("a", 4*s, 60, 200), process("b", 5*s, 900, 900)), rates{20, 0, true}}, // process b has sent only one report, so only the rate of process a is known
		{view(9*s, process("a", 8*s, 60, 200), process("b", 9*s, 940, 980)), rates{10, 20, true}},
		{view(11*s, process("a", 10*s, 3, 1)), rates{}}, // process a has restarted: its counters are lower than before, so the rates are unknown
		{view(14*s, process("a", 12*s, 7, 1)), rates{2, 0, true}},
	} {
		if got := r.sampler.rate("nexon", c.view); got != c.want {
			t.Errorf("%d: got %+v, want %+v", i, got, c.want)
		}
	}
}
