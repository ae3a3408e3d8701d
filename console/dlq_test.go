package console

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

func TestDLQ_UnreadablePartHidesNoOther(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.countErr = errBroken
	d := r.get(root + "/dlq?source=nexon")
	d.wellFormed(t, "dlq")
	if d.status != 200 || d.linksTo(root+"/dlq/jobs/"+r.jobs[0].ID) == 0 || d.linksTo(root+"/dlq/nexon/0/120") == 0 {
		t.Errorf("page: got %d %s, want 200 and links to the job and to the dead letter", d.status, d.text())
	}
	if n := strings.Count(d.text(), "This part of the page could not be read in time"); n != 3 || strings.Contains(d.text(), "No dead letters since") || d.byID("safe-to-replay") != nil {
		t.Errorf("unreadable parts: got %d, want 3: %s", n, d.text())
	}
	r.readErr = errBroken
	if d := withNewConsole(r).get(root + "/dlq?source=nexon"); d.status != 503 {
		t.Errorf("status of an unreadable page: got %d, want 503", d.status)
	}
}

func TestDeadLetter_ReportsReadError(t *testing.T) {
	for err, want := range map[error]int{dlq.ErrGone: 404, fmt.Errorf("%w: it has no header", dlq.ErrUnreadable): 422, errBroken: 503} {
		r := newRig(t)
		r.readErr = err
		if d := r.get(root + "/dlq/nexon/3/120"); d.status != want {
			t.Errorf("status after %v: got %d %s, want %d", err, d.status, d.textByID("rejected"), want)
		}
	}
}

func TestDLQ_ReadsPartsInParallel(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.barrier = make(chan struct{})
	if d := r.get(root + "/dlq?source=nexon"); d.status != 200 {
		t.Errorf("got status %d, want 200", d.status)
	}
	select {
	case <-r.barrier:
	default:
		t.Error("the reads are not parallel")
	}
}

func TestDLQ_CountsOnceForAllViewers(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	before := r.get(root + "/dlq?source=nexon").textByID("recent-dead-letters")
	r.groups = nil // the fake counts no dead letters now; the page must still show the cached first count
	if got := r.get(root + "/dlq?source=nexon").textByID("recent-dead-letters"); got != before || !strings.Contains(got, "12,268") {
		t.Errorf("got %q, want the cached count", got)
	}
}

func TestDLQ_TruncatedCountSaysAtLeast(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.groups = make([]deadletters.Group, dlq.MaxGroups)
	for i := range r.groups {
		r.groups[i] = deadletters.Group{Reason: schemas.ParseError, Count: 2, Last: testNow}
	}
	d := r.get(root + "/dlq?source=nexon")
	if got := d.text(); !strings.Contains(got, "The 50 most frequent of 1,000 groups or more.") || !strings.Contains(got, "At least 2,000 dead letters") {
		t.Errorf("page: got %.600s, want the 50 most frequent groups and at least 2,000 dead letters", got)
	}
}

// The list shows a key as FACET/KEY. An operator may copy that text into the field "key" of the
// filter, so the filter must accept it.
func TestDLQ_FilterAcceptsListedKey(t *testing.T) {
	for query, want := range map[string]deadletters.Filter{
		"key=somebody":                   {Key: "somebody"},
		"key=character/some/body":        {Facet: "character", Key: "some/body"},
		"key=other/somebody":             {Key: "other/somebody"},
		"facet=character&key=other/some": {Facet: "character", Key: "other/some"},
	} {
		r := newRig(t)
		r.get(root + "/dlq?source=nexon&" + query)
		if len(r.filters) == 0 {
			t.Fatalf("reads of dead letters with %s: got none, want some", query)
		}
		if got := r.filters[0]; got.Facet != want.Facet || got.Key != want.Key {
			t.Errorf("%s: got facet %q and key %q, want %q and %q", query, got.Facet, got.Key, want.Facet, want.Key)
		}
	}
}

func TestDLQ_LinksToTheLastHour(t *testing.T) {
	f := dlqFilter{Filter: deadletters.Filter{Source: "nexon", Until: testNow}}
	got, want := f.LastHour(testNow), "/console/dlq?since="+url.QueryEscape(testNow.Add(-time.Hour).Format(time.RFC3339))+"&source=nexon"
	if got != want {
		t.Errorf("link to the last hour: got %s, want %s", got, want)
	}
}
