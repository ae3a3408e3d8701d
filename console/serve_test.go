package console

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/html"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/store/deadletters"
)

// serveFlag makes TestServe_ConsolesOnFakes serve the consoles until SIGTERM. The tests in
// e2e/browser start this test binary as a process with that flag. They can't import the fakes,
// because the fakes are test code of another module.
var serveFlag = flag.Bool("serve", false, "serve consoles on fakes until SIGTERM, for the tests in e2e/browser")

// hostile is a policy name that contains HTML. A page that did not escape the name would run a
// script.
const hostile = `<img src=x onerror=alert(1)>`

// serveConsoles serves three consoles and returns their URLs by name. The console "busy" has charts
// with data and a running clock. The console "still" has a stopped clock; POST /fakes/{change}
// makes the change with that name in rig.changes. The console "login" requires a token.
func serveConsoles(t *testing.T) map[string]string {
	t.Helper()
	busy := runFor(t, 240, withScenarios)
	fillRig(busy)
	still := newRig(t)
	fillRig(still)
	login := newRig(t)
	login.loginRequired = true
	return map[string]string{"busy": busy.serve(), "still": still.serveWithChanges(), "login": login.serve()}
}

// changes returns functions that change the fakes, by name. The tests in e2e/browser call these
// functions by HTTP (POST /fakes/{change}).
func (r *rig) changes() map[string]func() {
	return map[string]func(){
		"stop-source": func() {
			v := r.views["nexon"]
			v.State = limiter.StateStopped
			v.Policies[0].Name = hostile
			r.views["nexon"] = v
		},
		"end-job": func() { r.jobs[0].State, r.jobs[0].EndedAt = deadletters.JobDone, testNow },
		"revoke":  func() { r.revoked = true },
	}
}

// serveWithChanges serves the console as serve does, and also POST /fakes/{change}.
func (r *rig) serveWithChanges() string {
	mux := http.NewServeMux()
	mux.Handle("/", r)
	for name, change := range r.changes() {
		mux.HandleFunc("POST /fakes/"+name, func(http.ResponseWriter, *http.Request) {
			r.mu.Lock()
			defer r.mu.Unlock()
			change()
		})
	}
	return serveHandler(r.t, mux)
}

func TestServe_ConsolesOnFakes(t *testing.T) {
	urls := serveConsoles(t)
	for name, want := range map[string]string{"busy": "Overview", "still": "Overview", "login": "Log in"} {
		answer, err := http.Get(urls[name])
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if title := "<title>" + want; !strings.Contains(string(text), title) {
			t.Errorf("console %q: got %.300s, want %q in it", name, text, title)
		}
	}
	if !*serveFlag || t.Failed() {
		return
	}
	text, err := json.Marshal(urls)
	if err != nil {
		t.Fatal(err)
	}
	ended, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	fmt.Printf("serving %s\n", text)
	<-ended.Done()
}

// changedRig returns a rig with content for every page, after one of the changes of rig.changes.
func changedRig(t *testing.T, change string) *rig {
	t.Helper()
	r := newRig(t)
	fillRig(r)
	r.changes()[change]()
	return r
}

func TestOverview_ShowsStoppedSource(t *testing.T) {
	text := changedRig(t, "stop-source").get(root).text()
	if want := "nexon: stopped by an operator"; !strings.Contains(text, want) {
		t.Errorf("got %s, want %q in it", text, want)
	}
}

func TestLimiter_EscapesPolicyName(t *testing.T) {
	d := changedRig(t, "stop-source").get(root + "/limiter?source=nexon")
	if got := d.text(); !strings.Contains(got, hostile) {
		t.Errorf("got %s, want the text %q in it", got, hostile)
	}
	d.each(func(n *html.Node) {
		if n.Data == "img" {
			t.Error("got an element <img>, want its text")
		}
	})
}

func TestJob_OffersStopWhileItRuns(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	if got := r.do("GET", root+"/dlq/jobs/"+r.jobs[0].ID, nil).body; !strings.Contains(got, `/stop"`) {
		t.Errorf("page of a running job: got %s, want a stop button", got)
	}
}

func TestJob_OffersNoStopAfterItsEnd(t *testing.T) {
	r := changedRig(t, "end-job")
	got := r.do("GET", root+"/dlq/jobs/"+r.jobs[0].ID, nil).body
	if strings.Contains(got, `/stop"`) {
		t.Errorf("page of an ended job: got %s, want no stop button", got)
	}
}

func TestJob_ShowsItsEnd(t *testing.T) {
	r := changedRig(t, "end-job")
	if got := r.get(root + "/dlq/jobs/" + r.jobs[0].ID).text(); !strings.Contains(got, "Ended") {
		t.Errorf("got %s, want %q in it", got, "Ended")
	}
}
