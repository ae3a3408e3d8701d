package entities

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// Entities manages the registrations of all sources. Its methods may be called concurrently.
type Entities struct{ Deps }

// New returns an Entities with these dependencies.
func New(deps Deps) *Entities { return &Entities{deps} }

// Handler returns the handler of the admin API: /admin/v1/entities…, /admin/v1/snapshots….
func (s *Entities) Handler() http.Handler {
	const all = "/admin/v1/entities"
	state := func(r *http.Request) (admin.Answer, error) { return readState(s.Deps, r) }
	return admin.API{
		Paths: map[string]map[string]admin.Handle{
			all:              {http.MethodGet: s.list, http.MethodPost: s.register},
			all + "/count":   {http.MethodGet: s.count},
			all + "/enable":  {http.MethodPost: s.enableHandler(true)},
			all + "/disable": {http.MethodPost: s.enableHandler(false)},
			all + "/pin":     {http.MethodPost: s.pinHandler(true)},
			all + "/unpin":   {http.MethodPost: s.pinHandler(false)},
			"/admin/v1/snapshots/{source}/{facet}/{key}": {http.MethodGet: state, http.MethodDelete: s.deleteSnapshot},
		},
		// These bodies contain many keys, so their maximum size is larger than that of other
		// bodies. A key has up to 256 bytes, and JSON may escape each byte.
		Bodies:      map[string]int64{all: maxBodyBytes, all + "/enable": maxBodyBytes, all + "/disable": maxBodyBytes, all + "/pin": maxBodyBytes, all + "/unpin": maxBodyBytes},
		Explain:     func(error) *problem.HTTPError { return nil },
		Unavailable: "The entities can't be read or written at the moment; see the log of the query service. After an upgrade, run `freshet migrate up`.",
		CrossSite:   "A cross-site request may not change registrations or snapshots.",
		Log:         s.Log,
	}.Handler()
}

var tiers = []string{"hot", "warm", "cold"} // names of the tiers; the index is the prefetched.Tier

// tierOf parses the name of a tier.
func tierOf(word string) (prefetched.Tier, error) {
	i := slices.Index(tiers, word)
	if i < 0 {
		return 0, fmt.Errorf("the tier %.20q must be hot, warm or cold", word)
	}
	return prefetched.Tier(i), nil
}

// Entity is a registered entity in a response of the admin API, as JSON.
type Entity struct {
	Source  string            `json:"source"`
	Facet   string            `json:"facet"`
	Key     string            `json:"key"`
	Params  map[string]string `json:"params"`
	Tier    string            `json:"tier"`
	Pinned  bool              `json:"pinned"` // true: reads do not change the tier of the entity
	Enabled bool              `json:"enabled"`
	DueAt   time.Time         `json:"dueAt"`
	// Reads and Changes are weighted counts: an old read or change counts less than a recent one.
	// WatchedSeconds is the sum of the times between consecutive checks of the entity. Old times
	// count less in this sum, too.
	Reads          float64    `json:"reads"`
	LastReadAt     *time.Time `json:"lastReadAt"` // time of the last read; nil: the entity was never read
	Changes        float64    `json:"changes"`
	WatchedSeconds float64    `json:"watchedSeconds"`
}

func entityOf(r prefetched.RegisteredEntity) Entity {
	e := Entity{
		Source: r.Entity.Source, Facet: r.Entity.Facet, Key: r.Entity.Key, Params: r.Params,
		Tier: tiers[r.Tier], Pinned: r.Pinned, Enabled: r.Enabled, DueAt: r.Due.UTC(),
		Reads: r.History.Reads, Changes: r.History.Changes, WatchedSeconds: r.History.Watched.Seconds(),
	}
	if e.Params == nil {
		e.Params = map[string]string{}
	}
	if at := r.History.ReadAt; !at.IsZero() {
		at = at.UTC()
		e.LastReadAt = &at
	}
	return e
}

// findSource returns a configured source, or a 404 problem.
func findSource(sources map[string]Source, name string) (Source, error) {
	src, known := sources[name]
	if !known {
		return src, problem.New(http.StatusNotFound, problem.NoSuchSource, fmt.Sprintf("There is no source %.80q. The configuration names the sources.", name))
	}
	return src, nil
}

// checkFacet returns a 404 problem if the source has no such facet. An empty facet is accepted.
func (src Source) checkFacet(source, facet string) error {
	if _, known := src.Facets[facet]; !known && facet != "" {
		return problem.New(http.StatusNotFound, problem.NoSuchFacet,
			fmt.Sprintf("Source %s has no facet %.80q; it has %s.", source, facet, strings.Join(slices.Sorted(maps.Keys(src.Facets)), ", ")))
	}
	return nil
}

// checkParams returns an error if the facet does not use one of the params. Such a param has no
// effect and is probably a misspelled column of an import.
func (src Source) checkParams(facet string, params map[string]string) error {
	has := src.Facets[facet]
	for _, name := range slices.Sorted(maps.Keys(params)) {
		switch {
		case slices.Contains(has, name):
		case len(has) == 0:
			return fmt.Errorf("the facet has no param %s; it has none", name)
		default:
			return fmt.Errorf("the facet has no param %s; it has %s", name, strings.Join(has, ", "))
		}
	}
	return nil
}

// cursorOf encodes an entity as the cursor of the page that follows it. Zero bytes separate source,
// facet and key, because names and keys contain no control characters.
func cursorOf(e schemas.Entity) *string {
	text := base64.RawURLEncoding.EncodeToString([]byte(e.Source + "\x00" + e.Facet + "\x00" + e.Key))
	return &text
}

// readCursor decodes a cursor. An empty cursor is the start of the list.
func readCursor(text string) (e schemas.Entity, err error) {
	if text == "" {
		return e, nil
	}
	plain, err := base64.RawURLEncoding.DecodeString(text)
	parts := strings.Split(string(plain), "\x00")
	if err == nil && len(parts) == 3 {
		e = schemas.Entity{Source: parts[0], Facet: parts[1], Key: parts[2]}
		if e.Check() == nil {
			return e, nil
		}
	}
	return e, problem.New(http.StatusBadRequest, problem.BadCursor, "after must be the value of next in an earlier response; leave it out to start from the beginning.")
}

// entry returns the audit entry of an action. "after" describes the change. The entry has no
// previous values, because an action may change millions of entities.
func (s *Entities) entry(r *http.Request, action, source string, after any) store.AuditEntry {
	text, err := json.Marshal(after)
	if err != nil {
		panic(err) // our own types can always be encoded as JSON
	}
	return store.AuditEntry{
		At: s.Now().UTC().Truncate(time.Microsecond), Actor: s.Actor(r), Action: action, Source: source,
		Before: json.RawMessage("{}"), After: text,
	}
}
