package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/store"
)

const eventStream = "text/event-stream"

// maxViewers may watch at once, and viewersOfOne of them under one name: somebody's tabs must
// not keep all others from watching.
const maxViewers, maxViewersPerClient = 100, 8

// viewers are those who watch.
type viewers struct {
	mu       sync.Mutex
	total    int
	byClient map[string]int // by name
}

// acquire takes a place until leave is called; ok: there was one.
func (v *viewers) acquire(name string) (leave func(), ok bool) {
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

// acquireViewer takes a place among those who watch, until leave is called; or says that there is none.
func (c *Console) acquireViewer(w http.ResponseWriter, r *http.Request, who access.Client) (leave func(), ok bool) {
	if r.Method == http.MethodHead { // it would hear nothing, for ever
		w.Header().Set("Content-Type", eventStream)
		return nil, false
	}
	if leave, ok = c.viewers.acquire(who.BoundName()); !ok {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "As many watch already as may.", http.StatusServiceUnavailable)
	}
	return leave, ok
}

// startStream begins an answer of server-sent events; send writes one.
func (c *Console) startStream(w http.ResponseWriter) (send func(event any) error) {
	h := w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("X-Accel-Buffering", "no")
	flow := http.NewResponseController(w)
	return func(event any) error {
		text, err := json.Marshal(event)
		if err != nil {
			panic(err) // it is of our own types
		}
		// A server that bounds its answers bounds each event, not all of them.
		_ = flow.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if _, err := fmt.Fprintf(w, "retry: 2000\ndata: %s\n\n", text); err != nil {
			return err
		}
		return flow.Flush()
	}
}

// live tells, once a second, what the live pages show.
func (c *Console) live(w http.ResponseWriter, r *http.Request, who access.Client) {
	sources, charts := c.Sources, r.FormValue("charts") != ""
	if one := r.FormValue("source"); one != "" {
		if !c.hasSource(one) {
			c.reject(w, r, http.StatusNotFound, "There is no such source.")
			return
		}
		sources = []string{one}
	}
	leave, ok := c.acquireViewer(w, r, who)
	if !ok {
		return
	}
	defer leave()
	samples, unwatch := c.sampler.watch()
	defer unwatch()
	send := c.startStream(w)
	var upTo float64
	for {
		var n *sample
		select {
		case <-r.Context().Done():
			return
		case n = <-samples:
		}
		// What was allowed to begin ends when it would not be any more.
		if who, err := c.identify(r); err != nil || !isAllowed(canView, c, who) {
			return
		}
		f := c.statusOf(n, sources)
		if charts {
			f.Points = map[string][]point{}
			for _, source := range sources {
				f.Points[source] = slices.DeleteFunc(c.sampler.history(source), func(p point) bool { return p.T <= upTo })
			}
			upTo = float64(n.At.UnixMilli()) / 1000
		}
		if send(f) != nil {
			return
		}
	}
}

func isAllowed(m permission, c *Console, who access.Client) bool {
	ok, _ := m(c, who)
	return ok
}

// jobInterval is how often a job's progress is looked at.
const jobInterval = time.Second

// liveJob tells how far a job is until it has ended.
func (c *Console) liveJob(w http.ResponseWriter, r *http.Request, who access.Client) {
	leave, ok := c.acquireViewer(w, r, who)
	if !ok {
		return
	}
	defer leave()
	id := r.PathValue("id")
	j, found, err := c.readJob(r, id)
	switch {
	case err != nil:
		c.unavailable(w, r, "The jobs can't be read.", err)
		return
	case !found || !c.canSeeJob(who, j):
		c.reject(w, r, http.StatusNotFound, "There is no such job.")
		return
	}
	send := c.startStream(w)
	tick := time.NewTicker(jobInterval)
	defer tick.Stop()
	for {
		if send(jobStatus(j, c.Clock())) != nil || j.State == store.JobDone {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		if who, err := c.identify(r); err != nil || !isAllowed(canView, c, who) {
			return
		}
		if j, found, err = c.readJob(r, id); err != nil || !found {
			return // the page comes again
		}
	}
}
