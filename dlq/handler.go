package dlq

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	defaultListLimit, maxListLimit = 100, 1000
	maxNoteLength                  = 1000 // characters
	// maxRate and rateLeast are in letters a second.
	maxRate, minRate = 10_000, 1.0 / 60
)

// Entry is a letter as lists show it.
type Entry struct {
	// ID is partition:offset on the source's topic.
	ID            string                   `json:"id"`
	Source        string                   `json:"source"`
	Facet         string                   `json:"facet,omitempty"`
	Key           string                   `json:"key,omitempty"`
	Reason        schemas.DeadLetterReason `json:"reason"`
	Error         string                   `json:"error"`
	Fingerprint   string                   `json:"fingerprint"`
	Status        int                      `json:"status,omitempty"`
	Attempts      int                      `json:"attempts"`
	Replays       int                      `json:"replays"`
	At            time.Time                `json:"at"`
	CorrelationID string                   `json:"correlationId,omitempty"`
	Handled       string                   `json:"handled,omitempty"`
	HandledAt     time.Time                `json:"handledAt,omitzero"`
	HandledBy     string                   `json:"handledBy,omitempty"`
	Job           string                   `json:"job,omitempty"`
}

func newEntry(l store.DeadLetter) Entry {
	return Entry{
		ID: formatID(l.DeadLetterID), Source: l.Entity.Source, Facet: l.Entity.Facet, Key: l.Entity.Key, Reason: l.Reason, Error: l.Error,
		Fingerprint: l.Fingerprint, Status: l.Status, Attempts: l.Attempts, Replays: l.Replays, At: l.At, CorrelationID: l.CorrelationID,
		Handled: l.Handled, HandledAt: l.HandledAt, HandledBy: l.HandledBy, Job: l.Job,
	}
}

// DeadLetterList is a page of letters, the newest first.
type DeadLetterList struct {
	DeadLetters []Entry `json:"deadLetters"`
	// Next is to be given as after, for the next page; empty: this is the last.
	Next string `json:"next,omitempty"`
}

// Groups are letters counted by what went wrong, the most frequent first.
type Groups struct {
	Groups []store.DeadLetterGroup `json:"groups"`
	Total  int64                   `json:"total"`
	// More: there are more groups than are shown; Total is of all.
	More bool `json:"more,omitempty"`
}

// Handler returns the admin API of letters, below /admin/v1/dlq.
func (l *Queue) Handler() http.Handler {
	const root = "/admin/v1/dlq"
	get := func(h admin.Handle) map[string]admin.Handle { return map[string]admin.Handle{http.MethodGet: h} }
	post := func(h admin.Handle) map[string]admin.Handle { return map[string]admin.Handle{http.MethodPost: h} }
	return admin.API{
		Paths: map[string]map[string]admin.Handle{
			root + "/{source}":                      get(l.list),
			root + "/{source}/groups":               get(l.groups),
			root + "/{source}/{partition}/{offset}": get(l.show),
			root + "/{source}/plan":                 post(l.plan),
			root + "/{source}/jobs":                 post(l.startJob),
			"/admin/v1/dlq-jobs":                    get(l.jobs),
			"/admin/v1/dlq-jobs/{id}":               get(l.job),
			"/admin/v1/dlq-jobs/{id}/stop":          post(l.setJobState(store.JobStopped)),
			"/admin/v1/dlq-jobs/{id}/resume":        post(l.setJobState(store.JobRunning)),
		},
		Explain:     toProblem,
		Unavailable: "Dead letters can't be looked at or handled at the moment; the query service's log says why. If the release is new, run `freshet migrate up`.",
		CrossSite:   "A page of another site may not handle dead letters.",
		Log:         l.Log,
	}.Handler()
}

func toProblem(err error) *problem.HTTPError {
	switch {
	case errors.Is(err, store.ErrReplayRunning):
		return problem.New(http.StatusConflict, "replay-running", "Another replay of the source is under way, and might ask for the same letters: wait until it has ended, or stop it. What one that was stopped has asked for may be looked up for a minute more.")
	case errors.Is(err, store.ErrJobNotFound):
		return problem.New(http.StatusNotFound, "no-such-job", "There is no such job, or it has ended and can't be stopped or resumed.")
	case errors.Is(err, errCountTimeout):
		return problem.New(http.StatusServiceUnavailable, "dlq-count-timeout", "To count the letters takes longer than it may. Choose fewer, as by since and until, one part after the other; if that takes as long, the database does not keep up.")
	case errors.Is(err, ErrUnreadable):
		return problem.New(http.StatusUnprocessableEntity, "unreadable-dead-letter", err.Error())
	case errors.Is(err, ErrGone):
		return problem.New(http.StatusNotFound, "no-such-dead-letter", "The dead-letter topic does not have the record: there never was one, or Kafka has deleted it for its age.")
	}
	return nil
}

func (l *Queue) list(r *http.Request) (admin.Answer, error) {
	filter, err := l.parseFilter(r, r.URL.Query(), "limit", "after")
	if err != nil {
		return admin.Answer{}, err
	}
	limit := defaultListLimit
	if text := r.URL.Query().Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxListLimit {
			return admin.Answer{}, badRequest("limit is %.20q; it must lie between 1 and %d.", text, maxListLimit)
		}
	}
	text := r.URL.Query().Get("after")
	after, err := ParseCursor(filter.Source, text)
	if err != nil {
		return admin.Answer{}, badRequest("after is %.60q; take it from the page before.", text)
	}
	all, err := l.List(r.Context(), filter, after, limit)
	page := DeadLetterList{DeadLetters: make([]Entry, len(all))}
	for i, letter := range all {
		page.DeadLetters[i] = newEntry(letter)
	}
	if len(all) == limit {
		last := all[limit-1]
		page.Next = FormatCursor(last)
	}
	return admin.Answer{Body: page}, err
}

// FormatCursor names a letter behind which the next page of a list begins.
func FormatCursor(l store.DeadLetter) string {
	return fmt.Sprintf("%d:%s", l.At.UnixMicro(), formatID(l.DeadLetterID))
}

// ParseCursor reads what After names; of nothing the list begins with the newest.
func ParseCursor(source, text string) (behind store.DeadLetter, err error) {
	if text == "" {
		return behind, nil
	}
	at, id, _ := strings.Cut(text, ":")
	us, err := strconv.ParseInt(at, 10, 64)
	behind.Topic = schemas.DeadLetterTopic(source)
	if err == nil {
		behind.Partition, behind.Offset, err = ParseID(id)
	}
	if err == nil && us <= 0 {
		err = strconv.ErrRange
	}
	if err != nil {
		return store.DeadLetter{}, err
	}
	behind.At = time.UnixMicro(us).UTC()
	return behind, nil
}

func (l *Queue) groups(r *http.Request) (admin.Answer, error) {
	filter, err := l.parseFilter(r, r.URL.Query())
	if err != nil {
		return admin.Answer{}, err
	}
	groups, err := l.Groups(r.Context(), filter)
	all := Groups{Groups: append([]store.DeadLetterGroup{}, groups...)}
	shown := int64(0)
	for _, g := range groups {
		shown, all.Total = shown+g.Count, g.Totals.All
	}
	all.More = shown < all.Total
	return admin.Answer{Body: all}, err
}

func (l *Queue) show(r *http.Request) (admin.Answer, error) {
	source := r.PathValue("source")
	if err := l.checkSource(source); err != nil {
		return admin.Answer{}, err
	}
	partition, offset, err := ParseID(r.PathValue("partition") + ":" + r.PathValue("offset"))
	if err != nil {
		return admin.Answer{}, badRequest("A letter is named by partition and offset, both whole numbers, as in /3/120.")
	}
	id := store.DeadLetterID{Topic: schemas.DeadLetterTopic(source), Partition: partition, Offset: offset}
	letter, err := l.Show(r.Context(), id)
	return admin.Answer{Body: letter}, err
}

func (l *Queue) plan(r *http.Request) (admin.Answer, error) {
	o, err := l.parseJobSpec(r)
	if err != nil {
		return admin.Answer{}, err
	}
	p, err := l.Plan(r.Context(), o)
	return admin.Answer{Body: p}, err
}

func (l *Queue) startJob(r *http.Request) (admin.Answer, error) {
	o, err := l.parseJobSpec(r)
	if err != nil {
		return admin.Answer{}, err
	}
	j, err := l.StartJob(r.Context(), o, l.Actor(r))
	return admin.Answer{Status: http.StatusCreated, Body: j}, err
}

func (l *Queue) jobs(r *http.Request) (admin.Answer, error) {
	all, err := l.Jobs(r.Context())
	return admin.Answer{Body: map[string]any{"jobs": append([]store.DLQJob{}, all...)}}, err
}

func (l *Queue) job(r *http.Request) (admin.Answer, error) {
	j, err := l.Job(r.Context(), r.PathValue("id"))
	return admin.Answer{Body: j}, err
}

func (l *Queue) setJobState(to store.JobState) admin.Handle {
	return func(r *http.Request) (admin.Answer, error) {
		j, err := l.SetJobState(r.Context(), r.PathValue("id"), to, l.Actor(r))
		return admin.Answer{Body: j}, err
	}
}

func badRequest(format string, args ...any) error {
	return problem.New(http.StatusBadRequest, "bad-request", fmt.Sprintf(format, args...))
}

func (l *Queue) checkSource(source string) error {
	if _, known := l.Sources[source]; known {
		return nil
	}
	return problem.New(http.StatusNotFound, "no-such-source", fmt.Sprintf("There is no source %.100q.", source))
}

// jobRequest is the body of an order; the filter has the names that lists take.
type jobRequest struct {
	Kind   string            `json:"kind"`
	Filter map[string]string `json:"filter"`
	Lane   string            `json:"lane"`
	Rate   float64           `json:"rate"`
	Max    int64             `json:"max"`
	Note   string            `json:"note"`
}

func (l *Queue) parseJobSpec(r *http.Request) (o JobSpec, err error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return o, problem.Body(err)
	}
	var body jobRequest
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || d.More() {
		return o, problem.Body(errors.Join(err, errors.New(`the body must be an object, as in {"kind":"REPLAY","filter":{"reason":"UPSTREAM_5XX"},"lane":"LOW","rate":50}`)))
	}
	values := url.Values{}
	for name, value := range body.Filter {
		values.Set(name, value)
	}
	if o.Filter, err = l.parseFilter(r, values); err != nil {
		return o, err
	}
	o.Kind, o.Lane, o.Rate, o.Max, o.Note = store.JobKind(body.Kind), schemas.Lane(body.Lane), body.Rate, body.Max, body.Note
	switch {
	case o.Filter.Handled != "" && o.Filter.Handled != store.OpenDeadLetters:
		return o, badRequest("handled is %q; what is done about letters is done about open ones.", o.Filter.Handled)
	case o.Kind != store.ReplayJob && o.Kind != store.PurgeJob:
		return o, badRequest("kind is %.20q; it must be REPLAY or PURGE.", body.Kind)
	case o.Kind == store.ReplayJob && o.Lane != schemas.High && o.Lane != schemas.Low:
		return o, badRequest("lane is %.20q; it must be HIGH or LOW.", body.Lane)
	case o.Rate != 0 && (o.Rate < minRate || o.Rate > maxRate):
		return o, badRequest("rate is %v letters a second; it must lie between 1 a minute and %d a second, or be 0 for as many as go.", o.Rate, maxRate)
	case o.Max < 0:
		return o, badRequest("max is %d; it must be a number of letters, or 0 for all.", o.Max)
	case utf8.RuneCountInString(o.Note) > maxNoteLength || strings.ContainsFunc(o.Note, unicode.IsControl):
		return o, badRequest("The note must be one line of at most %d characters.", maxNoteLength)
	}
	return o, nil
}

// parseFilter reads a filter of the source in the path; more are names that mean something else.
func (l *Queue) parseFilter(r *http.Request, values url.Values, more ...string) (f store.DeadLetterFilter, err error) {
	f.Source = r.PathValue("source")
	if err := l.checkSource(f.Source); err != nil {
		return f, err
	}
	for name := range values {
		text := values.Get(name)
		if len(values[name]) > 1 {
			return f, badRequest("%.40q stands there twice.", name)
		}
		if text == "" || slices.Contains(more, name) {
			continue
		}
		if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return f, badRequest("%.40q must be text in UTF-8.", name)
		}
		if err := setFilterField(&f, name, text); err != nil {
			return f, err
		}
	}
	f.Facet, f.Key = SplitFacetKey(f.Facet, f.Key, l.Sources[f.Source].HasFacet)
	return f, nil
}

// SplitFacetKey returns the facet and the key that a filter's key names: lists show FACET/KEY,
// which may be used as the key. The part before the first slash is a facet if it is the
// filter's, or if the filter has none and hasFacet says so; otherwise all of the text is the
// key. A key that itself begins so is named as FACET/KEY.
func SplitFacetKey(facet, text string, hasFacet func(string) bool) (of, key string) {
	before, after, both := strings.Cut(text, "/")
	if both && before != "" && after != "" && (before == facet || (facet == "" && hasFacet(before))) {
		return before, after
	}
	return facet, text
}

// setFilterField sets one part of a filter.
func setFilterField(f *store.DeadLetterFilter, name, text string) (err error) {
	switch name {
	case "reason":
		f.Reason = schemas.DeadLetterReason(text)
		if !slices.Contains(schemas.DeadLetterReasons, f.Reason) {
			var all []string
			for _, reason := range schemas.DeadLetterReasons {
				all = append(all, string(reason))
			}
			return badRequest("reason is %.40q; there are %s.", text, strings.Join(all, ", "))
		}
	case "fingerprint":
		f.Fingerprint = text
	case "facet":
		f.Facet = text
	case "key":
		f.Key = text
	case "since":
		f.Since, err = time.Parse(time.RFC3339Nano, text)
	case "until":
		f.Until, err = time.Parse(time.RFC3339Nano, text)
	case "attempts":
		var n uint64
		n, err = strconv.ParseUint(text, 10, 31)
		attempts := int(n)
		f.Attempts = &attempts
	case "offset":
		partition, offset, err := ParseID(text)
		if err != nil {
			return badRequest("offset is %.60q; it must be partition:offset, as in 3:120.", text)
		}
		f.Partition, f.Offset = &partition, &offset
	case "handled":
		if f.Handled = text; text == "all" {
			f.Handled = ""
		} else if !slices.Contains([]string{store.OpenDeadLetters, store.HandledDeadLetters, store.Replayed, store.Purged}, text) {
			return badRequest("handled is %.40q; it must be open, handled, replayed, purged or all.", text)
		}
	default:
		return badRequest("There is no filter %.40q; there are reason, fingerprint, facet, key, since, until, attempts, offset and handled.", name)
	}
	if err != nil {
		return badRequest("%s is %.60q; it must be %s.", name, text, map[string]string{
			"since": "a time, as in 2026-01-27T12:00:00Z", "until": "a time, as in 2026-01-27T12:00:00Z", "attempts": "a whole number",
		}[name])
	}
	return nil
}

// ParseID reads partition:offset.
func ParseID(text string) (partition int32, offset int64, err error) {
	before, after, _ := strings.Cut(text, ":")
	p, err := strconv.ParseInt(before, 10, 32)
	if err == nil {
		offset, err = strconv.ParseInt(after, 10, 64)
	}
	if err == nil && (p < 0 || offset < 0) {
		err = strconv.ErrRange
	}
	return int32(p), offset, err
}
