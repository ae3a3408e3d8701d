package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// linkedSite is an upstream whose documents contain links. Document n has links to document n+1, to
// itself, to earlier documents, to invalid keys, and to another host.
type linkedSite struct {
	mu    sync.Mutex
	calls map[string]int
}

func linkedKey(n int) string { return fmt.Sprintf("chain/N%d.xml", n) }

func (u *linkedSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.calls[r.URL.Path]++
	u.mu.Unlock()
	var n int
	if _, err := fmt.Sscanf(r.URL.Path, "/ui/chain/N%d.xml", &n); err != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/xml")
	_, _ = fmt.Fprintf(w, `<w2:layout xmlns:w2="u" n="%d">`, n)
	for _, key := range []string{linkedKey(n), linkedKey(n + 1), linkedKey(max(n-1, 0)), linkedKey(0), "../../etc/passwd", "//evil.example/N1.xml", "chain/..%2fN1.xml", "chain/N1.xml%00"} {
		_, _ = fmt.Fprintf(w, `<w2:frame src="/ui/%s"/>`, key)
	}
	_, _ = fmt.Fprint(w, `</w2:layout>`)
}

func (u *linkedSite) called() map[string]int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.calls)
}

// One read must cause one fetch of each linked document, up to the maximum depth. This must also be so
// if the worker is killed (SIGKILL) after it has stored a document and before it has delivered the
// document's links.
func TestDocuments_LinksSurviveAKill(t *testing.T) {
	t.Parallel()
	f := newSite(t)
	site := &linkedSite{calls: map[string]int{}}
	server := httptest.NewServer(site)
	t.Cleanup(server.Close)
	const depth = 5
	f.prepareSource(fmt.Sprintf(`baseURL: %s
timeout: 2s
quota: {policies: [{name: concurrent, limit: 3, window: in-flight, lease: 7s}]}
facets:
  layout:
    keyPattern: "[a-z]{1,20}/[A-Z0-9]{1,40}\\.xml"
    documents: {layout: {path: "/ui/{+key}"}}
    raw: {mediaType: application/xml, wellFormed: xml}
    immutable: true
    wait: 20s
    links: {match: 'src="/ui/([^"]*)"', facet: layout, maxDepth: %d}
`, server.URL, depth))
	exec := func(sql string) {
		t.Helper()
		_, err := f.db.Exec(t.Context(), sql)
		f.check(err)
	}
	// A trigger of the database makes the first worker unable to claim outbox events.
	exec(`CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'rejected by the test'; END $$`)
	exec(`CREATE TRIGGER reject BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION reject()`)
	victim := f.worker()
	l := f.layouts(f.query())
	first, err := l.get(linkedKey(0))
	f.check(err)
	equal(t, "status of the first document", first.status, http.StatusOK)
	equal(t, "undelivered events", f.one(`SELECT count(*) FROM outbox`), 1)
	victim.Kill()
	exec(`DROP TRIGGER reject ON outbox`)
	f.worker()

	f.until(timeout, "all linked documents", func() bool { return f.one(`SELECT count(*) FROM snapshot_state`) == depth+1 })
	f.until(timeout, "an empty outbox", func() bool { return f.one(`SELECT count(*) FROM outbox`) == 0 })
	calls := site.called()
	t.Logf("calls after one read: %v", calls)
	want := map[string]int{}
	for n := range depth + 1 {
		want["/ui/"+linkedKey(n)] = 1
	}
	if !maps.Equal(calls, want) {
		t.Errorf("calls after one read and a kill: got %v, want %v", calls, want)
	}
	last, err := l.get(linkedKey(depth))
	f.check(err)
	equal(t, "status of the last linked document", last.status, http.StatusOK)
	if after := site.called(); !maps.Equal(after, want) {
		t.Errorf("calls after a read of a linked document: got %v, want %v as before", after, want)
	}
}
