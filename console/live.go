package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/store/deadletters"
)

const eventStream = "text/event-stream"

// maxViewers is the maximum number of open live streams. maxViewersPerClient is the maximum for one
// client, so that one client can't use all streams.
const maxViewers, maxViewersPerClient = 100, 8

// viewers counts the open live streams, in total and for each client.
type viewers struct {
	mu       sync.Mutex
	total    int
	byClient map[string]int
}

// acquire counts a new stream of the client. The stream is counted until the caller calls release.
// If maxViewers or maxViewersPerClient streams are open already, ok is false.
func (v *viewers) acquire(name string) (release func(), ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.total >= maxViewers || v.byClient[name] >= maxViewersPerClient {
		return nil, false
	}
	v.total++
	v.byClient[name]++
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.total--
		if v.byClient[name]--; v.byClient[name] == 0 {
			delete(v.byClient, name)
		}
	}, true
}

// acquireViewer is like viewers.acquire, but responds with 503 if a maximum is reached. It also
// rejects HEAD requests: ok is false.
func (c *Console) acquireViewer(w http.ResponseWriter, r *http.Request, client access.Client) (release func(), ok bool) {
	if r.Method == http.MethodHead { // a HEAD request would keep the stream open forever
		w.Header().Set("Content-Type", eventStream)
		return nil, false
	}
	if release, ok = c.viewers.acquire(client.BoundName()); !ok {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "Too many live streams are open.", http.StatusServiceUnavailable)
	}
	return release, ok
}

// startStream starts a response that consists of server-sent events. The returned function `send`
// writes one event.
func (c *Console) startStream(w http.ResponseWriter) (send func(event any) error) {
	h := w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("X-Accel-Buffering", "no")
	flow := http.NewResponseController(w)
	return func(event any) error {
		text, err := json.Marshal(event)
		if err != nil {
			panic(err) // our own types can always be encoded as JSON
		}
		// The server's write deadline covers the whole response, and would end the stream. So each
		// event gets a new deadline.
		_ = flow.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if _, err := fmt.Fprintf(w, "retry: 2000\ndata: %s\n\n", text); err != nil {
			return err
		}
		return flow.Flush()
	}
}

// live streams the changing texts of the pages as server-sent events, one event a second.
func (c *livePages) live(w http.ResponseWriter, r *http.Request, client access.Client) {
	sources, charts, page := c.Sources, r.FormValue("charts") != "", r.FormValue("page")
	if one := r.FormValue("source"); one != "" && page == "" {
		if !c.hasSource(one) {
			c.reject(w, r, http.StatusNotFound, "There is no such source.")
			return
		}
		sources = []string{one}
	}
	release, ok := c.acquireViewer(w, r, client)
	if !ok {
		return
	}
	defer release()
	samples, unwatch := c.sampler.watch()
	defer unwatch()
	send := c.startStream(w)
	after := map[string]int64{} // for each source: the time of the last sample that was sent
	for {
		var n *sample
		select {
		case <-r.Context().Done():
			return
		case n = <-samples:
		}
		// The client is checked before each event, so that the stream ends when the client loses
		// its permission.
		if client, err := c.identify(r); err != nil || !isAllowed(canView, c.Console, client) {
			return
		}
		var f liveStatus
		switch page {
		case "calls":
			all, _, _ := c.lastCalls.Get(r.Context(), sampleInterval) // if Redis does not answer, the previous calls are shown
			f = newLiveStatus(n.At)
			f.addCalls(visibleCalls(c.Entities, all, callFilterOf(r), client), n.At)
		case "processes":
			f = newLiveStatus(n.At)
			f.addProcessList(n.Processes)
		default:
			f = c.statusOf(n, sources)
		}
		if charts {
			f.addHistory(c.Overview, sources, after)
			f.addMarks(marksOf(r.Context(), &c.lastChanges, n, sources), sources, n.At)
		}
		if send(f) != nil {
			return
		}
	}
}

func isAllowed(m permission, c *Console, client access.Client) bool {
	ok, _ := m(c, client)
	return ok
}

// jobInterval is the time between two events of a job's stream.
const jobInterval = time.Second

// liveJob streams the progress of a job until the job ends.
func (c *dlqPages) liveJob(w http.ResponseWriter, r *http.Request, client access.Client) {
	release, ok := c.acquireViewer(w, r, client)
	if !ok {
		return
	}
	defer release()
	id := r.PathValue("id")
	j, found, err := c.readJob(r, id)
	switch {
	case err != nil:
		c.unavailable(w, r, "The jobs can't be read.", err)
		return
	case !found || !c.canSeeJob(client, j):
		c.reject(w, r, http.StatusNotFound, "Job not found.")
		return
	}
	send := c.startStream(w)
	tick := time.NewTicker(jobInterval)
	defer tick.Stop()
	for {
		if send(jobStatus(j, c.Clock())) != nil || j.State == deadletters.JobDone {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		if client, err := c.identify(r); err != nil || !isAllowed(canView, c.Console, client) {
			return
		}
		if j, found, err = c.readJob(r, id); err != nil || !found {
			return // this ends the stream; the browser connects again after 2 s
		}
	}
}
