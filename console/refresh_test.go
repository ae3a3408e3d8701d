package console

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// manyKeys returns the form that refreshes several keys. "keys" has one key in each line.
func manyKeys(keys string) url.Values {
	return url.Values{"facet": {"nexon/character"}, "keys": {keys}}
}

func TestRefreshMany_ShowsTheResultOfEachKey(t *testing.T) {
	r := newRig(t)
	r.message = "The result."
	d := r.open("POST", root+"/refresh", manyKeys("a\r\n b/c \n\ncooling\na\n"))
	var got []string
	for _, e := range r.refreshed {
		got = append(got, e.String())
	}
	if want := []string{"nexon/character/a", "nexon/character/b/c", "nexon/character/cooling"}; !slices.Equal(got, want) {
		t.Errorf("refreshed: got %q, want %q", got, want)
	}
	if d.status != 200 || d.textByID("refresh-result") != "2 of 3 refreshes are queued." {
		t.Errorf("got %d %q, want 200 and 2 of 3", d.status, d.textByID("refresh-result"))
	}
	if n := strings.Count(d.text(), r.message); n != 3 {
		t.Errorf("results on the page: got %d, want 3", n)
	}
}

func TestRefreshMany_RejectsOneKeyOfMany(t *testing.T) {
	r := newRig(t)
	r.keyErrors = map[string]error{"b": errors.New("it does not match")}
	d := r.open("POST", root+"/refresh", manyKeys("a\nb\nc"))
	if len(r.refreshed) != 2 || d.textByID("refresh-result") != "2 of 3 refreshes are queued." || !strings.Contains(d.text(), "Invalid entity: it does not match.") {
		t.Errorf("got %v and %q, want a and c refreshed and b refused", r.refreshed, d.textByID("refresh-result"))
	}
}

func TestRefreshMany_RejectsAFormItCannotUse(t *testing.T) {
	r := newRig(t)
	many := make([]string, maxRefreshKeys+1)
	for i := range many {
		many[i] = fmt.Sprint("k", i)
	}
	for name, form := range map[string]url.Values{
		"no key":     manyKeys(" \n \n"),
		"too many":   manyKeys(strings.Join(many, "\n")),
		"no facet":   {"keys": {"a"}},
		"no source":  {"facet": {"other/character"}, "keys": {"a"}},
		"wrong word": {"facet": {"nexon/other"}, "keys": {"a"}},
	} {
		if d := r.open("POST", root+"/refresh", form); d.status != 400 {
			t.Errorf("%s: got %d, want 400", name, d.status)
		}
	}
	if len(r.refreshed)+len(r.auditEntries) != 0 {
		t.Errorf("got %v refreshed and %d audit entries, want none", r.refreshed, len(r.auditEntries))
	}
}

func TestRefresh_LeavesAnAuditEntry(t *testing.T) {
	r := newRig(t)
	r.open("POST", root+"/lookup", url.Values{"source": {"nexon"}, "facet": {"character"}, "key": {"a"}})
	r.open("POST", root+"/refresh", manyKeys("a\nb"))
	var got []string
	for _, e := range r.auditEntries {
		got = append(got, fmt.Sprintf("%s %s %s %s", e.Actor, e.Action, e.Source, e.After))
	}
	want := []string{
		`unauthenticated@192.0.2.7 refresh nexon {"facet":"character","entities":1,"keys":["a"]}`,
		`unauthenticated@192.0.2.7 refresh nexon {"facet":"character","entities":2,"keys":["a","b"]}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("audit: got %q, want %q", got, want)
	}
}

func TestRefresh_AuditTruncatesKeys(t *testing.T) {
	r := newRig(t)
	var keys []string
	for i := range 12 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	r.open("POST", root+"/refresh", manyKeys(strings.Join(keys, "\n")))
	if got := string(r.auditEntries[0].After); strings.Count(got, `"k`) != auditKeys+1 || !strings.Contains(got, `"entities":12`) || !strings.HasSuffix(got, `"moreKeys":2}`) {
		t.Errorf("audit: got %s, want 12 entities, %d keys and 2 more", got, auditKeys)
	}
}

// If the audit entry of a refresh can't be stored, the refresh must not be enqueued.
func TestRefresh_RequiresItsAuditEntry(t *testing.T) {
	r := newRig(t)
	r.readErr = errBroken
	for _, path := range []string{"/lookup", "/refresh"} {
		form := manyKeys("a")
		form.Set("key", "a")
		if d := r.open("POST", root+path, form); d.status != 503 || len(r.refreshed) != 0 {
			t.Errorf("%s: got %d and %v refreshed, want 503 and none", path, d.status, r.refreshed)
		}
	}
}

func TestRefreshMany_RateLimitsEachKey(t *testing.T) {
	r := newRig(t)
	r.loginRequired, r.requestLimit = true, 2
	if d := r.open("POST", root+"/refresh", manyKeys("a\nb\nc"), "Authorization", "Bearer inspect,refresh"); d.status != 429 || len(r.refreshed) != 0 {
		t.Errorf("3 keys of 2 requests: got %d and %v refreshed, want 429 and none", d.status, r.refreshed)
	}
	if d := r.open("POST", root+"/refresh", manyKeys("a\nb\nc"), "Authorization", "Bearer admin"); d.status != 200 || len(r.refreshed) != 3 {
		t.Errorf("an administrator: got %d and %v refreshed, want 200 and 3", d.status, r.refreshed)
	}
}
