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
	// hostCookieName is the name of the session cookie over HTTPS. Because of the prefix __Host-,
	// browsers accept the cookie only over HTTPS from this host itself, and never from a sibling
	// domain.
	hostCookieName = "__Host-" + cookieName
	// maxTokenBytes is the maximum size of a token. A larger token would not fit into the session
	// cookie.
	maxTokenBytes = 2900
	// cookieMaxAge is the maximum lifetime of the session cookie. A cookie whose token expires
	// earlier also expires earlier.
	cookieMaxAge = 12 * time.Hour
	// adminToken is the name of the client that authenticates by the admin token of the
	// configuration.
	adminToken = "admin-token"
)

// permission reports whether a client is allowed to use a page or action. If it is not allowed,
// "why" is the reason.
type permission func(c *Console, client access.Client) (allowed bool, why string)

func canView(_ *Console, client access.Client) (bool, string) {
	return client.May(access.Inspect), "Your token is not allowed to view the console: it needs the scope inspect or admin."
}

func canAct(c *Console, client access.Client) (bool, string) {
	if c.ReadOnly {
		return false, readOnlyMessage
	}
	return client.May(access.Admin), "Your token may view pages but not change anything: this needs the scope admin."
}

func canRefresh(c *Console, client access.Client) (bool, string) {
	if c.ReadOnly {
		return false, readOnlyMessage
	}
	return client.May(access.Inspect) && client.May(access.Refresh), "Your token may not request a refresh: it needs the scopes inspect and refresh, or admin."
}

const readOnlyMessage = "This console is read-only: no client may change anything."

// identify authenticates a request by a bearer token in the Authorization header, or by the session
// cookie. It ignores other schemes in that header, such as Basic, because a proxy in front of the
// console may use them. If clients must log in, identify rejects a request without a token itself.
// It does not call Guard.Authenticate, because the Guard would count the request as a failed login.
func (c *Console) identify(r *http.Request) (access.Client, error) {
	if !slices.ContainsFunc(r.Header.Values("Authorization"), isBearer) {
		token := cookieToken(r)
		if token == "" && c.Guard.AuthRequired() {
			return access.Client{}, problem.New(http.StatusUnauthorized, problem.TokenMissing, "Log in.")
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

// cookieToken returns the token in the session cookie; empty: there is no cookie. On a TLS
// connection it accepts only the __Host- cookie, because a sibling domain could have set a cookie
// without this prefix. Behind a TLS proxy the connection to this process is plain HTTP. Then both
// cookies are accepted, and the __Host- cookie takes precedence.
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

// signIn checks the permissions of clients of the pages, and has the pages of sign-in and sign-out.
type signIn struct{ *Console }

// authorize returns a handler that authenticates the client, checks its permission and its rate
// limit, parses the form, and then calls h.
func (c *signIn) authorize(allowed permission, h pageHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, err := c.identify(r)
		if err != nil {
			c.identifyFailed(w, r, err)
			return
		}
		if ok, why := allowed(c.Console, client); !ok {
			c.reject(w, r.WithContext(access.WithClient(r.Context(), client)), http.StatusForbidden, why)
			return
		}
		r = r.WithContext(access.WithClient(r.Context(), client))
		if !client.May(access.Admin) { // administrators have no rate limit: they must be able to stop a source at any time
			if err := c.Meters.AllowRequests(client.Name, 1); err != nil {
				c.identifyFailed(w, r, err)
				return
			}
		}
		if status, why := readForm(r); why != "" {
			c.reject(w, r, status, why)
			return
		}
		h(w, r, client)
	})
}

// readForm parses the query and the form. If that fails, it returns the status and the text of the
// response. It rejects a form that is only partly readable, because an incomplete filter would
// select more dead letters than intended.
func readForm(r *http.Request) (status int, why string) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); r.Method == http.MethodPost && r.ContentLength != 0 && kind != "application/x-www-form-urlencoded" {
		return http.StatusUnsupportedMediaType, "The form must have the content type application/x-www-form-urlencoded."
	}
	err := r.ParseForm()
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("The form is larger than %d KiB.", maxFormBytes>>10)
	}
	if err != nil {
		return http.StatusBadRequest, "The URL or the form has invalid encoding. Nothing was changed."
	}
	return 0, ""
}

// identifyFailed responds to a request whose client can't be identified or has exceeded its rate
// limit.
func (c *Console) identifyFailed(w http.ResponseWriter, r *http.Request, err error) {
	status, why := http.StatusServiceUnavailable, "Your token can't be verified at the moment; see the log of this process."
	p, known := errors.AsType[*problem.HTTPError](err)
	if known {
		status, why = p.Status, p.Detail
		if p.After > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(problem.Seconds(p.After)))
		}
	} else {
		c.Log.Error("credential of a console request could not be checked", "err", err)
	}
	page := r.Method == http.MethodGet && !strings.HasPrefix(r.URL.Path, root+"/live")
	switch {
	case page && known && p.Code == problem.CrossSite:
		c.render(w, r, status, "rejected", http.StatusText(status), rejection{
			Reason: "A page of another site opened this URL, and this service requires no login, so the request was not executed.", RetryURL: localPath(r.URL.RequestURI()),
		})
	case status != http.StatusUnauthorized:
		c.reject(w, r, status, why)
	case page:
		http.Redirect(w, r, root+"/login?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
	default:
		c.reject(w, r, status, "Your login has expired. Log in, and repeat the action.")
	}
}

// loginForm is the data of the login page.
type loginForm struct {
	To, Problem string
	// CrossSite is true if a link on another site led to the login page. The browser sends no
	// session cookie with such a request, so the client may be logged in already.
	CrossSite bool
}

func (c *signIn) loginPage(w http.ResponseWriter, r *http.Request) {
	to := localPath(r.FormValue("to"))
	if !c.Guard.AuthRequired() {
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // localPath allows only local paths
		return
	}
	c.render(w, r, http.StatusOK, "login", "Log in", loginForm{To: to, CrossSite: r.Header.Get("Sec-Fetch-Site") == "cross-site"})
}

// localPath returns the path if it belongs to the console. Otherwise it returns the path of the
// overview, so that a login never redirects to another site.
func localPath(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.Scheme != "" || u.Host != "" || u.Opaque != "" || u.Path != root && !strings.HasPrefix(u.Path, root+"/") || strings.Contains(u.Path, "..") {
		return root
	}
	return u.RequestURI()
}

func (c *signIn) login(w http.ResponseWriter, r *http.Request) {
	form := loginForm{To: localPath(r.FormValue("to"))}
	token := strings.TrimSpace(r.PostFormValue("token"))
	authenticated := r.Clone(r.Context())
	authenticated.Header.Set("Authorization", "Bearer "+token)
	client, err := c.identify(authenticated)
	status := http.StatusUnauthorized
	switch p, is := errors.AsType[*problem.HTTPError](err); {
	case len(token) > maxTokenBytes:
		form.Problem = "The token is too long for a cookie. Use an API key."
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
		if ok, why := canView(c.Console, client); !ok {
			status, form.Problem = http.StatusForbidden, why
		}
	}
	if form.Problem != "" {
		c.render(w, r, status, "login", "Log in", form)
		return
	}
	life := cookieMaxAge
	if !client.Expires.IsZero() {
		life = min(life, client.Expires.Sub(c.Clock()))
	}
	http.SetCookie(w, c.cookie(r, base64.RawURLEncoding.EncodeToString([]byte(token)), max(1, int(life/time.Second))))
	if client.Name == adminToken {
		redirectWithNotice(w, r, form.To, "admin-token")
		return
	}
	http.Redirect(w, r, form.To, http.StatusSeeOther)
}

func (c *signIn) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, c.cookie(r, "", -1))
	http.Redirect(w, r, root+"/login", http.StatusSeeOther)
}

// cookie returns the session cookie with this value. maxAge is in seconds. The cookie contains the
// token (see SECURITY.md). Scripts can't read it, and browsers don't send it with requests of other
// sites. If the browser uses HTTPS, the cookie is Secure and bound to this host. Behind a TLS proxy
// the Origin header shows that the browser uses HTTPS. If the browser uses plain HTTP, for example
// on loopback, it would reject a Secure cookie. Then the cookie is neither Secure nor bound.
func (c *signIn) cookie(r *http.Request, value string, maxAge int) *http.Cookie {
	cookie := &http.Cookie{Name: cookieName, Value: value, Path: root, MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://") {
		cookie.Name, cookie.Path, cookie.Secure = hostCookieName, "/", true
	}
	return cookie
}
