package credits

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

const (
	actionGrant = "credits-grant"
	actionVoid  = "credits-void"

	defaultPage, maxPage = 100, 1000 // default and maximum number of accounts on one page
	maxClientSize        = 512       // maximum length of a client's name in bytes
	maxGrantTTL          = 10 * 366 * 24 * time.Hour
)

// Handler returns the admin API of credits, for the path /admin/v1/credits and all paths below it. The
// caller must have checked the scope admin.
func (s *Service) Handler() http.Handler {
	return admin.API{
		Paths: map[string]map[string]admin.Handle{
			"/admin/v1/credits":             {http.MethodGet: s.list},
			"/admin/v1/credits/account":     {http.MethodGet: s.show},
			"/admin/v1/credits/verify":      {http.MethodGet: s.verify},
			"/admin/v1/credits/grants":      {http.MethodPost: s.grant},
			"/admin/v1/credits/grants/{id}": {http.MethodDelete: s.void},
		},
		Explain: func(err error) *problem.HTTPError {
			switch {
			case errors.Is(err, ErrNoAccount):
				return problem.New(http.StatusNotFound, problem.NoSuchCredits, "The client has no credits yet. GET /admin/v1/credits lists the clients.")
			case errors.Is(err, ErrNoGrant):
				return problem.New(http.StatusNotFound, problem.NoSuchCredits, "There is no such grant, or it is voided. GET /admin/v1/credits/account lists the grants of a client.")
			}
			return nil
		},
		Unavailable: "Credits can't be read or written now. The query service's log has the reason. After an upgrade, run `freshet migrate up`.",
		CrossSite:   "A page of another site may not change credits.",
		Log:         s.log,
	}.Handler()
}

// Page is a part of the list of accounts. Next is the client after which the next page begins; nil: this
// page is the last.
type Page struct {
	Accounts []Account `json:"accounts"`
	Next     *string   `json:"next"`
}

func (s *Service) list(r *http.Request) (admin.Answer, error) {
	limit := defaultPage
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			return admin.Answer{}, problem.New(http.StatusBadRequest, problem.BadLimit, fmt.Sprintf("limit must be a number from 1 to %d.", maxPage))
		}
		limit = n
	}
	all, err := s.ledger.Accounts(r.Context(), r.URL.Query().Get("after"), limit)
	page := Page{Accounts: all}
	if len(all) == limit {
		page.Next = &all[limit-1].Client
	}
	return admin.Answer{Body: page}, err
}

func (s *Service) show(r *http.Request) (admin.Answer, error) {
	d, err := s.ledger.Details(r.Context(), r.URL.Query().Get("client"))
	return admin.Answer{Body: d}, err
}

// Verification is the result of Ledger.Verify.
type Verification struct {
	Accounts   int        `json:"accounts"`
	Mismatches []Mismatch `json:"mismatches"`
}

func (s *Service) verify(r *http.Request) (admin.Answer, error) {
	n, wrong, err := s.ledger.Verify(r.Context())
	return admin.Answer{Body: Verification{n, wrong}}, err
}

// NewGrant is the request body that grants credits.
type NewGrant struct {
	Client string `json:"client"`
	Amount int64  `json:"amount"`
	// ExpiresIn is the lifetime of the grant in days or hours, as in 90d or 12h; empty: it does not expire.
	ExpiresIn string `json:"expiresIn,omitempty"`
	Note      string `json:"note,omitempty"`
}

func (s *Service) grant(r *http.Request) (admin.Answer, error) {
	var g NewGrant
	if err := admin.DecodeBody(r.Body, &g, `; the body must be {"client":"key:…","amount":100,"expiresIn":"30d","note":"…"}, where expiresIn and note are optional`); err != nil {
		return admin.Answer{}, err
	}
	ttl, err := g.check()
	if err != nil {
		return admin.Answer{}, problem.Body(err)
	}
	made := Grant{Client: g.Client, Amount: g.Amount, CreatedBy: s.actor(r), Note: g.Note}
	if ttl > 0 {
		end := s.now().UTC().Truncate(time.Microsecond).Add(ttl)
		made.ExpiresAt = &end
	}
	made, err = s.ledger.Grant(r.Context(), made, func(g Grant) store.AuditEntry { return auditEntry(actionGrant, g.CreatedBy, g.CreatedAt, nil, &g) })
	return admin.Answer{Status: http.StatusCreated, Body: made}, err
}

// check returns the lifetime of the grant; 0: it does not expire.
func (g NewGrant) check() (ttl time.Duration, err error) {
	isName := strings.HasPrefix(g.Client, "key:") || strings.HasPrefix(g.Client, "jwt:")
	if !isName || len(g.Client) > maxClientSize || !utf8.ValidString(g.Client) || strings.ContainsFunc(g.Client, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return 0, errors.New("client must be the name of a client, as in \"key:<id> <name>\" or \"jwt:<sub>\"; `freshet credits show` and `freshet keys list` show them")
	}
	if g.Amount < 1 || g.Amount > maxAmount {
		return 0, fmt.Errorf("amount is %d; it must be from 1 to %d", g.Amount, int64(maxAmount))
	}
	if err := admin.CheckNote(g.Note); err != nil {
		return 0, err
	}
	if g.ExpiresIn == "" {
		return 0, nil
	}
	number, inDays := strings.CutSuffix(g.ExpiresIn, "d")
	if days, err := strconv.Atoi(number); inDays && err == nil && days > 0 && days <= int(maxGrantTTL/(24*time.Hour)) {
		return time.Duration(days) * 24 * time.Hour, nil
	}
	if ttl, err = time.ParseDuration(g.ExpiresIn); err != nil || ttl < time.Minute || ttl > maxGrantTTL {
		return 0, fmt.Errorf("expiresIn is %.20q; it must be from a minute to ten years, as in 90d or 12h", g.ExpiresIn)
	}
	return ttl, nil
}

func (s *Service) void(r *http.Request) (admin.Answer, error) {
	actor := s.actor(r)
	g, err := s.ledger.Void(r.Context(), r.PathValue("id"), func(g Grant) store.AuditEntry {
		return auditEntry(actionVoid, actor, s.now(), &g, nil)
	})
	return admin.Answer{Body: g}, err
}

// auditEntry returns the audit entry of a grant that is created or voided. `before` is the grant before
// the change and `after` the grant after it; nil: there is none.
func auditEntry(action, actor string, at time.Time, before, after *Grant) store.AuditEntry {
	text := func(g *Grant) json.RawMessage {
		if g == nil {
			return json.RawMessage("{}")
		}
		text, err := json.Marshal(g)
		if err != nil {
			panic(err) // encoding a type of this package can't fail
		}
		return text
	}
	return store.AuditEntry{At: at, Actor: actor, Action: action, Before: text(before), After: text(after)}
}
