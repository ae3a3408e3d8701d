package consumer_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/outbox"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/store/prefetched"
)

// listUpstream is an upstream with one list. It serves the list in pages, with a Link header to the
// next page.
type listUpstream struct {
	mu      sync.Mutex
	items   []listItem
	perPage int
	etags   bool
	calls   []string // the query parameters page and since of each call
	// answer writes the response to a call and returns true, or returns false for the usual response.
	// `n` is the number of the call, from 1.
	answer func(w http.ResponseWriter, r *http.Request, n int) bool
}

type listItem struct {
	ID        string    `json:"id"`
	UpdatedAt time.Time `json:"updated_at"`
	Text      string    `json:"text"`
	Gone      bool      `json:"gone,omitempty"`
}

func (u *listUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	q := r.URL.Query()
	page := 1
	if n, err := strconv.Atoi(q.Get("page")); err == nil {
		page = n
	}
	u.calls = append(u.calls, strings.TrimSpace(fmt.Sprint(page, " ", q.Get("since"))))
	if u.answer != nil && u.answer(w, r, len(u.calls)) {
		return
	}
	var listed []listItem
	since, _ := time.Parse(time.RFC3339, q.Get("since"))
	for _, i := range u.items {
		if !i.UpdatedAt.Before(since) {
			listed = append(listed, i)
		}
	}
	from, to := min((page-1)*u.perPage, len(listed)), min(page*u.perPage, len(listed))
	body, _ := json.Marshal(append([]listItem{}, listed[from:to]...))
	w.Header().Set("Content-Type", "application/json")
	if tag := fmt.Sprintf(`"%x"`, sha256.Sum256(body)); u.etags && page == 1 {
		w.Header().Set("Etag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if to < len(listed) {
		next := *r.URL
		q.Set("page", strconv.Itoa(page+1))
		next.RawQuery = q.Encode()
		w.Header().Set("Link", `<`+next.RequestURI()+`>; rel="next"`)
	}
	_, _ = w.Write(body)
}

func (u *listUpstream) take() (calls []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	calls, u.calls = u.calls, nil
	return calls
}

func (u *listUpstream) set(change func(*listUpstream)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(u)
}

// listRig has a HIGH worker, a LOW worker and an outbox relay for a facet that is a collection.
type listRig struct {
	*rig
	list        *listUpstream
	collections *collection.Collections
	relay       *outbox.Relay
	stopRelay   func()
	runs        consumer.Runs        // runs whose steps the workers serve; nil means that there are none
	high        consumer.Collections // the store of collections of the HIGH worker; nil means that it has the same as the LOW worker
	lost        atomic.Int32         // the records of so many further requests of pages are lost
}

// epoch is the time of the first item. All walks are later.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func listOf(n int) (items []listItem) {
	for i := range n {
		items = append(items, listItem{ID: fmt.Sprintf("i%02d", i), UpdatedAt: epoch.Add(time.Duration(i) * time.Hour), Text: "x"})
	}
	return items
}

func newListRig(t *testing.T, c items.Collection, changes ...func(*source.Facet)) *listRig {
	t.Helper()
	r := &listRig{rig: newRig(t), list: &listUpstream{perPage: 3, items: listOf(8)}}
	server := httptest.NewServer(r.list)
	t.Cleanup(server.Close)
	r.config.BaseURL = server.URL
	r.config.Rules = nil
	r.facet(func(f *source.Facet) {
		f.Documents = map[string]source.Document{"list": {Path: "/lists/{key}?per_page=3", Paging: &source.Paging{Link: true}}}
		f.Params, f.Ignore, f.Collection = nil, nil, &c
		f.Retry = []time.Duration{time.Millisecond}
		for _, change := range changes {
			change(f)
		}
	})
	r.collections = collection.New(r.db)
	poller := poll.New(outbox.Channel("nexon"), r.rdb, r.log(), outbox.ClaimsFail)
	r.relay = outbox.New("nexon", r.db, nextPages{r.producer, &r.lost}, r.client(), poller, r.log(), prometheus.NewRegistry())
	r.stopRelay = r.run(r.relay.Run)
	return r
}

// nextPages enqueues requests from the outbox as package app does. The records of the next r.lost
// requests of pages are lost.
type nextPages struct {
	*producer.Producer
	lost *atomic.Int32
}

func (p nextPages) Trigger(ctx context.Context, claimed []prefetched.ClaimedRequest) (left []prefetched.ClaimedRequest) {
	for _, c := range claimed {
		if p.lost.Add(-1) >= 0 {
			continue
		}
		r := p.EnqueueAndWait(ctx, producer.Request{Entity: c.Entity, Lane: schemas.Low, Reason: schemas.NextPage, Floor: c.Version, Page: c.Page, Params: c.Params})
		if !r.Queued() && r.Outcome != producer.Held {
			left = append(left, c)
		}
	}
	return left
}

func (r *listRig) start() (stop func()) {
	r.Helper()
	var stops []func()
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		deps := r.deps()
		deps.Outbox, deps.Walks, deps.Items, deps.Runs = r.relay, r.collections, r.collections, r.runs
		if lane == schemas.High && r.high != nil {
			deps.Walks = r.high
		}
		config := consumer.DefaultConfig(lane)
		config.DrainTimeout = waitTimeout
		w, err := consumer.New(config, r.source, lane, deps)
		if err != nil {
			r.Fatal(err)
		}
		stops = append(stops, r.run(w.Run))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

func (r *listRig) state() collection.State {
	r.Helper()
	s, err := r.collections.State(r.Context(), entity("k"))
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// walk requests the collection and waits for the end of its walk. It returns the calls that the
// upstream got.
func (r *listRig) walk() []string {
	r.Helper()
	before := r.state()
	r.refresh()
	r.until("the end of the walk", func() bool {
		s := r.state()
		return s.CompleteAt.After(before.CompleteAt) && !s.Walk.Open()
	})
	return r.list.take()
}

func (r *listRig) refresh() {
	r.Helper()
	req := requestFor("k")
	req.Reason = schemas.UserRequest
	if result := r.producer.Enqueue(r.Context(), req); !result.Queued() {
		r.Fatalf("request: got %+v, want it queued", result)
	}
}

func (r *listRig) wantCalls(what string, got []string, want ...string) {
	r.Helper()
	if !slices.Equal(got, want) {
		r.Errorf("calls of %s: got %q, want %q", what, got, want)
	}
}

// wantList checks that the stored items equal the upstream's.
func (r *listRig) wantList() {
	r.Helper()
	items, err := r.collections.Items(r.Context(), entity("k"), collection.Range{Limit: 1000})
	if err != nil {
		r.Fatal(err)
	}
	var got, want []string
	for _, i := range items {
		var l listItem
		if err := json.Unmarshal(i.Content, &l); err != nil {
			r.Error(err)
		}
		got = append(got, l.ID+"="+l.Text)
	}
	r.list.set(func(u *listUpstream) {
		for _, i := range u.items {
			if !i.Gone {
				want = append(want, i.ID+"="+i.Text)
			}
		}
	})
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.Errorf("stored items: got %q, want %q", got, want)
	}
	s := r.state()
	var summary collection.Summary
	snapshot, _ := r.snapshot("k")
	content, err := snapshot.Decode(nil)
	if err == nil {
		err = json.Unmarshal(content, &summary)
	}
	if err != nil || summary.Count != int64(len(want)) || s.Items != summary.Count {
		r.Errorf("summary: got %s, %v, want the count %d", content, err, len(want))
	}
}

// openWalk stores an open walk whose next page has this number and position, and an outbox event that
// requests this page.
func (r *listRig) openWalk(page int, position string) {
	r.Helper()
	version := time.Now().UnixMilli() - 1000
	f, _ := r.source.Facet("character")
	after := collection.State{Version: version, Walk: collection.Walk{ID: version, Began: epoch, Date: epoch, Page: page, Position: position, Full: true, ExtractVersion: f.ExtractVersion()}}
	write := collection.Write{Entity: entity("k"), After: after, Page: collection.Page{Version: version, Began: epoch}}
	if written, err := r.collections.Write(r.Context(), []collection.Write{write}); err != nil || written[0].Result != collection.Stored {
		r.Fatal(written, err)
	}
	r.relay.Notify()
}
