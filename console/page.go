package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/deadletters"
)

// page is the data of the layout that all pages share. Body is the data of the template Name.
type page struct {
	Title      string
	Name       string // name of the template
	Nav        []link
	Facets     string // the facets as source/facet, and the sources, separated by spaces
	Sources    string
	Who        string
	LoggedIn   bool
	CanAct     bool // the client may use actions other than refreshes
	CanRefresh bool // the client may refresh entities
	ReadOnly   bool
	Notice     string
	Now        time.Time
	At         string // time at which the shown data was read
	Live       string // URL of the live stream; empty: none
	Version    string
	Body       any
}

// link is an entry of the navigation.
type link struct {
	Path, Title string
	Here        bool
}

var navigation = []link{
	{root, "Overview", false},
	{root + "/items", "Items", false},
	{root + "/lookup", "Look up", false},
	{root + "/queues", "Queues", false},
	{root + "/limiter", "Limiter", false},
	{root + "/schedule", "Schedule", false},
	{root + "/calls", "Calls", false},
	{root + "/runs", "Runs", false},
	{root + "/dlq", "Dead letters", false},
	{root + "/clients", "Clients", false},
	{root + "/processes", "Processes", false},
	{root + "/settings", "Settings", false},
	{root + "/activity", "Activity", false},
}

// notices are the messages that a page shows after an action. The key is the value of the query
// parameter "notice".
var notices = map[string]string{
	"changed":        "The settings were changed. All processes apply them within two seconds.",
	"unchanged":      "The form equals the current settings; nothing was changed.",
	"stopped":        "The emergency stop is set. All processes stop calling the source within two seconds. Requests wait and are kept for one day (HIGH) or three days (LOW).",
	"resumed":        "The emergency stop is lifted. All processes call the source again within two seconds.",
	"started":        "The job was started.",
	"job-stopped":    "The job is stopping: it enqueues no more requests after at most 30 s. Requests that it has enqueued are still fetched. You can resume it.",
	"job-resumed":    "The job was resumed.",
	"run-cancelled":  "The run is cancelled. No further page of it is requested or stored.",
	"run-retried":    "The failed steps of the run are requested again.",
	"admin-token":    "You are logged in with the admin token, which never expires and which several people may share. An API key with the scope admin identifies you in the audit, and can be revoked alone.",
	"fault-scenario": "The fault scenario of the upstream was changed.",
}

func parsePages() map[string]*template.Template {
	funcs := template.FuncMap{
		"asset": assetURL, "what": explainTerm, "termID": termID, "definitions": func() map[string]string { return terms },
		"key":    func(s string) string { return displayText(s, maxKeyShown) },
		"text":   func(s string) string { return displayText(s, maxErrorShown) },
		"brief":  func(s string) string { return displayText(s, maxBriefShown) },
		"long":   func(s string) string { return displayText(s, maxLongShown) },
		"count":  func(n any) string { return status.FormatInt(int64Of(n)) },
		"plural": func(n any, one, many string) string { return plural(int64Of(n), one, many) },
		"span":   formatDuration, "ago": formatAgo, "clock": formatTime, "exact": formatExact, "explain": explainReason, "tier": tierName,
		"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"field": func(t time.Time) string { return fieldTime(t) },
		"at":    func(t, now time.Time) stamp { return stamp{t, now} },
		"join":  strings.Join,
		"pair":  func(a, b any) [2]any { return [2]any{a, b} },
	}
	layout := template.Must(template.New("layout.html").Funcs(funcs).ParseFS(files, "templates/layout.html", "templates/parts.html"))
	all := map[string]*template.Template{}
	for _, name := range []string{"overview", "items", "calls", "clients", "client", "runs", "run", "processes", "lookup", "collection", "queues", "limiter", "schedule", "dlq", "dead-letter", "plan", "job", "settings", "activity", "login", "rejected"} {
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(files, "templates/"+name+".html"))
	}
	return all
}

// int64Of converts a number of a template. The templates pass numbers of the types int and int64.
func int64Of(n any) int64 {
	if n, ok := n.(int); ok {
		return int64(n)
	}
	return n.(int64)
}

// stamp is the data of the template "time", which shows the time T. The text depends on the current
// time Now: it contains the date only if T is on another day.
type stamp struct{ T, Now time.Time }

// render writes a page. The parameter `name` is the name of its template, and `body` is the data
// for the template.
func (c *Console) render(w http.ResponseWriter, r *http.Request, status int, name, title string, body any) {
	client, _ := access.ClientFromContext(r.Context())
	p := page{
		Title: title, Name: name, Who: displayText(client.Name, 60), Now: c.Clock(), Body: body,
		LoggedIn: c.Guard.AuthRequired() && client.Name != "", ReadOnly: c.ReadOnly, Notice: notices[r.URL.Query().Get("notice")],
	}
	p.CanAct, _ = canAct(c, client)
	p.CanRefresh, _ = canRefresh(c, client)
	if looks, _ := canView(c, client); looks {
		p.Facets, p.Sources = strings.Join(allFacets(c.Deps), " "), strings.Join(c.Sources, " ")
		p.Version = c.Version // anonymous visitors of the login page must not see the version
		for _, l := range navigation {
			l.Here = r.URL.Path == l.Path || l.Path != root && strings.HasPrefix(r.URL.Path, l.Path+"/")
			p.Nav = append(p.Nav, l)
		}
	}
	if slices.Contains([]string{"overview", "queues", "limiter", "schedule", "settings"}, name) {
		p.Live = root + "/live"
	}
	if live, ok := body.(interface{ livePath() string }); ok {
		p.Live = live.livePath()
	}
	p.At = p.Now.UTC().Format("15:04:05") + " UTC"
	if timed, ok := body.(interface{ asOf() string }); ok {
		p.At = timed.asOf()
	}
	if prefersJSON(r) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(jsonValue(body)) // an error means that the client has disconnected
		return
	}
	var text bytes.Buffer
	if err := c.pages[name].Execute(&text, p); err != nil {
		c.Log.Error("console page render failed", "page", name, "err", err)
		http.Error(w, "The page can't be rendered; see the log of this process.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = text.WriteTo(w) // an error means that the client has disconnected
}

// allFacets returns all facets as source/facet.
func allFacets(d Deps) (all []string) {
	for _, source := range d.Sources {
		for _, facet := range d.Facets[source] {
			all = append(all, source+"/"+facet)
		}
	}
	return all
}

// asOf returns the time at which the data was read, as text.
func (f liveStatus) asOf() string { return f.At }

// rejection is the data of the error page.
type rejection struct {
	Reason string
	// RetryURL is the URL of the rejected request, if a link on another site caused the request. The
	// error page links to RetryURL, because the console accepts requests that its own pages cause.
	// Empty: no link.
	RetryURL string
}

// reject responds with an error page. "why" is the text of the page.
func (c *Console) reject(w http.ResponseWriter, r *http.Request, status int, why string) {
	c.render(w, r, status, "rejected", http.StatusText(status), rejection{Reason: why})
}

// unavailable responds that another service has failed, and logs the error. "what" is a sentence
// that names the failed operation.
func (c *Console) unavailable(w http.ResponseWriter, r *http.Request, what string, err error) {
	if errors.Is(err, deadletters.ErrReplayRunning) {
		c.reject(w, r, http.StatusConflict, what+" Another replay of the source is running and may replay the same dead letters: wait until it ends, or stop it.")
		return
	}
	c.Log.Warn("console request failed", "message", what, "err", err)
	c.reject(w, r, http.StatusServiceUnavailable, what+" See the log of this process, and try again in a moment.")
}

// redirectWithNotice redirects to a page that shows the notice with this code (see notices).
func redirectWithNotice(w http.ResponseWriter, r *http.Request, path, code string) {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	http.Redirect(w, r, path+sep+"notice="+code, http.StatusSeeOther)
}
