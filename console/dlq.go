package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/deadletters"
)

const (
	dlqPageSize    = 20
	maxGroupsShown = 50
)

// dlqPage is the data of the page of dead letters.
type dlqPage struct {
	dlqFilter
	client        access.Client
	Sources       []string
	Reasons       []schemas.DeadLetterReason
	Facets        []string
	Problem       string
	Recent        []deadLetterGroup
	RecentMessage string // message about the dead letters of the last 24 h; empty: they could not be read
	Checks        []replayCheck
	Groups        []deadletters.Group
	Counted       bool   // true if Groups, Total, Open and Checks could be read
	MoreGroups    string // "The … most frequent of … groups" if Groups is incomplete; empty: Groups is complete
	Total         int64
	Open          int64 // number of open dead letters that match the filter and may be replayed
	DeadLetters   []deadletters.DeadLetter
	Listed        bool   // true if DeadLetters could be read
	Next          string // URL of the next page of the list; empty: this is the last page
	Jobs          []jobPage
	JobsRead      bool
	Hours         *hoursPicture // nil: it could not be read
}

// Handlings returns the options of the form field that filters dead letters by state, for example
// open, replayed or purged. Each option is a value and its label.
func (dlqPage) Handlings() [][2]string {
	return [][2]string{{deadletters.Open, "open ones"}, {deadletters.Handled, "handled ones"}, {deadletters.Replayed, "replayed ones"}, {deadletters.Purged, "purged ones"}, {allDeadLetters, "all"}}
}

// allDeadLetters is the value of the form field "handled" that selects dead letters in any state:
// open, replayed or purged.
const allDeadLetters = "all"

// dlqFilter is the filter of the page of dead letters. Fields formats it for a form, Query as a
// query string.
type dlqFilter struct {
	Filter   deadletters.Filter
	Attempts string
	Offset   string
}

// Query returns the filter as a query string.
func (l dlqFilter) Query() url.Values {
	q := url.Values{}
	for _, f := range l.Fields() {
		q.Set(f[0], f[1])
	}
	return q
}

// LastHour returns the URL of the page of dead letters with this filter, limited to the last hour.
func (l dlqFilter) LastHour(now time.Time) string {
	l.Filter.Since, l.Filter.Until = now.Add(-time.Hour).Truncate(time.Second), time.Time{}
	return l.Address()
}

// Address returns the URL of the page of dead letters with this filter.
func (l dlqFilter) Address() string { return root + "/dlq?" + l.Query().Encode() }

// Fields returns the filter as hidden form fields.
func (l dlqFilter) Fields() [][2]string {
	f := l.Filter
	all := [][2]string{{"source", f.Source}}
	for _, v := range [][2]string{
		{"reason", string(f.Reason)},
		{"fingerprint", f.Fingerprint},
		{"facet", f.Facet},
		{"key", f.Key},
		{"since", exactTime(f.Since)},
		{"until", exactTime(f.Until)},
		{"attempts", l.Attempts},
		{"offset", l.Offset},
		{"handled", f.Handled},
	} {
		if v[1] != "" {
			all = append(all, v)
		}
	}
	return all
}

func exactTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// fieldTime formats a time in UTC as the value of an HTML input of the type datetime-local.
func fieldTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05")
}

func readTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, form := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04"} {
		if t, err := time.Parse(form, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time; use the form 2026-01-27T12:00:00Z", displayText(text, 40))
}

// dlqPages are the pages of dead letters and their jobs.
type dlqPages struct {
	*Console
	recent status.Cached[deadLetterGroups] // dead letters of the last 24 h, with any visibility label or none
	// publicRecent contains only dead letters without a visibility label, which all clients may see.
	publicRecent status.Cached[deadLetterGroups]
}

func newDLQPages(c *Console) *dlqPages {
	p := &dlqPages{Console: c}
	for groups, visibilities := range map[*status.Cached[deadLetterGroups]][]string{&p.recent: nil, &p.publicRecent: {}} {
		groups.Read = func(ctx context.Context) (deadLetterGroups, error) { return p.readRecentDeadLetters(ctx, visibilities) }
		groups.Timeout, groups.Clock, groups.Log = countInterval, c.Clock, c.Log
	}
	return p
}

// filterOf reads the filter from a request. The texts of its errors are shown to the client.
func (c *dlqPages) filterOf(r *http.Request) (l dlqFilter, err error) {
	get := func(name string) string { return strings.TrimSpace(r.FormValue(name)) }
	f := &l.Filter
	source, known := c.selectedSource(r)
	f.Source = source
	if !known {
		return l, errors.New("unknown source; choose a source of the list")
	}
	f.Reason, f.Fingerprint, f.Facet, f.Key = schemas.DeadLetterReason(get("reason")), get("fingerprint"), get("facet"), get("key")
	f.Facet, f.Key = dlq.SplitFacetKey(f.Facet, f.Key, func(name string) bool { return slices.Contains(c.Facets[source], name) })
	l.Attempts, l.Offset = get("attempts"), get("offset")
	f.Handled = get("handled")
	if f.Handled == "" {
		f.Handled = deadletters.Open
	}
	for _, text := range []string{string(f.Reason), f.Fingerprint, f.Facet, f.Key} {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return l, errors.New("the filter must be text in UTF-8")
		}
	}
	if f.Reason != "" && explanations[f.Reason] == "" {
		return l, fmt.Errorf("unknown reason of dead letters: %q", displayText(string(f.Reason), 40))
	}
	switch f.Handled {
	case deadletters.Open, deadletters.Handled, deadletters.Replayed, deadletters.Purged, allDeadLetters:
	default:
		return l, fmt.Errorf("handled is %q; it must be open, handled, replayed, purged or all", displayText(f.Handled, 40))
	}
	var wrong [2]error
	f.Since, wrong[0] = readTime(get("since"))
	f.Until, wrong[1] = readTime(get("until"))
	if err := errors.Join(wrong[:]...); err != nil {
		return l, err
	}
	if l.Attempts != "" {
		n, err := strconv.Atoi(l.Attempts)
		if err != nil || n < 0 {
			return l, errors.New("attempts must be a whole number")
		}
		f.Attempts = &n
	}
	if l.Offset != "" {
		partition, offset, err := dlq.ParseID(l.Offset)
		if err != nil {
			return l, errors.New("the position must be partition:offset, as in 3:120")
		}
		f.Partition, f.Offset = &partition, &offset
	}
	return l, nil
}

// storeFilter returns the filter for the store. It selects only dead letters that the client may
// see.
func (l dlqFilter) storeFilter(client access.Client) deadletters.Filter {
	f := l.Filter
	f.Visibilities = client.Visibilities()
	if f.Handled == allDeadLetters {
		f.Handled = ""
	}
	return f
}

// dlqOverview shows the page of dead letters. If a part of the page can't be read, the other parts
// are still shown: an operator must always be able to find and stop a running job.
func (c *dlqPages) dlqOverview(w http.ResponseWriter, r *http.Request, client access.Client) {
	ctx, cancel := requestContext(r)
	defer cancel()
	p := dlqPage{Sources: c.Sources, Reasons: schemas.DeadLetterReasons, client: client}
	var err error
	if p.dlqFilter, err = c.filterOf(r); err != nil {
		p.Problem, p.Filter.Handled = err.Error(), deadletters.Open
	}
	p.Facets = c.Facets[p.Filter.Source]
	after, wrong := dlq.ParseCursor(p.Filter.Source, r.FormValue("after"))
	if wrong != nil && p.Problem == "" {
		p.Problem = "the page parameter is invalid; start with the first page"
	}
	all := []func(context.Context, *dlqPages) error{p.readJobs, p.readRecent}
	if p.Problem == "" {
		all = append(all, func(ctx context.Context, c *dlqPages) error { return p.readList(ctx, c, after) }, p.readGroups, p.readHours)
	}
	if errs := c.parallel(ctx, all); len(errs) == len(all) {
		c.unavailable(w, r, "The dead letters can't be read.", errors.Join(errs...))
		return
	} else if len(errs) > 0 {
		c.Log.Warn("dead letters page shown incompletely", "err", errors.Join(errs...))
	}
	if p.Counted {
		p.Checks = c.replayChecks(ctx, client, p.storeFilter(client), schemas.Low, p.Open)
	}
	status := http.StatusOK
	if p.Problem != "" {
		status = http.StatusBadRequest
	}
	c.render(w, r, status, "dlq", "Dead letters", &p)
}

// canSeeJob reports whether the client may see a job. If the filter of a job names a key, the
// client must be allowed to see that entity.
func (c *dlqPages) canSeeJob(client access.Client, j deadletters.Job) bool {
	return j.Filter.Key == "" || c.Entities.Sees(client, schemas.Entity{Source: j.Source, Facet: j.Filter.Facet, Key: j.Filter.Key}, "")
}
