package dlq

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

const (
	defaultListLimit, maxListLimit = 100, 1000
	maxRate, minRate               = 10_000, 1.0 / 60 // maximum and minimum rate of a job, in dead letters per second
)

// Entry is one dead letter as the admin API returns it.
type Entry struct {
	// ID is partition:offset on the source's dead-letter topic.
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

func newEntry(d deadletters.DeadLetter) Entry {
	return Entry{
		ID: formatID(d.ID), Source: d.Entity.Source, Facet: d.Entity.Facet, Key: d.Entity.Key, Reason: d.Reason, Error: d.Error,
		Fingerprint: d.Fingerprint, Status: d.Status, Attempts: d.Attempts, Replays: d.Replays, At: d.At, CorrelationID: d.CorrelationID,
		Handled: d.Handled, HandledAt: d.HandledAt, HandledBy: d.HandledBy, Job: d.Job,
	}
}

// DeadLetterList is a page of dead letters, newest first.
type DeadLetterList struct {
	DeadLetters []Entry `json:"deadLetters"`
	// Next is the value of the query parameter "after" for the next page; empty on the last page.
	Next string `json:"next,omitempty"`
}

// Groups are dead letters counted by reason, fingerprint and facet, largest group first.
type Groups struct {
	Groups []deadletters.Group `json:"groups"`
	Total  int64               `json:"total"`
	// More is set if there are more than MaxGroups groups. Total counts all groups.
	More bool `json:"more,omitempty"`
}

// Handler returns the admin API below /admin/v1/dlq and /admin/v1/dlq-jobs.
func (q *Queue) Handler() http.Handler {
	a := api{q}
	const root = "/admin/v1/dlq"
	get := func(h admin.Handle) map[string]admin.Handle { return map[string]admin.Handle{http.MethodGet: h} }
	post := func(h admin.Handle) map[string]admin.Handle { return map[string]admin.Handle{http.MethodPost: h} }
	return admin.API{
		Paths: map[string]map[string]admin.Handle{
			root + "/{source}":                      get(a.list),
			root + "/{source}/groups":               get(a.groups),
			root + "/{source}/{partition}/{offset}": get(a.show),
			root + "/{source}/plan":                 post(a.plan),
			root + "/{source}/jobs":                 post(a.startJob),
			"/admin/v1/dlq-jobs":                    get(a.jobs),
			"/admin/v1/dlq-jobs/{id}":               get(a.job),
			"/admin/v1/dlq-jobs/{id}/stop":          post(a.setJobState(deadletters.JobStopped)),
			"/admin/v1/dlq-jobs/{id}/resume":        post(a.setJobState(deadletters.JobRunning)),
		},
		Explain:     toProblem,
		Unavailable: "Dead letters are temporarily unavailable; see the log of the query service. After an upgrade, run `freshet migrate up`.",
		CrossSite:   "Requests from pages of another site may not replay or purge dead letters.",
		Log:         q.Log,
	}.Handler()
}

// api has the handlers of the admin API.
type api struct{ *Queue }

// toProblem returns the response for an error of a job or a list; nil for other errors.
func toProblem(err error) *problem.HTTPError {
	switch {
	case errors.Is(err, deadletters.ErrReplayRunning):
		return problem.New(http.StatusConflict, problem.ReplayRunning, "Another replay of this source is running and could enqueue the same dead letters. Wait until it is done, or stop it. A stopped replay may need another minute to reconcile its last chunk.")
	case errors.Is(err, deadletters.ErrJobNotFound):
		return problem.New(http.StatusNotFound, problem.NoSuchJob, "The job does not exist, or it is done and can't be stopped or resumed.")
	case errors.Is(err, errCountTimeout):
		return problem.New(http.StatusServiceUnavailable, problem.DLQCountTimeout, "Counting the dead letters timed out. Narrow the filter with since and until and repeat; if that times out too, the database is overloaded.")
	case errors.Is(err, ErrUnreadable):
		return problem.New(http.StatusUnprocessableEntity, problem.UnreadableDeadLetter, err.Error())
	case errors.Is(err, ErrGone):
		return problem.New(http.StatusNotFound, problem.NoSuchDeadLetter, "The dead-letter topic has no record at this offset: it never existed, was purged, or exceeded the topic's retention time.")
	}
	return nil
}

func (a api) list(r *http.Request) (admin.Answer, error) {
	filter, err := a.parseFilter(r, r.URL.Query(), "limit", "after")
	if err != nil {
		return admin.Answer{}, err
	}
	limit := defaultListLimit
	if text := r.URL.Query().Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxListLimit {
			return admin.Answer{}, badRequest("limit is %.20q; it must be between 1 and %d.", text, maxListLimit)
		}
	}
	text := r.URL.Query().Get("after")
	after, err := ParseCursor(filter.Source, text)
	if err != nil {
		return admin.Answer{}, badRequest("after is %.60q; use the value of next from the previous page.", text)
	}
	all, err := a.List(r.Context(), filter, after, limit)
	page := DeadLetterList{DeadLetters: make([]Entry, len(all))}
	for i, d := range all {
		page.DeadLetters[i] = newEntry(d)
	}
	if len(all) == limit {
		last := all[limit-1]
		page.Next = FormatCursor(last)
	}
	return admin.Answer{Body: page}, err
}

// FormatCursor returns the cursor that starts a page after d, in the form
// microseconds:partition:offset.
func FormatCursor(d deadletters.DeadLetter) string {
	return fmt.Sprintf("%d:%s", d.At.UnixMicro(), formatID(d.ID))
}

// ParseCursor parses the result of FormatCursor. An empty text is the cursor of the first page.
func ParseCursor(source, text string) (after deadletters.DeadLetter, err error) {
	if text == "" {
		return after, nil
	}
	at, id, _ := strings.Cut(text, ":")
	us, err := strconv.ParseInt(at, 10, 64)
	after.Topic = schemas.DeadLetterTopic(source)
	if err == nil {
		after.Partition, after.Offset, err = ParseID(id)
	}
	if err == nil && us <= 0 {
		err = strconv.ErrRange
	}
	if err != nil {
		return deadletters.DeadLetter{}, err
	}
	after.At = time.UnixMicro(us).UTC()
	return after, nil
}

func (a api) groups(r *http.Request) (admin.Answer, error) {
	filter, err := a.parseFilter(r, r.URL.Query())
	if err != nil {
		return admin.Answer{}, err
	}
	groups, err := a.Groups(r.Context(), filter)
	all := Groups{Groups: append([]deadletters.Group{}, groups...)}
	listed := int64(0)
	for _, g := range groups {
		listed, all.Total = listed+g.Count, g.Totals.All
	}
	all.More = listed < all.Total
	return admin.Answer{Body: all}, err
}

func (a api) show(r *http.Request) (admin.Answer, error) {
	source := r.PathValue("source")
	if err := a.checkSource(source); err != nil {
		return admin.Answer{}, err
	}
	partition, offset, err := ParseID(r.PathValue("partition") + ":" + r.PathValue("offset"))
	if err != nil {
		return admin.Answer{}, badRequest("A dead letter is addressed by partition and offset, both whole numbers, as in /3/120.")
	}
	id := deadletters.ID{Topic: schemas.DeadLetterTopic(source), Partition: partition, Offset: offset}
	deadLetter, err := a.Show(r.Context(), id)
	return admin.Answer{Body: deadLetter}, err
}

func (a api) plan(r *http.Request) (admin.Answer, error) {
	spec, err := a.parseJobSpec(r)
	if err != nil {
		return admin.Answer{}, err
	}
	p, err := a.Plan(r.Context(), spec)
	return admin.Answer{Body: p}, err
}

func (a api) startJob(r *http.Request) (admin.Answer, error) {
	spec, err := a.parseJobSpec(r)
	if err != nil {
		return admin.Answer{}, err
	}
	j, err := a.StartJob(r.Context(), spec, a.Actor(r))
	return admin.Answer{Status: http.StatusCreated, Body: j}, err
}

func (a api) jobs(r *http.Request) (admin.Answer, error) {
	all, err := a.Jobs(r.Context())
	return admin.Answer{Body: map[string]any{"jobs": append([]deadletters.Job{}, all...)}}, err
}

func (a api) job(r *http.Request) (admin.Answer, error) {
	j, err := a.Job(r.Context(), r.PathValue("id"))
	return admin.Answer{Body: j}, err
}

func (a api) setJobState(to deadletters.JobState) admin.Handle {
	return func(r *http.Request) (admin.Answer, error) {
		j, err := a.SetJobState(r.Context(), r.PathValue("id"), to, a.Actor(r))
		return admin.Answer{Body: j}, err
	}
}

func badRequest(format string, args ...any) error {
	return problem.New(http.StatusBadRequest, problem.BadRequest, fmt.Sprintf(format, args...))
}

func (a api) checkSource(source string) error {
	if _, known := a.Sources[source]; known {
		return nil
	}
	return problem.New(http.StatusNotFound, problem.NoSuchSource, fmt.Sprintf("There is no source %.100q.", source))
}

// jobRequest is the body of a request for a plan or a job. The keys of Filter are the names of the
// query parameters that filter the list of dead letters.
type jobRequest struct {
	Kind   string            `json:"kind"`
	Filter map[string]string `json:"filter"`
	Lane   string            `json:"lane"`
	Rate   float64           `json:"rate"`
	Max    int64             `json:"max"`
	Note   string            `json:"note"`
}

func (a api) parseJobSpec(r *http.Request) (spec JobSpec, err error) {
	var body jobRequest
	err = admin.DecodeBody(r.Body, &body, `; the body is {"kind":"REPLAY","filter":{"reason":"UPSTREAM_5XX"},"lane":"LOW","rate":50}`)
	if err != nil {
		return spec, err
	}
	values := url.Values{}
	for name, value := range body.Filter {
		values.Set(name, value)
	}
	if spec.Filter, err = a.parseFilter(r, values); err != nil {
		return spec, err
	}
	spec.Kind, spec.Lane, spec.Rate, spec.Max, spec.Note = deadletters.JobKind(body.Kind), schemas.Lane(body.Lane), body.Rate, body.Max, body.Note
	switch {
	case spec.Filter.Handled != "" && spec.Filter.Handled != deadletters.Open:
		return spec, badRequest("handled is %q; only open dead letters can be replayed or purged.", spec.Filter.Handled)
	case spec.Kind != deadletters.ReplayJob && spec.Kind != deadletters.PurgeJob:
		return spec, badRequest("kind is %.20q; it must be REPLAY or PURGE.", body.Kind)
	case spec.Kind == deadletters.ReplayJob && spec.Lane != schemas.High && spec.Lane != schemas.Low:
		return spec, badRequest("lane is %.20q; it must be HIGH or LOW.", body.Lane)
	case spec.Rate != 0 && (spec.Rate < minRate || spec.Rate > maxRate):
		return spec, badRequest("rate is %v dead letters per second; it must be between 1 per minute and %d per second, or 0 for unlimited.", spec.Rate, maxRate)
	case spec.Max < 0:
		return spec, badRequest("max is %d; it must be a number of dead letters, or 0 for all.", spec.Max)
	case admin.CheckNote(spec.Note) != nil:
		return spec, badRequest("The note must be one line of at most %d characters.", admin.MaxNoteLength)
	}
	return spec, nil
}

// parseFilter parses the filter parameters in values. The source is in the request's path. It skips
// the parameters whose names are in `ignored`.
func (a api) parseFilter(r *http.Request, values url.Values, ignored ...string) (f deadletters.Filter, err error) {
	f.Source = r.PathValue("source")
	if err := a.checkSource(f.Source); err != nil {
		return f, err
	}
	for name := range values {
		text := values.Get(name)
		if len(values[name]) > 1 {
			return f, badRequest("%.40q is given twice.", name)
		}
		if text == "" || slices.Contains(ignored, name) {
			continue
		}
		if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return f, badRequest("%.40q must be text in UTF-8.", name)
		}
		if err := setFilterField(&f, name, text); err != nil {
			return f, err
		}
	}
	f.Facet, f.Key = SplitFacetKey(f.Facet, f.Key, a.Sources[f.Source].HasFacet)
	return f, nil
}

// SplitFacetKey returns the facet and the key of a filter. The text may be a key, or FACET/KEY, the
// form in which lists show it. The part before the first slash is the facet if it equals the filter's
// facet, or if the filter has none and `hasFacet` returns true. Otherwise the whole text is the key. A
// key that begins with a facet's name and a slash must be given as FACET/KEY.
func SplitFacetKey(facet, text string, hasFacet func(string) bool) (f, key string) {
	before, after, found := strings.Cut(text, "/")
	if found && before != "" && after != "" && (before == facet || (facet == "" && hasFacet(before))) {
		return before, after
	}
	return facet, text
}

// setFilterField parses the text of the parameter with this name into its field of the filter.
func setFilterField(f *deadletters.Filter, name, text string) (err error) {
	switch name {
	case "reason":
		f.Reason = schemas.DeadLetterReason(text)
		if !slices.Contains(schemas.DeadLetterReasons, f.Reason) {
			var all []string
			for _, reason := range schemas.DeadLetterReasons {
				all = append(all, string(reason))
			}
			return badRequest("reason is %.40q; it must be one of %s.", text, strings.Join(all, ", "))
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
		} else if !slices.Contains([]string{deadletters.Open, deadletters.Handled, deadletters.Replayed, deadletters.Purged}, text) {
			return badRequest("handled is %.40q; it must be open, handled, replayed, purged or all.", text)
		}
	default:
		return badRequest("There is no filter %.40q; valid filters are reason, fingerprint, facet, key, since, until, attempts, offset and handled.", name)
	}
	if err != nil {
		return badRequest("%s is %.60q; it must be %s.", name, text, map[string]string{
			"since": "a time, as in 2026-01-27T12:00:00Z", "until": "a time, as in 2026-01-27T12:00:00Z", "attempts": "a whole number",
		}[name])
	}
	return nil
}

// ParseID parses partition:offset, the ID of a dead letter within its source.
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
