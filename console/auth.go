package console

import (
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
)

const (
	cookieName = "freshet-console"
	// hostCookieName is the cookie's name over https. A browser takes a cookie of such a
	// name from this host alone, and from no neighbouring name or plain connection.
	hostCookieName = "__Host-" + cookieName
	// maxTokenBytes is the longest token that a cookie takes, in bytes.
	maxTokenBytes = 2900
	// cookieMaxAge is for how long a browser keeps the cookie, if the token holds so long.
	cookieMaxAge = 12 * time.Hour
	// crossSite is the code of the guard's refusal of what a page of another site asks for.
	crossSite = "cross-site"
	// adminToken is the name of who shows the admin token.
	adminToken = "admin-token"
)

// permission says whether a client may do something here.
type permission func(c *Console, who access.Client) (allowed bool, why string)

func canView(_ *Console, who access.Client) (bool, string) {
	return who.May(access.Inspect), "Your token may not look at the console: it needs the scope inspect or admin."
}

func canAct(c *Console, who access.Client) (bool, string) {
	if c.ReadOnly {
		return false, readOnlyMessage
	}
	return who.May(access.Admin), "Your token may look and change nothing: this needs the scope admin."
}

func canRefresh(c *Console, who access.Client) (bool, string) {
	if c.ReadOnly {
		return false, readOnlyMessage
	}
	return who.May(access.Inspect) && who.May(access.Refresh), "Your token may not ask for a refresh: it needs the scopes inspect and refresh, or admin."
}

const readOnlyMessage = "This console is read-only: it shows all and changes nothing, whoever asks."

// identify says who asks, by the token in Authorization or in the cookie. Of another scheme
// there, as of a proxy that asks for a password, freshet knows nothing. Who shows nothing is no
// refusal for the guard to count: they are about to log in.
func (c *Console) identify(r *http.Request) (access.Client, error) {
	if !slices.ContainsFunc(r.Header.Values("Authorization"), isBearer) {
		token := cookieToken(r)
		if token == "" && c.Guard.AuthRequired() {
			return access.Client{}, problem.New(http.StatusUnauthorized, "TOKEN_MISSING", "Log in.")
		}
		r = r.Clone(r.Context())
		if r.Header.Del("Authorization"); token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
	}
	address := r.RemoteAddr
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return c.Guard.Authenticate(r, address)
}

func isBearer(header string) bool {
	scheme, _, _ := strings.Cut(header, " ")
	return strings.EqualFold(scheme, "Bearer")
}

// cookieToken returns the token in the cookie; empty: there is none. Over TLS the cookie
// of plain connections is ignored, which another host could have set. Behind a proxy the
// connection is not known to be encrypted, and the safer cookie goes first.
func cookieToken(r *http.Request) string {
	names := []string{hostCookieName, cookieName}
	if r.TLS != nil {
		names = names[:1]
	}
	for _, name := range names {
		cookie, err := r.Cookie(name)
		if err != nil {
			continue
		}
		token, err := base64.RawURLEncoding.DecodeString(cookie.Value)
		if err != nil {
			return ""
		}
		return string(token)
	}
	return ""
}

// authorize has a request answered if its client may make it.
func (c *Console) authorize(allowed permission, h pageHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := c.identify(r)
		if err != nil {
			c.identifyFailed(w, r, err)
			return
		}
		if ok, why := allowed(c, who); !ok {
			c.reject(w, r.WithContext(access.WithClient(r.Context(), who)), http.StatusForbidden, why)
			return
		}
		r = r.WithContext(access.WithClient(r.Context(), who))
		if !who.May(access.Admin) { // whoever stops a source in need is not told to wait
			if err := c.Meters.AllowRequests(who.Name, 1); err != nil {
				c.identifyFailed(w, r, err)
				return
			}
		}
		if status, why := readForm(r); why != "" {
			c.reject(w, r, status, why)
			return
		}
		h(w, r, who)
	})
}

// readForm reads what a request is about, and says why that can't be: a field that is lost
// from a filter would make it choose more.
func readForm(r *http.Request) (status int, why string) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); r.Method == http.MethodPost && r.ContentLength != 0 && kind != "application/x-www-form-urlencoded" {
		return http.StatusUnsupportedMediaType, "A form must be sent as application/x-www-form-urlencoded."
	}
	err := r.ParseForm()
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("The form is larger than %d KiB.", maxFormBytes>>10)
	}
	if err != nil {
		return http.StatusBadRequest, "The address or the form can't be read: a part of it is not written as it must be. Nothing was done."
	}
	return 0, ""
}

// identifyFailed answers a request of which nobody knows from whom it is, or of whom there are too
// many.
func (c *Console) identifyFailed(w http.ResponseWriter, r *http.Request, err error) {
	status, why := http.StatusServiceUnavailable, "Who you are can't be checked at the moment; the log says why."
	p, told := errors.AsType[*problem.HTTPError](err)
	if told {
		status, why = p.Status, p.Detail
		if p.After > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(problem.Seconds(p.After)))
		}
	} else {
		c.Log.Error("the console can't tell who asks", "err", err)
	}
	page := r.Method == http.MethodGet && !strings.HasPrefix(r.URL.Path, root+"/live")
	switch {
	case page && told && p.Code == crossSite:
		c.render(w, r, status, "rejected", http.StatusText(status), rejection{
			Reason: "A page of another site led here, and this service asks nobody who they are: what another site wishes for is not done.", RetryURL: localPath(r.URL.RequestURI()),
		})
	case status != http.StatusUnauthorized:
		c.reject(w, r, status, why)
	case page:
		http.Redirect(w, r, root+"/login?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
	default:
		c.reject(w, r, status, "You are not logged in any more. Log in, and do it again.")
	}
}

// loginForm is what the login page shows.
type loginForm struct {
	To, Problem string
	// CrossSite: a link of another site led here, which a browser follows without the cookie.
	CrossSite bool
}

func (c *Console) loginPage(w http.ResponseWriter, r *http.Request) {
	to := localPath(r.FormValue("to"))
	if !c.Guard.AuthRequired() {
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // a path of the console's own
		return
	}
	c.render(w, r, http.StatusOK, "login", "Log in", loginForm{To: to, CrossSite: r.Header.Get("Sec-Fetch-Site") == "cross-site"})
}

// localPath returns the path if it is one of the console's, and otherwise that of the overview.
func localPath(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.Scheme != "" || u.Host != "" || u.Opaque != "" || u.Path != root && !strings.HasPrefix(u.Path, root+"/") || strings.Contains(u.Path, "..") {
		return root
	}
	return u.RequestURI()
}

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	form := loginForm{To: localPath(r.FormValue("to"))}
	token := strings.TrimSpace(r.PostFormValue("token"))
	asked := r.Clone(r.Context())
	asked.Header.Set("Authorization", "Bearer "+token)
	who, err := c.identify(asked)
	status := http.StatusUnauthorized
	switch p, is := errors.AsType[*problem.HTTPError](err); {
	case len(token) > maxTokenBytes:
		form.Problem = "The token is too long for a browser's cookie. Use an API key."
	case token == "":
		form.Problem = "Enter an API key or a token."
	case is && p.Status != http.StatusUnauthorized:
		status, form.Problem = p.Status, p.Detail
	case is:
		form.Problem = p.Detail
	case err != nil:
		c.identifyFailed(w, r, err)
		return
	default:
		if ok, why := canView(c, who); !ok {
			status, form.Problem = http.StatusForbidden, why
		}
	}
	if form.Problem != "" {
		c.render(w, r, status, "login", "Log in", form)
		return
	}
	life := cookieMaxAge
	if !who.Expires.IsZero() {
		life = min(life, who.Expires.Sub(c.Clock()))
	}
	http.SetCookie(w, c.cookie(r, base64.RawURLEncoding.EncodeToString([]byte(token)), max(1, int(life/time.Second))))
	if who.Name == adminToken {
		redirectWithNotice(w, r, form.To, "admin-token")
		return
	}
	http.Redirect(w, r, form.To, http.StatusSeeOther)
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, c.cookie(r, "", -1))
	http.Redirect(w, r, root+"/login", http.StatusSeeOther)
}

// cookie returns a cookie that no script reads and no page of another site sends; age is
// in seconds. It holds the token, so it is worth as much: SECURITY.md says why. Over https
// (the browser's Origin tells, behind a proxy too) it is Secure and bound to this host.
// Over plain HTTP, as on loopback, it can be neither.
func (c *Console) cookie(r *http.Request, value string, age int) *http.Cookie {
	cookie := &http.Cookie{Name: cookieName, Value: value, Path: root, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://") {
		cookie.Name, cookie.Path, cookie.Secure = hostCookieName, "/", true
	}
	return cookie
}
