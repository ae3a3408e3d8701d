package console

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/store"
)

// page is what the layout shows around what each page has of its own (Body).
type page struct {
	Title      string
	Name       string // of the template
	Nav        []link
	Who        string
	LoggedIn   bool // somebody logged in
	CanAct     bool // who looks may change things
	CanRefresh bool // who looks may ask for a refresh
	ReadOnly   bool // the console is read-only
	Notice     string
	Now        time.Time
	At         string // when what it shows was seen
	Live       string // where the page hears what is new; empty: nowhere
	Version    string
	Body       any
}

// link is one of the navigation.
type link struct {
	Path, Title string
	Here        bool
}

var navigation = []link{
	{root, "Overview", false},
	{root + "/lookup", "Look up", false},
	{root + "/queues", "Queues", false},
	{root + "/limiter", "Limiter", false},
	{root + "/schedule", "Schedule", false},
	{root + "/dlq", "Dead letters", false},
	{root + "/settings", "Settings", false},
	{root + "/activity", "Activity", false},
}

// notices is what a page says after an act, by the code in its address.
var notices = map[string]string{
	"changed":        "The settings are changed. All processes follow within two seconds.",
	"unchanged":      "Nothing was different from what is in force; nothing was changed.",
	"stopped":        "The source is told to stop: all processes follow within two seconds. Requests wait, and none is lost within a day (HIGH; LOW three days).",
	"resumed":        "The source is told to go on: all processes follow within two seconds.",
	"started":        "The job is ordered.",
	"job-stopped":    "The job is told to stop, and asks for nothing more within half a minute. What it asked for is fetched all the same; it may be resumed.",
	"job-resumed":    "The job goes on.",
	"admin-token":    "You are logged in by the admin token, which never ends and is everybody's who has it. An API key with the scope admin says who you are, and can be revoked alone.",
	"fault-scenario": "The upstream behaves as you wish from now on.",
}

func parsePages() map[string]*template.Template {
	funcs := template.FuncMap{
		"asset": assetURL,
		"key":   func(s string) string { return displayText(s, maxKeyShown) },
		"text":  func(s string) string { return displayText(s, maxErrorShown) },
		"brief": func(s string) string { return displayText(s, maxBriefShown) },
		"long":  func(s string) string { return displayText(s, maxLongShown) },
		"count": func(n any) string {
			switch n := n.(type) {
			case int:
				return formatInt(n)
			case int64:
				return formatInt(n)
			}
			return fmt.Sprint(n)
		},
		"span": formatDuration, "ago": formatAgo, "clock": formatTime, "explain": explainReason, "tier": tierName,
		"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"field": func(t time.Time) string { return fieldTime(t) },
		"at":    func(t, now time.Time) stamp { return stamp{t, now} },
		"join":  strings.Join,
		"pair":  func(a, b any) [2]any { return [2]any{a, b} },
	}
	layout := template.Must(template.New("layout.html").Funcs(funcs).ParseFS(files, "templates/layout.html", "templates/parts.html"))
	all := map[string]*template.Template{}
	for _, name := range []string{"overview", "lookup", "queues", "limiter", "schedule", "dlq", "dead-letter", "plan", "job", "settings", "activity", "login", "rejected"} {
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(files, "templates/"+name+".html"))
	}
	return all
}

// stamp is a time, and the one from which it is looked at.
type stamp struct{ T, Now time.Time }

// render answers with a page.
func (c *Console) render(w http.ResponseWriter, r *http.Request, status int, name, title string, body any) {
	who, _ := access.ClientFromContext(r.Context())
	p := page{
		Title: title, Name: name, Who: displayText(who.Name, 60), Now: c.Clock(), Body: body,
		LoggedIn: c.Guard.AuthRequired() && who.Name != "", ReadOnly: c.ReadOnly, Notice: notices[r.URL.Query().Get("notice")],
	}
	p.CanAct, _ = canAct(c, who)
	p.CanRefresh, _ = canRefresh(c, who)
	if looks, _ := canView(c, who); looks {
		p.Version = c.Version // a stranger at the login page must not learn it
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
	if seen, ok := body.(interface{ asOf() string }); ok {
		p.At = seen.asOf()
	}
	var text bytes.Buffer
	if err := c.pages[name].Execute(&text, p); err != nil {
		c.Log.Error("a page of the console can't be made", "page", name, "err", err)
		http.Error(w, "The page can't be made; the log says why.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = text.WriteTo(w) // who has left misses nothing
}

// asOf is when they were true.
func (f liveStatus) asOf() string { return f.At }

// rejection is what the page of a refusal says.
type rejection struct {
	Reason string
	// RetryURL is the address that was asked for, if who asked may do so from here.
	RetryURL string
}

// reject answers with a page that says why not.
func (c *Console) reject(w http.ResponseWriter, r *http.Request, status int, why string) {
	c.render(w, r, status, "rejected", http.StatusText(status), rejection{Reason: why})
}

// unavailable answers with a page that says that what lies behind does not answer.
func (c *Console) unavailable(w http.ResponseWriter, r *http.Request, what string, err error) {
	if errors.Is(err, store.ErrReplayRunning) {
		c.reject(w, r, http.StatusConflict, what+" Another replay of the source is under way, and might ask for the same letters: wait until it has ended, or stop it.")
		return
	}
	c.Log.Warn("the console can't show or do something", "what", what, "err", err)
	c.reject(w, r, http.StatusServiceUnavailable, what+" The log of this process says why; try again in a moment.")
}

// redirectWithNotice leads to a page that says what was done.
func redirectWithNotice(w http.ResponseWriter, r *http.Request, path, code string) {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	http.Redirect(w, r, path+sep+"notice="+code, http.StatusSeeOther)
}
